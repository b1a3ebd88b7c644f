"""`--hardware auto` finds one file, or says field by field why none fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.each import each
from tests.thresholds.files import GOOD, recognise, whole
from thresholds.hardware import Hardware
from thresholds.loading import load
from thresholds.loading.faults import HardwareFileError
from thresholds.match import Facts, RecogniseError, choose

H100: dict[str, str | int] = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 8, "fabric": "infiniband"}


def files(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{number}.toml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_shipped_hardware_is_recognised_and_a_missing_gpu_is_no_other_hardware() -> None:
    assert recognise(H100).name == "h100-sxm5-ndr400"
    assert recognise({**H100, "gpu_count": 7}).name == "h100-sxm5-ndr400"
    alone: Facts = {"gpu": "none", "gpu_count": 0, "fabric": "loopback"}
    assert recognise(alone).name == "cpu-local"


@each(
    ("facts", "name"),
    [
        ({"gpu": "NVIDIA H100 80GB HBM3", "nic_gigabits_per_s": 400}, "h100-roce400"),
        ({"gpu": "NVIDIA H100 80GB HBM3", "nic_gigabits_per_s": 200, "nics": 18}, "oci-h100"),
        ({"gpu": "NVIDIA H100 80GB HBM3", "nic_gigabits_per_s": 200, "nics": 13}, "oci-h100"),
        # 8 ports are not Oracle's: this file expects 400 of each, and says so
        ({"gpu": "NVIDIA H100 80GB HBM3", "nic_gigabits_per_s": 200, "nics": 10}, "h100-roce400"),
        ({"gpu": "NVIDIA H200", "nic_gigabits_per_s": 400}, "h200-roce400"),
        ({"gpu": "NVIDIA H200", "nic_gigabits_per_s": 400, "vendor": "Google"}, "gcp-a3-ultra"),
        ({"gpu": "NVIDIA B300 SXM6 AC", "nic_gigabits_per_s": 400, "nics": 18}, "b300-roce800"),
        ({"gpu": "NVIDIA B300 SXM6 AC", "fabric": "efa", "product": "p6-b300.48xlarge"}, "aws-p6-b300"),
        ({"gpu": "NVIDIA B200", "fabric": "efa", "product": "p6-b200.48xlarge"}, "aws-p6-b200"),
    ],
)
def test_nodes_of_one_board_are_told_apart_by_fabric_and_cloud(facts: Facts, name: str) -> None:
    assert recognise({"fabric": "roce", "gpu_count": 8, **facts}).name == name


EIGHT = [file for file in whole().values() if file.auto and file.expect.get("gpus_per_node") == 8]


@each("file", EIGHT)
def test_half_a_board_is_another_machine_and_one_that_lost_less_is_still_this_one(file: Hardware) -> None:
    """A board of 4 GPUs is sold, too. Who names the file has a node rejected that lost more."""
    facts = {name: str(words[0]).replace("*", "") for name, words in file.match.items()}
    known: Facts = {**facts, "netdevs": int(facts.get("netdevs", "8..8")[0]), "nics": 16}
    for count in (5, 7, 8):
        assert recognise({**known, "gpu_count": count}).name == file.name
    with pytest.raises(RecogniseError, match=r"gpu_count must be 5\.\.8, and is 4"):
        recognise({**known, "gpu_count": 4})
    assert choose({**known, "gpu_count": 4}, [file]) is file


def test_the_lab_is_never_chosen_and_is_recognised_when_named() -> None:
    facts: dict[str, str | int] = {"gpu": "none", "gpu_count": 0, "fabric": "ethernet"}
    with pytest.raises(RecogniseError, match="lab-200mbit: chosen by name only"):
        recognise(facts)
    assert recognise(facts, [load.shipped()["lab-200mbit"]]).name == "lab-200mbit"


def test_no_match_is_explained_field_by_field() -> None:
    with pytest.raises(RecogniseError) as caught:
        recognise({"gpu": "NVIDIA H100 PCIe"})
    text = str(caught.value)
    assert "no hardware file matches (gpu = NVIDIA H100 PCIe)" in text
    assert "gpu must be NVIDIA H100 80GB HBM3, and is NVIDIA H100 PCIe" in text
    assert "fabric must be infiniband, and the nodes did not say" in text


def test_a_file_that_was_named_says_what_it_is_for_and_what_the_node_shows() -> None:
    named = [load.shipped()["h100-sxm5-ndr400"]]
    with pytest.raises(RecogniseError) as caught:
        recognise({"gpu": "none", "gpu_count": 0, "fabric": "infiniband"}, named)
    assert str(caught.value) == (
        "h100-sxm5-ndr400 is for other hardware: gpu must be NVIDIA H100 80GB HBM3, and is none; "
        "name another file, or look for what is missing"
    )


def test_nothing_said_matches_nothing() -> None:
    with pytest.raises(RecogniseError, match="matches \\(nothing\\)"):
        recognise({})
    with pytest.raises(RecogniseError):
        recognise(H100, [])


def test_case_does_not_matter_and_a_star_stands_for_any_text(tmp_path: Path) -> None:
    paths = files(tmp_path, GOOD.replace('"Some GPU"', '"some *[80GB]"'))
    assert recognise({"gpu": "SOME Thing [80gb]", "fabric": "InfiniBand"}, paths).name == "small"
    with pytest.raises(RecogniseError):
        recognise({"gpu": "some 8", "fabric": "infiniband"}, paths)


def test_a_broken_file_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = dict(enumerate(files(tmp_path, GOOD, "broken")))
    monkeypatch.setattr(load, "shipped", lambda: shipped)
    with pytest.raises(HardwareFileError, match=r"1\.toml:1"):
        load.hardware_files("auto", tmp_path)
