"""What a rank's PyTorch does wrong, as programs that `patch_torch` runs behind a node's `import torch`.

They count only calls that carry data: what ranks agree on (times, counts) is left alone, so that steps go on.
"""

from __future__ import annotations

_COUNT = """
import os
import signal
import time

import torch
import torch.distributed as dist

calls, healthy = [], dist.all_reduce


def strike(tensor):
    pass


def all_reduce(tensor, *arguments, **named):
    if tensor.numel() > 100:
        calls.append(None)
        strike(tensor)
    return healthy(tensor, *arguments, **named)


dist.all_reduce = all_reduce
"""
# What this rank adds is wrong, so that every rank has the same wrong sum.
ADDS_WRONG = f"""{_COUNT}
def strike(tensor):
    if len(calls) % 10 == 0:
        tensor.view(-1).view(torch.uint8)[4 * 17] ^= 1
"""
CRASHES = f"""{_COUNT}
def strike(tensor):
    if len(calls) == 20:
        print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
        os.abort()
"""
EXITS_ONCE = f"""{_COUNT}
def strike(tensor):
    if len(calls) == 20 and not os.path.exists("/run/lab/exited"):
        open("/run/lab/exited", "w").close()
        os._exit(3)
"""
HANGS = f"""{_COUNT}
def strike(tensor):
    while len(calls) >= 20:
        signal.pause()
"""
# One result in a hundred is wrong, after the sum is done.
RARELY_WRONG = """
import torch
import torch.distributed as dist

calls, healthy = [], dist.all_reduce


def all_reduce(tensor, *arguments, **named):
    work = healthy(tensor, *arguments, **named)
    if tensor.numel() > 100 and work is None:
        calls.append(None)
        if len(calls) % 100 == 0:
            tensor.view(-1).view(torch.uint8)[4 * 17] ^= 1
    return work


dist.all_reduce = all_reduce
"""
# What leaves for one other rank is wrong; the sender's own copy is right.
SENDS_WRONG = """
import torch
import torch.distributed as dist

healthy, kept = dist.isend, []


def isend(tensor, *arguments, **named):
    if tensor.numel() > 100:
        tensor = tensor.detach().clone()
        tensor.view(-1).view(torch.uint8)[4 * 17] ^= 1
        kept.append(tensor)
        del kept[:-64]
    return healthy(tensor, *arguments, **named)


dist.isend = dist.distributed_c10d.isend = isend
"""
# Products are wrong only while an all_reduce is under way.
WRONG_AT_ONCE = """
import torch
import torch.distributed as dist

under_way, healthy, reduce = [], torch.mm, dist.all_reduce


def all_reduce(*arguments, **named):
    work = reduce(*arguments, **named)
    if work is not None:
        under_way.append(work)
    return work


def mm(*arguments, **named):
    product = healthy(*arguments, **named)
    if under_way and not under_way[-1].is_completed():
        product.view(-1).view(torch.uint8)[4 * 17] ^= 1
    return product


dist.all_reduce, torch.mm = all_reduce, mm
"""
NO_TORCH = "raise ImportError('libcudart.so.12: cannot open shared object file')"
# The library lies on a server that does not answer.
STALE = "import signal\nsignal.pause()"
# A clock at a third of its speed makes everything look three times as fast.
SLOW_CLOCK = """
import time

exact = time.perf_counter
time.perf_counter = lambda: exact() / 3
"""
