"""Corruption of one node's incoming data, in every family: noticed, and never blamed on the other node.

What arrives at n02 is corrupted underneath torch (`tests.faults.spoiling`), and the suite is run as a user
runs it. Every test of whether a step's results are right must turn red, and for the right reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import spoiling
from tests.faults.runs import Finished, accept
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.usefixtures("require_lab")]

LAB = ("--hardware", "lab-200mbit")
FAMILIES = ("zero", "tensor", "context", "pipeline", "expert", "mesh")
# The tests that say whether results are right; the others judge traffic, memory and time.
RIGHT = ("parity", "every_bit")
AGAIN = "the same when it is run again"
UNLIKE = "is not the unsharded result"
WRONG = "wrong data at rank"
PACED = "[overlap-"  # finding the pace takes so many exchanges that the spoiled one may not be compared
NOBODY: list[str] = []
PASS_ON = ("context", "pipeline", "mesh")  # data unchanged, before any are added up


def source(spoil: spoiling.Spoil) -> str:
    """The program that corrupts arriving data in this way."""
    return f"{inspect.getsource(spoiling)}\nplant({spoil.__name__})\n"


def spoiled(
    report: Path, spoil: spoiling.Spoil, families: Sequence[str] = FAMILIES, slots: int = 1
) -> Finished:
    """Run these families on two nodes; what arrives at n02 is corrupted."""
    with Lab.up(nodes=2, rate="200mbit", slots=slots) as lab:
        lab.patch_torch("n02", source(spoil))
        return accept(lab, report, *LAB, "--workload", ",".join(families))


def said(done: Finished) -> dict[str, list[str]]:
    """The red sentences of each test of whether results are right, by the test's id."""
    found: dict[str, list[str]] = {}
    for check in done.checks():
        if any(word in name_of(check) for word in RIGHT):
            judged = check["judgements"]
            found[check["id"]] = [one["sentence"] for one in judged if one["outcome"] != "pass"]
    return found


def name_of(check: dict[str, Any]) -> str:
    """The test's name, without its case."""
    return str(check["id"]).partition("::")[2].partition("[")[0]


def green(sentences: dict[str, list[str]], *words: str) -> list[str]:
    """The tests that say none of the words."""
    return [
        name for name, lines in sentences.items() if not any(word in line for line in lines for word in words)
    ]


def families_of(sentences: dict[str, list[str]], word: str) -> set[str]:
    """The families of which some test says the word."""
    return {
        family
        for family in FAMILIES
        for name, lines in sentences.items()
        if f"/{family}/" in name and any(word in line for line in lines)
    }


def test_one_low_bit_that_flips_once_is_seen_by_the_repeat(tmp_path: Path) -> None:
    """What is not trained twice, an exchange of tokens or of edges, is compared bit for bit instead."""
    done = spoiled(tmp_path, spoiling.once)
    sentences = said(done)
    missed = [name for name in green(sentences, AGAIN, UNLIKE, WRONG) if PACED not in name]
    assert missed == [], done.output
    assert families_of(sentences, AGAIN) == set(FAMILIES)
    assert (done.status, done.listed("rejected"), done.listed("accepted")) == (2, NOBODY, NOBODY)


def seen_on_n02(done: Finished) -> None:
    lines = [line for kept in said(done).values() for line in kept]
    assert any(WRONG in line and " on n02 " in line for line in lines), done.output


# Every family has its own run: a node that one family convicts would not take part in the others.
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*PASS_ON}))
def test_a_low_bit_that_always_flips_is_seen_by_exact_payloads_and_the_node_is_rejected(
    tmp_path: Path, family: str
) -> None:
    """Parity does not see it, and neither does the repeat: both runs are wrong alike."""
    done = spoiled(tmp_path, spoiling.always, [family])
    seen_on_n02(done)
    assert (done.status, done.listed("rejected"), done.listed("accepted")) == (1, ["n02"], NOBODY)


@pytest.mark.parametrize("family", PASS_ON)
def test_what_arrives_wrong_from_the_only_other_node_names_the_path_and_rejects_nobody(
    tmp_path: Path, family: str
) -> None:
    """These pass data on before they add any up: it may have been spoiled where it was sent."""
    done = spoiled(tmp_path, spoiling.always, [family])
    seen_on_n02(done)
    assert (done.status, done.listed("rejected"), done.listed("accepted")) == (2, NOBODY, NOBODY)
    paths = [one for one in done.verdict["blame"] if one["kind"] == "path"]
    assert paths, done.output
    assert all(one["nodes"] == ["n01", "n02"] for one in paths)
    assert all("two nodes cannot tell which of them it is" in one["sentence"] for one in paths)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_flip_above_the_tolerance_is_seen_by_parity(tmp_path: Path, family: str) -> None:
    """Integers arrive as they were: only what floats is wrong. ZeRO's exact payloads float and come first."""
    done = spoiled(tmp_path, spoiling.above, [family])
    assert families_of(said(done), WRONG if family == "zero" else UNLIKE) == {family}, done.output
    assert "n01" not in done.listed("rejected")
    assert done.status in (1, 2)
    assert done.listed("accepted") == NOBODY


def test_two_ranks_of_a_spoiled_node_do_not_convict_the_rank_that_sent_to_both(tmp_path: Path) -> None:
    """Both see the same peer's data wrong; what each node does by itself tells the two apart."""
    done = spoiled(tmp_path, spoiling.always, ("tensor", "context"), slots=2)
    assert (done.status, done.listed("rejected"), done.listed("unproven")) == (1, ["n02"], ["n01"]), (
        done.output
    )
    healthy = [check for check in done.checks() if check["nodes"] == ["n01"]]
    assert {check["outcome"] for check in healthy} == {"pass"}


def test_a_node_with_wrong_data_does_not_cost_the_others_their_self_check(tmp_path: Path) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.patch_torch("n02", source(spoiling.always))
        done = accept(lab, tmp_path, *LAB, "-k", "test_node_is_ready")
    own = [check for check in done.checks() if "selfcheck" in check["id"]]
    assert {check["outcome"] for check in own} == {"pass"}, done.output
    [met] = [blame for check in own for blame in check["blame"]]
    assert (met["kind"], met["nodes"], met["rank"]) == ("wrong data", ["n02"], 1)
    [left] = own[0]["recorded"]["left"]
    assert left.startswith("on n01 and n02: with nothing planted: wrong data at rank 1 on n02")
    assert "rank 1 on n04 (cpu) did not arrive" in own[-1]["recorded"]["planted"][-1]["reason"]
