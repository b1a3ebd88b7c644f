"""The texts of `junit.xml`: properties of the run and of a check, body, output, class and name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.decision import RunVerdict
from reports.notation import number, quantity, size
from reports.record import CheckRecord, Judgement, Outcome, Repeat, RunRecord

NONE = "none"


def suite_properties(
    run: RunRecord | None, verdict: RunVerdict, notes: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Properties of the whole run."""
    yield "run", verdict.run_id
    yield "workload", verdict.workload
    yield "hardware", verdict.hardware
    yield "selection", verdict.selection
    yield "cut_short", verdict.cut_short
    if run is not None:
        yield "controller", run.controller
        yield "command", " ".join(run.command)
        yield "hosts", ", ".join(run.hosts)
        yield from ((f"version.{name}", version) for name, version in run.versions.items())
    yield from ((f"note.{number}", note) for number, note in enumerate(notes, start=1))


class Usual:
    """What would otherwise be repeated in every check: sources of limits, unit and source of a metric."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._metrics: dict[str, tuple[str, str]] = {}

    def other(self, judgement: Judgement) -> tuple[str, str]:
        """Unit and number of the source of a judgement, "" where they are the usual ones of its metric.

        The first check sets what is usual; the run's property `source.N` is source N.
        """
        source = judgement.source
        number = str(self._numbers.setdefault(source, len(self._numbers) + 1)) if source else NONE
        told = (judgement.unit or NONE, number)
        unit, source = self._metrics.setdefault(judgement.metric, told)
        return "" if told[0] == unit else told[0], "" if number == source else number

    def properties(self) -> Iterator[tuple[str, str]]:
        """A property for each source, and for unit and source of each metric."""
        yield from ((f"source.{number}", source) for source, number in self._numbers.items())
        for metric, (unit, source) in self._metrics.items():
            yield f"{metric}.unit", unit.replace(NONE, "")
            yield f"{metric}.source", source.replace(NONE, "")


def check_properties(check: CheckRecord, usual: Usual) -> Iterator[tuple[str, str]]:
    """Properties of a check: each measured value with its limit; of a red one the nodes too.

    A green one has only what it measured, because a large run has tens of thousands of them: its name says
    where it ran, a value that must be met exactly has no limit, a count of 0 errors is left out, and all else
    is in the journal.
    """
    red = check.outcome in (Outcome.FAIL, Outcome.UNCHECKED)
    if red:
        yield "hosts", ", ".join(check.nodes)
        yield from check.properties.items()
    for name, judgement in zip(_labels(check.judgements), check.judgements, strict=True):
        exact = judgement.limit == "exactly" and judgement.outcome is Outcome.PASS
        if exact and judgement.value == 0 and not red:
            continue
        unit, source = usual.other(judgement)
        yield name, number(judgement.value, digits=7)
        yield f"{name}.unit", unit
        yield f"{name}.source", source
        yield f"{name}.limit", "" if exact else limit(judgement)
        yield f"{name}.outcome", "" if judgement.outcome is check.outcome else judgement.outcome.value
    for index, blame in enumerate(check.blame, start=1):
        yield f"blame.{index}", f"{blame.kind.value}: {', '.join(blame.nodes)}: {blame.sentence}"
    for index, repeat in enumerate(check.repeats, start=1):
        yield f"repeat.{index}", repeated(repeat)


def _labels(judgements: Sequence[Judgement]) -> list[str]:
    """A distinct name for each judgement: the metric, where needed with the size or a number."""
    labels: list[str] = []
    for judgement in judgements:
        label = judgement.metric
        if "size" in judgement.case:
            label += f"@{judgement.case['size']}"
        same = sum(known == label or known.startswith(f"{label}#") for known in labels)
        labels.append(f"{label}#{same + 1}" if same else label)
    return labels


def body(check: CheckRecord) -> str:
    """Everything about a check that is not green."""
    if check.outcome is Outcome.NOT_APPLICABLE and not check.blame and not check.detail:
        return ""  # the message and the name say it
    lines = [check.reason, f"nodes: {', '.join(check.nodes)}"]
    lines += [f"blame: {blame.sentence}" for blame in check.blame]
    lines += [f"  {observation}" for blame in check.blame for observation in blame.evidence]
    lines += [f"measured again: {repeated(repeat)}" for repeat in check.repeats]
    lines += [line(judgement) for judgement in check.judgements if judgement.outcome is not Outcome.PASS]
    lines += ["", check.detail] if check.detail else []
    return "\n".join(lines)


def repeated(repeat: Repeat) -> str:
    """The outcome without the nodes that were set aside: `pass on n01, n02`."""
    why = f": {repeat.reason}" if repeat.reason else ""
    return f"{repeat.outcome.value} on {', '.join(repeat.nodes)}{why}"


def line(judgement: Judgement) -> str:
    """`fail: busbw at 1 GiB: 310.2 GB/s, limit >= 340 GB/s (source)`."""
    size_bytes = judgement.case.get("size")
    where = f" at {size(size_bytes)}" if isinstance(size_bytes, int) else ""
    source = f" ({judgement.source})" if judgement.source else ""
    asked = f", limit {limit(judgement)}" if judgement.limit else ""
    measured = quantity(judgement.value, judgement.unit) or "no value"
    return f"{judgement.outcome.value}: {judgement.metric}{where}: {measured}{asked}{source}"


def limit(judgement: Judgement) -> str:
    """The limit with its number, which the word `exactly` lacks."""
    bare = judgement.limit and not any(letter.isdigit() for letter in judgement.limit)
    return f"{judgement.limit} {number(judgement.limit_value)}".strip() if bare else judgement.limit


def output(check: CheckRecord) -> str:
    """Every judgement of a red check."""
    red = check.outcome in (Outcome.FAIL, Outcome.UNCHECKED)
    return "\n".join(line(judgement) for judgement in check.judgements) if red else ""


def split_id(check_id: str) -> tuple[str, str]:
    """Class and name of a check as pytest writes them in JUnit.

    `suites/nodes/test_gpu.py::test_count[a]` is `test_count[a]` in `suites.nodes.test_gpu`.
    """
    path, bracket, parameters = check_id.partition("[")
    file, *names = path.split("::")
    if not names:
        return "shakedown.checks", check_id
    classname = ".".join([file.removesuffix(".py").replace("/", "."), *names[:-1]])
    return classname, names[-1] + bracket + parameters
