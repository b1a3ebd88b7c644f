"""Torch's own context parallelism: n/a with torch's words where it has none, and torch is left as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn import functional

from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from suites.context import torch_ring
from suites.context.test_context import CONTEXT
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import load, told

STEP = "context.torch_ring"
CASES = [case.parameters for case in CONTEXT if case.step == STEP]


def refused(ctx: Context, **more: str) -> str:
    with pytest.raises(Unsupported) as why:
        REGISTRY[STEP](ctx, **{**CASES[0], **more})
    return str(why.value)


def test_a_device_without_it_is_not_applicable_in_torchs_own_words() -> None:
    load([STEP])
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    words = f"the backend says: Operator {name} does not have a sharding strategy registered."
    assert run_world(2, refused) == [words, words]


def test_a_gpu_without_its_kernel_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself raises a RuntimeError there ("FlashAttention only supports Ampere GPUs or newer")."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100-SXM2-16GB")
    world = replace(context(0, 2), device=torch.device("cuda"))
    with pytest.raises(Unsupported, match="this is Tesla V100"):
        REGISTRY[STEP](world, **CASES[0])


def test_a_torch_without_it_is_not_applicable() -> None:
    load([STEP])
    said = run_world(2, lambda ctx: refused(ctx, module="torch.distributed"))
    assert {one.partition(": ")[0] for one in said} == {"torch.distributed is not importable on the nodes"}
    assert said[0].endswith("has no context_parallel, set_rotate_method")


def test_nodes_without_what_torch_needs_for_it_are_not_applicable() -> None:
    def without(ctx: Context) -> str:
        with mock.patch.dict(sys.modules, {"numpy": None}):  # as if not installed
            return refused(ctx)

    load([STEP])
    said = run_world(2, without)
    assert {one.partition(": ")[0] for one in said} == {"numpy is not importable on the nodes"}


def test_torch_is_left_as_it_was() -> None:
    def left(ctx: Context) -> bool:
        attend, rotation = functional.scaled_dot_product_attention, _attention._cp_options.rotate_method
        for parameters in CASES:
            told(ctx, STEP, parameters)
        same = functional.scaled_dot_product_attention is attend
        return same and _attention._cp_options.rotate_method is rotation

    load([STEP])
    assert run_world(2, left) == [True, True]


def test_torch_is_left_as_it_was_where_its_context_forgets_that_it_was_left_by_an_error() -> None:
    """As in torch 2.10, whose context has no `finally`."""

    kept: list[object] = []  # or it would be closed behind our back

    @contextmanager
    def forgetful(mesh: DeviceMesh, **dealing: Any) -> Iterator[None]:
        whole = _attention.context_parallel(mesh, **dealing)
        kept.append(whole)
        whole.__enter__()
        yield
        whole.__exit__(None, None, None)

    def left(ctx: Context) -> bool:
        attend = functional.scaled_dot_product_attention
        with mock.patch(f"{torch_ring.MODULE}.context_parallel", forgetful):
            refused(ctx)
        return functional.scaled_dot_product_attention is attend

    load([STEP])
    assert run_world(2, left) == [True, True]


def test_what_forward_keeps_is_the_closed_form_and_the_state_of_random_numbers() -> None:
    """Bytes that a reader can check: 2 x 4 heads x 6 tokens x 8 numbers in bf16, and their norm in fp32."""
    load([STEP])
    for said in run_world(2, lambda ctx: told(ctx, STEP, CASES[0])):
        (held,) = (one for one in said["memory"] if one["what"].startswith("peak of what is saved"))
        heads = 2 * 4 * 6
        assert held["bytes"] == 4 * heads * 8 * 2 + heads * 4 < held["at_most_bytes"]
        assert held["at_most_bytes"] - held["bytes"] < torch.iinfo(torch.int8).max
