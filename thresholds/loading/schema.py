"""The sections of a hardware file as pydantic models; rules between sections are in rules.py."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from thresholds.environment import permitted
from thresholds.hardware import Beyond, Experts, Model
from thresholds.loading.fields import (
    Count,
    Facts,
    FileName,
    Gigabytes,
    Inside,
    LowerName,
    MetricNames,
    Section,
    Sentence,
    Size,
    Sizes,
    Version,
    Word,
    known,
)
from thresholds.peers import Rules
from thresholds.selectors import READERS, Selector
from thresholds.units import ARITHMETIC, COLLECTIVES, INSIDE_LINKS, PATHS

FABRICS = ("infiniband", "roce", "efa", "ethernet", "loopback")
_Fabric = Annotated[str, AfterValidator(known(FABRICS))]


def _reader(name: str) -> PlainValidator:
    return PlainValidator(READERS[name])


class HardwareSection(Section):
    """[hardware]: what this file is about; `inside` and `shared` are inherited where it `extends` another.

    `part`: it only serves to be extended. `with` names files of other hardware: worlds with nodes of both are
    judged by this one. `shared` says which other programs run on such machines.
    """

    name: FileName
    about: Sentence
    inside: Annotated[str, AfterValidator(known(INSIDE_LINKS))] | None = None
    judges: Sentence | None = None
    shared: Sentence | None = None
    auto: bool = True
    part: bool = False
    extends: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    judges_with: list[FileName] = Field([], alias="with")


class ExpectSection(Section):
    """[expect]: what every node must have; a version is exact, or a minimum with >=."""

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
    kernel_log: Literal["unread"] | None = None
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
    mnnvl: Gigabytes | None = None
    network: Gigabytes | None = None
    network_per_node: Gigabytes | None = None
    network_burst: Size = 0
    switch: bool = False
    nvls: bool = False
    sharp: bool = False


_Iterations = Annotated[int, Field(ge=10, le=10_000)]


class SweepSection(Section):
    """[sweep]: which sizes are measured, which of them are judged, and how many iterations each gets."""

    bandwidth: Sizes
    plateau: Sizes
    latency: Sizes
    iterations: _Iterations = 20
    tail_iterations: _Iterations | None = None


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
    """[[limit]]: the limit of a case, and where it comes from."""

    min: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    min_of_bound: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    source: Sentence
    date: datetime.date
    derived: bool = False
    min_samples: Annotated[int, Field(ge=1, le=10_000)] = 10
    loose: Sentence | None = None
    fabrics: Annotated[list[_Fabric], Field(min_length=1)] | None = None


class GapSection(RowSection):
    """[[gap]]: cases that nobody published a figure for."""

    reason: Sentence


_Match = dict[str, tuple[str | int, ...]]


def _one_fabric(match: _Match) -> _Match:
    """The transport that carried the data is compared with it, so it must be one known word."""
    fabric = match.get("fabric", FABRICS[:1])
    if len(fabric) != 1 or fabric[0] not in FABRICS:
        raise ValueError(f"fabric is one of: {', '.join(FABRICS)}")
    return match


_Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
_Absent = Annotated[str, AfterValidator(known((*PATHS, *COLLECTIVES, *ARITHMETIC)))]


class Tables(Section):
    """The tables of a file that were found good; None, or empty, where there is none."""

    hardware: HardwareSection | None = None
    expect: ExpectSection = ExpectSection()
    line_rate: LineRateSection | None = None
    sweep: SweepSection | None = None
    experts: Experts | None = None
    model: Model | None = None
    peers: Rules | None = None
    beyond: Beyond | None = None
    match: Annotated[dict[LowerName, Facts], AfterValidator(_one_fabric)] = Field({}, min_length=1)
    env: Annotated[dict[_Variable, str], AfterValidator(permitted)] = Field({})
    absent: dict[_Absent, Sentence] = Field({})


TABLES = tuple(Tables.model_fields)
ROWS: dict[str, type[RowSection]] = {"limit": LimitSection, "gap": GapSection}
SECTIONS = (*TABLES, *ROWS)
REQUIRED = ("hardware", "match", "line_rate", "sweep")

Raw = dict[str, Any]
