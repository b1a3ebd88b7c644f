"""`calibrate` makes a file that holds: what the rows ask, and what they learned it from."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.check.recognition import Recognition
from reports.record import (
    CheckRecord,
    Judgement,
    NodeRecord,
    Outcome,
    PlanRecord,
    Record,
)
from tests.thresholds.calibrate.journals import (
    IDENTITY,
    INSIDE,
    NETWORK,
    NODES,
    RATES,
    Script,
    calibrated,
    check,
    hardware,
    healthy,
    refusals,
    row,
    small,
    write,
    write_runs,
)
from thresholds.calibrate.calibration import Asked, calibrate


def test_the_file_of_healthy_runs_is_good_and_judges_every_figure_of_them(tmp_path: Path) -> None:
    found = calibrated(tmp_path, healthy())
    file = hardware(found)
    assert (found.limits, found.gaps) == (6, 0)
    assert file.line_rate.links == {"nvlink": 450.0, "network": 50.0}
    assert dict(file.match) == {"gpu": ("Some GPU",), "fabric": ("infiniband",)}
    assert file.sweep.plateau == (8 << 30,)
    # 90 of 100 GB/s; 5.1 sigma of 0.18 % is less than the least margin, 5 %
    network = row(found, "busbw", NETWORK)
    assert (network.kind, network.value) == ("min_of_bound", 0.855)
    assert row(found, "busbw_mean", NETWORK).value == pytest.approx(0.9 * 0.98 * 0.9, abs=0.001)
    slow = row(found, "slow_fraction", NETWORK)
    assert (slow.kind, slow.value) == ("max", 0.299)  # 0.05 + 5.1 sqrt(0.05 0.95 / 20)


def test_nodes_are_compared_alone_by_the_samples_of_their_devices_and_of_their_pairs(tmp_path: Path) -> None:
    """A check of a node may have its name alone in brackets; one that is slow in all runs teaches nothing."""
    case: dict[str, str | int] = {"step": "nodes.memory", "path": "nvlink", "nodes": 1, "ranks_per_node": 2}
    pairs: dict[str, str | int] = {
        **NETWORK,
        "step": "collectives.pairs",
        "nodes": 2,
        "collective": "bisection",
    }

    def more(number: int, n02: float) -> tuple[CheckRecord, ...]:
        found = [check("pairs", NODES, {"busbw": 45.0}, pairs, {"pairs": [{"samples": 20}, {"samples": 30}]})]
        for node in NODES:
            timed = {"metric": "triad", "seconds": [0.1] * 20}
            lasting = {"metric": "slope", "windows": [0.1] * 3}
            ranks = {"ranks": [{"result": {"series": [timed, lasting]}}] * 2}
            value = (n02 if node == "n02" else 3000.0) + number
            found.append(replace(check(node, (node,), {"triad": value}, case), measurement=ranks))
        return tuple(found)

    def scripts(n02: float) -> list[Script]:
        return [replace(script, more=more(number, n02)) for number, script in enumerate(healthy())]

    found = calibrated(tmp_path / "good", scripts(3000.0))
    assert row(found, "triad", case).value == pytest.approx(0.95 * 3002, rel=0.01)
    assert row(found, "busbw", pairs).min_samples == 10
    assert "nodes.memory triad over nvlink on 1 node 2002 GB/s beside a median of 3001 GB/s" in refusals(
        tmp_path / "bad", scripts(2000.0)
    )


def test_the_source_of_a_row_says_where_it_comes_from(tmp_path: Path) -> None:
    found = row(calibrated(tmp_path, healthy()), "busbw", NETWORK)
    for part in ("3 healthy nodes (n[01-03])", "5 runs (run-[0-4])", "torch 2.13.0", "NCCL 2.27.3"):
        assert part in found.source
    for part in ("driver 570.86", "median 0.9 of the bound, n 5", "sigma 0.176 %", "the least margin"):
        assert part in found.source
    assert found.date == datetime.date(2026, 11, 14)


def test_noise_widens_the_margin(tmp_path: Path) -> None:
    noisy = [Script(network=busbw) for busbw in (90.0, 91.0, 89.0, 90.5, 89.5)]
    found = row(calibrated(tmp_path, noisy), "busbw", NETWORK)
    sigma = 0.7906 / 90
    assert found.value == pytest.approx(0.9 * (1 - 5.1 * sigma * (1 + 1.645 / 8**0.5)), abs=0.001)


def test_a_bad_node_is_left_out_with_all_that_it_took_part_in(tmp_path: Path) -> None:
    scripts = [Script(inside={"n03": 300.0}) for _ in range(5)]
    said = refusals(tmp_path, scripts)
    assert "every value is of a node or run that is left out; run again without it" in said
    assert "over network" in said
    # runs without it make the file, and those with it cost only it
    alone = [Script(nodes=("n01", "n02")) for _ in range(5)]
    found = calibrate(write_runs(tmp_path, alone), RATES)
    assert not any("left out" in note for note in found.notes)


def test_a_bad_node_among_others_is_excluded_and_named_with_its_figure(tmp_path: Path) -> None:
    words = [
        write(tmp_path / str(number), _without_network(Script(number, inside={"n03": 300.0}).records()))
        for number in range(5)
    ]
    found = calibrate(words, RATES)
    note = next(note for note in found.notes if note.startswith("node n03 is left out"))
    assert "all_reduce busbw at 8GiB over nvlink on 1 node 300 GB/s beside a median of" in note
    assert "in 5 of its 5 values" in note
    assert "# node n03 is left out" in found.text
    assert "2 healthy nodes (n[01-02])" in row(found, "busbw", INSIDE).source
    assert row(found, "busbw", INSIDE).value > 0.8


def _without_network(records: Sequence[Record]) -> list[Record]:
    kept: list[Record] = []
    for record in records:
        if isinstance(record, CheckRecord) and len(record.nodes) > 1:
            continue
        if isinstance(record, PlanRecord):
            alone = tuple(one for one in record.checks if len(one.nodes) == 1)
            kept.append(PlanRecord(alone))
        else:
            kept.append(record)
    return kept


def test_a_value_across_nodes_condemns_its_run_and_no_node(tmp_path: Path) -> None:
    found = calibrated(tmp_path, [*healthy()[:4], Script(network=45.0)])
    note = next(note for note in found.notes if note.startswith("run run-4 is left out"))
    assert "all_reduce busbw at 8GiB over network on 3 nodes 45 GB/s beside a median of 90 GB/s" in note
    assert "no node can be named" in note
    assert not any(note.startswith("node ") for note in found.notes)
    assert row(found, "busbw", NETWORK).value == 0.855
    assert "n 15" in row(found, "busbw", INSIDE).source  # inside nodes the run stays


def test_a_node_that_only_bad_runs_have_is_a_suspect(tmp_path: Path) -> None:
    # nodes differ, but the case is the same: worlds of two
    pairs = [("n01", "n02"), ("n02", "n04"), ("n01", "n04"), ("n01", "n02"), ("n01", "n03"), ("n03", "n04")]
    scripts = [Script(nodes=pair, network=45.0 if "n03" in pair else 90.0) for pair in pairs]
    found = calibrated(tmp_path, scripts)
    note = next(note for note in found.notes if note.startswith("run run-4 is left out"))
    assert "n03 took part in such runs only: look there first" in note


def test_one_value_of_many_is_left_out_and_named(tmp_path: Path) -> None:
    scripts = healthy()
    scripts[2] = replace(scripts[2], inside={"n02": 350.0})
    found = calibrated(tmp_path, scripts)
    note = next(note for note in found.notes if "350 GB/s" in note)
    assert note.startswith(
        "one value left out: all_reduce busbw at 8GiB over nvlink on 1 node 350 GB/s, -12.9 %"
    )
    assert note.endswith("in run run-2; it belongs to n02")
    assert "n 14 and 1 left out as outliers" in row(found, "busbw", INSIDE).source


def test_few_iterations_are_asked_for_again(tmp_path: Path) -> None:
    found = calibrated(tmp_path, [replace(script, samples=7) for script in healthy()])
    assert row(found, "busbw", NETWORK).min_samples == 7


def test_latencies_get_a_ceiling(tmp_path: Path) -> None:
    case = {**NETWORK, "size": 16 << 10}
    sweep = {"sweep": [{"size_bytes": 16 << 10, "samples": 20}]}
    late = check("late", NODES, {"latency": 20.0}, case, sweep)
    scripts = [replace(script, more=(late,)) for script in healthy()]
    found = row(calibrated(tmp_path, scripts), "latency", case)
    assert (found.kind, found.value) == ("max", 25.0)


def test_a_tail_is_allowed_no_less_than_the_middle_which_may_be_noisier(tmp_path: Path) -> None:
    case = {**NETWORK, "size": 16 << 10}
    sweep = {"sweep": [{"size_bytes": 16 << 10, "samples": 20}]}
    late = [
        check("late", NODES, {"latency": middle, "latency_p99": 21.0}, case, sweep)
        for middle in (17.0, 19.0, 20.0, 20.5, 18.0)
    ]
    scripts = [replace(script, more=(one,)) for script, one in zip(healthy(), late, strict=True)]
    found = calibrated(tmp_path, scripts)
    middle, tail = (row(found, metric, case) for metric in ("latency", "latency_p99"))
    assert tail.value == middle.value > 1.25 * 21
    assert tail.source.endswith("raised to the ceiling of the median iteration")


def _step(value: float, other: float | None = None) -> tuple[CheckRecord, ...]:
    """A step with a figure that is on record only, and perhaps a second check of the same step."""
    case: dict[str, str | int] = {"step": "expert.some", "path": "network", "nodes": 3, "ranks_per_node": 2}
    told = Judgement("figures", Outcome.PASS, "on record", case=case)
    ranks = {"ranks": [{"result": {"samples": 20}}]}

    def one(words: str, combine: float) -> CheckRecord:
        made = check(words, NODES, {}, case, {"figures": {"combine": combine, "other_us": 3.0}})
        return replace(made, outcome=Outcome.PASS, judgements=(told,), measurement=ranks)

    return (one("a", value), *([one("b", other)] if other is not None else []))


STEP: dict[str, str | int] = {"step": "expert.some", "path": "network", "nodes": 3, "ranks_per_node": 2}


def test_a_figure_on_record_gets_a_row_or_where_it_is_noisy_a_gap(tmp_path: Path) -> None:
    steady = [replace(script, more=_step(10.0)) for script in healthy()]
    assert row(calibrated(tmp_path / "steady", steady), "combine", STEP).value == 9.5
    values = (10.0, 5.0, 7.0, 2.0, 12.0)
    noisy = [replace(one, more=_step(value)) for one, value in zip(healthy(), values, strict=True)]
    found = calibrated(tmp_path / "noisy", noisy)
    assert found.gaps == 1
    assert hardware(found).gaps[0].reason.startswith("on record only, and the runs give no limit for it: ")


def test_checks_that_share_a_row_get_the_loosest(tmp_path: Path) -> None:
    scripts = [replace(script, more=_step(10.0, 4.0)) for script in healthy()]
    found = row(calibrated(tmp_path, scripts), "combine", STEP)
    assert found.value == 3.8
    assert found.source.endswith("the loosest of 2 checks that share this row")


def test_like_lends_its_tables_and_no_row(tmp_path: Path) -> None:
    like = small(tmp_path)
    file = hardware(calibrated(tmp_path, healthy(), Asked(like=like)))
    assert file.name == "small-calibrated"
    assert (file.line_rate, file.sweep, file.match) == (like.line_rate, like.sweep, like.match)
    assert (file.env, file.absent, file.expect) == (like.env, like.absent, like.expect)
    assert len(file.limits) == 6
    assert not file.gaps


def test_like_a_file_that_is_told_apart_by_its_network_devices(tmp_path: Path) -> None:
    """They vary from container to container, within what [match] says."""
    like = replace(small(tmp_path), match={"gpu": ("Some GPU",), "netdevs": ("7..10",)})
    scripts = [
        replace(script, identity={**IDENTITY, "netdevs": 8 + at % 2}) for at, script in enumerate(healthy())
    ]
    assert calibrated(tmp_path / "a", scripts, Asked(like=like)).limits == 6
    few = [replace(script, identity={**IDENTITY, "netdevs": 4}) for script in healthy()]
    assert "n[01-03] is not small: netdevs must be 7..10, and is 4" in refusals(
        tmp_path / "b", few, Asked(like=like)
    )


def test_slow_iterations_are_counted_and_their_noise_is_that_of_counting(tmp_path: Path) -> None:
    shares = (0.0, 0.15, 0.05, 0.1, 0.0)
    scripts = [replace(one, slow=share) for one, share in zip(healthy(), shares, strict=True)]
    assert row(calibrated(tmp_path / "a", scripts), "slow_fraction", NETWORK).value == 0.299
    many = [replace(one, slow=0.15) for one in healthy()]
    assert "could not fail, for no more than half are slower" in refusals(tmp_path / "b", many)


def test_a_run_writes_down_what_calibration_takes_for_the_hardware() -> None:
    facts = {"accelerators": {"devices": [{"name": "Some GPU"}]}, "node": {"rdma_devices": ["mlx5_0"]}}
    written = Recognition("none", (), alone=False).recognised(NodeRecord("n01", "ready", facts=facts))
    said = written.facts["identity"]
    assert (said["gpu"], said["gpu_count"], said["fabric"]) == ("Some GPU", 1, "infiniband")
