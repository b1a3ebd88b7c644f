"""A soak goes round by round; who loses speed while it lasts is named, though every floor is held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.check.findings import Answered, Findings
from fixtures.check.plan import NETWORK, NODE, Case, Place, Planned
from fixtures.check.recognition import Recognition
from fixtures.check.target import Target
from fixtures.cluster.measurement import Answer, CaseRequest, Measurement, RankReport, Unchecked, World
from fixtures.run import verify
from reports.record import BlameKind, Outcome
from suites.soak import rounds
from tests.fixtures.fake_nodes import sample, with_results
from tests.fixtures.scenario import HARDWARE, Scenario
from thresholds.loading.load import read

pytest_plugins = ["pytester"]

SUITE = """
from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import judging, peers
from fixtures.check.plan import INSIDE, NETWORK, NODE, Case
from suites.soak import rounds

words = {"collective": "all_reduce", "dtype": "fp32"}
asked = {**words, "op": "sum"}
EXCHANGES = [Case("collectives.sweep", ("all_reduce",), asked, words, compared=True, load=0.8)]

@over(EXCHANGES, INSIDE, NETWORK, ask=requests.lasting,
      judges=[judging.sweep, peers.of_collectives, rounds.judge], metrics=("busbw", "slow_fraction"))
def test_exchanges(check: Check) -> None:
    check.run()

@over([Case("nodes.present", ("after",), closing=True)], NODE,
      ask=requests.presence, judges=[judging.presence])
def test_after(check: Check) -> None:
    check.run()
