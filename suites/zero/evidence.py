"""Run a technique as every step does: against the unsharded run, twice over, and in the training dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic

import torch

from fixtures.ranks.study import parity
from suites.zero.training import (
    EXACT,
    TRAINING,
    AnEngine,
    Engine,
    Make,
    Named,
    Task,
    Trace,
    follow,
    unsharded,
)

Entries = list[dict[str, Any]]


@dataclass
class Study(Generic[AnEngine]):
    """One technique, run. `engine` is as its run in fp64 left it; close it when nothing is asked any more."""

    engine: AnEngine
    trace: Trace
    parity: Entries
    repeat: Entries


def study(task: Task, make: Make[AnEngine], variant: str = "") -> Study[AnEngine]:
    """Run in fp64 and in bf16, twice each; `variant` is added to the names of what is compared."""
    label = f" ({variant})" if variant else ""
    want = unsharded(task, EXACT)
    engine = make(EXACT)
    found = follow(task, engine, EXACT)
    entries = exact_entries(found, restricted(want, engine), label)
    repeated = _repeated(task, make, found, EXACT, label)
    trained = make(TRAINING)
    low = follow(task, trained, TRAINING)
    plain = unsharded(task, TRAINING)
    entries += training_entries(low, plain, want, trained, label, summands=task.ctx.size)
    trained.close()
    repeated += _repeated(task, make, low, TRAINING, f" (bf16{', ' * bool(variant)}{variant})")
    return Study(engine, found, entries, repeated)


def _repeated(task: Task, make: Make[AnEngine], found: Trace, dtype: torch.dtype, label: str) -> Entries:
    """Run again from the start, and compare."""
    again = make(dtype)
    entries = repeat_entries(follow(task, again, dtype), found, label)
    again.close()
    return entries


def restricted(whole: Trace, engine: Engine) -> Trace:
    """Keep of an unsharded run the part that this rank holds."""
    return Trace(whole.losses, engine.part(whole.grads), engine.part(whole.params), whole.output)


def exact_entries(found: Trace, want: Trace, label: str = "") -> Entries:
    """Compare loss, output, every gradient and every parameter in fp64."""
    return [parity.entry(what + label, got, right) for what, got, right in _pairs(found, want)]


def repeat_entries(found: Trace, want: Trace, label: str = "") -> Entries:
    """Compare two runs from the same state, bit for bit: results, and what every exchange brought."""
    results = [parity.equal(what + label, got, right) for what, got, right in _pairs(found, want)]
    return want.delivered.entries(found.delivered, label) + results


def _pairs(found: Trace, want: Trace) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    if found.grads.keys() != want.grads.keys() or found.params.keys() != want.params.keys():
        raise RuntimeError(f"held are {sorted(found.params)}, compared with {sorted(want.params)}")
    return [
        ("loss", found.losses, want.losses),
        ("forward", found.output, want.output),
        *((f"grad:{name}", found.grads[name], want.grads[name]) for name in want.grads),
        *((f"param:{name}", found.params[name], want.params[name]) for name in want.params),
    ]


def training_entries(
    found: Trace, plain: Trace, want: Trace, engine: Engine, label: str = "", *, summands: int = 2
) -> Entries:
    """Compare bf16's loss, output, all gradients as one and all parameters as one.

    Tolerated is three times the error of the unsharded run in bf16, of gradients that so many ranks add up in
    bf16. It is the error in all ranks' results: that in one rank's part may happen to be next to nothing.
    """
    mine, all_plain, all_right = restricted(want, engine), of_all(plain), of_all(want)
    entries = []
    for (what, got), (_, right), (_, alone), (_, whole) in zip(
        *(_joined(trace) for trace in (found, mine, all_plain, all_right)), strict=True
    ):
        added = parity.rounding_of(summands if what == "grads" else 2)
        entries.append(rounded_entry(f"bf16:{what}{label}", got, right, (alone, whole), added))
    return entries


def rounded_entry(
    what: str,
    found: torch.Tensor,
    right: torch.Tensor,
    of_all_ranks: tuple[torch.Tensor, torch.Tensor],
    roundoff: float,
) -> dict[str, Any]:
    """Hold a rank's part by three times the unsharded run's error in the whole, both of the whole's size."""
    plain, whole = of_all_ranks
    tolerance = parity.BF16_FACTOR * max(parity.relative(plain, whole), roundoff)
    scale, own_scale = (float(tensor.abs().max()) or 1.0 for tensor in (whole, right))
    return {"what": what, "error": parity.relative(found, right) * own_scale / scale, "tolerance": tolerance}


def of_all(trace: Trace) -> Trace:
    """Take the results of all ranks in place of this one's."""
    if trace.all_losses is None or trace.all_output is None:
        raise RuntimeError("only an unsharded run knows what all ranks must find")
    return replace(trace, losses=trace.all_losses, output=trace.all_output)


def _joined(trace: Trace) -> list[tuple[str, torch.Tensor]]:
    return [
        ("loss", trace.losses),
        ("forward", trace.output),
        ("grads", flattened(trace.grads)),
        ("params", flattened(trace.params)),
    ]


def flattened(tensors: Named) -> torch.Tensor:
    """All of them, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the storages behind these tensors, each counted once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
