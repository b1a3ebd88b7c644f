"""Parallel steps in real gloo worlds, judged as the controller judges them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import torch.distributed as dist

from fixtures.check.judges import claims, corruption, formulas, parallel, patterns, placement
from fixtures.check.plan import INSIDE, MARK, Entries
from fixtures.check.plan import Case as Planned
from fixtures.cluster.measurement import Measurement, RankReport, Unchecked, World
from fixtures.ranks import timing
from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study import pattern
from reports.record import Judgement, Outcome
from suites.context import test_context
from suites.expert import test_expert
from suites.mesh import test_mesh
from suites.pipeline import test_pipeline
from suites.tensor import test_tensor
from suites.zero import test_zero
from tests.fixtures.check.answered import aimed, answered, paper
from tests.fixtures.ranks.gloo_world import run_world
from tests.suites.nodes import judging
from tests.thresholds.files import row
from thresholds.hardware import MODELS, Hardware, Model

Case = tuple[str, Mapping[str, Any]]  # a step and its parameters
PLANS = (test_zero, test_tensor, test_context, test_pipeline, test_expert, test_mesh)
PARTS = ("parity", "repeat", "traffic", "memory", "placement", "figures", "wrong", *judging.PARTS)
# How often figures were measured, who did what when, each edge; what a device is; how much was compared.
_BESIDE = ("samples", "moved", "edges", "kind", "load", "iterations", "elements")
COMPUTED = {"schedule": "figures", "paced": "figures"}  # of which the controller makes another part
NODE = "here"
FEW = 2  # samples of a pattern, of which a run takes ITERATIONS
# What torch has for GPUs alone is run by what stands in for its kernels.
STANDS_IN = {"context.torch_ring": {"module": "tests.suites.context.cpu_kernels"}}
_JUDGES = {
    "parity": parallel.parity,
    "repeat": parallel.repeat,
    "traffic": parallel.traffic,
    "memory": parallel.memory,
    "placement": placement.judge,
}

# What two ranks on busy cores keep to, far from what a pattern takes of which every call is 20 ms late.
PATTERN_ROWS = (
    row(
        "busbw",
        "min = 0.1",
        collective=["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"],
        path="memory",
        ranks_per_node=2,
    ),
    row("latency", "max = 4000.0", path="memory"),
)


def load(steps: Sequence[str]) -> None:
    """Import the suites of these steps, so that forked ranks have them."""
    for folder in sorted({step.partition(".")[0] for step in steps if step not in REGISTRY}):
        importlib.import_module(f"suites.{folder}.steps")


def told(ctx: Context, step: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank says of a step; `parameters` are the plan's."""
    return REGISTRY[step](ctx, **{**STANDS_IN.get(step, {}), **parameters})


def run_steps(size: int, cases: Sequence[Case]) -> list[list[dict[str, Any]]]:
    """What every rank says of every case: one world, one launch, `found[case][rank]`.

    No case may leave a process group behind.
    """
    load([step for step, _ in cases])

    def all_cases(ctx: Context) -> list[dict[str, Any]]:
        said = []
        for step, parameters in cases:
            said.append(told(ctx, step, parameters))
            left = list(dist.distributed_c10d._world.pg_map)
            assert left == [dist.group.WORLD], f"{step} leaves {len(left) - 1} process groups behind"
        return said

    few = partial(pattern.timed, iterations=FEW)
    # Nothing here says how fast a steady exchange is.
    with mock.patch.object(timing, "WINDOW_S", 0.0), mock.patch.object(pattern, "timed", few):
        by_rank = run_world(size, all_cases)
    return [[rank[index] for rank in by_rank] for index in range(len(cases))]


def red(
    step: str,
    results: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, Any] | None = None,
    *,
    timed: bool = False,
    backend: str = "gloo",
    nodes: Sequence[str] = (),
) -> dict[str, str]:
    """Which parts of a step are not green, each with the sentence that an operator would read.

    A part is judged if any rank has it: one that is missing on another rank is red. Its time is a part only
    where it was `timed`. `nodes` are those of the ranks, if they are not all on one.
    """
    measurement = replace(_measurement(step, results, parameters or {}, nodes), backend=backend)
    there = sorted({COMPUTED.get(part, part) for result in results for part in result})
    if unknown := set(there) - {*PARTS, *_BESIDE}:
        return {"error": f"{step} says {sorted(unknown)}, which nobody judges"}
    found = {part: _fault(measurement, part) for part in there if part in PARTS}
    if timed:
        found["time"] = _fault(measurement, "time")
    return {part: sentence for part, sentence in found.items() if sentence}


