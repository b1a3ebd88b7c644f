"""Hangs, deaths and vanished nodes: real faults in the lab, and the names and sentences they give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.cluster.contact import CONNECT_S
from tests.faults.cases.controller import Answered, Controller, controller, in_phase, starting
from tests.faults.rows.planting import AGENT, RANK, SUPERVISOR
from tests.lab import Lab
from tests.lab.parts.groups import GROUPS

pytestmark = [pytest.mark.lab, pytest.mark.untimed, pytest.mark.usefixtures("require_lab")]

NODES = ("n01", "n02", "n03", "n04")
DEADLINE_S = 12.0
SPARE_S = 2.0 + 3.0  # what a hang may take beyond its deadline, and slack for a slow machine
# A step that issues its work and completes it later, as NCCL does. One rank never issues its last round.
ASYNCHRONOUS = """
import threading
from fixtures.ranks import steps

def issued(ctx, *, absent, rounds):
    ctx.progress.phase("issued")
    for number in range(rounds):
        if ctx.rank == absent and number == rounds - 1:
            threading.Event().wait()
        work = torch.distributed.all_reduce(torch.ones(1000), async_op=True)
        work.wait()
        ctx.progress.done(number + 1)
    return {}

steps.REGISTRY["probe.issued"] = issued
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab.up(nodes=4, rate="200mbit") as up:
        for node in up.nodes:
            up.patch_torch(node, ASYNCHRONOUS)
        yield up


@pytest.fixture(scope="module")
def work(lab: Lab) -> Iterator[Controller]:
    """One controller for all tests: the job that is left by one test serves the next."""
    with controller(lab) as opened:
        yield opened


def endless(collective: str) -> dict[str, object]:
    return {"collective": collective, "dtype": "int32", "elements": [65536], "iterations": 1_000_000}


def begun(lab: Lab, work: Controller, collective: str) -> None:
    """Begin an endless collective, and wait until all ranks are in the middle of it."""
    assert work.run("nodes.present", {}).ok
    work.begin("collectives.exact", endless(collective), deadline_s=DEADLINE_S)
    for node in NODES:
        in_phase(lab, node, "exact 65536")


def goes_on(work: Controller) -> Answered:
    """The next case finds a job and is answered."""
    answer = work.run("nodes.present", {})
    assert answer.ok, answer.text
    return answer


def test_a_stopped_rank_is_named_and_what_the_others_wait_in(lab: Lab, work: Controller) -> None:
    begun(lab, work, "all_reduce")
    lab.stop("n02", RANK)
    answer = work.answer()
    assert goes_on(work).nodes == [*NODES]
    assert (answer.sign, answer.named) == ("hang", [("hang", ["n02"], 1)])
    assert answer.text.startswith(
        "hang: rank 1 on n02 (cpu) did not arrive: stopped in collectives.exact, phase"
    )
    assert "(its process is stopped); the others wait in all_reduce, collectives.exact" in answer.text
    assert answer.seconds < DEADLINE_S + SPARE_S
    assert "fixtures/ranks/collectives/calls.py" in answer.detail
    assert "gloo:all_reduce [[65536]] issued" in answer.detail
    assert answer.jobs[-1][1] == answer.text


def test_a_rank_in_a_frozen_control_group_is_named(lab: Lab, work: Controller) -> None:
    """Version 2 leaves its state as it is; the job's end kills it all the same."""
    begun(lab, work, "all_reduce")
    [rank] = lab.processes("n03", RANK)
    place = (GROUPS / "unified" if (GROUPS / "unified").exists() else GROUPS) / f"frozen-{rank.outer_pid}"
    place.mkdir()
    try:
        (place / "cgroup.procs").write_text(str(rank.outer_pid))
        (place / "cgroup.freeze").write_text("1")
        answer = work.answer()
    finally:
        (place / "cgroup.freeze").write_text("0")
    assert goes_on(work).nodes == [*NODES]
    place.rmdir()
    assert (answer.sign, answer.named) == ("hang", [("hang", ["n03"], 2)])
    assert "(its control group is frozen); the others wait in all_reduce" in answer.text


