"""A module with the interface of DeepEP's Buffer, over torch.distributed: for machines without NVLink.

Interfaces as in deepseek-ai/DeepEP@189df34 deep_ep/buffers/legacy.py (Buffer, get_dispatch_layout, dispatch,
combine) and README.md (Config). Every loop is as plain as can be; what a kernel promises is asserted here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__version__ = "1.2.1"
topk_idx_t = torch.int64
KERNELS = (2, 4, 8, 16, 24, 32)  # numbers of ranks that it has settings for


class Config:
    """The settings for a number of ranks."""

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
        return hidden_bytes * ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
        return 0 * hidden_bytes * ranks


class Buffer:
    """Dispatch and combine of a group."""

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0) -> None:
        assert num_nvl_bytes > 0
        assert num_rdma_bytes == 0
        self.group, self.rank, self.group_size = group, group.rank(), group.size()

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in KERNELS, f"Unsupported number of EP ranks: {num_ranks}"
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(self, topk_idx: Tensor, num_experts: int) -> tuple[Any, ...]:
        assert topk_idx.dtype == topk_idx_t
        there = torch.zeros(len(topk_idx), self.group_size, dtype=torch.bool)
        there.scatter_(1, topk_idx * self.group_size // num_experts, value=True)
        per_expert = torch.bincount(topk_idx.flatten(), minlength=num_experts).int()
        return there.sum(0).int(), None, per_expert, there, None

    def dispatch(  # noqa: PLR0917 - the library's own arguments, in its order
        self,
        x: Tensor,
        handle: Any = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
    ) -> tuple[Any, ...]:
        assert x.dtype == torch.bfloat16
        assert x.is_contiguous()
        if handle is not None:
            assert topk_idx is None
            assert topk_weights is None
            there, sent, received = handle
            return self._send(x, there, sent, received), None, None, None, None, None
        assert is_token_in_rank is not None
        assert num_tokens_per_rank is not None
        assert num_tokens_per_expert is not None
        assert topk_idx is not None
        assert topk_weights is not None
        assert topk_weights.dtype == torch.float32
        sent, counts = num_tokens_per_rank.tolist(), torch.empty_like(num_tokens_per_rank)
        dist.all_to_all_single(counts, num_tokens_per_rank, group=self.group)
        layout = is_token_in_rank, sent, counts.tolist()
        rows = self._send(x, *layout)
        local = num_tokens_per_expert.numel() // self.group_size
        numbers = self._send(topk_idx, *layout) - self.rank * local
        elsewhere = (numbers < 0) | (numbers >= local)
        weights = self._send(topk_weights, *layout).masked_fill(elsewhere, 0.0)
        numbers = numbers.masked_fill(elsewhere, -1)
        per_expert = [int((numbers == number).sum()) for number in range(local)]
        return rows, numbers, weights, per_expert, layout, None

    def combine(
        self, x: Tensor, handle: Any, topk_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, None]:
        assert x.dtype == torch.bfloat16
        assert x.is_contiguous()
        summed = self._back(x, *handle).to(torch.bfloat16)
        return summed, None if topk_weights is None else self._back(topk_weights, *handle), None

    def _send(self, rows: Tensor, there: Tensor, sent: list[int], received: list[int]) -> Tensor:
        output = rows.new_empty(sum(received), rows.shape[1])
        token = torch.where(there.T)[1]
        dist.all_to_all_single(output, rows[token], received, sent, group=self.group)
        return output

    def _back(self, rows: Tensor, there: Tensor, sent: list[int], received: list[int]) -> Tensor:
        home = rows.new_empty(sum(sent), rows.shape[1])
        dist.all_to_all_single(home, rows, sent, received, group=self.group)
        summed = torch.zeros(len(there), rows.shape[1], dtype=torch.float32)
        return summed.index_add_(0, torch.where(there.T)[1], home.float())
