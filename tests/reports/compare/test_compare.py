"""Two runs that differ in one thing, and what is said of it; what differs by noise alone is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reports.__main__ import main
from reports.compare.diff import CUT, LEAST, changed
from reports.record import CheckRecord, NodeRecord, Outcome, Record
from tests.each import each
from tests.reports import making
from tests.reports.making import NODES, PAIR, check, journal_of

KEY = ("gpu01", "check", "1 MiB")


def scattered(middle: float, share: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)  # noqa: S311 - noise, not a secret
    return [middle * (1 + share * draw.gauss(0, 1)) for _ in range(40)]


def timed(check_id: str, nodes: Sequence[str], *seconds: list[float]) -> CheckRecord:
    """A check with one series, the same for every rank but for its times."""
    ranks = [
        {"rank": at, "result": {"sizes": [{"size_bytes": 1 << 20, "seconds": one}]}}
        for at, one in enumerate(seconds)
    ]
    return check(check_id, nodes, measurement={"ranks": ranks})


def run_of(*checks: CheckRecord, facts: dict[str, object] | None = None, **head: object) -> list[Record]:
    records = journal_of(*checks, head=replace(making.run(), **head))  # type: ignore[arg-type]
    told = facts or {"driver": "570", "uptime_s": 5.0}
    return [replace(one, facts=told) if isinstance(one, NodeRecord) else one for one in records]


def both(tmp_path: Path, old: list[Record], new: list[Record]) -> tuple[str, str]:
    for name, records in (("old", old), ("new", new)):
        making.save(records, tmp_path / name)
    return str(tmp_path / "old"), str(tmp_path / "new")


STEADY = timed(PAIR, NODES, scattered(1e-3, 0.01), scattered(0.9e-3, 0.01))
SLOWER = timed(PAIR, NODES, scattered(0.9e-3, 0.01), scattered(1.1e-3, 0.01))


@each(
    ("share", "ratio", "word"),
    [
        (0.001, 1.02, ""),  # less than 3 %, however steady
        (0.001, 1.04, "slower"),
        (0.001, 1 / 1.04, "faster"),
        (0.1, 1.2, ""),  # within the noise
        (0.1, 2.0, "slower"),
        (0.0, 1.0, ""),
    ],
)
def test_a_series_changed_when_its_medians_are_beyond_its_noise(
    share: float, ratio: float, word: str
) -> None:
    old, new = scattered(1e-3, share), scattered(1e-3 * ratio, share, seed=2)
    there, back = changed(KEY, old, new), changed(KEY, new, old)
    assert (there.line.split()[0] if there else "") == word
    assert (back.line.split()[0] if back else "") == {"slower": "faster", "faster": "slower"}.get(word, "")


def test_the_rule_is_its_formula() -> None:
    """Of 0.9, 1.0 and 1.1 the median absolute deviation is 0.1, so the noise of both is 3.5 x 0.20967."""
    old, edge = [0.9, 1.0, 1.1], CUT * 1.4826 * 0.1 * 2**0.5
    assert changed(KEY, old, [one + edge * 1.0001 for one in old])
    assert not changed(KEY, old, [one + edge * 0.9999 for one in old])
    assert changed(KEY, [1.0] * 9, [1.0001 + LEAST] * 9)
    assert not changed(KEY, [1.0] * 9, [0.9999 + LEAST] * 9)


def test_noise_alone_is_no_change() -> None:
    """A thousand healthy pairs with noise of 20 per cent: none is called slower or faster."""
    draw = random.Random(7)  # noqa: S311 - noise, not a secret
    series = [[draw.gauss(1.0, 0.2) for _ in range(20)] for _ in range(2000)]
    pairs = zip(series[::2], series[1::2], strict=True)
    assert not [pair for pair in pairs if changed(KEY, *pair)]


def test_two_runs_of_the_same_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy = timed(PAIR, NODES, scattered(1e-3, 0.01, seed=3), scattered(0.9e-3, 0.01, seed=4))
    old, new = both(tmp_path, run_of(STEADY), run_of(healthy, facts={"driver": "570", "uptime_s": 99.0}))
    assert main(["diff", old, new]) == 0
    assert "of 1 series 0 slower and 0 faster; 0 outcomes and 0 facts changed" in capsys.readouterr().out


def test_what_got_slower_is_named_with_its_nodes_and_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slowest rank counts: the other one got faster."""
    old, new = both(tmp_path, run_of(STEADY), run_of(SLOWER))
    assert main(["diff", old, new]) == 1
    said = capsys.readouterr().out
    assert (
        "slower  gpu01, gpu02  collectives/test_bandwidth.py::test_busbw[all_reduce-network]  1 MiB: " in said
    )
    assert "(+10." in said
    assert main(["diff", new, old]) == 1
    assert "of 1 series 0 slower and 1 faster" in capsys.readouterr().out


def test_what_was_measured_on_other_nodes_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = timed(PAIR, NODES[:1], scattered(5e-3, 0.01))
    old, new = both(tmp_path, run_of(STEADY), run_of(fewer))
    assert main(["diff", old, new]) == 0
    assert "of 0 series" in capsys.readouterr().out


