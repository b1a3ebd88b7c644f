"""Group-limited routing in every layout of nodes, and expert parallelism in parts of the world."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from fixtures.ranks.steps import REGISTRY, Context
from suites.expert.groups import Nodes, limited_tables
from suites.expert.issued import TAGS, WORD_BYTES, sizes_in
from suites.expert.parts import divided, in_part
from suites.expert.routing import Shape
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.expert.test_steps import issued
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world
from tests.suites.parallel import assert_green, load, red
from tests.teeth.bug import replaced
from tests.teeth.expert import DIVIDED, LIMITED

# Nodes and the ranks of each, by the size of the world; a node alone is cut into groups that stand for nodes.
LAYOUTS = {2: ((1, 2), (2, 1)), 6: ((3, 2), (2, 3), (6, 1), (1, 6))}


def placed(ctx: Context, nodes: int, ranks: int) -> Context:
    hosts = [f"node{rank // ranks}" for rank in range(ctx.size)]
    return replace(ctx, hosts=hosts, local_ranks=[rank % ranks for rank in range(nodes * ranks)])


def bytes_saved(size: int, nodes: Nodes) -> tuple[float, float]:
    """What crosses between nodes in all: each token once for a node, and each row by itself."""
    shape = Shape(LIMITED["tokens_per_rank"], LIMITED["words"], 1, 4 * size, LIMITED["top_k"])
    routed = limited_tables(7, size, shape, nodes, min(LIMITED["most_nodes"], nodes.count))
    per_node = shape.experts // nodes.count
    once = rows = 0
    for source, chosen in enumerate(routed):
        for experts in chosen.tolist():
            others = [e // per_node for e in experts if e // per_node != nodes.of(source)]
            once, rows = once + len(set(others)), rows + len(others)
    words = TAGS + shape.hidden
    return float(once * WORD_BYTES * (words + shape.top_k)), float(rows * WORD_BYTES * words)


@pytest.mark.parametrize("size", LAYOUTS)
def test_group_limited_routing_holds_in_every_layout(size: int) -> None:
    load(["expert."])
    step = REGISTRY["expert.group_limited"]
    by_rank = run_world(size, lambda ctx: [step(placed(ctx, *one), **LIMITED) for one in LAYOUTS[size]])
    for index, (count, ranks) in enumerate(LAYOUTS[size]):
        results = [found[index] for found in by_rank]
        assert red("expert.group_limited", results) == {}, (count, ranks)
        alone = max(n for n in range(1, 5) if size % n == 0)
        groups = Nodes(count, ranks) if count > 1 else Nodes(alone, size // alone)
        figures = [result["figures"] for result in results]
        names = ("internode_bytes", "internode_bytes_row_by_row")
        assert tuple(sum(one[name] for one in figures) for name in names) == bytes_saved(size, groups)


def test_an_order_of_arrival_that_is_not_that_of_the_hops_is_seen() -> None:
    # In the order of ranks, not of those who forward: right where every node has one rank, and only there.
    def upwards(nodes: Nodes) -> list[int]:
        return list(range(nodes.count * nodes.ranks))

    def one(ctx: Context) -> dict[str, Any]:
        with replaced(Nodes, "forwarded", lambda _: upwards):
            return REGISTRY["expert.group_limited"](placed(ctx, 2, 2), **LIMITED)

    load(["expert."])
    assert "tokens at experts" in red("expert.group_limited", run_world(4, one))["parity"]


def test_those_sizes_are_taken_that_divide_a_larger_world() -> None:
    asked = (8, 16, 32, 64)
    assert [sizes_in(world, asked) for world in (2, 8, 16, 24, 64)] == [[2], [8], [8], [8], [8, 16, 32]]
    assert sizes_in(512, asked) == list(asked)
    with (
        pytest.raises(ValueError, match="6 ranks cannot be divided into groups of 4"),
        divided(context(0, 6), 4),
    ):
        pass


@pytest.mark.parametrize("size", [2, 8])
def test_every_part_of_the_world_holds(size: int) -> None:
    case = ("expert.groups", {**DIVIDED, "group_sizes": {"cpu": [2, 4]}})
    (results,) = assert_green(size, [case], parts=("parity", "repeat", "traffic", "figures", "wrong"))
    sizes = sizes_in(size, (2, 4))
    assert {name for name in results[0]["figures"] if name.startswith("dispatch_ep")} == {
        f"dispatch_ep{one}{figure}" for one in sizes for figure in ("", "_us", "_p99_us")
    }
    assert {line["group"] for line in results[0]["traffic"]} == {f"EP {one}" for one in sizes}


def test_a_wrong_word_names_the_rank_of_the_world_that_has_it() -> None:
    def one(ctx: Context) -> dict[str, Any]:
        real = dist.all_to_all_single

        def flipped(output: Any, *args: Any, **kwargs: Any) -> None:
            real(output, *args, **kwargs)
            if ctx.rank == 3 and len(args) == 3 and output.numel():
                output.view(-1)[0] += 1

        dist.all_to_all_single = flipped
        return REGISTRY["expert.groups"](ctx, **DIVIDED)

    load(["expert."])
    said = red("expert.groups", run_world(4, one))
    assert said["wrong"].startswith("wrong data at rank 3 ")


def parts(world: int, rank: int, sizes: tuple[int, ...]) -> Accounts:
    """What one rank of a fake world issues in its part for a timed dispatch and combine, for each size."""
    found: Accounts = []
    for size in sizes:
        with divided(context(rank, world), size) as among:
            assert among.ranks == range(world - size, world)
            found.append((f"EP {size}", issued(in_part(context(rank, world), among, (8, 32, 2), 2)[1]), []))
    return found


@pytest.mark.parametrize(("world", "sizes"), [(64, (8, 16, 32)), (512, (8, 16, 32, 64))])
def test_parts_issue_the_closed_form_in_fake_worlds(world: int, sizes: tuple[int, ...]) -> None:
    found = fake_world(world, world - 1, partial(parts, sizes=sizes))
    assert_closed_forms(found, len(sizes))
    assert [("all_to_all", name) for name, _, _ in found] == [
        (line["op"], line["group"]) for _, lines, _ in found for line in lines
    ]
