"""Clipping by the global norm, as every real run does it: with a collective of its own before each update.

The norm of all gradients is that of the whole model, sqrt(sum over ranks of the squares of what each holds),
so one number is added up among all ranks; what several ranks hold counts on one of them. All are then
scaled by min(1, c / (norm + 1e-6)) (Pascanu et al., arXiv:1211.5063, section 3.2; Megatron-Core's
`get_grad_norm_fp32` and torch's `clip_grad_norm_`, whose 1e-6 it is).

Trainers that use fully_shard leave all of it to torch, which knows what several ranks hold, and in which
order parts are joined: on a mesh of several axes, too (`by_torch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import WIDE, Entries, Named
from fixtures.ranks.study.memory import local
from fixtures.ranks.study.models import gradient_of

_EPSILON = 1e-6
_LARGE = 2.0**30
Counted = Callable[[torch.Tensor], bool]  # true on only one of the ranks that hold the same gradient


def clip(
    optimizer: torch.optim.Optimizer, largest: float, counted: Counted = lambda _: True
) -> list[torch.Tensor]:
    """Clip gradients before an optimizer's steps, if there is a largest norm; the list gets every norm."""
    norms: list[torch.Tensor] = []

    def before(*_: Any) -> None:  # noqa: ANN401 - the step's own
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        held = [weight.grad for weight in weights if weight.grad is not None]
        norm = _norm_among_all([local(grad) for grad in held if counted(grad)], held[0])
        scale = (largest / (norm + _EPSILON)).clamp(max=1.0)
        for part in map(local, held):
            part.mul_(scale.to(part.dtype))
        norms.append(norm)

    if largest:
        optimizer.register_step_pre_hook(before)
    return norms


def clip_alone(model: torch.nn.Module, largest: float) -> list[torch.Tensor]:
    """Clip a whole model's gradients by torch's own function, if there is a largest norm; give their norm."""
    return [torch.nn.utils.clip_grad_norm_(model.parameters(), largest)] if largest else []


def by_torch(weights: Mapping[str, torch.Tensor], part: Callable[[Named], Named]) -> Entries:
    """Join distributed gradients, and clip them at half of their norm, by torch's own functions.

    All have the same mesh; `part` gives what this rank holds of whole ones. They are so large that torch's
    epsilon does not count, which torch 2.10 may add on every rank (pytorch/pytorch#149768).
    """
    grads = {name: gradient_of(weight).mul_(_LARGE) for name, weight in weights.items()}
    before = {name: local(grad).clone() for name, grad in grads.items()}
    whole = {name: grad.full_tensor() for name, grad in grads.items() if isinstance(grad, DTensor)}
    own = part(whole)
    elsewhere = sum(not torch.equal(before[name], own[name]) for name in before)
    norm = torch.stack([one.norm() for one in whole.values()]).norm()
    found: Any = torch.nn.utils.clip_grad_norm_(list(weights.values()), float(norm) / 2)
    clipped = torch.cat([local(grad).flatten() for grad in grads.values()])
    right = torch.cat([grad.flatten() / 2 for grad in before.values()])
    return [
        {"what": "gradients that torch joins in another order", "error": float(elsewhere), "tolerance": 0.0},
        parity.entry("norm of distributed gradients", found.full_tensor(), norm),
        parity.entry("gradients clipped by torch", clipped, right),
    ]


def of_norms(norms: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name them as a result, where there are any."""
    return {"norm": torch.stack(norms)} if norms else {}


def _norm_among_all(counted: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Add up the squares of all ranks, in fp32 at least."""
    wide = torch.promote_types(like.dtype, WIDE)
    total = torch.zeros((), dtype=wide, device=like.device)
    for grad in counted:
        total += torch.linalg.vector_norm(grad, dtype=wide).square()
    dist.all_reduce(total)
    return total.sqrt()
