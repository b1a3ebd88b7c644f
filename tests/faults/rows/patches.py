"""Faults of a rank's PyTorch, as programs that `patch_torch` runs after `import torch` on a node.

They count only calls that carry data; messages with times and counts are left alone, so that steps go on.
"""

from __future__ import annotations

_FLIP = "tensor.view(-1).view(torch.uint8)[4 * 17] ^= 1"
# `before` may change what this rank adds to a sum, `after` what it finds.
_ALL_REDUCE = """
import os
import signal

import torch
import torch.distributed as dist

calls, healthy = [], dist.all_reduce


def before(tensor):
    pass


def after(tensor):
    pass


def all_reduce(tensor, *arguments, **named):
    if tensor.numel() <= 100:
        return healthy(tensor, *arguments, **named)
    calls.append(None)
    before(tensor)
    work = healthy(tensor, *arguments, **named)
    if work is None:
        after(tensor)
    return work


dist.all_reduce = all_reduce
"""
OFTEN_WRONG = f"""{_ALL_REDUCE}
def after(tensor):
    if len(calls) % 10 == 0:
        {_FLIP}
"""
RARELY_WRONG = f"""{_ALL_REDUCE}
def after(tensor):
    if len(calls) % 100 == 0:
        {_FLIP}
"""
# This rank's contribution is wrong, so every rank has the same wrong sum. Pairs make the same number of sums
# over and over: every tenth sum may then be wrong with the same partner each time, which looks like a path.
ADDS_WRONG = f"""{_ALL_REDUCE}
import random

chance = random.Random(10)


def before(tensor):
    if chance.random() < 0.1:
        {_FLIP}
"""
CRASHES = f"""{_ALL_REDUCE}
def before(tensor):
    if len(calls) == 20:
        print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
        os.abort()
"""
EXITS_ONCE = f"""{_ALL_REDUCE}
def before(tensor):
    if len(calls) == 20 and not os.path.exists("/run/lab/exited"):
        open("/run/lab/exited", "w").close()
        os._exit(3)
"""
HANGS = f"""{_ALL_REDUCE}
def before(tensor):
    while len(calls) >= 20:
        signal.pause()
"""
# What NCCL writes where a NIC gives up a send to PEER, in every job; then the rank waits forever.
GIVES_UP = f"""{_ALL_REDUCE}
LINE = (
    "transport/net_ib/p2p.cc:688 NCCL WARN NET/IB : Got completion from peer PEER<51234> with status=12 "
    "opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_3"
)


def before(tensor):
    if len(calls) == 20:
        node, pid = os.uname().nodename, str(os.getpid())
        path = os.environ["NCCL_DEBUG_FILE"].replace("%h", node).replace("%p", pid)
        with open(path, "a") as log:
            log.write(f"{{node}}:{{pid}}:{{pid}} [0] {{LINE}}\\n")
    while len(calls) >= 20:
        signal.pause()
"""
# What is sent to another rank is wrong; the sender's own copy is right.
SENDS_WRONG = f"""
import torch
import torch.distributed as dist

healthy, kept = dist.isend, []


def isend(tensor, *arguments, **named):
    if tensor.numel() > 100:
        tensor = tensor.detach().clone()
        {_FLIP}
        kept.append(tensor)
        del kept[:-64]
    return healthy(tensor, *arguments, **named)


dist.isend = dist.distributed_c10d.isend = isend
"""

# Every collective and every send of this rank begins 20 ms late, under all names that torch has for it.
LATE = """
import time

import torch
import torch.distributed as dist

inside = []


def late(name):
    healthy = getattr(dist, name)

    def call(*arguments, **named):
        first = next(iter((*arguments, *named.values())))
        if not inside and (not isinstance(first, torch.Tensor) or first.numel() > 8):
            time.sleep(0.02)
        inside.append(name)
        try:
            return healthy(*arguments, **named)
        finally:
            inside.pop()

    setattr(dist, name, call)
    setattr(dist.distributed_c10d, name, call)


for name in (
    *("all_reduce", "broadcast", "all_to_all_single", "batch_isend_irecv", "isend"),
    *("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"),
):
    if hasattr(dist, name):
        late(name)
"""


def _product(wrong_when: str, before: str = "") -> str:
    """A `torch.mm` that flips one bit of its result when `wrong_when` holds."""
    return f"""
import torch
import torch.distributed as dist

calls, multiplied = [], torch.mm
{before}

def mm(*arguments, **named):
    tensor = multiplied(*arguments, **named)
    calls.append(None)
    if {wrong_when}:
        {_FLIP}
    return tensor


torch.mm = mm
"""


PRODUCT_SOMETIMES = _product("len(calls) % 10 == 0")
# Every product of the size that is measured repeatedly.
PRODUCT_ALWAYS = _product("tensor.shape == (96, 96) and tensor.dtype is torch.float32")
# Products are wrong only while an all_reduce is under way.
PRODUCT_AT_ONCE = _product(
    "under_way and not under_way[-1].is_completed()",
    """
under_way, healthy = [], dist.all_reduce


def all_reduce(*arguments, **named):
    work = healthy(*arguments, **named)
    if work is not None:
        under_way.append(work)
    return work


dist.all_reduce = all_reduce
""",
)
# Half the speed: everything is multiplied twice.
PRODUCT_TWICE = """
import torch

healthy = torch.mm


def mm(*arguments, **named):
    healthy(*arguments, **named)
    return healthy(*arguments, **named)


torch.mm = mm
"""
NO_TORCH = "raise ImportError('libcudart.so.12: cannot open shared object file')"
# The library is on a file server that does not answer.
STALE = "import signal\nsignal.pause()"
# A clock at a third of its speed makes everything look three times as fast.
SLOW_CLOCK = """
import time

exact = time.perf_counter
time.perf_counter = lambda: exact() / 3
"""
# DDP exchanges each bucket before it computes the next.
DDP_WAITS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

made = DistributedDataParallel.__init__


def exchanged(_, bucket):
    summed = bucket.buffer()
    dist.all_reduce(summed)
    done = torch.futures.Future()
    done.set_result(summed.div_(dist.get_world_size()))
    return done


def init(self, *arguments, **named):
    made(self, *arguments, **named)
    self.register_comm_hook(None, lambda state, bucket: exchanged(state, bucket))


DistributedDataParallel.__init__ = init
"""
NO_PREFETCH = """
from torch.distributed.fsdp import FSDPModule

FSDPModule.set_modules_to_forward_prefetch = lambda *_: None
"""
# A rank that has sent floats idles for as long as the other side takes.
SENDS_IN_TURN = """
import time

import torch.distributed as dist

healthy = dist.batch_isend_irecv


def in_turn(operations):
    works = healthy(operations)
    if any(one.op is dist.isend and one.tensor.is_floating_point() for one in operations):
        time.sleep(0.05)
    return works


dist.batch_isend_irecv = in_turn
"""
