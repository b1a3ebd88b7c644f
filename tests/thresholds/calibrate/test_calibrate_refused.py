"""`calibrate` says every reason why these runs make no file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.record import (
    Blame,
    BlameKind,
    CheckRecord,
    Judgement,
    Outcome,
)
from tests.each import each
from tests.thresholds.calibrate.journals import (
    INSIDE,
    NETWORK,
    NODES,
    OTHER,
    RATES,
    Script,
    calibrated,
    check,
    healthy,
    refusals,
    row,
    small,
    write_runs,
)
from tests.thresholds.files import GOOD
from thresholds.calibrate.calibration import Asked, Refused, calibrate
from thresholds.loading.load import load


def other(**changes: Any) -> list[Script]:
    """Healthy runs, of which the fourth is another."""
    return [replace(one, **changes) if at == 3 else one for at, one in enumerate(healthy())]


def every(**changes: Any) -> list[Script]:
    """Five runs that are all like this."""
    return [Script(**changes) for _ in range(5)]


def gathered(node: str, value: float) -> CheckRecord:
    case = {**INSIDE, "collective": "all_gather"}
    return Script().sweep(f"all_gather-inside-{node}", (node,), case, value)


BLAME = Blame(BlameKind.WRONG_DATA, ("n02",), "rank 1 holds a stale iteration")
PARITY = Judgement("parity", Outcome.FAIL, "it is not the unsharded result", 1.0)
UNSOUND = (
    replace(check("wrong", NODES, {"busbw": 1.0}, NETWORK), outcome=Outcome.FAIL, blame=(BLAME,)),
    replace(check("hung", NODES, {}, NETWORK), reason="hung after 60 s"),
    replace(check("far", NODES, {}, NETWORK), judgements=(PARITY,), reason="it is not the same"),
)
GATHERED = (gathered("n01", 400.0), gathered("n02", 300.0), gathered("n03", 400.0))
STRAYS = [
    replace(healthy()[at], inside={node: 350.0}) for at, node in enumerate(("n01", "n02", "n03", "n01"))
]
# a figure of pairs, most of them with a bad node
PAIRS = [("n01", "n02"), ("n01", "n02"), *[("n01", "n03"), ("n02", "n03")] * 2]
IN_PAIRS = [Script().sweep("pair", pair, {**NETWORK, "nodes": 2}, 90.0) for pair in PAIRS]
SHARES = (0.0, 0.0, 0.0, 0.45, 0.1, 0.05, 0.45, 0.2, 0.45)
VALUES = "all_reduce busbw at 8GiB over nvlink on 1 node: the values disagree too much: sigma 5.97 %"
REFUSED: list[tuple[list[Script], list[str]]] = [
    # runs of two kinds
    (other(identity=OTHER), ["the nodes are different hardware"]),
    (other(identity={}), ["nothing says what hardware n01 is"]),
    (other(workload="full"), ["differ in their workload: full (run-3); nodes, collectives (run-[0-2,4])"]),
    (other(selection="-k all"), ["the runs differ in their selection: all (run-[0-2,4]); -k all (run-3)"]),
    (other(torch="2.12.0"), ["torch is not the same everywhere: 2.12.0 (run-3); 2.13.0 (run-[0-2,4])"]),
    (other(driver="550.1"), ["driver is not the same everywhere"]),
    (other(cut_short="stopped"), ["run-3/results.jsonl: the run was cut short: stopped"]),
    (other(state="unreachable"), ["n02 was unreachable: why"]),
    # what is no figure
    (
        [*healthy()[:4], Script(more=UNSOUND)],
        [
            "test_busbw[wrong]: wrong data: rank 1 holds a stale iteration",
            "test_busbw[hung]: unchecked: hung after 60 s",
            "test_busbw[far]: unchecked: it is not the same",
        ],
    ),
    (every(network=180.0), ["180 GB/s is above the physical bound of 125 GB/s: something else was measured"]),
    # too little
    (healthy()[:1], ["1 run is too few"]),
    (healthy()[:3], ["and 2 more: too few values, 3 and not 5; add runs"]),
    (every(nodes=("n01",)), ["1 node is too few"]),
    (every(samples=3), ["a value is the median of 3 iterations, and 5 are needed"]),
    (
        [Script(inside={"n03": 300.0}, more=(pair,)) for pair in IN_PAIRS],
        ["on 2 nodes and 2 more: 2 of 6 values are left, the others are of a node or run"],
    ),
    (
        every(inside={"n03": 300.0}, more=GATHERED),  # n02 and n03 are bad, but not in the same figure
        ["1 of 3 nodes would be left, which is no majority to learn from: n02: all_gather busbw"],
    ),
    # values that disagree
    (
        every(nodes=("a", "b"), inside={"b": 300.0}),
        ["the values disagree too much", "a 400 to 404, b 300"],
    ),
    ([Script(slow=share) for share in SHARES], ["some do not meet their own limit"]),
    (
        [*STRAYS, healthy()[4]],
        [VALUES, "more than 15 % is no limit: n01 350 to 404, n02 350 to 404, n03 350 to 404 GB/s"],
    ),
    # everything at once
    (
        [*healthy()[:3], Script(torch="2.12.0", workload="full", cut_short="x"), Script(network=180.0)],
        ["cut short", "workload", "torch is not the same", "above the physical bound"],
    ),
]


@each(("scripts", "words"), REFUSED)
def test_runs_that_make_no_file_are_refused(tmp_path: Path, scripts: list[Script], words: list[str]) -> None:
    said = refusals(tmp_path, scripts)
    assert [word for word in words if word not in said] == [], said


def test_what_the_command_line_lacks_or_gets_wrong_is_said(tmp_path: Path) -> None:
    unbound = "[line_rate] says nothing about network; say what the link carries with --line-rate"
    assert unbound in refusals(tmp_path, healthy(), Asked())
    named = refusals(tmp_path, healthy(), replace(RATES, name="No Name"))
    assert "the file would not be good: hardware.name" in named


def test_values_that_disagree_make_no_floor(tmp_path: Path) -> None:
    said = refusals(tmp_path, [Script(network=busbw) for busbw in (90.0, 80.0, 70.0, 85.0, 75.0)])
    assert "all_reduce busbw at 8GiB over network on 3 nodes: the values disagree too much" in said
    assert "run-0 90, run-1 80" in said
    wide = replace(RATES, most={"busbw": 0.9, "busbw_mean": 0.9})
    found = calibrate([str(tmp_path / f"run-{number}") for number in range(5)], wide)
    assert "(up to 90 % allowed by hand)" in row(found, "busbw", NETWORK).source


def test_what_only_a_file_could_judge_is_refused_where_a_file_was_asked(tmp_path: Path) -> None:
    transport = Judgement("transport", Outcome.UNCHECKED, "nothing names the transport", case=NETWORK)
    moved = replace(check("moved", NODES, {}, NETWORK), judgements=(transport,), reason="nothing names it")
    scripts = [replace(script, more=(moved,)) for script in healthy()]
    calibrated(tmp_path / "none", scripts)
    asked = [replace(script, hardware="auto") for script in scripts]
    assert "test_busbw[moved]: unchecked: nothing names it" in refusals(tmp_path / "auto", asked)


def test_journals_that_cannot_be_read_are_named_with_file_and_line(tmp_path: Path) -> None:
    words = write_runs(tmp_path, healthy())
    journal = tmp_path / "run-1" / "results.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:2], "nonsense\n", *lines[2:]]))
    (tmp_path / "empty").mkdir()
    empty = tmp_path / "none.jsonl"
    empty.write_text("")
    with pytest.raises(Refused) as refused:
        calibrate([*words, str(tmp_path / "empty"), str(empty)], RATES)
    said = str(refused.value)
    assert "run-1/results.jsonl, line 3: not valid JSON" in said
    assert f"{tmp_path / 'empty'}: no journal can be read: No such file" in said
    assert f"{empty}: the journal is empty" in said


def test_the_same_run_twice_is_one_run(tmp_path: Path) -> None:
    words = write_runs(tmp_path, healthy())
    with pytest.raises(Refused, match="run run-0 is given twice"):
        calibrate([*words[:4], words[0]], RATES)


def test_nodes_that_do_not_meet_a_row_of_like_are_not_healthy(tmp_path: Path) -> None:
    like = small(tmp_path)
    slow = [Script(network=60.0 + number / 10) for number in range(5)]
    said = refusals(tmp_path, slow, Asked(like=like))
    assert "by small these nodes are not healthy: all_reduce busbw 60.2 GB/s at 8GiB" in said
    assert "is below 80 GB/s" in said


def test_nodes_or_sizes_other_than_those_of_like_are_refused(tmp_path: Path) -> None:
    like = small(tmp_path)
    others = [replace(script, identity=OTHER) for script in healthy()]
    said = refusals(tmp_path / "a", others, Asked(like=like))
    assert "n[01-03] is not small: gpu must be Some GPU, and is Other GPU" in said
    text = GOOD.replace('plateau = ["8GiB"]', 'plateau = ["1MiB"]')
    path = tmp_path / "other.toml"
    path.write_text(text)
    said = refusals(tmp_path / "b", healthy(), Asked(like=load(path)))
    assert "small judges 1MiB, and the runs did not" in said
