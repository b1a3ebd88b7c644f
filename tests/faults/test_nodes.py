"""Devices that compute wrongly or slowly, planted underneath torch on one node of a lab, are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import Finished, accept
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

NODES = ("--workload", "nodes")
LAB = ("--hardware", "lab-200mbit", *NODES)
# A bit of the product flips: in every tenth product, or in every one of the size that is repeated.
FLIP = """
import torch

calls, healthy = [], torch.mm

def mm(*arguments, **named):
    product = healthy(*arguments, **named)
    calls.append(None)
    if {when}:
        product.view(-1).view(torch.uint8)[4 * 17] ^= 1
    return product

torch.mm = mm
"""
SOMETIMES = FLIP.format(when="len(calls) % 10 == 0")
ALWAYS = FLIP.format(when="product.shape == (96, 96) and product.dtype is torch.float32")
# Half the speed: everything is multiplied twice.
TWICE = """
import torch

healthy = torch.mm

def mm(*arguments, **named):
    healthy(*arguments, **named)
    return healthy(*arguments, **named)

torch.mm = mm
"""
CALIBRATED = """
[hardware]
name = "lab-calibrated"
about = "The lab, with a floor for products that this very machine reached a minute ago"
extends = "lab-200mbit"
auto = false

[[limit]]
metric = "tflops"
step = "nodes.matmul"
dtype = "fp32"
path = "memory"
min = {floor}
source = "three quarters of what both nodes of this lab reached in the run before"
date = 2026-11-20
derived = true
"""


def rows(done: Finished, word: str) -> list[dict[str, Any]]:
    """The checks of a run whose ids hold a word."""
    return [check for check in done.checks() if word in check["id"]]


def test_a_bit_that_flips_sometimes_is_named_with_node_repeat_kernel_and_offset(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        lab.patch_torch("n02", SOMETIMES)
        done = accept(lab, tmp_path, *LAB)
    assert done.status == 1, done.output
    assert (done.listed("rejected"), done.listed("accepted")) == (["n02"], ["n01"])
    (broken,) = [one for one in rows(done, "same_kernels") if one["nodes"] == ["n02"]]
    assert broken["outcome"] == "fail"
    for word in ("rank 0 on n02", "matmul", "iteration ", "offset 17", "bit 0 flipped"):
        assert word in broken["reason"], broken["reason"]


def test_a_device_that_is_always_wrong_differs_from_the_majority_of_its_equals(tmp_path: Path) -> None:
    with Lab.up(nodes=3, rate="200mbit") as lab:
        lab.patch_torch("n02", ALWAYS)
        done = accept(lab, tmp_path, *LAB)
    assert done.status == 1, done.output
    assert (done.listed("rejected"), done.listed("accepted")) == (["n02"], ["n01", "n03"])
    said = {one["nodes"][0]: (one["outcome"], one["reason"]) for one in rows(done, "same_kernels")}
    wanted = "rank 0 on n02 (cpu) computes another matmul fp32 than 2 of its 2 equals, every time"
    assert said == {"n01": ("pass", ""), "n02": ("fail", wanted), "n03": ("pass", "")}


def test_of_two_that_differ_nobody_is_named(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        lab.patch_torch("n02", ALWAYS)
        done = accept(lab, tmp_path, *LAB)
    assert done.status == 2, done.output
    assert (done.listed("unproven"), done.listed("rejected")) == (["n01", "n02"], [])
    assert {one["outcome"] for one in rows(done, "same_kernels")} == {"unchecked"}
    assert [blame for one in rows(done, "same_kernels") for blame in one["blame"]] == []


@pytest.mark.quiet
def test_a_node_at_half_its_speed_misses_the_calibrated_floor(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        before = accept(lab, tmp_path / "before", *LAB)
        assert before.status == 0, before.output
        floor = 0.75 * min(tflops(before))
        file = tmp_path / "calibrated.toml"
        file.write_text(CALIBRATED.format(floor=floor), encoding="utf-8")
        healthy = accept(lab, tmp_path / "healthy", "--hardware", str(file), *NODES)
        lab.patch_torch("n02", TWICE)
        slow = accept(lab, tmp_path / "slow", "--hardware", str(file), *NODES)
    assert healthy.status == 0, healthy.output
    assert slow.listed("rejected") == ["n02"], slow.output
    assert slow.listed("accepted") == ["n01"]
    assert any("nodes.matmul tflops" in one and "rank 0 on n02" in one for one in slow.faults())


def tflops(done: Finished) -> list[float]:
    """What every node reached in fp32, all devices at once and alone."""
    found = rows(done, "[fp32-n0")
    assert len(found) == 2, json.dumps(found)
    return [one["value"] for check in found for one in check["recorded"]["devices"]]
