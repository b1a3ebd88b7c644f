"""Kernels whose results are rounded: products, activations, attention, norms, losses, sums; and gradients.

EXP is the most that an exponential is off, in roundings of fp32: the fastest of torch's own are off by 20
units in the last place (SLEEF), and exp2 on a GPU rounds x log2 e. SPLIT is what a product costs beside its
sum, at most: terms that are cut off where the largest of their block ends, and products of fp32 made of
three in tf32, as in fused attention (CUTLASS, OpMultiplyAddFastF32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fixtures.ranks.study.models import RMSNorm
from suites.nodes.compute.kernels import Given, Kernel, Right, rounded

EXP, SPLIT = 24.0, 16.0
ROWS, INNER, COLUMNS = 64, 128, 64
HEADS, LENGTH, CHANNELS = 2, 48, 32
TOKENS, CLASSES = 8, 64  # a power of two of tokens: to divide by it rounds nothing


def total(terms: Tensor, dim: int) -> Tensor:
    """Add up along a dimension by halves, without a kernel for sums."""
    while (count := terms.shape[dim]) > 1:
        first, second, odd = torch.split(terms, [count // 2, count // 2, count % 2], dim)
        terms = torch.cat([first + second, odd], dim)
    return terms.squeeze(dim)


def products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply two matrices, and their magnitudes, without a kernel for products."""
    terms = a[..., :, :, None] * b[..., None, :, :]
    return total(terms, -2), total(terms.abs(), -2)


def learned(
    function: Callable[..., Tensor], operands: Sequence[Tensor], gradient: Tensor
) -> Sequence[Tensor]:
    """Forward and backward: the output, and the gradient of each operand."""
    given = [one.detach().requires_grad_() for one in operands]
    out = function(*given)
    return [out, *torch.autograd.grad(out, given, gradient)]


def _product(a: Tensor, b: Tensor) -> Right:
    value, size = products(a, b)
    return rounded(value, wide=(a.shape[-1] + SPLIT) * size, narrow=value.abs())


def _linear(x: Tensor, weight: Tensor, gradient: Tensor) -> Mapping[str, Right]:
    return {
        "output": _product(x, weight.t()),
        "gradient of x": _product(gradient, weight),
        "gradient of weight": _product(gradient.t(), x),
    }


def _matmul(a: Tensor, b: Tensor) -> Mapping[str, Right]:
    return {"output": _product(a, b)}


def _silu(x: Tensor, gradient: Tensor) -> Mapping[str, Right]:
    """x s and g s (1 + x (1 - s)), with s = 1 / (1 + exp(-x))."""
    share = 1 / (1 + (-x).exp())
    value, slope = x * share, gradient * share * (1 + x * (1 - share))
    size = gradient.abs() * share * (1 + x.abs())
    return {
        "output": rounded(value, wide=(EXP + 4) * value.abs(), narrow=value.abs()),
        "gradient": rounded(slope, wide=(2 * EXP + 8) * size, narrow=slope.abs()),
    }


def _softmax(x: Tensor, gradient: Tensor) -> Mapping[str, Right]:
    """p = exp(x) / sum exp(x), and p (g - sum g p)."""
    grown = x.exp()
    share = grown / total(grown, -1)[..., None]
    value = share * (gradient - total(gradient * share, -1)[..., None])
    size = share * (gradient.abs() + total(gradient.abs() * share, -1)[..., None])
    times = 2 * EXP + x.shape[-1] + 8
    return {
        "output": rounded(share, wide=times * share, narrow=share),
        "gradient": rounded(value, wide=2 * times * size, narrow=3 * size + value.abs()),
    }


