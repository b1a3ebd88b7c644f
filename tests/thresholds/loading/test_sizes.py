"""Sizes of steps in a hardware file: read as they stand, refused with their line, inherited, asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.check import requests
from fixtures.check.plan import NETWORK, NIC, Case, Place, Planned
from fixtures.check.target import Target
from suites.collectives.test_collectives import sweep
from suites.expert.test_expert import DIVIDED, LATENCY, NORMAL, PATTERN, PING_PONG, SIZES
from suites.zero.test_zero import AT_SIZE, STEPS
from tests.each import each
from tests.thresholds.files import GOOD, loaded
from thresholds.hardware import MODELS, Hardware
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, read, shipped

MODEL = """
[model]
hidden = 512
heads = 8
experts = 16
experts_per_token = 4
sequence = 128
micro_batches = 4
layers = 3
"""
EXPERTS = """
[experts]
normal = { tokens = 4096, hidden = 7168, top_k = 8 }
low_latency = { tokens = 128, hidden = 7168, top_k = 8 }
m2n = ["256KiB", "2MiB"]
source = "example/repository@0000000 file:3"
"""
WHERE = GOOD.count("\n") + 2  # the line of the table


def test_tables_are_read_as_they_stand() -> None:
    assert (loaded().model, loaded().experts) == (None, None)
    model = loaded(GOOD + MODEL).model
    assert model is not None
    assert [*model.model_dump().values()] == [512, 8, 16, 4, 128, 4, 3]
    experts = loaded(GOOD + EXPERTS).experts
    assert experts is not None
    assert [experts.sizes(name) for name in ("normal", "low_latency")] == [[4096, 7168, 8], [128, 7168, 8]]
    assert experts.sizes("m2n") == [256 << 10, 2 << 20]
    assert experts.source == "example/repository@0000000 file:3"


@each(
    ("table", "old", "new", "line", "words"),
    [
        (MODEL, "hidden = 512", "hiden = 512", 1, "unknown key model.hiden; did you mean hidden?"),
        (MODEL, "layers = 3\n", "", 0, "model.layers is missing"),
        (MODEL, "hidden = 512", "hidden = 500", 1, "model.hidden"),
        (MODEL, "heads = 8", "heads = 7", 0, "7 heads of an even width do not make up a hidden of 512"),
        (MODEL, "experts = 16", "experts = 2", 0, "a token cannot have 4 of 2 experts"),
        (
            EXPERTS,
            "tokens = 4096",
            "token = 4096",
            1,
            "unknown key experts.normal.token; did you mean tokens?",
        ),
        (EXPERTS, "tokens = 4096, ", "", 1, "experts.normal.tokens is missing"),
        (EXPERTS, "tokens = 128", "tokens = 0", 2, "experts.low_latency.tokens"),
        (EXPERTS, "7168, top_k = 8 }\nm2n", "7160, top_k = 8 }\nm2n", 2, "multiple of 128"),
        (EXPERTS, "top_k = 8 }\nlow", "top_k = 17 }\nlow", 1, "experts.normal.top_k"),
        (EXPERTS, '["256KiB", "2MiB"]', "[]", 3, "experts.m2n"),
        (EXPERTS, '"256KiB"', '"12B"', 3, "multiples of 8B"),
        (EXPERTS, '["256KiB", "2MiB"]', '["2MiB", "256KiB"]', 3, "the smallest first"),
        (EXPERTS, 'source = "example/repository@0000000 file:3"\n', "", 0, "experts.source is missing"),
        (EXPERTS, "[experts]", "[expert]", 0, "unknown section [expert]; did you mean experts?"),
    ],
)
def test_a_fault_is_named_with_its_line(table: str, old: str, new: str, line: int, words: str) -> None:
    assert old in table
    with pytest.raises(HardwareFileError) as refused:
        read((GOOD + table.replace(old, new, 1)).encode(), Path("small.toml"))
    faults = [(fault.line, fault.text) for fault in refused.value.faults]
    assert any(words in text for _, text in faults), faults
    assert WHERE + line in [where for where, _ in faults], faults


def test_a_model_is_inherited() -> None:
    hidden = {name: load(shipped()[name]).model for name in ("azure-ndv4", "aws-p3dn", "h100-sxm5-ndr400")}
    assert [model and model.hidden for model in hidden.values()] == [6144, 4096, None]


def target(text: str, case: Case, backend: str = "gloo", ranks: int = 4) -> Target:
    nodes = {"n1": ranks // 2, "n2": ranks // 2}
    return Target(Planned(case, NETWORK, tuple(nodes), "id"), nodes, loaded(text), backend, {})


def test_a_step_is_asked_for_at_the_size_of_the_file_or_of_its_backend() -> None:
    asked = requests.step(target(GOOD + MODEL, AT_SIZE[1])).parameters
    assert asked == {"width": 512, "layers": 3, "rows": 128, "steps": 2, "at_size": True}
    for backend, model in MODELS.items():
        assert requests.step(target(GOOD, AT_SIZE[1], backend)).parameters["width"] == model.hidden
    assert "at_size" not in requests.step(target(GOOD, STEPS[1])).parameters


def test_the_unsharded_batch_does_not_grow_with_the_world() -> None:
    asked = {ranks: target(GOOD, AT_SIZE[1], "nccl", ranks) for ranks in (2, 8, 64, 512)}
    rows = {ranks: requests.step(one).parameters["rows"] for ranks, one in asked.items()}
    assert rows == {2: 4096, 8: 4096, 64: 512, 512: 64}


def test_every_shipped_file_has_a_model_that_its_devices_hold() -> None:
    for name, path in shipped().items():
        model, memory = load(path).model or MODELS["nccl"], load(path).expect.get("gpu_memory_mib")
        if memory:
            elements = 6 * model.hidden**2 * model.layers
            assert 46 * elements < 0.8 * memory * 2**20, name


def test_expert_steps_are_asked_for_the_sizes_of_the_file_where_it_has_some() -> None:
    cases = [*NORMAL, *LATENCY, *PATTERN, *DIVIDED, *PING_PONG]
    asked = [requests.step(target(GOOD + EXPERTS, case)).parameters["sizes"] for case in cases[:4]]
    rows = [[4096, 7168, 8], [128, 7168, 8], [256 << 10, 2 << 20], [4096, 7168, 8]]
    assert asked == [{"cpu": row, "cuda": row} for row in rows]
    assert requests.step(target(GOOD, cases[0])).parameters["sizes"] == SIZES["normal"]
    assert "sizes" not in requests.step(target(GOOD + EXPERTS, cases[4])).parameters


def test_the_file_for_h100_has_the_settings_of_deepep() -> None:
    experts = load(shipped()["h100-sxm5-ndr400"]).experts
    assert experts is not None
    assert [experts.sizes(name) for name in ("normal", "low_latency")] == [[4096, 7168, 8], [128, 7168, 8]]
    assert experts.m2n == tuple(kib << 10 for kib in (256, 512, 1024, 2048))
    assert "deepseek-ai/DeepEP@" in experts.source


def test_nics_alone_are_judged_at_the_smallest_size_that_has_a_limit_and_gives_each_rank_its_part() -> None:
    file = load(shipped()["h100-sxm5-ndr400"])
    bare = replace(file, limits=())
    (case,) = sweep(["all_reduce"])

    def judged(file: Hardware, place: Place, nodes: int) -> tuple[list[int], int]:
        ranks = {f"n{i}": 8 for i in range(nodes)}
        target = Target(Planned(case, place, tuple(ranks), "id"), ranks, file, "nccl", {})
        asked = requests.bandwidth(target).parameters
        assert asked["sizes"][0] == min(file.sweep.bandwidth)
        return asked["judged"], asked["sizes"][-1]

    assert judged(file, NIC, 2) == ([1 << 30], 1 << 30)
    for other in ((file, NIC, 16), (file, NETWORK, 2), (bare, NIC, 2)):
        assert judged(*other) == ([8 << 30], 8 << 30)
