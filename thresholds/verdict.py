"""Compare one metric with its limit. What cannot be compared is unchecked, and never green."""

from __future__ import annotations

from dataclasses import dataclass

from reports.record import Judgement, Outcome
from thresholds.bounds import BoundError, asked, bound, ceiling
from thresholds.hardware import Hardware, Limit
from thresholds.lookup import Case, LimitError, find
from thresholds.metrics import SampleError
from thresholds.units import METRICS, Metric, format_number, format_size, is_finite

Figure = float | SampleError | None


@dataclass(frozen=True)
class _Judge:
    """One value of one metric, and all that is needed to judge it."""

    hardware: Hardware
    metric: str
    case: Case
    value: Figure
    samples: int
    measured: float | None

    @property
    def meaning(self) -> Metric:
        return METRICS[self.metric]

    def verdict(self, row: Limit) -> Judgement:
        rates = self.hardware.line_rate
        try:
            value = self._value(row)
            limit = asked(row, self.case, rates, self.measured)
        except (SampleError, BoundError) as error:
            return self.unchecked(f"{subject(self.metric, self.case)} is unchecked: {error}", row)
        words = ""
        if row.kind == "min_of_bound":
            best = bound(self.case, rates, self.measured)
            words = f"{row.value:g} of the bound {self._with_unit(best)}; "
        good = value <= limit if row.kind == "max" else value >= limit
        word = ("within" if good else "above") if row.kind == "max" else ("at least" if good else "below")
        outcome = Outcome.PASS if good else Outcome.FAIL
        found = subject(self.metric, self.case, self._with_unit(value, limit))
        sentence = f"{found} is {word} {self._with_unit(limit, value)} ({words}{row.where})"
        return self._judgement(outcome, sentence, row, limit)

    def unchecked(self, sentence: str, row: Limit | None = None) -> Judgement:
        return self._judgement(Outcome.UNCHECKED, sentence, row, None)

    def _value(self, row: Limit) -> float:
        """The value, if it can be compared with its limit; SampleError says why not."""
        value, meaning = self.value, self.meaning
        if isinstance(value, SampleError):
            raise value
        if value is None:
            raise SampleError("it was not measured")
        if not is_finite(value) or value < 0 or (value == 0 and not meaning.share):
            raise SampleError(f"{value!r} is not a measurement")
        if meaning.share and value > 1:
            raise SampleError(f"{value!r} is not a share")
        if not meaning.least <= value <= meaning.most:
            raise SampleError(f"{self._with_unit(float(value))} is beyond what any hardware does")
        if self.samples < row.min_samples:
            raise SampleError(f"{self.samples} samples are too few, {row.where} wants {row.min_samples}")
        best = ceiling(self.case, self.hardware.line_rate, self.measured) if meaning.bounded else value
        if value > best:
            above = f"{format_number(value, best)} GB/s is above the physical bound"
            what = "something else was measured, or [line_rate] is wrong"
            raise SampleError(f"{above} of {format_number(best, value)} GB/s: {what}")
        return float(value)

    def _judgement(
        self, outcome: Outcome, sentence: str, row: Limit | None, limit: float | None
    ) -> Judgement:
        sign = "<=" if row and row.kind == "max" else ">="
        derived = "derived: " if row and row.derived else ""
        return Judgement(
            metric=self.metric,
            outcome=outcome,
            sentence=sentence,
            value=float(self.value) if is_finite(self.value) else None,
            unit=self.meaning.unit,
            limit="" if limit is None else f"{sign} {self._with_unit(limit)}",
            limit_value=limit,
            source=f"{derived}{row.source} ({row.date}; {row.where})" if row else "",
            case=dict(self.case),
        )

    def _with_unit(self, value: float, beside: float | None = None) -> str:
        return f"{format_number(value, beside)} {self.meaning.unit}".strip()


def subject(metric: str, case: Case, figure: str = "") -> str:
    """What was measured and where: "all_reduce busbw 17.8 GB/s at 8GiB over network on 4 nodes"."""
    parts = [str(case.get("collective") or case.get("step") or ""), metric, figure]
    parts += [f"at {format_size(size)}"] if isinstance(size := case.get("size"), int) and size > 0 else []
    parts += [f"over {case['path']}"] if case.get("path") else []
    parts += [f"by {case['algorithm']}"] if case.get("algorithm") else []
    nodes = case.get("nodes")
    parts += [f"on {nodes} node{'' if nodes == 1 else 's'}"] if nodes else []
    return " ".join(part for part in parts if part)


def judge(
    hardware: Hardware,
    metric: str,
    case: Case,
    value: Figure,
    samples: int,
    *,
    measured_gigabytes_per_s: float | None = None,
    required: bool = True,
) -> Judgement | None:
    """Compare one value with its row: pass, fail or unchecked, or None for a metric that is only recorded.

    `value` may be a `SampleError` instead of a number. `measured_gigabytes_per_s` is the copy rate of the
    same run, for line rates that a file calls "measured". Unless `required`, a metric without a row is only
    recorded; with a row it is judged like any other.
    """
    judging = _Judge(hardware, metric, case, value, samples, measured_gigabytes_per_s)
    if not hardware.limits and hardware.name == "none":
        reason = "no hardware file says what is good enough (--hardware none)"
        return judging.unchecked(f"{subject(metric, case)} is unchecked: {reason}") if required else None
    try:
        row = find(hardware, metric, case)
    except LimitError as error:
        if not required and error.kind != "ambiguous":
            return None
        return judging.unchecked(f"{subject(metric, case)} is unchecked: {error}")
    return judging.verdict(row)
