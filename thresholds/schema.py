"""The sections of a hardware file as pydantic models; what one section cannot know is in rules.py."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    field_validator,
)

from thresholds.selectors import READERS, Selector
from thresholds.units import ARITHMETIC, COLLECTIVES, INSIDE_LINKS, METRICS, PATHS, is_finite, parse_size

MOST_GIGABYTES = 100_000
FABRICS = ("infiniband", "roce", "efa", "ethernet", "loopback")


def _known(names: tuple[str, ...]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"{name!r} is not known; write one of: {', '.join(names)}")
        return name

    return check


def _as_list(raw: object) -> object:
    return [raw] if isinstance(raw, str) else raw


def _rising(sizes: list[int]) -> list[int]:
    if sorted(set(sizes)) != sizes:
        raise ValueError("write each size once, the smallest first")
    return sizes


def _of_words(sizes: list[int]) -> list[int]:
    if any(size % 8 for size in sizes):
        raise ValueError("write sizes of whole words, multiples of 8B: the payload is 64-bit integers")
    return sizes


def _says_something(text: str) -> str:
    if len([letter for letter in text if letter.isalnum()]) < 4:
        raise ValueError(f"{text!r} says nothing; write a sentence, or repository@commit and path")
    return text


def _rate(raw: object) -> float | str:
    if raw == "measured":
        return "measured"
    if not is_finite(raw) or not 0 < raw <= MOST_GIGABYTES:
        raise ValueError(f'{raw!r} is no line rate; write GB/s (400 Gb/s are 50.0), or "measured"')
    return float(raw)


def _fact(raw: object) -> str | int:
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise ValueError(f"{raw!r} is no fact to recognise hardware by; write a text or a whole number")
    return raw


def _facts(raw: object) -> tuple[str | int, ...]:
    found = tuple(_fact(one) for one in (raw if isinstance(raw, list) else [raw]))
    if not found:
        raise ValueError("an empty list matches nothing; write a text, a whole number or a list of them")
    return found


def _version(text: str) -> str:
    if not re.fullmatch(r"(>=)? ?[0-9]+([.][0-9a-z+-]+)*", text):
        raise ValueError(
            f'{text!r} is no version; write "570.86.15" for this one, ">=570.86" for it or later'
        )
    return text


def _reader(name: str) -> PlainValidator:
    return PlainValidator(READERS[name])


Sentence = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_says_something)]
FileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=64)]
LowerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Size = Annotated[int, PlainValidator(parse_size)]
Sizes = Annotated[list[Size], Field(min_length=1, max_length=64), AfterValidator(_rising)]
Gigabytes = Annotated[float, Field(gt=0, le=MOST_GIGABYTES, allow_inf_nan=False)]
Inside = Annotated[float | str, PlainValidator(_rate)]
Facts = Annotated[tuple[str | int, ...], PlainValidator(_facts)]
Version = Annotated[str, Field(max_length=64), AfterValidator(_version)]
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^\S+( \S+)*$")]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
MetricName = Annotated[str, AfterValidator(_known(tuple(METRICS)))]
MetricNames = Annotated[list[MetricName], Field(min_length=1), BeforeValidator(_as_list)]


class Section(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class HardwareSection(Section):
    """[hardware]: what this file is about; `inside` alone is inherited from the file that it `extends`.

    `part`: it is only there to be extended. `with` names files of other hardware: worlds that have nodes of
    both are judged by this one.
    """

    name: FileName
    about: Sentence
    inside: Annotated[str, AfterValidator(_known(INSIDE_LINKS))] | None = None
    judges: Sentence | None = None
    auto: bool = True
    part: bool = False
    extends: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    judges_with: Annotated[list[FileName], Field(alias="with")] = []


class ExpectSection(Section):
    """[expect]: what every node must have; a version stands for itself, or with >= for any later one too."""

    gpus_per_node: Count | None = None
    gpu_memory_mib: Count | None = None
    nvlinks_per_gpu: Count | None = None
    nvlink_gigabytes_per_s: Gigabytes | None = None
    nvswitches: Count | None = None
    fabric_manager: Word | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    ecc_enabled: bool | None = None
    most_ecc_uncorrected: Count | None = None
    most_remapped_uncorrectable: Count | None = None
    persistence: bool | None = None
    nics_per_node: Count | None = None
    nic_gigabits_per_s: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] | None = None
    nic_link_layer: Word | None = None
    nic_state: Word | None = None
    nic_mtu: Count | None = None
    efa_devices: Count | None = None
    peermem: Word | None = None
    nic_firmware: Version | None = None
    driver: Version | None = None
    vbios: Word | None = None
    cuda: Version | None = None
    nccl: Version | None = None
    rocm: Version | None = None
    libfabric: Version | None = None
    aws_ofi_nccl: Version | None = None
    torch: Version | None = None
    iommu: Word | None = None
    acs: Word | None = None
    memory_gib: Count | None = None
    memlock_unlimited: bool | None = None
    hugepages: Count | None = None
    governor: Word | None = None
    shm_gib: Count | None = None


class LineRateSection(Section):
    """[line_rate]: GB/s per direction and rank, or for `network_per_node` of all ranks of a node together."""

    nvlink: Inside | None = None
    xgmi: Inside | None = None
    pcie: Inside | None = None
    memory: Inside | None = None
    network: Gigabytes | None = None
    network_per_node: Gigabytes | None = None
    network_burst: Size = 0
    nvls: bool = False
    sharp: bool = False


class SweepSection(Section):
    """[sweep]: which sizes are measured, and which of them are judged."""

    bandwidth: Sizes
    plateau: Sizes
    latency: Sizes
    iterations: Annotated[int, Field(ge=10, le=10_000)] = 20


_Length = Annotated[int, Field(ge=1, le=1 << 20)]


class LayerSection(Section):
    """What an expert layer moves: tokens of a rank, their width, and how many experts each has."""

    tokens: _Length
    hidden: Annotated[int, Field(ge=8, le=1 << 17, multiple_of=8)]  # rows of bf16 in words of 16 bytes
    top_k: Annotated[int, Field(ge=1, le=16)]  # two ranks of the steps have 16 experts


class ExpertsSection(Section):
    """[experts]: sizes of expert dispatch (training, and decoding) and of M-to-N exchanges."""

    normal: LayerSection
    low_latency: LayerSection
    m2n: Annotated[Sizes, AfterValidator(_of_words)]
    source: Sentence


class RowSection(Section):
    """What [[limit]] and [[gap]] have in common: the metric, and the selectors that a case must match."""

    metric: MetricNames
    collective: Annotated[Selector | None, _reader("collective")] = None
    path: Annotated[Selector | None, _reader("path")] = None
    nodes: Annotated[Selector | None, _reader("nodes")] = None
    ranks_per_node: Annotated[Selector | None, _reader("ranks_per_node")] = None
    size: Annotated[Selector | None, _reader("size")] = None
    dtype: Annotated[Selector | None, _reader("dtype")] = None
    algorithm: Annotated[Selector | None, _reader("algorithm")] = None
    step: Annotated[Selector | None, _reader("step")] = None

    def selectors(self) -> dict[str, Selector]:
        """The selectors that the row has, by name."""
        found = {name: getattr(self, name) for name in READERS}
        return {name: selector for name, selector in found.items() if selector is not None}


class LimitSection(RowSection):
    """[[limit]]: a figure that a case is held to, and where it comes from."""

    min: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    min_of_bound: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    source: Sentence
    date: datetime.date
    derived: bool = False
    min_samples: Annotated[int, Field(ge=1, le=10_000)] = 10


class GapSection(RowSection):
    """[[gap]]: cases that nobody published a figure for."""

    reason: Sentence


_Env = Annotated[dict[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], str], Field()]


class Loose(Section):
    """The tables whose keys the file chooses: [match], [env] and [absent]."""

    match: Annotated[dict[LowerName, Facts], Field(min_length=1)] | None = None
    env: _Env | None = None

    absent: (
        dict[Annotated[str, AfterValidator(_known((*PATHS, *COLLECTIVES, *ARITHMETIC)))], Sentence] | None
    ) = None

    @field_validator("match")
    @classmethod
    def _one_fabric(
        cls, match: dict[str, tuple[str | int, ...]] | None
    ) -> dict[str, tuple[str | int, ...]] | None:
        """What the data must have crossed is held against it, so it is one word that is known."""
        fabric = (match or {}).get("fabric", FABRICS[:1])
        if len(fabric) != 1 or fabric[0] not in FABRICS:
            raise ValueError(f"fabric is one of: {', '.join(FABRICS)}")
        return match


TABLES: dict[str, type[Section]] = {
    "hardware": HardwareSection,
    "expect": ExpectSection,
    "line_rate": LineRateSection,
    "sweep": SweepSection,
    "experts": ExpertsSection,
}
ROWS: dict[str, type[RowSection]] = {"limit": LimitSection, "gap": GapSection}
LOOSE = tuple(Loose.model_fields)
SECTIONS = (*TABLES, *LOOSE, *ROWS)
REQUIRED = ("hardware", "match", "line_rate", "sweep")

Raw = dict[str, Any]
