"""The self-check on nodes of which one is bad: it goes elsewhere, and says whom it met."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import spoiling
from tests.faults.runs import accept
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

FEW = ("--hardware", "lab-200mbit", "-k", "test_node_is_ready")


def test_a_node_with_wrong_data_does_not_cost_the_others_their_self_check(tmp_path: Path) -> None:
    source = Path(spoiling.__file__).read_text(encoding="utf-8")
    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.patch_torch("n02", f"{source}\nplant(always)\n")
        done = accept(lab, tmp_path, *FEW)
    own = [check for check in done.checks() if "selfcheck" in check["id"]]
    assert {check["outcome"] for check in own} == {"pass"}, done.output
    [met] = [blame for check in own for blame in check["blame"]]
    assert (met["kind"], met["nodes"], met["rank"]) == ("wrong data", ["n02"], 1)
    [left] = own[0]["recorded"]["left"]
    assert left.startswith("on n01 and n02: with nothing planted: wrong data at rank 1 on n02")
    assert "rank 1 on n04 (cpu) did not arrive" in own[-1]["recorded"]["planted"][-1]["reason"]
