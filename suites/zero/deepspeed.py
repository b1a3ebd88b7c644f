"""DeepSpeed's own stages of ZeRO, held to the same closed forms as ours.

It trains in fp32 and, with fp32 masters, in bf16; it knows no fp64. Its defaults clip gradients to a norm of
1 and keep small parameters whole: both are switched off, so that what it computes is what the unsharded
model computes, and what it exchanges is what the paper says (Rajbhandari et al., arXiv:1910.02054, section
7). How many calls an exchange is cut into, and of which kind, is DeepSpeed's business; how many bytes is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.study import memory
from fixtures.ranks.study.traffic import Traffic
from suites.zero.evidence import Entries, flattened, of_all, repeat_entries, rounded_entry
from suites.zero.training import (
    TRAINING,
    Named,
    Task,
    Trace,
    follow,
    loss_of,
    optimizer_of,
    unsharded,
)

WIDE = torch.float32
ITEM = WIDE.itemsize
_Compared = tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
NEEDS = ("initialize", "utils", "comm")
_FLAG_BYTES = 8  # of what it exchanges beside: whether a gradient overflowed, and norms
_ROUNDOFF = {WIDE: 2.0**-24, TRAINING: 2.0**-9}
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_GATHERS = ("all_gather", "broadcast")


def build_in_job() -> None:
    """Let whatever DeepSpeed compiles be gone with the job: nothing is left on a node."""
    directory = os.environ.get("SHAKEDOWN_JOB")
    if directory:
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{directory}/extensions")


def settings(task: Task, stage: int, dtype: torch.dtype) -> dict[str, Any]:
    """Write its configuration: a bucket is a block, and nothing is kept that its stage says to give up."""
    block = task.block_elements
    return {
        "train_micro_batch_size_per_gpu": task.rows,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "communication_data_type": "fp32",
        "bf16": {"enabled": dtype is TRAINING},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            "reduce_bucket_size": block,
            "allgather_bucket_size": block,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
        },
    }


class DeepSpeed:
    """A stage at work on one rank."""

    def __init__(self, task: Task, module: Any, stage: int, dtype: torch.dtype) -> None:  # noqa: ANN401
        self.module, self.stage = module, stage
        self.model = task.model(dtype)
        inner = optimizer_of(list(self.model.parameters()))
        config = settings(task, stage, dtype)
        self.engine, self.optimizer, *_ = module.initialize(
            model=self.model, optimizer=inner, config=config, dist_init_required=False
        )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Exchanges and update are DeepSpeed's own business."""
        loss = self.accumulate(x, y)
        self.engine.step()
        return loss

    def accumulate(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Forward and backward."""
        loss = loss_of(self.engine(x), y)
        self.engine.backward(loss)
        return loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        output: torch.Tensor = self.engine(x)
        return output

    def gradients(self) -> Named:
        """None: they are gone after the update; `whole_gradients` has those of a step without one."""
        return {}

    def whole_gradients(self) -> Named:
        """What backward left, put together from all ranks."""
        return self._whole(self.module.utils.safe_get_full_grad)

    def parameters(self) -> Named:
        """The masters in fp32, put together from all ranks."""
        return self._whole(self.module.utils.safe_get_full_fp32_param)

    def part(self, full: Named) -> Named:
        """Everything."""
        return full

    def held(self, task: Task) -> Entries:
        """Psi or Psi / w of parameters, Psi / w of masters and of the optimizer's state, no gradients."""
        psi = ITEM * task.elements
        kept = [getattr(weight, "ds_tensor", weight) for weight in self.model.parameters()]
        names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
        masters = next(getattr(self.optimizer, name) for name in names if hasattr(self.optimizer, name))
        state = memory.optimizer_bytes(self.optimizer.optimizer)
        label = f" (stage {self.stage})"
        share = psi // task.ctx.size
        return [
            memory.entry(
                "params" + label, sum(map(memory.tensor_bytes, kept)), share if self.stage == 3 else psi
            ),
            memory.entry("masters" + label, sum(map(memory.tensor_bytes, masters)), share),
            memory.entry("optimizer" + label, state, share),
            memory.entry("grads after the update" + label, memory.gradient_bytes(self.model), 0),
        ]

    def close(self) -> None:
        """Let go of the groups that it made: the next case may be in another world."""
        self.engine.destroy()
        groups = self.module.utils.groups
        for name, value in list(vars(groups).items()):
            if isinstance(value, dist.ProcessGroup):
                if value is not dist.group.WORLD and value in dist.distributed_c10d._world.pg_map:
                    dist.destroy_process_group(value)
                setattr(groups, name, None)
        self.module.comm.comm.cdb = None

    def _whole(self, get: Callable[[torch.Tensor], torch.Tensor | None]) -> Named:
        found: dict[str, torch.Tensor] = {}
        for name, weight in self.model.named_parameters():
            value = get(weight)
            if value is None:
                raise RuntimeError(f"DeepSpeed gives nothing for {name}")
            found[name] = value.detach().clone()
        return found


def trained(task: Task, module: Any, stage: int, dtype: torch.dtype) -> tuple[Trace, Entries]:  # noqa: ANN401
    """Train, and give the trace, and what is held after the last step.

    What it broadcasts is not compared: its own numbers for parameters, which count on from engine to engine.
    """
    engine = DeepSpeed(task, module, stage, dtype)
    found = follow(task, engine, dtype)
    held = engine.held(task)
    engine.close()
    return replace(found, delivered=found.delivered.of(*_REDUCTIONS, "all_gather")), held


def first_gradients(task: Task, module: Any, stage: int, dtype: torch.dtype) -> Named:  # noqa: ANN401
    """Give the gradients of the first batch, whole."""
    engine = DeepSpeed(task, module, stage, dtype)
    engine.accumulate(*task.share(0, dtype))
    grads = engine.whole_gradients()
    engine.close()
    return grads


def studied(task: Task, module: Any, stage: int) -> dict[str, Any]:  # noqa: ANN401
    """Compare in fp32 and in bf16 with the unsharded run, each with itself when run again; count in fp32."""
    entries: Entries = []
    repeated: Entries = []
    once = replace(task, steps=1)
    right, first = unsharded(task, torch.float64), unsharded(once, torch.float64).grads
    traces = {}
    for dtype in (TRAINING, WIDE):
        found, held = trained(task, module, stage, dtype)
        again, _ = trained(task, module, stage, dtype)
        grads = first_gradients(task, module, stage, dtype)
        label = f" ({'bf16' if dtype is TRAINING else 'fp32'}, stage {stage})"
        repeated += repeat_entries(again, found, label)
        plain, plain_first = unsharded(task, dtype), unsharded(once, dtype).grads
        low, all_right = of_all(plain), of_all(right)
        pairs = {
            "loss": (found.losses, right.losses, (low.losses, all_right.losses)),
            "forward": (found.output, right.output, (low.output, all_right.output)),
            "grads": _compared(grads, plain_first, first),
            "params": _compared(found.params, plain.params, right.params),
        }
        entries += [rounded_entry(what + label, *three, _ROUNDOFF[dtype]) for what, three in pairs.items()]
        traces[dtype] = found
    return {
        "parity": entries,
        "repeat": repeated,
        "traffic": totals(traces[WIDE].traffic, ITEM * task.elements, stage),
        "memory": held,
    }


def _compared(found: Named, plain: Named, right: Named) -> _Compared:
    whole = flattened(right)
    return flattened(found), whole, (flattened(plain), whole)


def totals(traffic: Traffic, psi: int, stage: int) -> Entries:
    """Psi reduced, and Psi gathered (stage 3: 2 Psi), as one sum each; flags and norms do not count."""
    wanted: Mapping[str, tuple[tuple[str, ...], int]] = {
        "all gradients reduced": (_REDUCTIONS, psi),
        "all parameters gathered": (_GATHERS, 2 * psi if stage == 3 else psi),
    }
    calls = [call for call in traffic.calls if call.bytes > _FLAG_BYTES]
    known = (*_REDUCTIONS, *_GATHERS)
    lines = [
        _line(what, sum(call.bytes for call in calls if call.op in kinds), right)
        for what, (kinds, right) in wanted.items()
    ]
    return [*lines, _line("anything else", sum(call.bytes for call in calls if call.op not in known), 0)]


def _line(what: str, found_bytes: int, right_bytes: int) -> dict[str, Any]:
    once = {"count": 1, "expected_count": 1, "group": ""}
    return {"op": what, "bytes": found_bytes, "expected_bytes": right_bytes, **once}