"""
SLOPE = """
[[limit]]
metric = "slope"
max = 0.1
source = "tests/suites/soak/test_rounds.py in this repository"
date = 2026-11-24
"""


def tiring(name: str, speed: float) -> Callable[[CaseRequest, Measurement], Answer]:
    """Let the links of a node have so many times their speed from their third round on."""
    seen = []

    def rewrite(request: CaseRequest, answer: Measurement) -> Answer:
        if request.step != "collectives.sweep" or request.world.nodes != (name,):
            return answer
        seen.append(request)
        rate = 8.0 * (speed if len(seen) > 2 else 1.0)
        sizes, repeats = request.parameters["sizes"], request.parameters["iterations"]
        return with_results(answer, lambda _: {"sizes": [sample(one, rate, repeats) for one in sizes]})

    return rewrite


@pytest.fixture
def soaked(pytester: pytest.Pytester) -> Scenario:
    scenario = Scenario(pytester).build()
    scenario.write("suites/soak/test_rounds_of.py", SUITE)
    scenario.write("bench.toml", HARDWARE + SLOPE)
    return scenario


def test_a_soak_is_planned_in_rounds_and_what_comes_behind_it_comes_last(soaked: Scenario) -> None:
    assert soaked.run("--workload", "soak").ret == 0
    assert list(soaked.outcomes()) == ["test_after[after-n1]", "test_after[after-n2]"]
    assert soaked.run("--workload", "soak", "--soak", "5m").ret == 0
    names = [name for name in soaked.outcomes() if "exchanges" in name]
    assert names == [
        f"test_exchanges[all_reduce-round{number}-{place}]"
        for number in range(1, 6)
        for place in ("inside-n1", "inside-n2", "network")
    ]
    assert list(soaked.outcomes())[-2:] == ["test_after[after-n1]", "test_after[after-n2]"]
    sweeps = [one for asked, _ in soaked.script.calls for one in asked if one.step == "collectives.sweep"]
    assert {one.parameters["budget_s"] for one in sweeps} == {24.0}  # of a minute 0.8, in two places
    assert all(one.deadline_s > 48.0 for one in sweeps)
    assert "soak, soaked for 5 min" in (soaked.out / "accepted.txt").read_text()


def test_groups_are_soaked_by_themselves_and_read_once_more_when_all_is_over(soaked: Scenario) -> None:
    assert soaked.run("--workload", "soak", "--soak", "3m", "--groups-of", "1").ret == 0
    names = list(soaked.outcomes())
    assert sum("inside" in name for name in names) == 6
    assert not any("network" in name for name in names)
    assert names[-2:] == [f"test_after[after-across-{node}]" for node in ("n1", "n2")]


def test_who_loses_speed_is_named_though_the_floor_is_held(
    soaked: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    soaked.script.rewrite = tiring("n1", 0.8)
    assert soaked.run("--workload", "soak", "--soak", "4m").ret == 1
    assert (soaked.listed("rejected"), soaked.listed("accepted")) == (["n1"], ["n2"])
    ended = soaked.outcomes()
    assert ended["test_exchanges[all_reduce-round2-inside-n1]"] == "pass"
    assert ended["test_exchanges[all_reduce-round3-inside-n1]"] == "fail"
    assert ended["test_exchanges[all_reduce-round4-inside-n2]"] == "pass"
    reason = soaked.checks()["test_exchanges[all_reduce-round3-inside-n1]"]["reason"]
    assert "all_reduce of 1048576 bytes, since the first round" in reason
    capsys.readouterr()
    assert verify.main([str(soaked.out)], soaked.root) == 0, capsys.readouterr().out


def test_a_loss_within_the_limit_is_on_record(soaked: Scenario) -> None:
    soaked.script.rewrite = tiring("n1", 0.95)
    assert soaked.run("--workload", "soak", "--soak", "3m").ret == 0
    recorded = soaked.checks()["test_exchanges[all_reduce-round3-inside-n1]"]["recorded"]
    assert recorded["lost_since_first_round"]["all_reduce of 1048576 bytes"] == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workload", "nodes"), "--soak is of the family soak, which --workload nodes leaves out"),
        (("--budget", "10m"), "--budget leaves out what takes long, and --soak asks for it"),
    ],
)
def test_a_soak_that_nothing_would_come_of_is_refused(
    soaked: Scenario, arguments: tuple[str, ...], words: str
) -> None:
    result = soaked.run("--soak", "30m", *arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{words}*"])


def products(seconds: Any, count: Any = 10) -> Measurement:
    """What two GPUs of a node say: the first keeps its speed, the second takes so long for a window."""
    entry = {"metric": "slope", "what": "bf16", "value": 0.0, "samples": 12}
    ranks = tuple(
        RankReport(
            rank, "n01", rank, f"GPU-{rank}", {"series": [{**entry, "windows": said, "products": count}]}
        )
        for rank, said in enumerate(([0.1] * 12, seconds))
    )
    return Measurement("nodes.slope", {"seconds": {}}, World(("n01",)), "1", "nccl", ranks, 1.0)


def judged(now: Measurement, first: Measurement | None, place: Place = NODE) -> Findings:
    planned = Planned(Case("nodes.slope"), place, ("n01",), "products")
    file = read((HARDWARE + SLOPE).encode(), Path("bench.toml"))
    target = Target(planned, {"n01": 2}, file, "nccl", {})
    recognition = Recognition("bench", (file,), alone=False)
    return rounds.judge(Answered(planned, {}, recognition, (now, target), first=first))


def test_the_device_that_lost_speed_is_named() -> None:
    found = judged(products([0.2] * 12), products([0.1] * 12))
    assert [one.outcome for one in found.judgements] == [Outcome.PASS, Outcome.FAIL]
    assert [(one.kind, one.rank, one.device) for one in found.blame] == [(BlameKind.DEVICE, 1, "GPU-1")]
    assert found.recorded["lost_since_first_round"]["products of rank 1 on n01 (GPU-1)"] == pytest.approx(0.5)


def test_the_first_round_has_nothing_before_it_and_across_nodes_a_loss_is_nobodys() -> None:
    first = products([0.1] * 12)
    assert judged(first, None) == Findings()
    across = judged(products([0.2] * 12), first, NETWORK)
    assert (across.judgements, across.blame) == ([], [])
    assert across.recorded["lost_since_first_round"]


@pytest.mark.parametrize(
    ("seconds", "count"), [([], 10), ("long", 10), ([0.1, -1.0], 10), ([0.1] * 12, 0), ([0.1] * 12, None)]
)
def test_what_is_no_speed_is_no_proof(seconds: object, count: object) -> None:
    with pytest.raises(Unchecked, match=r"\(GPU-\d\) does not say"):
        judged(products(seconds, count), products([0.1] * 12))
