"""Dense combinations: every part of every step in real worlds on gloo, and the groups left behind."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import REGISTRY, Context
from suites.mesh.axes import Layout
from suites.mesh.dense import part
from suites.mesh.task import EXACT, Task, unsharded
from suites.mesh.test_mesh import STEPS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, load

PARTS = ("parity", "repeat", "traffic", "memory", "placement", "figures", "wrong")
AXES = {
    "mesh.fsdp_tp": {2: {"dp"}, 4: {"dp", "tp"}, 8: {"dp", "tp"}},
    "mesh.pp_fsdp_tp": {2: {"pp"}, 4: {"pp", "tp"}, 8: {"pp", "dp", "tp"}},
    "mesh.fsdp_cp": {2: {"cp"}, 4: {"dp", "cp"}, 8: {"dp", "cp"}},
    "mesh.loss_curve": {2: {"tp"}, 4: {"dp", "tp"}, 8: {"dp", "tp"}},
}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_part_of_every_step_holds(size: int) -> None:
    cases = [(case.step, case.parameters) for case in STEPS if size < 8 or case.words[0] != "loss_curve"]
    found = assert_green(size, cases, parts=PARTS)
    for (step, _), ranks in zip(cases, found, strict=True):
        for rank in ranks:
            assert {entry["axis"] for entry in rank["placement"]} == AXES[step][size], step
            assert {f"{axis}_bandwidth" for axis in AXES[step][size]} < rank["figures"].keys(), step
            assert rank["figures"]["step_seconds"] > 0, step


def test_a_world_whose_size_is_odd_holds_too() -> None:
    assert_green(3, [(case.step, case.parameters) for case in STEPS[:3]], parts=PARTS)
    assert_green(5, [(STEPS[1].step, STEPS[1].parameters)], parts=PARTS)


def test_logits_loss_every_gradient_and_every_parameter_are_compared() -> None:
    ranks = assert_green(2, [(STEPS[0].step, STEPS[0].parameters)])[0]
    compared = [entry["what"] for entry in ranks[0]["parity"]]
    weights = 2 * 9 + 3  # of a block: two norms, four matrices of attention and three of the MLP
    assert sum(what.startswith("grad:") for what in compared) == weights
    assert sum(what.startswith("param:") for what in compared) == weights
    assert {"loss", "logits", "bf16:loss", "bf16:logits", "bf16:grads", "bf16:params"} < set(compared)


def test_the_last_stage_alone_has_loss_and_logits_and_every_stage_its_own_weights() -> None:
    first, last = (
        {entry["what"] for entry in rank["parity"]}
        for rank in assert_green(2, [(STEPS[1].step, STEPS[1].parameters)])[0]
    )
    assert not {"loss", "logits", "grad:head.weight"} & first
    assert {"grad:embedding.weight", "grad:blocks.0.attention.q.weight"} < first
    assert {"loss", "logits", "grad:head.weight", "grad:blocks.1.attention.q.weight"} < last


def test_the_loss_falls_while_it_is_compared() -> None:
    case = STEPS[3]
    layout = Layout(("dp", "tp"), (1, 2))
    parameters = {name: case.parameters[name] for name in ("rows", "tokens", "layers", "steps")}
    losses = unsharded(Task(context(0, 2), layout, **parameters), EXACT)["loss"]
    assert len(losses) == 20
    assert float(losses[-2:].mean()) < 0.8 * float(losses[:2].mean())


def test_no_step_leaves_a_process_group_behind() -> None:
    load([STEPS[0].step])

    def groups_left(ctx: Context) -> int:
        for case in STEPS[:3]:
            REGISTRY[case.step](ctx, **case.parameters)
        return len(dist.distributed_c10d._world.pg_map)

    assert run_world(4, groups_left) == [1, 1, 1, 1]


def test_the_parts_of_all_ranks_make_up_every_weight_once() -> None:
    layout = Layout(("dp", "tp"), (2, 2))
    tasks = [Task(context(rank, 4), layout, 1, 4, 1, 3) for rank in range(4)]
    whole = {f"param:{name}": one.detach() for name, one in tasks[0].model(EXACT).named_parameters()}
    held = [part(task, whole, whole) for task in tasks]
    for name, tensor in whole.items():
        if "norm" in name:
            assert torch.equal(torch.cat([held[0][name], held[2][name]]), tensor)
            assert torch.equal(held[0][name], held[1][name])
        else:
            assert sum(one[name].numel() for one in held) == tensor.numel()
            assert torch.equal(
                torch.cat([one[name].flatten() for one in held]).sort().values, tensor.flatten().sort().values
            )


def test_matrices_divide_without_rest_however_ranks_are_laid_out() -> None:
    for sizes in ((2, 1), (3, 2), (5, 1), (6, 4), (64, 8)):
        task = Task(context(0, 1), Layout(("dp", "tp"), sizes), 1, 8, 1, 3)
        assert task.width % task.shards == 0
        assert task.kv_heads % task.tp == 0
        assert 8 * task.kv_heads // task.tp % task.shards == 0
        assert task.hidden // task.tp % task.shards == 0
