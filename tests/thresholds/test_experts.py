"""Sizes of the expert steps in a hardware file: read as they stand, refused with their line, asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.check import requests
from fixtures.check.plan import NETWORK, Planned
from fixtures.check.target import Target
from suites.expert.test_expert import DIVIDED, LATENCY, NORMAL, PATTERN, PING_PONG, SIZES
from tests.each import each
from tests.thresholds.files import GOOD, loaded
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, read, shipped

TABLE = """
[experts]
normal = { tokens = 4096, hidden = 7168, top_k = 8 }
low_latency = { tokens = 128, hidden = 7168, top_k = 8 }
m2n = ["256KiB", "2MiB"]
source = "example/repository@0000000 file:3"
"""
WHERE = GOOD.count("\n") + 2  # the line of the table


def test_sizes_are_read_as_they_stand() -> None:
    assert loaded().experts is None
    experts = loaded(GOOD + TABLE).experts
    assert experts is not None
    assert (experts.normal, experts.low_latency) == ((4096, 7168, 8), (128, 7168, 8))
    assert experts.sizes("m2n") == [256 << 10, 2 << 20]
    assert experts.source == "example/repository@0000000 file:3"


@each(
    ("old", "new", "line", "words"),
    [
        ("tokens = 4096", "token = 4096", 1, "unknown key experts.normal.token; did you mean tokens?"),
        ("tokens = 4096, ", "", 1, "experts.normal.tokens is missing"),
        ("tokens = 128", "tokens = 0", 2, "experts.low_latency.tokens"),
        ("hidden = 7168, top_k = 8 }\nm2n", "hidden = 7164, top_k = 8 }\nm2n", 2, "multiple of 8"),
        ("top_k = 8 }\nlow", "top_k = 17 }\nlow", 1, "experts.normal.top_k"),
        ('["256KiB", "2MiB"]', "[]", 3, "experts.m2n"),
        ('"256KiB"', '"12B"', 3, "multiples of 8B"),
        ('["256KiB", "2MiB"]', '["2MiB", "256KiB"]', 3, "the smallest first"),
        ('source = "example/repository@0000000 file:3"\n', "", 0, "experts.source is missing"),
        ("[experts]", "[expert]", 0, "unknown section [expert]; did you mean experts?"),
    ],
)
def test_a_fault_is_named_with_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in TABLE
    with pytest.raises(HardwareFileError) as refused:
        read((GOOD + TABLE.replace(old, new, 1)).encode(), Path("small.toml"))
    faults = [(fault.line, fault.text) for fault in refused.value.faults]
    assert any(words in text for _, text in faults), faults
    assert WHERE + line in [where for where, _ in faults], faults


def target(text: str, case: int) -> Target:
    planned = [*NORMAL, *LATENCY, *PATTERN, *DIVIDED, *PING_PONG][case]
    nodes = {"n1": 2, "n2": 2}
    return Target(Planned(planned, NETWORK, tuple(nodes), "id"), nodes, loaded(text), "gloo", {})


def test_ranks_are_asked_for_the_sizes_of_the_file_where_it_has_some() -> None:
    asked = [requests.step(target(GOOD + TABLE, case)).parameters["sizes"] for case in range(4)]
    rows = [[4096, 7168, 8], [128, 7168, 8], [256 << 10, 2 << 20], [4096, 7168, 8]]
    assert asked == [{"cpu": row, "cuda": row} for row in rows]
    assert requests.step(target(GOOD, 0)).parameters["sizes"] == SIZES["normal"]
    assert "sizes" not in requests.step(target(GOOD + TABLE, 4)).parameters


def test_the_file_for_h100_has_the_settings_of_deepep() -> None:
    experts = load(shipped()["h100-sxm5-ndr400"]).experts
    assert experts is not None
    assert (experts.normal, experts.low_latency) == ((4096, 7168, 8), (128, 7168, 8))
    assert experts.m2n == tuple(kib << 10 for kib in (256, 512, 1024, 2048))
    assert "deepseek-ai/DeepEP@" in experts.source
