"""Every shipped file judges a speed of every parallel step, inside a node and across, or says why not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from fixtures.check.judges import formulas
from fixtures.check.plan import Case
from fixtures.wire.collectives import COLLECTIVES, Calls
from suites.expert.issued import sizes_in
from suites.mesh import issued as dense
from suites.mesh.moe import issued as moe
from suites.mesh.moe.run import PATTERNS
from suites.pipeline.issued import ranks_of
from suites.zero.issued import replicas
from tests.suites.parallel import PLANS
from tests.suites.test_matrix import WITHOUT_PATTERN
from thresholds import derived
from thresholds.bounds import BoundError
from thresholds.derived import Moved
from thresholds.hardware import Hardware
from thresholds.loading.load import load, shipped
from thresholds.lookup import Case as Selected
from thresholds.lookup import LimitError, absent, find

MIB = 1 << 20
NODES = (2, 4, 16)
Label = TypeVar("Label")
Exchange = tuple[str, Sequence[int]]  # a collective, and the ranks of one of its groups
Place = tuple[str, str]  # a file, and a path
Kind = tuple[str, tuple[int, ...]]  # a collective, and how many ranks its groups have on each of their nodes
# Where each two ranks of a node have a link of their own, or one that nobody knows: no row is for a group.
L40S = {"l40s", "aws-g6e"}
PAIRED = L40S | {"dgx1-v100", "aws-p3dn", "azure-ndv2", "mi300x-roce400", "azure-ndv5-mi300x", "oci-mi300x"}
NO_SWITCH = "names no switch that gives each its own port"
COPY_RATE = "the bound is the copy rate measured in the same run"  # of ranks on CPUs


def cases(name: str) -> dict[str, Case]:
    """The planned cases of tests that are called so, one for each step."""
    tests = [test for module in PLANS for word, test in vars(module).items() if word.startswith(name)]
    marks = [mark for test in tests for mark in getattr(test, "pytestmark", ())]
    found = [case for mark in marks for case in mark.args[0] if case.scaled is None]
    return {str(case.selectors["step"]): case for case in reversed(found)}


def spread(ranks: Iterable[int], each: int) -> tuple[int, ...]:
    return tuple(Counter(rank // each for rank in ranks).values())


@cache
def files() -> dict[str, Hardware]:
    """Those of whole machines."""
    found = {name: load(path) for name, path in shipped().items()}
    return {name: file for name, file in found.items() if not file.part}


JUDGED = cases("test_pattern_holds_its_limit")


@cache
def kinds(step: str, nodes: int, each: int) -> set[Kind]:
    """What a step exchanges on so many nodes of so many GPUs, and among whom, by its closed form."""
    exchanges = _exchanges(JUDGED[step], [each] * nodes)
    return {(kind, spread(ranks, each)) for kind, ranks in exchanges if len(ranks) > 1}


def _exchanges(case: Case, per_node: list[int]) -> Iterator[Exchange]:
    family, _, name = case.step.partition(".")
    size, asked = sum(per_node), case.parameters
    whole = range(size)
    if case.step == "zero.hsdp":
        _, shards = replicas(per_node)
        yield from (("all_gather", range(shards)), ("reduce_scatter", range(shards)))
        yield "all_reduce", range(0, size, shards)
    elif name == "edges":
        yield "send_recv", range(0, size, size // ranks_of(size, asked["most"]))
    elif name == "groups":
        yield from (("all_to_all", range(one)) for one in sizes_in(size, asked["group_sizes"]["cuda"]))
    elif family == "expert":
        yield "all_to_all", whole
    elif name in moe.STEPS:
        axes = moe.STEPS[name][0](size)
        lines = {line: axes.members(line)[0] for line in moe.LINES if axes.size(line) > 1}
        yield from ((kind, ranks) for line, ranks in lines.items() for kind in PATTERNS[line])
        yield from _of(lines, moe.lines(name, size, 0, asked, 2))
    elif family == "mesh":
        sizes = dense.sizes_of(name, per_node, 0, **asked)
        along = dense.lines(sizes, 2)
        lines = {label: sizes.layout.groups(*axes)[0] for label, (axes, _) in along.items()}
        yield from _of(lines, {label: calls for label, (_, calls) in along.items()})
    else:
        assert case.holds is not None
        assert case.holds.issued is not None
        issued = case.holds.issued(case.step, asked, per_node, True)
        assert isinstance(issued, dict)
        yield from _of(dict.fromkeys(issued, whole), issued)


def _of(groups: Mapping[Label, Sequence[int]], lines: Mapping[Label, Calls]) -> Iterator[Exchange]:
    for label, calls in lines.items():
        for op in calls:
            yield op if op in COLLECTIVES else "send_recv", groups[label]


def lacking(file: Hardware, step: str, where: Selected) -> list[str]:
    """Why a step's pattern has no limit here, if it has none."""
    if reason := absent(file, where):
        return [f"absent: {reason}"]
    named = {**where, "step": step}
    nodes, each = int(where["nodes"]), int(where["ranks_per_node"])
    try:
        find(file, derived.METRIC, named)
    except LimitError as error:
        if error.kind == "gap":
            return [f"gap: {error.reason}"]
    else:
        return []
    found = []
    for kind, ranks in kinds(step, nodes, each):
        try:
            derived.shares(file, [Moved(kind, 64 * MIB, ranks)], named, nodes * each)
        except LimitError as error:
            found.append(f"{error.kind}: {error.reason}")
        except BoundError as error:
            found.append(f"bound: {error}")
    return found