def _attention(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> Mapping[str, Right]:
    """O = P V, with P = softmax(Q K^T / sqrt(d)) over what came before; dS = P (dP - sum dO O), dP = dO V^T.

    Kernels round P, dS, and some of them Q or K times the scale, to the dtype before they multiply (T. Dao,
    "FlashAttention-2", 2023). A score that is off by e makes a share exp(2 e) times as large at most.
    """
    scale = CHANNELS**-0.5
    scores, size = products(q, k.mT)
    steep = max(size.flatten().tolist()) * scale
    places = torch.arange(LENGTH)
    grown = torch.where(places[:, None] >= places, (scores * scale).exp(), 0.0)
    p = grown / total(grown, -1)[..., None]
    wide, narrow = 2 * (EXP + LENGTH + (CHANNELS + SPLIT) * steep), 4 * steep + 1

    def product(a: Tensor, b: Tensor, size: Tensor, times: float = 1.0, scale: float = 1.0) -> Right:
        """A product whose left factor, of this size, is rounded as often as P, or `times` that."""
        value, spread = products(a, b)[0] * scale, products(size, b)[1] * scale
        most = times * wide + a.shape[-1] + CHANNELS + LENGTH + 2 * SPLIT
        return rounded(value, wide=most * spread, narrow=(times * narrow + times) * spread + value.abs())

    out = product(p, v, p)
    lost = [total(one, -1)[..., None] for one in (gradient * out.value, gradient.abs() * products(p, v)[1])]
    came, magnitude = products(gradient, v.mT)
    ds, ds_size = p * (came - lost[0]), p * (magnitude + lost[1])
    return {
        "output": out,
        "gradient of q": product(ds, k, ds_size, 2.0, scale),
        "gradient of k": product(ds.mT, q, ds_size.mT, 2.0, scale),
        "gradient of v": product(p.mT, gradient, p.mT),
    }


def _norm(x: Tensor, weight: Tensor, gradient: Tensor) -> Mapping[str, Right]:
    """x r w, with r = 1 / sqrt(mean x^2 + eps), operation by operation: each result is rounded to the dtype.

    That is six roundings forward: the square, the mean, eps, the root, and two products. The gradients are
    r g w - x r^3 mean(g w x), of which the last term takes twenty, and the sum of g x r.
    """
    width = x.shape[-1]
    r = (total(x * x, -1)[..., None] / width + RMSNorm(1).eps) ** -0.5
    value, g = x * r * weight, gradient * weight
    spread = [total(one, -1)[..., None] / width for one in (g * x, (g * x).abs())]
    size = r * g.abs() + x.abs() * r**3 * spread[1]
    rows = gradient * x * r
    return {
        "output": rounded(value, wide=(width + 8) * value.abs(), narrow=6 * value.abs()),
        "gradient of x": rounded(r * g - x * r**3 * spread[0], wide=2 * (width + 8) * size, narrow=20 * size),
        "gradient of weight": rounded(
            total(rows, 0), wide=(width + ROWS + 8) * total(rows.abs(), 0), narrow=8 * total(rows.abs(), 0)
        ),
    }


def _cross_entropy(x: Tensor, targets: Tensor) -> Mapping[str, Right]:
    """The mean of l = log sum exp(x) - x_t, which is rounded before it is used, and (p - [t]) / tokens."""
    grown = x.exp()
    whole = total(grown, -1)[:, None]
    log, hit = x - whole.log(), (torch.arange(CLASSES) == targets[:, None]).double()
    off = EXP + CLASSES + 8 * (x.abs() + whole.log().abs())
    mean = [total(total(one * hit, -1), 0) / TOKENS for one in (-log, off + TOKENS, log.abs())]
    share = grown / whole
    value = (share - hit) / TOKENS
    return {
        "output": rounded(mean[0], wide=mean[1], narrow=(TOKENS + 2) * mean[2]),
        "gradient": rounded(
            value,
            wide=(off + EXP + 8) * (share + hit) / TOKENS,
            narrow=(share * (log.abs() + 3) + hit) / TOKENS + value.abs(),
        ),
    }


def _sums(x: Tensor) -> Mapping[str, Right]:
    value, size, count = total(x, 1), total(x.abs(), 1), x.shape[1]
    both = {"sum": 1.0, "mean": 1.0 / count}
    return {
        name: rounded(value * part, wide=count * size * part, narrow=value.abs() * part)
        for name, part in both.items()
    }


def _normal(*shapes: Sequence[int], spread: float = 1.0) -> Callable[[Given], Sequence[Tensor]]:
    return lambda given: [given.normal(*shape, spread=spread) for shape in shapes]


_HEADS = (1, HEADS, LENGTH, CHANNELS)
_ROWS = (ROWS, INNER)

ROUNDED: Mapping[str, Kernel] = {
    "linear": Kernel(
        _normal(_ROWS, (COLUMNS, INNER), (ROWS, COLUMNS)),
        lambda x, weight, gradient: learned(functional.linear, (x, weight), gradient),
        _linear,
    ),
    "matmul": Kernel(
        _normal((2, ROWS, INNER), (2, INNER, COLUMNS)), lambda a, b: [torch.matmul(a, b)], _matmul
    ),
    "silu": Kernel(
        _normal(_ROWS, _ROWS, spread=2.0), lambda x, gradient: learned(functional.silu, (x,), gradient), _silu
    ),
    "softmax": Kernel(
        _normal(_ROWS, _ROWS),
        lambda x, gradient: learned(partial(functional.softmax, dim=-1), (x,), gradient),
        _softmax,
    ),
    "attention": Kernel(
        _normal(_HEADS, _HEADS, _HEADS, _HEADS, spread=0.5),
        lambda q, k, v, gradient: learned(
            partial(functional.scaled_dot_product_attention, is_causal=True), (q, k, v), gradient
        ),
        _attention,
    ),
    "norm": Kernel(
        _normal(_ROWS, (INNER,), _ROWS),
        lambda x, weight, gradient: learned(
            lambda x, weight: functional_call(RMSNorm(INNER), {"weight": weight}, (x,)), (x, weight), gradient
        ),
        _norm,
    ),
    "cross_entropy": Kernel(
        lambda given: (given.normal(TOKENS, CLASSES), given.numbers(0, CLASSES, TOKENS)),
        lambda x, targets: learned(partial(functional.cross_entropy, target=targets), (x,), x.new_ones(())),
        _cross_entropy,
    ),
    "sums": Kernel(_normal((16, 256)), lambda x: [x.sum(1), x.mean(1)], _sums),
}