def test_few_iterations_are_counted_and_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = both(tmp_path, run_of(timed(PAIR, NODES, [1e-3] * 9)), run_of(timed(PAIR, NODES, [9e-3] * 9)))
    assert main(["diff", old, new]) == 0
    assert "1 have fewer than 10 iterations" in capsys.readouterr().out


@each(
    ("new", "said"),
    [
        (
            run_of(check(PAIR, outcome=Outcome.FAIL)),
            "outcome  collectives/test_bandwidth.py::test_busbw[all_reduce-network]: pass -> fail",
        ),
        (run_of(), "outcome  collectives/test_bandwidth.py::test_busbw[all_reduce-network]: pass -> -"),
        (run_of(STEADY, facts={"driver": "580"}), "environment  gpu01.driver: 570 -> 580"),
        (
            run_of(STEADY, facts={"driver": "570", "nics": [{"name": "mlx5_0", "mtu": 9000}]}),
            "environment  gpu02.nics[mlx5_0].mtu: - -> 9000",
        ),
        (run_of(STEADY, versions={"commit": "abc"}), "environment  run.versions.commit: - -> abc"),
        (
            run_of(STEADY, hosts={"gpu01": "gpu01 slots=4", "gpu02": "gpu02 slots=8"}),
            "environment  run.hosts.gpu01: gpu01 slots=8 -> gpu01 slots=4",
        ),
    ],
)
def test_each_outcome_and_each_leaf_is_said(
    tmp_path: Path, new: list[Record], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = both(tmp_path, run_of(STEADY), new)
    assert main(["diff", *paths]) == 1
    assert said in capsys.readouterr().out.splitlines()


def test_of_a_node_that_was_silent_only_its_state_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = [NodeRecord("gpu02", "busy") if getattr(one, "name", "") == "gpu02" else one for one in run_of()]
    paths = both(tmp_path, run_of(), silent)
    assert main(["diff", *paths]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("environment")] == [
        "environment  gpu02.state: ready -> busy"
    ]


def test_checks_measured_together_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = replace(SLOWER, id=f"{PAIR}2", name="other")
    old, new = both(
        tmp_path, run_of(STEADY, replace(STEADY, id=f"{PAIR}2", name="other")), run_of(SLOWER, again)
    )
    assert main(["diff", old, new]) == 1
    assert "of 1 series 1 slower" in capsys.readouterr().out


def test_a_journal_of_another_schema_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = both(tmp_path, run_of(STEADY), run_of(STEADY))
    journal = tmp_path / "new" / "results.jsonl"
    journal.write_text(journal.read_text().replace('"schema":', '"schema":9'))
    assert main(["diff", *paths]) == 4
    assert "new/results.jsonl: line 1: written by schema 9" in capsys.readouterr().err
    assert main(["diff", paths[0], str(tmp_path / "nowhere")]) == 4
    assert "no journal can be read: No such file" in capsys.readouterr().err


@each("command", ["metrics", "history"])
def test_of_many_runs_those_that_cannot_be_read_are_named_and_left_out(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, older = both(tmp_path, run_of(STEADY), run_of(STEADY))
    journal = tmp_path / "new" / "results.jsonl"
    journal.write_text(journal.read_text().replace('"schema":', '"schema":9'))
    (tmp_path / "results.jsonl").touch()
    assert main([command, good]) == 0
    alone = capsys.readouterr().out
    assert main([command, older, good, str(tmp_path), str(tmp_path / "nowhere")]) == 0
    printed = capsys.readouterr()
    assert printed.out == alone
    for said in ("line 1: written by schema 9", "results.jsonl: it is empty", "nowhere: no journal can be"):
        assert said in printed.err
    assert main([command, older, str(tmp_path)]) == 4


def test_the_history_is_a_table_oldest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = run_of(*making.green_checks(), started="2026-11-19T00:00:00+00:00", run_id="first")
    faster = replace(making.GREEN, value=380.0, case={"size": 1 << 30})
    new = run_of(check(PAIR, judgements=(making.GREEN, faster)), run_id="second")[:-1]
    paths = both(tmp_path, old, new)
    assert main(["history", *reversed(paths), str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{tmp_path}: no run began there\n"
    said = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert said[0].startswith("1: first 2026-11-19T00:00:00+00:00 ")
    assert said[1].startswith("2: second ")
    assert "cut short: it ended without a word" in said[1]
    name = "gpu01, gpu02 collectives/test_bandwidth.py::test_busbw[all_reduce-network]"
    assert said[2:] == [
        "nodes check metric unit 1 2",
        "gpu01 nodes/test_inventory.py::test_gpus[gpu01] busbw GB/s 361.2 -",
        f"{name} busbw GB/s 361.2 361.2",
        f"{name} busbw 1 GiB GB/s - 380",
        "gpu02 nodes/test_inventory.py::test_gpus[gpu02] busbw GB/s 361.2 -",
    ]
