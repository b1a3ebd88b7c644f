"""A layer whose weights are split among ranks, compared with the whole layer on one of them.

One forward and backward; the loss is half the squared distance of the output and a fixed direction, so that
nothing cancels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import (
    EXACT,
    TRAINED,
    Entries,
    Form,
    Left,
    Named,
    Run,
    Seen,
    Technique,
    answer,
    study,
)
from fixtures.ranks.study.models import gradients_of, repeatable
from fixtures.ranks.study.overlap import seconds_of
from fixtures.ranks.study.pattern import Move, Pattern, exact, moved, timed
from fixtures.ranks.study.peak import watch
from fixtures.ranks.study.traffic import Expected
from fixtures.wire.collectives import collective_of
from fixtures.wire.held import titled
from suites.tensor.issued import ACTIVATIONS, CALLS, ELEMENTS, GROUP, Activations
from suites.tensor.regions import Group, all_reduce

Cut = Callable[[Tensor], Tensor]  # a view: what of a whole tensor a rank holds
Weights = dict[str, Tensor]
Forward = Callable[[Weights, Tensor], Tensor]
Plan = Mapping[str, Any]  # of torch's, by the names of layers

SIZE_BYTES = {"cpu": 1 << 18, "cuda": 1 << 26}  # of a collective that is timed
_BUDGET_S = 1.0


@dataclass
class Layer(Technique[Sequence[Tensor]]):
    """A layer on the ranks of a group; the parameters that this rank holds are kept.

    The step has this `name`, and was asked for with these `sizes`: its closed forms are made of them.
    `cuts`: what a rank holds of "input", "forward" and every weight; what is not named is whole everywhere.
    """

    ctx: Context
    name: str
    sizes: Mapping[str, Any]
    model: tuple[nn.Module, Tensor]  # and its input
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    _: KW_ONLY
    local: Collection[str] = ()

    def __post_init__(self) -> None:
        self.whole, self.x = self.model
        self.direction = direction_for(self.whole, self.x)
        self.group = Group(self.ctx.rank, self.ctx.size)

    def issued(self, dtype: torch.dtype) -> Expected:
        """The collectives of one forward and backward."""
        return CALLS[self.name](self.ctx.size, dtype.itemsize, **self.sizes)

    def activations(self, dtype: torch.dtype) -> Activations | None:
        """The closed form of what is saved for backward, and of the peak, if there is one."""
        form = ACTIVATIONS.get(self.name)
        return form(self.ctx.size, dtype.itemsize, **self.sizes) if form else None

    @abstractmethod
    def make(self, dtype: torch.dtype) -> tuple[Weights, Callable[[Tensor], Tensor]]:
        """Make this rank's part of the model: its weights, and what runs it forward."""

    def around(self) -> AbstractContextManager[Any]:
        """The context for forward and backward."""
        return nullcontext()

    def ready(self, dtype: torch.dtype) -> Callable[[], Left[Sequence[Tensor]]]:
        """Make model and input, which is not counted; give a function that runs forward and backward."""
        weights, forward = self.make(dtype)
        mine = as_input(self.cut("input", self.x), dtype)
        goal = self.cut("forward", self.direction)

        def run() -> Left[Sequence[Tensor]]:
            with self.around():
                found = backward(forward(mine), goal, mine)
            return Left(found | gradients_of(weights.items()), list(weights.values()))

        return run

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Sequence[Tensor]]:
        """Count only forward and backward."""
        run = self.ready(dtype)
        with seen():
            left = run()
        return Left(self.comparable(left.results), left.kept)

    def comparable(self, results: Named) -> Named:
        """Add up the losses of a split output, and join torch's distributed tensors."""
        found = {what: full(tensor) for what, tensor in results.items()}
        if "forward" in self.cuts:
            found["loss"] = all_reduce(found["loss"], self.group)
        return found

    def other(self) -> Layer:
        """The same with the input from back to front."""
        return replace(self, model=(self.whole, self.x.flip(-1)))

    def reference(self, dtype: torch.dtype) -> Named:
        """Run the whole model on the whole input."""
        model, x = deepcopy(self.whole).to(dtype), as_input(self.x, dtype)
        return backward(model(x), self.direction, x) | gradients_of(model.named_parameters())

    def part(self, whole: Named, kept: Sequence[Tensor]) -> Named:
        """Cut gradients like the tensors that they belong to."""
        return {what: self.cut(what.removeprefix("grad:"), tensor) for what, tensor in whole.items()}

    def cut(self, what: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor, as a view."""
        return self.cuts[what](whole) if what in self.cuts else whole

    def summands(self, what: str) -> int:
        """All ranks add up their results."""
        return self.group.size

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """What is issued among the ranks of the group, or of parts of it."""
        return [Form(self.issued(dtype), GROUP)]

    def memory(self, dtype: torch.dtype, run: Run[Sequence[Tensor]]) -> Entries:
        """Weights and gradients by their storage: a part that is a view of the whole keeps the whole."""
        expected = ELEMENTS[self.name](self.ctx.size, **self.sizes) * dtype.itemsize
        grads = [one.grad for one in run.kept]
        return [
            memory.entry("params", memory.storage_bytes(run.kept), expected),
            memory.entry("grads", memory.storage_bytes([one for one in grads if one is not None]), expected),
        ]

    def peak(self, dtype: torch.dtype) -> int | None:
        """A share of the whole layer's peak, measured on this rank alone."""
        form = self.activations(dtype)
        if form is None or not form.peak:
            return None
        with watch() as watched:
            model, x = deepcopy(self.whole).to(dtype), as_input(self.x, dtype)
            with watched.looking():
                backward(model(x), self.direction, x)
        return form.most(watched.most_bytes, self.ctx.size)

    def exchange(self, kind: str) -> Collective:
        """Make a collective ready with an exact payload."""
        return Move(kind, SIZE_BYTES[self.ctx.device.type]).exchange(self.ctx, "int32")

    def figures(self) -> Mapping[str, float]:
        """Measure figures that only this technique has."""
        return {}

    def told(self) -> dict[str, Any]:
        """Study it, time it with nothing else running, and send exact payloads through its collectives."""
        if self.ctx.at_size:
            return at_size(self.ctx, self)
        found = study(self.ctx, self)
        said, left, dtype = answer(found), list[Left[Sequence[Tensor]]](), self.dtypes[-1]
        self.ctx.progress.phase("timed step")
        with repeatable():
            run = self.ready(dtype)
            step_s = seconds_of(self.ctx, lambda: left.append(run()))
        first, again = found.runs[dtype].results, self.comparable(left[0].results)
        word = f"timed, {NAMES[dtype]}"
        said["repeat"] += [parity.equal(titled(what, word), again[what], first[what]) for what in first]
        moved = sent(self)
        return {**said, **moved, "figures": {"step_seconds": step_s, **moved["figures"], **self.figures()}}


@dataclass(kw_only=True)
class Functional(Layer):
    """A layer as a function of this rank's weights and input."""

    forward: Forward

    def make(self, dtype: torch.dtype) -> tuple[Weights, Callable[[Tensor], Tensor]]:
        """Cut every parameter into a leaf."""
        weights = {}
        for name, weight in self.whole.named_parameters():
            part = self.cut(name, weight.detach()).to(dtype)
            weights[name] = part.clone(memory_format=torch.contiguous_format).requires_grad_()
        return weights, lambda x: self.forward(weights, x)

    def memory(self, dtype: torch.dtype, run: Run[Sequence[Tensor]]) -> Entries:
        """Add what forward saves for backward."""
        held, form = super().memory(dtype, run), self.activations(dtype)
        if form is None:
            return held
        model, x = deepcopy(self.whole).to(dtype), as_input(self.x, dtype)
        whole_bytes = memory.saved_activation_bytes(lambda: model(x), model.parameters())
        weights, forward = self.make(dtype)
        mine = as_input(self.cut("input", self.x), dtype)
        found_bytes = memory.saved_activation_bytes(lambda: forward(mine), weights.values())
        return [*held, memory.entry("activations", found_bytes, form.share(whole_bytes, self.ctx.size))]


# the same layers as torch ships them


def block_plan() -> Plan:
    """Column and row; q, k, v, gate and up each all-reduce their own gradient of their shared input."""
    column = {name: ColwiseParallel() for name in ("attention.q", "attention.k", "attention.v")}
    column |= {name: ColwiseParallel() for name in ("mlp.gate", "mlp.up")}
    return column | {name: RowwiseParallel() for name in ("attention.o", "mlp.down")}


def sequence_plan() -> Plan:
    """The sequence split at the norms; gathered once before attention and once before the MLP."""
    plan: dict[str, Any] = dict(block_plan())
    plan |= {name: SequenceParallel() for name in ("attention_norm", "mlp_norm")}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.o", "mlp.down")}
    for name in ("attention", "mlp"):
        plan[name] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return plan


def head_plan() -> Plan:
    """The head split by words; the logits stay split."""
    return {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}


@dataclass(kw_only=True)
class Planned(Layer):
    """The whole model under a plan. `cuts`: of input and output alone; gradients are compared whole.

    `parallel_loss`: cross-entropy on logits that stay split, forward and backward.
    """

    plan: Callable[[], Plan]
    parallel_loss: bool = False

    def make(self, dtype: torch.dtype) -> tuple[Weights, Callable[[Tensor], Tensor]]:
        """Parallelize the model."""
        mesh = init_device_mesh(self.ctx.device.type, (self.ctx.size,))
        model = parallelize_module(deepcopy(self.whole).to(dtype), mesh, dict(self.plan()))
        return dict(model.named_parameters()), lambda x: full(model(x))

    def around(self) -> AbstractContextManager[Any]:
        """The context that makes the loss parallel."""
        return loss_parallel() if self.parallel_loss else nullcontext()


def sent(layer: Layer) -> dict[str, Any]:
    """Bus bandwidth (GB/s) of each kind of collective, and of all in turn; and what arrived wrong."""
    ctx, found = layer.ctx, {}
    for kind in sorted(layer.issued(TRAINED)):
        found[kind] = timed(ctx, Pattern([layer.exchange(kind)]), kind, budget_s=_BUDGET_S)
    size_bytes = SIZE_BYTES[ctx.device.type]
    wrong = exact(ctx, Pattern.of(ctx, [Move(kind, size_bytes) for kind in found], "bf16"), "bf16")
    bus_bytes = {kind: size_bytes * collective_of(kind).busbw_factor(ctx.size) for kind in found}
    figures = {f"{kind}_busbw": bus_bytes[kind] / one.median_s / 1e9 for kind, one in found.items()}
    all_s = sum(one.median_s for one in found.values())
    together = [sum(each) for each in zip(*(one.seconds for one in found.values()), strict=False)]
    return {
        "figures": {**figures, "pattern": sum(bus_bytes.values()) / all_s / 1e9},
        "samples": min(len(one.seconds) for one in found.values()),
        "wrong": [*wrong, *(one for kind in found.values() for one in kind.wrong)][:MOST_REPORTED],
        **moved(ctx, [Move(kind, size_bytes) for kind in found], together),
    }


def direction_for(whole: nn.Module, x: Tensor) -> Tensor:
    """A fixed direction of the output's shape, the same on every rank; the shape costs no computation."""
    with torch.no_grad():
        shape = deepcopy(whole).to("meta")(x.to("meta")).shape
    return drawn(0, *shape).to(x.device)


def drawn(seed: int, *shape: int) -> Tensor:
    """Normal numbers in fp64, on the CPU, the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=EXACT)


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A leaf in this dtype; tokens stay tokens."""
    return x.to(dtype).detach().clone().requires_grad_() if x.is_floating_point() else x


def backward(out: Tensor, direction: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Go backward from |out - direction|^2 / 2 in at least fp32; give output, loss and dX."""
    wide = torch.promote_types(out.dtype, torch.float32)
    loss = (out.to(wide) - direction.to(wide)).square().sum() / 2
    loss.backward()  # type: ignore[no-untyped-call]
    found = {"forward": out.detach(), "loss": loss.detach()}
    return found if x.grad is None else found | {"grad:input": x.grad}


def full(tensor: Tensor) -> Tensor:
    """A distributed tensor, joined; a plain one unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
