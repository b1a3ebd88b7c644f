"""Torch's context parallelism on a CPU: all of it is torch's own, but for the kernels, which GPUs have.

Where this is imported a CPU has the operators of a GPU's flash attention, by its own flash attention. What
attention calls on a CPU goes to those, where torch's dispatcher for context parallelism takes over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental._attention import context_parallel, set_rotate_method
from torch.distributed.tensor.experimental._context_parallel import _attention

__all__ = ["context_parallel", "set_rotate_method"]

_ATEN, _NAME = torch.ops.aten, "_scaled_dot_product_flash_attention"
_THERE, _BACK = getattr(_ATEN, f"{_NAME}_for_cpu"), getattr(_ATEN, f"{_NAME}_for_cpu_backward")
_ON_GPU, _BACK_ON_GPU = getattr(_ATEN, _NAME), getattr(_ATEN, f"{_NAME}_backward")


def _kernel(*given: Any, **scale: Any) -> tuple[Any, ...]:
    """Output and norm; beside them no lengths of sequences, the state of random numbers, and no mask."""
    q, k, v, *how = given
    rest = (None, None, q.shape[2], k.shape[2], _counters(), torch.tensor(0), torch.empty(0))
    return *_THERE(q, k, v, *how[:2], **scale), *rest


def _kernel_back(*given: Any, **scale: Any) -> Any:
    """Gradients of a part of a larger row; lengths and random numbers are in the middle."""
    return _BACK(*given[:6], *given[10:12], **scale)


def _there(_: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    q, k, v, *how = given
    return _ON_GPU(q, k, v, *how[:2], scale=named.get("scale"))[:2]


def _back(_: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    lengths = (None, None, given[1].shape[2], given[2].shape[2])
    counters = DTensor.from_local(_counters(), given[1].device_mesh, [Replicate()], run_check=False)
    scale = named.get("scale")
    return _BACK_ON_GPU(*given[:6], *lengths, *given[6:8], counters, counters, scale=scale)


def _counters() -> torch.Tensor:
    return torch.zeros(2, dtype=torch.int64)


_LIBRARY: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_LIBRARY.impl(_NAME, _kernel, "CPU")
_LIBRARY.impl(f"{_NAME}_backward", _kernel_back, "CPU")
_attention.custom_ops.update({_THERE.default: _there, _BACK.default: _back})