def test_a_stopped_torchrun_is_named_whose_store_all_wait_for(lab: Lab, work: Controller) -> None:
    assert work.run("nodes.present", {}).ok
    lab.stop("n01", AGENT)
    answer = work.run("nodes.present", {}, nodes=NODES[:3], deadline_s=DEADLINE_S)
    assert goes_on(work).nodes == [*NODES]
    assert (answer.sign, answer.named) == ("hang", [("hang", ["n01"], 0)])
    assert "rank 0 on n01 (cpu) did not arrive" in answer.text
    assert "(its torchrun is stopped); the others wait in init_process_group" in answer.text


def test_a_rank_that_never_issues_its_part_of_asynchronous_work(work: Controller) -> None:
    assert work.run("probe.issued", {"absent": -1, "rounds": 3}).ok
    answer = work.run("probe.issued", {"absent": 2, "rounds": 5}, deadline_s=5.0)
    assert (answer.sign, answer.named) == ("hang", [("hang", ["n03"], 2)])
    assert (
        "rank 2 on n03 (cpu) did not arrive: stopped in probe.issued, phase issued, 4 iterations"
        in answer.text
    )
    assert "threading.py" in answer.text
    assert "with 7 collectives issued where the others issued 8; the others wait in" in answer.text


def test_the_first_to_die_is_named_though_its_news_come_last(lab: Lab, work: Controller) -> None:
    begun(lab, work, "all_reduce")
    lab.stop("n03", SUPERVISOR)  # which reports
    lab.kill("n03", RANK)
    in_phase(lab, "n02", "\\x00" * 32)  # the others have noticed
    lab.kill("n02", RANK)
    lab.cont("n03", SUPERVISOR)
    answer = work.answer()
    goes_on(work)
    assert (answer.sign, answer.named) == ("crash", [("crash", ["n03"], 2)])
    # Its exit status is known only if torchrun did not reap it while the supervisor was stopped.
    assert answer.text.startswith(
        (
            "crash: rank 2 on n03 (cpu) died of signal 9 (SIGKILL) during ",
            "crash: rank 2 on n03 (cpu) ended (its exit status could not be read) during ",
        )
    )
    assert "during collectives.exact, phase exact 65536 elements" in answer.text


@pytest.mark.parametrize("collective", ["all_reduce", pytest.param("all_to_all", marks=pytest.mark.long)])
def test_a_blackholed_way_is_named_by_both_ends_and_convicts_neither(
    lab: Lab, work: Controller, collective: str
) -> None:
    begun(lab, work, collective)
    lab.blackhole("n02", "n03")
    answer = work.answer()
    lab.heal("n02")
    goes_on(work)
    assert (answer.sign, answer.named) == ("hang", [("path", ["n02", "n03"], None)])
    ways = ("n03", "n02"), ("n02", "n03")  # the cut direction also carries the other's acknowledgements
    assert any(f"{to} acknowledges nothing of what {by} sends it" in answer.text for to, by in ways)
    assert answer.text.endswith("nothing passes between n02 and n03")
    assert answer.seconds < DEADLINE_S + SPARE_S + CONNECT_S  # all paths are tried after it


@pytest.mark.parametrize(
    "when", [pytest.param("before the first job", marks=pytest.mark.long), "while a job starts"]
)
def test_a_node_that_vanishes_costs_its_silence_and_the_others_go_on(when: str) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        work = Controller(lab)
        if when == "before the first job":
            lab.vanish("n04")
        work.begin("nodes.present", {}, NODES)
        if when == "while a job starts":
            starting(lab, "n04")
            lab.vanish("n04")
        answer = work.answer()
        assert goes_on(work).nodes == [*NODES[:3]]
    assert answer.text.startswith("n04 is lost: ")
    assert answer.named == [("lost", ["n04"], None)]
    assert answer.seconds < 60
