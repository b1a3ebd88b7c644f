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
from tests.thresholds.calibrate.calibrating import (
    OTHER,
    RATES,
    calibrated,
    healthy,
    refusals,
    row,
    small,
)
from tests.thresholds.calibrate.journals import INSIDE, NETWORK, NODES, Script, check, write_runs
from tests.thresholds.files import GOOD
from thresholds.calibrate.calibration import Asked, Refused, calibrate
from thresholds.loading.load import load


def test_values_that_disagree_make_no_floor(tmp_path: Path) -> None:
    said = refusals(tmp_path, [Script(network=busbw) for busbw in (90.0, 80.0, 70.0, 85.0, 75.0)])
    assert "all_reduce busbw at 8GiB over network on 3 nodes: the values disagree too much" in said
    assert "run-0 90, run-1 80" in said
    wide = replace(RATES, most={"busbw": 0.9, "busbw_mean": 0.9})
    found = calibrate([str(tmp_path / f"run-{number}") for number in range(5)], wide)
    assert "(up to 90 % allowed by hand)" in row(found, "busbw", NETWORK).source


def test_two_nodes_that_disagree_are_told_apart_and_refused(tmp_path: Path) -> None:
    scripts = [Script(nodes=("a", "b"), inside={"b": 300.0}) for _ in range(5)]
    said = refusals(tmp_path, scripts)
    assert "the values disagree too much" in said
    assert "a 400 to 404, b 300 to 300 GB/s" in said


def test_no_majority_of_nodes_left_is_refused(tmp_path: Path) -> None:
    # a figure each: n02 and n03 are bad, but not in the same
    def more(script: Script) -> tuple[CheckRecord, ...]:
        case = {**INSIDE, "collective": "all_gather"}
        values = {"n01": 400.0, "n02": 300.0, "n03": 400.0}
        return tuple(
            script.sweep(f"all_gather-inside-{node}", (node,), case, value) for node, value in values.items()
        )

    scripts = [Script(inside={"n03": 300.0}, more=more(Script())) for _ in range(5)]
    said = refusals(tmp_path, scripts)
    assert "1 of 3 nodes would be left, which is no majority to learn from: n02: all_gather busbw" in said


@each(
    ("change", "why"),
    [
        ({"identity": OTHER}, "the nodes are different hardware"),
        ({"identity": {}}, "nothing says what hardware n01 is"),
        ({"workload": "full"}, "differ in their workload: full (run-3); nodes, collectives (run-[0-2,4])"),
        ({"selection": "-k all"}, "the runs differ in their selection: all (run-[0-2,4]); -k all (run-3)"),
        ({"torch": "2.12.0"}, "torch is not the same everywhere: 2.12.0 (run-3); 2.13.0 (run-[0-2,4])"),
        ({"driver": "550.1"}, "driver is not the same everywhere"),
        ({"cut_short": "stopped by SIGINT"}, "run-3/results.jsonl: the run was cut short: stopped by SIGINT"),
        ({"state": "unreachable"}, "n02 was unreachable: why"),
    ],
)  # fmt: skip
def test_runs_of_two_kinds_are_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    scripts = healthy()
    scripts[3] = replace(scripts[3], **change)
    assert why in refusals(tmp_path, scripts)


def test_wrong_data_and_whatever_else_is_no_figure_are_refused(tmp_path: Path) -> None:
    blame = Blame(BlameKind.WRONG_DATA, ("n02",), "rank 1 holds a stale iteration")
    wrong = replace(check("wrong", NODES, {"busbw": 1.0}, NETWORK), outcome=Outcome.FAIL, blame=(blame,))
    hung = replace(check("hung", NODES, {}, NETWORK), reason="hung after 60 s")
    parity = Judgement("parity", Outcome.FAIL, "it is not the unsharded result", 1.0)
    unlike = replace(check("far", NODES, {}, NETWORK), judgements=(parity,), reason="it is not the same")
    scripts = [*healthy()[:4], Script(more=(wrong, hung, unlike))]
    said = refusals(tmp_path, scripts)
    assert "test_busbw[wrong]: wrong data: rank 1 holds a stale iteration" in said
    assert "test_busbw[hung]: unchecked: hung after 60 s" in said
    assert "test_busbw[far]: unchecked: it is not the same" in said


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


def test_too_little_is_refused(tmp_path: Path) -> None:
    assert "1 run is too few" in refusals(tmp_path / "a", healthy()[:1])
    assert "and 2 more: too few values, 3 and not 5; add runs" in refusals(tmp_path / "b", healthy()[:3])
    alone = [Script(nodes=("n01",)) for _ in range(5)]
    assert "1 node is too few" in refusals(tmp_path / "c", alone)
    short = [replace(script, samples=3) for script in healthy()]
    assert "a value is the median of 3 iterations, and 5 are needed" in refusals(tmp_path / "d", short)


def test_the_same_run_twice_is_one_run(tmp_path: Path) -> None:
    words = write_runs(tmp_path, healthy())
    with pytest.raises(Refused, match="run run-0 is given twice"):
        calibrate([*words[:4], words[0]], RATES)


def test_without_line_rates_bandwidth_has_no_bound(tmp_path: Path) -> None:
    said = refusals(tmp_path, healthy(), Asked())
    assert "[line_rate] says nothing about network; say what the link carries with --line-rate" in said


def test_a_value_above_the_bound_was_something_else(tmp_path: Path) -> None:
    said = refusals(tmp_path, [Script(network=180.0) for _ in range(5)])
    assert "180 GB/s is above the physical bound of 125 GB/s: something else was measured" in said


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


def test_a_bad_name_is_said_before_anything_is_written(tmp_path: Path) -> None:
    said = refusals(tmp_path, healthy(), replace(RATES, name="No Name"))
    assert "the file would not be good: hardware.name" in said


def test_everything_is_said_at_once(tmp_path: Path) -> None:
    scripts = [
        *healthy()[:3],
        Script(torch="2.12.0", workload="full", cut_short="stopped"),
        Script(network=180.0),
    ]
    said = refusals(tmp_path, scripts)
    for part in ("cut short", "workload", "torch is not the same", "above the physical bound"):
        assert part in said


def test_a_limit_that_healthy_values_do_not_meet_is_none(tmp_path: Path) -> None:
    shares = (0.0, 0.0, 0.0, 0.45, 0.1, 0.05, 0.45, 0.2, 0.45)
    scripts = [Script(slow=share) for share in shares]
    assert "some do not meet their own limit" in refusals(tmp_path, scripts)


def test_many_strays_are_noise(tmp_path: Path) -> None:
    scripts = healthy()
    for number, node in enumerate(("n01", "n02", "n03", "n01")):
        scripts[number] = replace(scripts[number], inside={node: 350.0})
    said = refusals(tmp_path, scripts)
    assert (
        "all_reduce busbw at 8GiB over nvlink on 1 node: the values disagree too much: sigma 5.97 %" in said
    )
    assert "and more than 15 % is no limit: n01 350 to 404, n02 350 to 404, n03 350 to 404 GB/s" in said


def test_too_few_values_that_are_left_make_no_floor(tmp_path: Path) -> None:
    # a figure of pairs, most of them with a bad node
    pairs = [("n01", "n02"), ("n01", "n02"), *[("n01", "n03"), ("n02", "n03")] * 2]
    case = {**NETWORK, "nodes": 2}
    scripts = [
        Script(inside={"n03": 300.0}, more=(Script().sweep("pair", pair, case, 90.0),)) for pair in pairs
    ]
    said = refusals(tmp_path, scripts)
    assert "on 2 nodes and 2 more: 2 of 6 values are left, the others are of a node or run" in said
