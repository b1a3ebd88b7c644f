"""Every technique at the size of training, on processors: green on any number of ranks, and planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

from fixtures.ranks import timing
from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from fixtures.ranks.study import fitting
from fixtures.ranks.study.fitting import DoesNotFit
from fixtures.ranks.study.traffic import Watching
from suites.context import fused, test_context
from suites.context.layout import Layout, Span, contiguous, zigzag
from suites.context.ring_attention import Tally
from suites.expert import test_expert
from suites.mesh import test_mesh
from suites.pipeline import test_pipeline
from suites.tensor import test_tensor
from suites.zero import test_zero
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.fake_world import fake_world
from tests.suites.parallel import assert_green, load, sized
from thresholds.hardware import MODELS, Model
from thresholds.loading import load as file

MODULES = (test_zero, test_tensor, test_context, test_pipeline, test_expert, test_mesh)
CASES = [case for module in MODULES for case in module.AT_SIZE]
PARTS = ("parity", "repeat", "traffic", "memory", "figures")
CPU = torch.device("cpu")


# Two ranks have each of them in `make accept`; of four it is those that have two axes then.
@pytest.mark.parametrize("ranks", [3, 4])
def test_every_technique_is_right_at_size(ranks: int) -> None:
    here = [case for case in CASES if ranks < 4 or case.step.startswith(("mesh.", "zero.hsdp"))]
    found = assert_green(ranks, [(case.step, sized(case, ranks)) for case in here], PARTS)
    assert all(rank["figures"]["step_seconds"] > 0 for told in found for rank in told)


def refused(ctx: Context, ranks: int, model: Model | None) -> list[float]:
    """GB that each step asks for on a GPU, in a world that is said to be of so many ranks."""
    setattr(fitting, "free_bytes", lambda _: 0.0)  # noqa: B010 - in its own process
    setattr(timing, "agree", lambda _, value: value)  # noqa: B010
    hosts = [f"node-{rank // 8}" for rank in range(ranks)]
    world = replace(ctx, size=ranks, hosts=hosts, local_ranks=[rank % 8 for rank in range(ranks)])
    found = []
    for case in CASES:
        with pytest.raises(DoesNotFit) as error:
            REGISTRY[case.step](world, **sized(case, ranks, model or MODELS["nccl"]))
        found.append(float(str(error.value).split()[3]))
    return found


@pytest.mark.parametrize(
    ("board", "ranks", "most_gb"),
    [
        ("", 8, 60.0),  # of 80
        ("", 64, 60.0),
        # Nodes whose number is a prime or twice one, and as many as a large cluster has.
        *(("", 8 * nodes, 60.0) for nodes in (3, 7, 9, 22, 31, 61, 63, 64, 128)),
        # The smallest memory of these boards, USABLE of it, less 2 GB for contexts and communicators.
        *(("board-v100-sxm2", 8 * nodes, 12.7) for nodes in (2, 7, 31, 64)),
        *(("board-a100-sxm4", 8 * nodes, 34.4) for nodes in (2, 7, 31, 64)),
        *(("board-l40s", 8 * nodes, 39.5) for nodes in (2, 7, 31, 64)),
    ],
)
def test_every_step_says_what_it_needs_before_it_allocates_and_the_smallest_gpu_holds_it(
    board: str, ranks: int, most_gb: float
) -> None:
    load([case.step for case in CASES])
    model = file.load(file.resolve(board)).model if board else None
    (found,) = run_world(1, partial(refused, ranks=ranks, model=model))
    assert {case.words: gb for case, gb in zip(CASES, found, strict=True) if not 0.01 < gb < most_gb} == {}


@pytest.mark.parametrize("size", [2, 4, 5])
def test_tiles_cover_what_is_visible_once(size: int) -> None:
    for cut, length in ((contiguous, 6 * size), (zigzag, 6 * size)):
        places = cut(length, size)
        spans = tuple(Span.of(one, CPU) for one in places)
        for rank in range(size):
            layout = Layout(spans[rank], spans, causal=True)
            for source in range(size):
                seen = torch.zeros(6, 6, dtype=torch.int64)
                for tile in fused.tiles(layout, source):
                    block = seen[tile.queries, tile.keys]
                    block += torch.ones_like(block).tril() if tile.causal else 1
                visible = places[rank][:, None] >= places[source][None, :]
                assert torch.equal(seen, visible.long())


def blocks_of_keys(size: int, rank: int) -> int:
    """In how many blocks a rank attends to the keys that it has gathered."""
    case = next(case for case in CASES if case.step == "context.all_gather_kv")
    load([case.step])
    with mock.patch.object(fused, "tiles", wraps=fused.tiles) as seen:
        REGISTRY[case.step](context(rank, size), **sized(case, size))
    return 1 + max(int(call.args[1]) for call in seen.call_args_list)


@pytest.mark.parametrize(("rank", "blocks"), [(0, 2), (20, 3), (31, 2)])
def test_gathered_keys_take_as_many_calls_of_the_kernel_in_any_world(rank: int, blocks: int) -> None:
    assert fake_world(32, rank, blocks_of_keys) == blocks


def test_positions_that_overlap_otherwise_are_refused() -> None:
    whole, half = (Span.of(torch.arange(count), CPU) for count in (8, 4))
    with pytest.raises(ValueError, match="neither before"):
        list(fused.tiles(Layout(half, (whole,), causal=True), 0))


def test_flash_attention_adds_its_gradients_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes that from torch's switch, and only where that does not just warn."""
    seen: list[tuple[str, bool]] = []

    class Noting(Watching):  # type: ignore[no-untyped-call]
        def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
            one_order = torch.are_deterministic_algorithms_enabled() and not only_warns
            seen.append((func._schema.name, one_order))
            return func(*args, **kwargs)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    span = Span.of(torch.arange(8), CPU)
    kernel = fused.Fused(Layout(span, (span,), causal=True), Tally())
    q, kv = (
        torch.empty(size, device="meta", dtype=torch.bfloat16) for size in ((1, 2, 8, 8), (2, 1, 2, 8, 8))
    )
    with Noting():
        _, out, norm = kernel.attend(q, [(0, kv)], 2)
        kernel.backward(q, out, norm, q)(kv, 0)
    assert ("aten::_scaled_dot_product_flash_attention_backward", True) in seen


def test_a_device_without_the_kernel_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100-SXM2-16GB")
    with pytest.raises(Unsupported, match="this is Tesla V100"):
        fused.refuse_without_kernel(torch.device("cuda"))
    fused.refuse_without_kernel(CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    fused.refuse_without_kernel(torch.device("cuda"))
