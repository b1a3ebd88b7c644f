"""The model of training in a hardware file: read, refused with its line, inherited, and asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.check import requests
from fixtures.check.plan import NETWORK, Planned
from fixtures.check.target import Target
from suites.zero.test_zero import AT_SIZE, STEPS
from tests.each import each
from tests.thresholds.files import GOOD, loaded
from thresholds.hardware import MODELS, Model
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, read, shipped

TABLE = """
[model]
hidden = 512
heads = 8
experts = 16
experts_per_token = 4
sequence = 128
micro_batches = 4
layers = 3
"""
WHERE = GOOD.count("\n") + 2  # the line of the table


def test_a_model_is_read_as_it_stands() -> None:
    assert loaded().model is None
    assert loaded(GOOD + TABLE).model == Model(512, 8, 16, 4, 128, 4, 3)


@each(
    ("old", "new", "line", "words"),
    [
        ("hidden = 512", "hiden = 512", 1, "unknown key model.hiden; did you mean hidden?"),
        ("layers = 3\n", "", 0, "model.layers is missing"),
        ("hidden = 512", "hidden = 500", 1, "model.hidden"),
        ("heads = 8", "heads = 7", 0, "7 heads of an even width do not make up a hidden of 512"),
        ("experts = 16", "experts = 2", 0, "a token cannot have 4 of 2 experts"),
    ],
)
def test_a_fault_is_named_with_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in TABLE
    text = GOOD + TABLE.replace(old, new, 1)
    with pytest.raises(HardwareFileError) as refused:
        read(text.encode(), Path("small.toml"))
    faults = [(fault.line, fault.text) for fault in refused.value.faults]
    assert any(words in text for _, text in faults), faults
    assert WHERE + line in [where for where, _ in faults], faults


def test_a_model_is_inherited() -> None:
    hidden = {name: load(shipped()[name]).model for name in ("azure-ndv4", "aws-p3dn", "h100-sxm5-ndr400")}
    assert [model and model.hidden for model in hidden.values()] == [6144, 4096, None]


def target(text: str, backend: str, ranks: int, small: bool = False) -> Target:
    nodes = {"n1": ranks // 2, "n2": ranks // 2}
    planned = (STEPS if small else AT_SIZE)[1]
    return Target(Planned(planned, NETWORK, tuple(nodes), "id"), nodes, loaded(text), backend, {})


def test_a_step_is_asked_for_at_the_size_of_the_file_or_of_its_backend() -> None:
    asked = requests.step(target(GOOD + TABLE, "gloo", 4)).parameters
    assert asked == {"width": 512, "layers": 3, "rows": 128, "steps": 2, "at_size": True}
    for backend, model in MODELS.items():
        assert requests.step(target(GOOD, backend, 4)).parameters["width"] == model.hidden
    assert "at_size" not in requests.step(target(GOOD, "gloo", 4, small=True)).parameters


def test_the_unsharded_batch_does_not_grow_with_the_world() -> None:
    rows = {ranks: requests.step(target(GOOD, "nccl", ranks)).parameters["rows"] for ranks in (2, 8, 64, 512)}
    assert rows == {2: 4096, 8: 4096, 64: 512, 512: 64}


def test_every_shipped_file_has_a_model_that_its_devices_hold() -> None:
    for name, path in shipped().items():
        model, memory = load(path).model or MODELS["nccl"], load(path).expect.get("gpu_memory_mib")
        if memory:
            elements = 6 * model.hidden**2 * model.layers
            assert 46 * elements < 0.8 * memory * 2**20, name