def places(file: Hardware) -> Iterator[Selected]:
    each = 2 if file.inside == "memory" else int(file.expect.get("gpus_per_node", 8))
    yield {"path": file.inside, "nodes": 1, "ranks_per_node": each, "dtype": "bf16"}
    nodes, each = ((2, 4), 1) if file.inside == "memory" else (NODES, each)
    for count in nodes:
        yield {"path": "network", "nodes": count, "ranks_per_node": each, "dtype": "bf16"}


def test_every_file_has_a_limit_for_every_pattern_or_says_why_not() -> None:
    """A gap or an absence of the file; links from pair to pair; a copy rate that the run itself measures."""
    wrong = list[str]()
    judged = defaultdict[Place, set[str]](set)
    for name, file in files().items():
        for where in places(file):
            for step in JUDGED:
                reasons = lacking(file, step, where)
                judged[name, str(where["path"])] |= set() if reasons else {step.partition(".")[0]}
                wrong += [
                    f"{name}: {step} over {where['path']} on {where['nodes']}: {reason}"
                    for reason in reasons
                    if not reason.startswith(("absent: ", "gap: "))
                    and not (NO_SWITCH in reason and name in PAIRED)
                    and not (COPY_RATE in reason and file.inside == where["path"] == "memory")
                ]
    assert not wrong, "\n".join(wrong)
    # So every family has a limit wherever there are rows: of a mesh only where groups inside a node have one.
    every = {step.partition(".")[0] for step in JUDGED}
    without = {place: every - families for place, families in judged.items() if families != every}
    assert without == {
        ("cpu-local", "memory"): every,
        ("cpu-local", "network"): every,
        ("lab-200mbit", "memory"): every,
        **{(name, "network"): every - {"expert"} for name in L40S},  # of which a group of 8 is all of a node
        **{(name, files()[name].inside): {"mesh"} for name in PAIRED},
    }


def test_a_step_without_a_pattern_has_a_formula_or_an_engine_with_rows_or_a_reason() -> None:
    formed = {step for step in WITHOUT_PATTERN if formulas.rules_of(step)}
    assert set(WITHOUT_PATTERN) - formed == {"expert.deepep", "zero.deepspeed", "tensor.async_tp"}
    lacks = []
    for name, file in files().items():
        for where in places(file):
            for metric in ("dispatch", "combine"):
                try:
                    if not absent(file, where):
                        find(file, metric, {**where, "step": "expert.deepep"})
                except LimitError as error:
                    if error.kind != "gap":
                        lacks.append(f"{name}: {error}")
    assert not lacks, "\n".join(lacks)
