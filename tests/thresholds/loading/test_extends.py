"""A file that extends others is what they all say together, and every fault is named where it stands."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import tomllib

from tests.each import each
from tests.thresholds.files import recognise, row
from thresholds.hardware import Hardware
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import hardware_files, load, load_whole, shipped
from thresholds.match import RecogniseError

BOARD = """\
[hardware]
name = "board"
about = "two GPUs and nothing around them"
part = true
inside = "nvlink"

[match]
gpu = "Some GPU"

[expect]
gpus_per_node = 2

[line_rate]
nvlink = 450.0
"""
BOARD += row(["busbw", "busbw_mean"], "min_of_bound = 0.7", path="nvlink", nodes=1)
BOARD += row("busbw", "min_of_bound = 0.8", path="network", nodes=">=2")
INSIDE, ACROSS = 16, 24  # the lines of the board's rows
CHILD = """\
[hardware]
name = "child"
about = "the board with a fabric"
extends = "./board.toml"

[match]
fabric = "infiniband"

[line_rate]
network = 50.0

[sweep]
bandwidth = ["1MiB", "8GiB"]
plateau = ["8GiB"]
latency = ["16KiB"]
"""
OWN_ROW = row("busbw", "min_of_bound = 0.9", path="nvlink", nodes=1)
OWN = CHILD.count("\n") + 2


def written(folder: Path, child: str = CHILD, board: str = BOARD, **others: str) -> Path:
    for name, text in {"child": child, "board": board, **others}.items():
        (folder / f"{name}.toml").write_text(text)
    return folder / "child.toml"


def faults(path: Path) -> list[str]:
    with pytest.raises(HardwareFileError) as refused:
        load(path)
    return [str(fault).removeprefix(f"{path.parent}/") for fault in refused.value.faults]


def rows(hardware: Hardware) -> list[tuple[tuple[str, ...], float, str]]:
    return [(limit.metrics, limit.value, limit.where) for limit in hardware.limits]


def test_tables_are_merged_key_by_key_and_rows_follow(tmp_path: Path) -> None:
    hardware = load(written(tmp_path))
    assert (hardware.name, hardware.inside, hardware.part) == ("child", "nvlink", False)
    assert hardware.match == {"gpu": ("Some GPU",), "fabric": ("infiniband",)}
    assert hardware.line_rate.links == {"nvlink": 450.0, "network": 50.0}
    assert hardware.expect == {"gpus_per_node": 2}
    assert rows(hardware) == [
        (("busbw", "busbw_mean"), 0.7, f"board.toml:{INSIDE}"),
        (("busbw",), 0.8, f"board.toml:{ACROSS}"),
    ]
    assert [path.name for path in hardware.extends] == ["board.toml"]


def test_a_file_that_many_extend_is_parsed_once_until_it_changes(tmp_path: Path) -> None:
    others = [CHILD.replace('"child"', f'"{name}"') for name in ("second", "third")]
    path = written(tmp_path, second=others[0], third=others[1])
    with mock.patch("tomllib.loads", wraps=tomllib.loads) as parsed:
        files = [load(path.with_name(f"{name}.toml")) for name in ("child", "second", "third")]
        assert parsed.call_count == 4
        changed = load(written(tmp_path, board=BOARD.replace("450.0", "400.0")))
    assert parsed.call_count == 5
    assert [file.line_rate.links["nvlink"] for file in (*files, changed)] == [450.0] * 3 + [400.0]


def test_what_stands_nearer_goes_before(tmp_path: Path) -> None:
    child = CHILD.replace("network = 50.0", "network = 50.0\nnvlink = 300.0").replace(
        'fabric = "infiniband"', 'gpu = "Other GPU"'
    )
    hardware = load(written(tmp_path, child))
    assert hardware.line_rate.links["nvlink"] == 300.0
    assert hardware.match == {"gpu": ("Other GPU",)}


def test_a_row_with_the_same_selectors_replaces_metric_by_metric(tmp_path: Path) -> None:
    assert rows(load(written(tmp_path, CHILD + OWN_ROW))) == [
        (("busbw",), 0.9, f"child.toml:{OWN}"),
        (("busbw_mean",), 0.7, f"board.toml:{INSIDE}"),
        (("busbw",), 0.8, f"board.toml:{ACROSS}"),
    ]


def test_a_gap_with_a_reason_takes_a_row_away(tmp_path: Path) -> None:
    gap = (
        '[[gap]]\nmetric = "busbw"\npath = "network"\nnodes = ">=2"\nreason = "nobody measured this fabric"\n'
    )
    hardware = load(written(tmp_path, CHILD + gap))
    assert [where for _, _, where in rows(hardware)] == [f"board.toml:{INSIDE}"]
    assert [gap.reason for gap in hardware.gaps] == ["nobody measured this fabric"]
    grandchild = CHILD.replace('"child"', '"grand"').replace("./board", "./child")
    limit = OWN_ROW.replace('"nvlink"', '"network"').replace("nodes = 1", 'nodes = ">=2"')
    written(tmp_path, CHILD + gap, grand=grandchild + limit)
    found = load(tmp_path / "grand.toml")
    assert found.gaps == ()
    assert (("busbw",), 0.9, f"grand.toml:{OWN}") in rows(found)


def test_what_a_file_declares_absent_takes_inherited_rows_away(tmp_path: Path) -> None:
    absent = '\n[absent]\nnetwork = "this is one machine alone"\n'
    assert [where for _, _, where in rows(load(written(tmp_path, CHILD + absent)))] == [
        f"board.toml:{INSIDE}"
    ]
    own = OWN_ROW.replace('"nvlink"', '"network"').replace("nodes = 1", 'nodes = ">=2"')
    assert any(
        "path network is declared absent" in fault
        for fault in faults(written(tmp_path, CHILD + absent + own))
    )
    assert any(
        fault.startswith(f"board.toml:{ACROSS}: path network is declared absent")
        for fault in faults(written(tmp_path, board=BOARD + absent))
    )


def test_several_levels(tmp_path: Path) -> None:
    grand = '[hardware]\nname = "grand"\nabout = "a site of the child"\nextends = "child.toml"\n'
    written(tmp_path, grand=grand + '[env]\nNCCL_IB_HCA = "x"\n')
    hardware = load(tmp_path / "grand.toml")
    assert [path.name for path in hardware.extends] == ["child.toml", "board.toml"]
    assert (hardware.inside, hardware.sweep.plateau, hardware.env) == (
        "nvlink",
        (8 << 30,),
        {"NCCL_IB_HCA": "x"},
    )


def test_the_digest_is_over_all_files(tmp_path: Path) -> None:
    first = load(written(tmp_path)).sha256
    assert load(written(tmp_path)).sha256 == first
    assert load(written(tmp_path, board=BOARD + "# changed\n")).sha256 != first


@each("word", ["./child.toml", "child.toml", "../{folder}/child.toml", "./other.toml"])
def test_a_circle_is_refused(tmp_path: Path, word: str) -> None:
    child = CHILD.replace("./board.toml", word.format(folder=tmp_path.name))
    found = faults(written(tmp_path, child, other=CHILD.replace("./board.toml", "./child.toml")))
    line = "other" if "other" in word else "child"
    assert any(fault.startswith(f"{line}.toml:4: extends = ") and "circle" in fault for fault in found), found


@each(
    ("word", "words"),
    [
        ("./gone.toml", "No such file"),
        ("./.", "directory"),
        ("/dev/zero", "not a regular file"),
        ("board-h999", "no hardware file of that name"),
        ("h100-sxm5-ndr40", "did you mean h100-sxm5-ndr400"),
        ("./a\\u0000b", "cannot be read"),
        ("./" + "a" * 200 + ".toml", "No such file"),
    ],
)
def test_a_parent_that_cannot_be_read_is_named_once_and_hides_nothing_else(
    tmp_path: Path, word: str, words: str
) -> None:
    text = CHILD.replace("./board.toml", word).replace('plateau = ["8GiB"]', 'plateau = ["8GB"]')
    found = faults(written(tmp_path, text.replace("iterations", "x")))
    assert len(found) == 2, found
    assert found[0].startswith("child.toml:4: extends = ")
    assert words in found[0]
    assert found[1].startswith("child.toml:14: ")


def test_faults_of_all_files_are_named_where_they_stand(tmp_path: Path) -> None:
    board = BOARD.replace("nvlink = 450.0", "nvlink = 0").replace("min_of_bound = 0.7", "minimum = 0.7")
    child = CHILD.replace("network = 50.0", "network = -1.0").replace("[match]", "[matched]")
    found = faults(written(tmp_path, child + OWN_ROW.replace("0.9", "1.9"), board))
    for start in (
        "board.toml:14: line_rate.nvlink: 0 is no line rate",
        "board.toml:20: unknown key limit.minimum",
        "child.toml:6: unknown section [matched]",
        "child.toml:10: line_rate.network",
        f"child.toml:{OWN + 4}: limit.min_of_bound",
    ):
        assert any(fault.startswith(start) for fault in found), (start, found)


def test_a_parent_that_is_no_toml_is_named_by_its_own_line(tmp_path: Path) -> None:
    found = faults(written(tmp_path, board='[hardware]\nname = "a\n'))
    assert len(found) == 1
    assert found[0].startswith("board.toml:2: not TOML")


def test_a_clash_with_an_inherited_row_is_told_at_the_row_of_the_file_itself(tmp_path: Path) -> None:
    row = OWN_ROW.replace("nodes = 1", 'nodes = 1\nsize = ">=4GiB"')
    (found,) = faults(written(tmp_path, CHILD + row))
    assert found.startswith(
        f"child.toml:{OWN}: busbw: board.toml:{INSIDE} matches the same cases; replace it"
    )


def test_an_inherited_row_that_does_not_hold_here_says_in_which_file(tmp_path: Path) -> None:
    child = CHILD.replace("network = 50.0", "")
    (found,) = faults(written(tmp_path, child))
    assert found.startswith(f"board.toml:{ACROSS}: this floor cannot be held")
    assert found.endswith("(in child, which extends this)")


def test_a_row_whose_source_is_of_one_fabric_is_not_inherited_by_another(tmp_path: Path) -> None:
    def of(fabric: str) -> str:
        return BOARD.replace('path = "network"', f'path = "network"\nfabrics = [{fabric}]')

    (found,) = faults(written(tmp_path, board=of('"efa", "roce"')))
    assert found.endswith("write a row of its own (in child, which extends this)")
    assert "is of efa or roce, and this is infiniband" in found
    assert load(written(tmp_path, board=of('"infiniband"'))).limits
    assert "fabrics" in faults(written(tmp_path, board=of('"string and cans"')))[0]


def test_a_part_is_linted_as_a_part(tmp_path: Path) -> None:
    written(tmp_path)
    assert load(tmp_path / "board.toml").part
    written(tmp_path, board=BOARD.replace("part = true\n", ""))
    found = faults(tmp_path / "board.toml")
    assert [fault.split(": ", 1)[1] for fault in found] == [
        "section [sweep] is missing; write it",
    ]


@each(
    ("old", "new", "words"),
    [
        ("min_of_bound = 0.7", "min = 451.0", f"board.toml:{INSIDE}: min = 451 GB/s is above 450 GB/s"),
        ('path = "network"', 'path = "pcie"', f"board.toml:{ACROSS}: path pcie never has nodes"),
        ('metric = "busbw"', 'metric = "busbww"', "board.toml:25: limit.metric"),
        ('nodes = ">=2"', 'nodes = ">=1"', ""),
        ('about = "two GPUs and nothing around them"\n', "", "hardware.about is missing"),
    ],
)
def test_rows_of_a_part_must_hold_as_far_as_it_can_tell(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in BOARD
    written(tmp_path, board=BOARD.replace(old, new, 1))
    if words:
        found = faults(tmp_path / "board.toml")
        assert any(words in fault for fault in found), found
    else:
        assert load(tmp_path / "board.toml").part


def test_a_key_of_hardware_is_never_inherited_but_inside(tmp_path: Path) -> None:
    found = faults(written(tmp_path, CHILD.replace('about = "the board with a fabric"\n', "")))
    assert found == ["child.toml:1: hardware.about is missing; write it"]
    found = faults(written(tmp_path, board=BOARD.replace('inside = "nvlink"\n', "")))
    assert "child.toml:1: hardware.inside is missing; write it" in found


def test_a_shipped_file_is_extended_by_its_name(tmp_path: Path) -> None:
    text = '[hardware]\nname = "site"\nabout = "our own nodes"\nextends = "h100-sxm5-ndr400"\n'
    (tmp_path / "site.toml").write_text(text)
    site, base = load(tmp_path / "site.toml"), load(shipped()["h100-sxm5-ndr400"])
    assert (site.limits, site.gaps, site.match) == (base.limits, base.gaps, base.match)


def test_a_part_judges_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    assert load_whole(tmp_path / "child.toml").name == "child"
    with pytest.raises(HardwareFileError, match=r"board\.toml:1: this is only a part"):
        load_whole(tmp_path / "board.toml")
    with pytest.raises(HardwareFileError, match="only a part"):
        hardware_files(str(tmp_path / "board.toml"), tmp_path)
    with pytest.raises(RecogniseError, match="no hardware file matches"):
        recognise({"gpu": "Some GPU"}, [tmp_path / "board.toml"])
    assert not any(file.part for file in hardware_files("auto", tmp_path))
