"""Bus bandwidth as nccl-tests means it: what the wires carried, comparable at any number of ranks."""

from __future__ import annotations

from fixtures.wire.collectives import BARRIER, COLLECTIVES


def busbw_factor(collective: str, ranks: int) -> float:
    """busbw / algbw of a collective over n ranks, where algbw is size / time; see its row."""
    if collective not in COLLECTIVES:
        reason = "moves no data" if collective == BARRIER else "is no collective that is known here"
        raise ValueError(f"{collective} {reason}: it has no bus bandwidth")
    if ranks < 2:
        raise ValueError(f"{collective} over {ranks} rank moves no data: it has no bus bandwidth")
    return COLLECTIVES[collective].busbw_factor(ranks)


def algbw(size_bytes: int, seconds: float) -> float:
    """Size over time, GB/s."""
    return size_bytes / seconds / 1e9


def busbw(collective: str, ranks: int, size_bytes: int, seconds: float) -> float:
    """algbw times the collective's factor, GB/s."""
    return algbw(size_bytes, seconds) * busbw_factor(collective, ranks)
