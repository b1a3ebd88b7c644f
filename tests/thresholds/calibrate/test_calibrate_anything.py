"""Whatever a journal holds, `calibrate` and `diff` end in a file, in lines or in reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports.journal import encode
from tests.each import each
from tests.fuzz import examples
from tests.thresholds.calibrate.journals import RATES, Script, write_runs
from thresholds.__main__ import main
from thresholds.calibrate.calibration import Asked, Refused, calibrate
from thresholds.diff import BadInput, diff
from thresholds.loading.load import load, read

LIKE = load(Path(__file__).parents[3] / "thresholds" / "h100-sxm5-ndr400.toml")
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 10**12, 10**400, 1e308, 1e-320, "NaN", "-Infinity", "", "\ud800", "\x00\x7f\"\\\n",
    "x" * 3000, [], [None], {}, {"a": [{}]}, "busbw", "memory", "none", "n01",
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SOUND = [json.dumps(encode(record)) for record in Script(number=4).records()]
EXAMPLES = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four runs that nothing is wrong with."""
    return write_runs(tmp_path_factory.mktemp("runs"), [Script()] * 4)


def ends_well(runs: list[str], lines: list[str]) -> None:
    """Hold this journal beside sound ones, and against a file."""
    odd = Path(runs[0]).parent / "odd.jsonl"
    said: list[str] = []
    odd.write_text("".join(line + "\n" for line in lines), encoding="utf-8", errors="surrogatepass")
    for asked in (RATES, Asked(like=LIKE)):
        try:
            read(calibrate([*runs, str(odd)], asked).text.encode(), Path("made.toml"))
        except Refused as refused:
            said.append(str(refused))
    try:
        diff("h100-sxm5-ndr400", str(odd))
    except BadInput as bad:
        said.append(str(bad))
    assert all(said)


@EXAMPLES
@given(st.lists(st.text() | ANYTHING.map(json.dumps), max_size=4))
def test_any_lines(runs: list[str], lines: list[str]) -> None:
    ends_well(runs, lines)


def changed(lines: list[str], number: int, keys: list[int], value: object) -> list[str]:
    """The journal with one value of one line replaced, however deep it lies."""
    record = json.loads(lines[number])
    place: Any = record
    for depth, choice in enumerate(keys):
        names = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not names:
            break
        name = names[choice % len(names)]
        if depth == len(keys) - 1 or not isinstance(place[name], dict | list):
            place[name] = value
            break
        place = place[name]
    return [*lines[:number], json.dumps(record), *lines[number + 1 :]]


@EXAMPLES
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SOUND) - 1),
            st.lists(st.integers(0, 20), min_size=1, max_size=6),
            st.sampled_from(ODD) | ANYTHING,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_sound_journal_with_any_values_changed(
    runs: list[str], changes: list[tuple[int, list[int], Any]]
) -> None:
    lines = list(SOUND)
    for change in changes:
        lines = changed(lines, *change)
    ends_well(runs, lines)


@each("value", ["1" + "0" * 400, "-1" + "0" * 400])
def test_a_number_that_no_float_holds_is_a_fault_with_its_line(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.replace('"value": 90.0', f'"value": {value}') for line in SOUND]
    assert lines != SOUND
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert main(["calibrate", str(path)]) == 1
    said = capsys.readouterr().err
    assert "odd.jsonl, line 7: check.judgements[0].value: Input should be a valid number, not " in said
