"""Torch's own context parallelism, as users call it: `context_parallel` of torch.distributed.tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fixtures.ranks.collectives.calls import Call
from fixtures.ranks.engines import engine
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.driver import EXACT, TRAINED, Entries, Left, Run, Seen
from fixtures.ranks.study.models import repeatable
from fixtures.ranks.study.pattern import Move
from fixtures.ranks.unsupported import unsupported
from suites.context import layout
from suites.context.issued import GATHERED, SAVED, Shape
from suites.context.ring_attention import Tally
from suites.context.techniques import ContextParallel

MODULE = "torch.distributed.tensor.experimental._attention"
_NEEDED = ("context_parallel", "set_rotate_method")
_BESIDE = "numpy"  # torch imports it in its context, and can be installed without it


class TorchRing(ContextParallel):
    """A zig-zag: K and V are gathered or passed on, and their gradients passed on in fp32.

    Its kernel is flash attention, which takes only 16-bit numbers, and rounds each block.
    """

    name = "torch_ring"
    fuses = True
    studied = (TRAINED,)
    once = ()

    def __init__(self, ctx: Context, shape: Shape, dtype: torch.dtype = TRAINED, *, module: str) -> None:
        super().__init__(ctx, shape, dtype)
        self._torch = engine(ctx, module, _NEEDED)
        engine(ctx, _BESIDE)

    def cut(self, length: int, size: int) -> list[torch.Tensor]:
        """Two chunks each; torch says head-tail."""
        return layout.zigzag(length, size)

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        """Let torch distribute the positions and replace attention; n/a where it has none for the device.

        By itself torch would take kernels that sum in no fixed order. An error is raised outside of torch's
        context: inside, torch 2.10 would never restore attention.
        """
        self._dealt = torch.arange(self.shape.length, device=self.ctx.device)
        mesh = DeviceMesh.from_group(dist.distributed_c10d._get_default_group(), self.ctx.device.type)
        dealing = {"buffers": [self._dealt], "buffer_seq_dims": [0], "no_restore_buffers": {self._dealt}}
        self._torch.set_rotate_method(self.shape.rotation)
        raised: RuntimeError | None = None
        try:
            with (
                repeatable(strictly=True),
                sdpa_kernel(SDPBackend.FLASH_ATTENTION),
                self._torch.context_parallel(mesh, **dealing),
            ):
                try:
                    yield
                except RuntimeError as error:
                    raised = error
            if raised is not None:
                raise raised
        except NotImplementedError as error:
            raise unsupported(error) or error from error
        finally:
            self._torch.set_rotate_method(GATHERED)  # which is torch's default

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Tally]:
        """Run inside torch's context, which backward needs too."""
        with self._in_context():
            return super().run(dtype, seen)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Call attention as on one device."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def beside(self, dtype: torch.dtype, run: Run[Tally]) -> Entries:
        """Compare the positions that torch gave this rank."""
        dealt, right = self._dealt.cpu(), self.places[self.ctx.rank]
        return [parity.equal("balance: positions of this rank", dealt, right)]

    def memory(self, dtype: torch.dtype, run: Run[Tally]) -> Entries:
        """Queries, keys, values, the output and its log-sum-exp, and the random state."""
        leaves = self.drawn(dtype).each(self.mine).leaves()
        with self._in_context():
            found = memory.saved_activation_bytes(lambda: self.attend(*leaves, Tally()))
        return [memory.at_most(SAVED, found, self.holds(dtype)[SAVED])]

    def moves(self) -> list[Move]:
        """One round of keys and one of gradients."""
        kv = self.sizes(EXACT).kv
        passed, gathered = Move("send_recv", kv, call=to_next), Move("all_gather", self.ctx.size * kv)
        return [gathered if self.shape.rotation == GATHERED else passed, passed]


def to_next(round_: Call) -> None:
    """Pass a block on as torch does: by an all-to-all of which all parts but one are empty."""
    dist.all_to_all_single(round_.received, round_.sent, _only(round_, -1), _only(round_, 1))


def _only(round_: Call, distance: int) -> Sequence[int]:
    peer = (round_.rank + distance) % round_.size
    return [len(round_.sent) * (rank == peer) for rank in range(round_.size)]
