"""DeepSpeed's own stages of ZeRO, compared with the same closed forms as ours.

It trains in fp32 and, with fp32 masters, in bf16, but not in fp64. Its defaults clip gradients to a norm of
1 and keep small parameters whole: both are switched off, so that what it computes is what the unsharded
model computes, and what it exchanges is what the paper says (Rajbhandari et al., arXiv:1910.02054, section
7). DeepSpeed may choose the number and the kind of the calls of an exchange, but not the number of bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.study import memory
from fixtures.ranks.study.driver import TRAINED, WIDE, Entries, Form, Left, Named, Run, Seen, Technique
from fixtures.ranks.study.traffic import Traffic
from fixtures.wire.held import Weighed
from suites.zero import held
from suites.zero.training import RULE, Engine, Task, follow, loss_of, part_of, unsharded

ITEM = WIDE.itemsize
NEEDS = ("initialize", "utils", "comm")
_FLAG_BYTES = 8  # of its other exchanges: whether a gradient overflowed, and norms
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_GATHERS = ("all_gather", "broadcast")


def build_in_job() -> None:
    """Let DeepSpeed compile into the job's directory, so that nothing is left on a node."""
    directory = os.environ.get("SHAKEDOWN_JOB")
    if directory:
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{directory}/extensions")


def settings(task: Task, stage: int, dtype: torch.dtype) -> dict[str, Any]:
    """Write its configuration: a bucket is a block, and nothing is kept that its stage gives up."""
    block = task.block_elements
    return {
        "train_micro_batch_size_per_gpu": task.rows,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "communication_data_type": "fp32",
        "bf16": {"enabled": dtype is TRAINED},
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


class DeepSpeed(Engine):
    """A stage of DeepSpeed on one rank."""

    optimizer: Any  # wraps torch's

    def __init__(self, task: Task, module: Any, stage: int, dtype: torch.dtype) -> None:  # noqa: ANN401
        self.module, self.model = module, task.model(dtype)
        self.first: Named = {}
        inner = RULE.optimizer(self.model.parameters())
        config = settings(task, stage, dtype)
        self.engine, self.optimizer, *_ = module.initialize(
            model=self.model, optimizer=inner, config=config, dist_init_required=False
        )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Forward and backward, and DeepSpeed's exchanges and update."""
        loss = loss_of(self.engine(x), y)
        self.engine.backward(loss)
        self.first = self.first or self._whole(self.module.utils.safe_get_full_grad)
        self.engine.step()
        return loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        output: torch.Tensor = self.engine(x)
        return output

    def gradients(self) -> Named:
        """Those of the first step, joined from all ranks: after an update they are gone."""
        return self.first

    def parameters(self) -> Named:
        """The masters in fp32, joined from all ranks."""
        return self._whole(self.module.utils.safe_get_full_fp32_param)

    def held(self) -> Weighed:
        """Parameters, fp32 masters and their state, no gradients."""
        kept = [getattr(weight, "ds_tensor", weight) for weight in self.model.parameters()]
        names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
        masters = next(getattr(self.optimizer, name) for name in names if hasattr(self.optimizer, name))
        return {
            "params": sum(map(memory.tensor_bytes, kept)),
            "masters": sum(map(memory.tensor_bytes, masters)),
            "optimizer": memory.optimizer_bytes(self.optimizer.optimizer),
            "grads after the update": memory.gradient_bytes(self.model),
        }

    def close(self) -> None:
        """Destroy the groups that it made: the next case may be in another world."""
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


@dataclass
class Stage(Technique[DeepSpeed]):
    """A stage of DeepSpeed's, in fp32 and in bf16.

    Its broadcasts are not compared: they have its ids of parameters, which count on from engine to engine.
    """

    task: Task
    module: Any
    stage: int
    joined = ("grad", "param")
    dtypes = (TRAINED, WIDE)
    buffered = True
    delivers = (*_REDUCTIONS, "all_gather")

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[DeepSpeed]:
        """Train; the gradients are those of the first batch."""
        engine = DeepSpeed(self.task, self.module, self.stage, dtype)
        return Left(follow(self.task, engine, dtype, seen), engine)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train alone, and take the gradients of the first batch."""
        once = unsharded(replace(self.task, steps=1), dtype)
        grads = {name: tensor for name, tensor in once.items() if name.startswith("grad:")}
        return {**unsharded(self.task, dtype), **grads}

    def part(self, whole: Named, kept: DeepSpeed) -> Named:
        """This rank's losses and rows; of gradients and parameters everything."""
        return part_of(self.task, whole, kept)

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """None by kind of call: `traffic` has the sums."""
        return []

    def traffic(self, dtype: torch.dtype, seen: Seen) -> Entries:
        """Gradients in fp32, parameters in the dtype of the model."""
        gathered = dtype.itemsize * self.task.elements * (2 if self.stage == 3 else 1)
        return totals(seen.phases[""], ITEM * self.task.elements, gathered)

    def memory(self, dtype: torch.dtype, run: Run[DeepSpeed]) -> Entries:
        """What is held after the last step."""
        right = held.deepspeed(self.stage, self.task.sizes, dtype.itemsize)
        return memory.entries(run.kept.held(), right)

    def close(self, kept: DeepSpeed) -> None:
        """Destroy its groups."""
        kept.close()


def totals(traffic: Traffic, reduced_bytes: int, gathered_bytes: int) -> Entries:
    """All that is reduced, and all that is gathered, as one sum each; flags and norms do not count."""
    wanted: Mapping[str, tuple[tuple[str, ...], int]] = {
        "all gradients reduced": (_REDUCTIONS, reduced_bytes),
        "all parameters gathered": (_GATHERS, gathered_bytes),
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
