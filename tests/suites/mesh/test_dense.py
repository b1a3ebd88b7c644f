"""Dense combinations: every part of every step in real worlds on gloo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import EXACT
from suites.mesh.axes import laid_out
from suites.mesh.dense import Divided
from suites.mesh.issued import Sizes
from suites.mesh.layout import Layout
from suites.mesh.task import Task, unsharded
from suites.mesh.test_mesh import STEPS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import Case, assert_green

PARTS = ("parity", "repeat", "traffic", "memory", "placement", "figures", "wrong")
LESS = {"rows": 1, "layers": 1, "per_stage": 1}
FSDP_TP, PP_FSDP_TP, FSDP_CP, FSDP_CP_TP, LOSS_CURVE = (case.step for case in STEPS)
PARAMETERS = {case.step: {**case.parameters, "steps": 2} for case in STEPS}
AXES = {
    FSDP_TP: {2: {"dp"}, 4: {"dp", "tp"}},
    PP_FSDP_TP: {2: {"pp"}, 3: {"pp"}, 8: {"pp", "dp", "tp"}},
    FSDP_CP: {2: {"cp"}, 4: {"dp", "cp"}},
    FSDP_CP_TP: {8: {"dp", "cp", "tp"}},
    LOSS_CURVE: {2: {"tp"}},
}


def smaller(step: str, parameters: Mapping[str, Any]) -> Case:
    """A step with as little of everything as it can do with."""
    return step, {**parameters, **{name: LESS[name] for name in LESS if name in parameters}}


def cases(size: int) -> list[Case]:
    """The steps of a world."""
    return [(step, PARAMETERS[step]) for step, sizes in AXES.items() if size in sizes]


def checked(size: int, steps: list[Case]) -> dict[str, list[dict[str, Any]]]:
    """What each rank says of each step, all of which holds along the right axes."""
    found = {step: one for (step, _), one in zip(steps, assert_green(size, steps, PARTS), strict=True)}
    for step, ranks in found.items():
        for rank in ranks:
            assert {entry["axis"] for entry in rank["placement"]} == AXES[step][size], step
            assert {f"{axis}_bandwidth" for axis in AXES[step][size]} < rank["figures"].keys(), step
            assert rank["figures"]["step_seconds"] > 0, step
    return found


@pytest.fixture(scope="module")
def pair() -> dict[str, list[dict[str, Any]]]:
    """Every step on two ranks."""
    return checked(2, cases(2))


@pytest.mark.parametrize("size", [3, 4, 8])  # of three stages one is neither the first nor the last
def test_every_part_of_every_step_holds(size: int) -> None:
    checked(size, [smaller(*case) for case in cases(size)])


def test_logits_loss_every_gradient_and_every_parameter_are_compared(
    pair: dict[str, list[dict[str, Any]]],
) -> None:
    compared = [entry["what"] for entry in pair[FSDP_TP][0]["parity"]]
    weights = 2 * 9 + 3  # of a block: two norms, four matrices of attention and three of the MLP
    assert sum(what.startswith("grad:") for what in compared) == weights
    assert sum(what.startswith("param:") for what in compared) == weights
    assert {"loss", "logits", "bf16:loss", "bf16:logits", "bf16:grads", "bf16:params"} < set(compared)
    assert not [entry for entry in pair[LOSS_CURVE][0]["parity"] if entry["what"].startswith("bf16:")]


def test_the_last_stage_alone_has_loss_and_logits_and_every_stage_its_own_weights(
    pair: dict[str, list[dict[str, Any]]],
) -> None:
    first, last = ({entry["what"] for entry in rank["parity"]} for rank in pair[PP_FSDP_TP])
    assert not {"loss", "logits", "grad:head.weight"} & first
    assert {"grad:embedding.weight", "grad:blocks.0.attention.q.weight"} < first
    assert {"loss", "logits", "grad:head.weight", "grad:blocks.1.attention.q.weight"} < last


def test_the_loss_falls_while_it_is_compared() -> None:
    case = STEPS[-1]
    layout = Layout(("dp", "tp"), (1, 2))
    parameters = {name: case.parameters[name] for name in ("rows", "tokens", "layers", "steps")}
    losses = unsharded(Task(0, layout, **parameters, ctx=context(0, 2)), EXACT)["loss"]
    assert len(losses) == 20
    assert float(losses[-2:].mean()) < 0.8 * float(losses[:2].mean())


def test_the_parts_of_all_ranks_make_up_every_weight_once() -> None:
    def parts(ctx: Context) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        task = Task(ctx.rank, Layout(("dp", "tp"), (2, 2)), 1, 4, 1, 3, ctx=ctx)
        model = task.model(EXACT)
        whole = {f"param:{name}": one.detach() for name, one in model.named_parameters()}
        whole |= dict.fromkeys(("loss", "logits"), torch.empty(0))
        with laid_out(ctx, task.layout) as mesh:
            return whole, Divided(task, mesh, EXACT).part(whole)

    found = run_world(4, parts)
    held = [part for _, part in found]
    for name, tensor in found[0][0].items():
        if "norm" in name:
            assert torch.equal(torch.cat([held[0][name], held[2][name]]), tensor)
            assert torch.equal(held[0][name], held[1][name])
        else:
            assert sum(one[name].numel() for one in held) == tensor.numel()
            assert torch.equal(
                torch.cat([one[name].flatten() for one in held]).sort().values, tensor.flatten().sort().values
            )


def test_matrices_divide_without_rest_however_ranks_are_laid_out() -> None:
    for sizes in ((2, 1), (3, 2), (5, 1), (6, 4), (64, 8), (63, 8), (61, 8)):
        task = Sizes(0, Layout(("dp", "tp"), sizes), 1, 8, 1, 3)
        assert task.width % task.shards == 0
        assert task.kv_heads % task.tp == 0
        assert task.channels * task.kv_heads // task.tp % task.shards == 0
        assert task.channels % 2 == 0  # rotary embeddings rotate pairs
        assert task.width <= 4 * task.tp * max(8, task.shards)  # in step with the ranks, not their square
        assert task.hidden // task.tp % task.shards == 0