def computed(
    step: str, parameters: Mapping[str, Any], results: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Give the figures that the controller computes of what ranks timed."""
    measurement = _measurement(step, results, parameters)
    return parallel.figures(measurement, aimed(measurement, _without_rows(), holds=_holds(measurement)))


def _measurement(
    step: str,
    results: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, Any],
    nodes: Sequence[str] = (),
) -> Measurement:
    nodes = nodes or [NODE] * len(results)
    ranks = tuple(RankReport(rank, nodes[rank], rank, "cpu", result) for rank, result in enumerate(results))
    return Measurement(step, parameters, World(tuple(dict.fromkeys(nodes))), "1", "gloo", ranks, 900.0)


def _fault(measurement: Measurement, part: str) -> str:
    try:
        bad = [one.sentence for one in _judge(measurement, part) if one.outcome is not Outcome.PASS]
    except Unchecked as why:
        return f"unchecked: {why}"
    return bad[0] if bad else ""


def _judge(measurement: Measurement, part: str) -> Sequence[Judgement]:
    if part in judging.PARTS:
        return judging.judge(measurement, part).judgements
    if part == "figures":
        computed(measurement.step, measurement.parameters, [rank.result for rank in measurement.ranks])
        return ()
    if part == "wrong":
        wrong = corruption.found(measurement.ranks)
        sentences = [corruption.sentence_of(entry, measurement.ranks) for entry in wrong]
        return [Judgement(corruption.METRIC, Outcome.FAIL, sentence) for sentence in sentences]
    if part == "time":
        target = aimed(measurement, paper(*PATTERN_ROWS), INSIDE, holds=_holds(measurement))
        sent = any("moved" in rank.result for rank in measurement.ranks)
        judges = [patterns.judge] * sent + [formulas.judge] * bool(formulas.rules_of(measurement.step))
        return [one for judge in judges for one in judge(answered(measurement, target)).judgements]
    target = aimed(measurement, _without_rows(), INSIDE, holds=_holds(measurement))
    return _JUDGES[part](answered(measurement, target)).judgements


@cache
def _without_rows() -> Hardware:
    return paper()


def _holds(measurement: Measurement) -> Entries:
    """What the plan says of a case; of another than is planned the closed forms alone."""
    step, asked = measurement.step, measurement.parameters
    found = _planned(step, asked, len(measurement.ranks))
    if found is not None or not asked:
        return found or Entries()
    holds = next((case.holds for case in _cases() if case.step == step and case.holds), Entries())
    forms = Entries(issued=holds.issued, together=holds.together, held=holds.held)
    return replace(forms, axes=holds.axes, timed=holds.timed)


def _planned(step: str, parameters: Mapping[str, Any], size: int) -> Entries | None:
    """What the plan says that each rank holds, of a case that is planned in a world of this size.

    In a world of one, which nobody plans, torch's own techniques exchange nothing.
    """
    for case in _cases():
        if case.step == step and (sized(case, size) if case.scaled else case.parameters) == parameters:
            return replace(case.holds, delivered=0) if case.holds and size == 1 else case.holds
    return None


def sized(case: Planned, size: int, model: Model = MODELS["gloo"]) -> dict[str, Any]:
    """Give the parameters of a case at the size of training in a world.

    On CPUs with few of ZeRO's rows: the products take most of the time, and no message has them.
    """
    assert case.scaled is not None
    few = {"rows": 8} if model is MODELS["gloo"] and case.step.startswith("zero.") else {}
    return {**case.parameters, **case.scaled(model, size), "at_size": True, **few}


def _cases() -> Iterator[Planned]:
    for test in (one for module in PLANS for one in vars(module).values()):
        for mark in getattr(test, "pytestmark", ()):
            yield from mark.args[0] if mark.name == MARK else ()


# They have an entry for each round that was timed, of which an uneven machine takes more.
PACED = {"zero.overlap", "expert.m2n"}


def _loose(case: Case, results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which parts may lose an entry on every rank without anybody's notice, of a planned case.

    Meshes have other axes in other worlds, and the plan knows the least of all.
    """
    step, parameters = case
    holds = _planned(step, parameters, len(results))
    found: dict[str, str] = {}
    if holds is None or step.startswith("mesh."):
        return found
    for part in ("parity", "repeat", "traffic", "memory"):
        if part == "repeat" and step in PACED:
            continue
        fewer = [{**one, part: one[part][:-1]} if one.get(part) else one for one in results]
        if any(part in one for one in results) and part not in red(step, fewer, parameters):
            found[part] = f"it has more entries than the plan says: {_least(part, holds, results)}"
    return found


def _least(part: str, holds: Entries, results: Sequence[Mapping[str, Any]]) -> str:
    """What `Entries` could say of a part: as many as every rank has, and those that count apart."""
    kinds = holds.of(part, {}, on_gpu=False)
    counts = {kind: min(claims.count(one[part], part, kind) for one in results) for kind in kinds}
    return ", ".join(f"{kind}={count}" for kind, count in counts.items())


def _doubled(case: Case, results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which calls, of what the plan knows, and bytes all ranks may count and expect twice without notice."""
    step, parameters = case
    holds, found = _holds(_measurement(step, results, parameters)), {}
    planned = any(one.step == step for one in _cases())
    known = {"traffic": bool(holds.issued or holds.together), "memory": planned}
    for part in (part for part, is_known in known.items() if is_known):
        lines = [line for one in results for line in one.get(part, ())]
        for name in {_named(line) for line in lines if line.get("expected_count", line["bytes"])}:
            twice = [
                {part: [_twice(line) if _named(line) == name else line for line in one.get(part, ())]}
                for one in results
            ]
            if not _fault(_measurement(step, twice, parameters), part):
                found[f"{part} of {name}"] = "the plan believes twice as much"
    return found


def _named(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("what", "group", "dtype", "op"))


def _twice(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value * 2 if isinstance(value, int) else value for name, value in line.items()}


def assert_green(
    size: int, cases: Sequence[Case], parts: Sequence[str] = ("parity", "repeat", "wrong")
) -> list[list[dict[str, Any]]]:
    """Run all cases in one world of `size`; each must have these parts, and all that it has must hold."""
    found = run_steps(size, cases)
    faults = []
    for (step, parameters), results in zip(cases, found, strict=True):
        there = {COMPUTED.get(part, part) for part in results[0]}
        missing = {part: "is missing" for part in parts if part not in there}
        faults += [
            f"{step} {dict(parameters)} on {size} ranks: {part}: {sentence}"
            for part, sentence in {
                **_loose((step, parameters), results),
                **_doubled((step, parameters), results),
                **red(step, results, parameters),
                **missing,
            }.items()
        ]
    assert not faults, "\n".join(faults)
    return found
