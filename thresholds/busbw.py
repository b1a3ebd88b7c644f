"""Bus bandwidth as nccl-tests means it: what the wires carried, comparable at any number of ranks."""

from __future__ import annotations

from thresholds.units import COLLECTIVES, DATA_COLLECTIVES

_SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter")


def busbw_factor(collective: str, ranks: int) -> float:
    """busbw / algbw of a collective over n ranks, where algbw is size / time.

    Every rank of an all_reduce must send and receive its S bytes (n-1)/n of the way round twice (reduce,
    then distribute): 2(n-1)/n. Where each rank keeps one share of n (all_gather, reduce_scatter,
    all_to_all, gather, scatter) only the n-1 others travel: (n-1)/n. A broadcast, a reduce and a shift
    by any number of ranks move all S bytes: 1. `size` is the full buffer: of every rank for all_reduce,
    broadcast, reduce, all_to_all, send_recv and bisection, of the receive side for all_gather, of the send
    side for reduce_scatter, of the root for gather and scatter, and the largest sent or received by any rank
    for all_to_all_v.
    Source: NVIDIA/nccl-tests@a0b82b2 doc/PERFORMANCE.md and GetBw in src/*.cu.
    """
    if collective not in DATA_COLLECTIVES:
        reason = "moves no data" if collective in COLLECTIVES else "is no collective that is known here"
        raise ValueError(f"{collective} {reason}: it has no bus bandwidth")
    if ranks < 2:
        raise ValueError(f"{collective} over {ranks} rank moves no data: it has no bus bandwidth")
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _SHARED_OUT else 1.0


def algbw(size_bytes: int, seconds: float) -> float:
    """Size over time, GB/s."""
    return size_bytes / seconds / 1e9


def busbw(collective: str, ranks: int, size_bytes: int, seconds: float) -> float:
    """algbw times the collective's factor, GB/s."""
    return algbw(size_bytes, seconds) * busbw_factor(collective, ranks)
