from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import journal as journal_module
from reports.journal import Journal, Samples, decode, encode, linked, scan
from reports.record import (
    AgainRecord,
    Blame,
    BlameKind,
    CheckRecord,
    EndRecord,
    Judgement,
    Outcome,
    Record,
    Repeat,
)
from reports.text import scrub
from tests.each import each
from tests.fuzz import examples
from tests.reports import making

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
JUDGEMENTS = st.builds(
    Judgement,
    metric=ANY_TEXT,
    outcome=st.sampled_from(Outcome),
    sentence=ANY_TEXT,
    value=st.none() | st.floats(),
    case=st.dictionaries(ANY_TEXT, ANY_TEXT | st.integers(), max_size=3),
)
BLAMES = st.builds(
    Blame,
    kind=st.sampled_from(BlameKind),
    nodes=st.lists(ANY_TEXT, max_size=2).map(tuple),
    sentence=ANY_TEXT,
    rank=st.none() | st.integers(),
    device=st.none() | ANY_TEXT,
)
CHECKS = st.builds(
    CheckRecord,
    id=ANY_TEXT,
    suite=ANY_TEXT,
    name=ANY_TEXT,
    nodes=st.lists(ANY_TEXT, max_size=3).map(tuple),
    outcome=st.sampled_from(Outcome),
    reason=ANY_TEXT,
    detail=ANY_TEXT,
    judgements=st.lists(JUDGEMENTS, max_size=2).map(tuple),
    blame=st.lists(BLAMES, max_size=2).map(tuple),
    recorded=st.dictionaries(ANY_TEXT, ANYTHING, max_size=2),
    measurement=st.dictionaries(ANY_TEXT, ANYTHING, max_size=2),
    seconds=st.floats(),
)


def read(path: Path) -> list[Record]:
    found = scan(path)
    assert found.faults == []
    return found.records


def test_every_record_comes_back_as_it_went(tmp_path: Path) -> None:
    assert read(making.save(making.green(), tmp_path)) == making.green()


@given(CHECKS)
def test_any_text_comes_back_clean_and_nothing_else_is_lost(record: CheckRecord) -> None:
    line = json.dumps(encode(record), allow_nan=False).encode()
    assert encode(decode(line)) == {"type": "check", **scrub(record)}  # type: ignore[dict-item]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(st.lists(CHECKS, max_size=4))
def test_a_journal_of_any_texts_is_read_back_whole(tmp_path: Path, checks: list[CheckRecord]) -> None:
    path = making.save([making.run(), *checks], tmp_path)
    assert [encode(record) for record in read(path)[1:]] == [encode(check) for check in checks]
    assert all(line.isascii() for line in path.read_bytes().splitlines())


def test_not_a_number_survives_as_such(tmp_path: Path) -> None:
    judged = Judgement("busbw", Outcome.UNCHECKED, "no number", math.nan, limit_value=math.inf)
    made = making.check("x", judgements=(judged,), measurement={"seconds": [math.nan]})
    found = read(making.save([making.run(), made], tmp_path))[1]
    assert isinstance(found, CheckRecord)
    assert math.isnan(found.judgements[0].value or 0.0)
    assert found.judgements[0].limit_value == math.inf
    assert found.measurement == {"seconds": ["NaN"]}


def test_a_torn_last_line_is_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = making.save([making.run(), making.check("x")], tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    *kept, last = read(path)
    assert kept == [making.run()]
    assert isinstance(last, EndRecord)
    assert "line 2" in last.cut_short
    assert "torn" in last.cut_short


def mangled(record: Record, **changes: Any) -> str:
    return json.dumps({**encode(record), **changes})


def lacking(name: str) -> str:
    return json.dumps({key: value for key, value in encode(making.check("x")).items() if key != name})


BARE = encode(making.check("x"))["judgements"][0]  # type: ignore[index]
BAD_LINES = [
    ("{oops", "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
    ("", "not valid JSON"),
    ('{"type": NaN}', "not valid JSON (expected"),
    ("[1]", "record: Input should be an object"),
    ('{"type": "czech"}', "record: Input tag 'czech'"),
    ("{}", "record: Unable to extract tag"),
    (mangled(making.run(), schema=99), "written by schema 99"),
    (mangled(making.end(), colour="red"), "end.colour: Unexpected keyword argument"),
    (lacking("outcome"), "missing: check.outcome"),
    (lacking("reason"), "missing: check.reason"),
    (mangled(making.check("x"), judgements=[BARE, {**BARE, "x": 1}]), "check.judgements[1].x: Unexpected"),
    (
        mangled(making.check("x"), judgements=[{"metric": "a", "outcome": "pass", "sentence": ""}]),
        "missing: check.judgements[0].value, check.judgements[0].unit",
    ),
    (mangled(making.check("x"), outcome="passed"), "check.outcome: Input should be 'pass', 'fail'"),
    (mangled(making.check("x"), nodes="gpu01"), "check.nodes: Input should be a valid array"),
    (mangled(making.check("x"), nodes=[1]), "check.nodes[0]: Input should be a valid string"),
    (mangled(making.check("x"), seconds="long"), "check.seconds: Input should be a valid number"),
    (mangled(making.check("x"), seconds="3"), "check.seconds: Input should be a valid number"),
    (mangled(making.check("x"), seconds=True), "check.seconds: Input should be a valid number"),
    (mangled(making.check("x"), seconds=10**400), "check.seconds: Input should be a valid number"),
    (mangled(making.check("x"), seconds=math.nan), "not valid JSON (expected"),
    (mangled(making.end(), pytest_status=True), "end.pytest_status: Input should be a valid integer"),
    (mangled(making.end(), pytest_status=0.0), "end.pytest_status: Input should be a valid integer"),
    (mangled(making.check("x"), recorded=[]), "check.recorded: Input should be an object"),
    (mangled(making.check("x"), recorded={"a": math.inf}), "not valid JSON (expected"),
    (mangled(making.run()), "a second run record"),
]


def grow(path: Path, *lines: str) -> None:
    """Append lines as a journal would, each after the one before it."""
    last = scan(path).last
    for text in lines:
        line = linked(text.encode(), last) if text.endswith("}") else f"{text}\n".encode()
        last = hashlib.sha256(line).hexdigest()
        path.write_bytes(path.read_bytes() + line)


@each(("line", "fault"), BAD_LINES)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, fault: str) -> None:
    path = making.save([making.run()], tmp_path)
    grow(path, line, mangled(making.end()))
    (found,) = scan(path).faults
    assert found.startswith(f"line 2: {fault}")
    assert scan(path).records[0] == making.run()


def test_a_line_that_was_changed_added_moved_or_taken_out_is_found(tmp_path: Path) -> None:
    path = making.save(making.green(), tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    other = lines[3].replace(b'"ready"', b'"lost."')
    for changed, at in (
        ([*lines[:3], other, *lines[4:]], 5),
        ([*lines[:3], *lines[4:]], 4),
        ([*lines[:3], lines[3], lines[3], *lines[4:]], 5),
        ([*lines[:2], lines[3], lines[2], *lines[4:]], 3),
        (lines[1:], 1),
        ([*lines[:3], lines[3][:-77] + b"}\n", *lines[4:]], 4),
    ):
        path.write_bytes(b"".join(changed))
        assert scan(path).faults[0].startswith(f"line {at}: ")


def test_each_record_is_on_disk_before_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        fsync(handle)
        synced.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", note)
    path = tmp_path / "results.jsonl"
    with Journal(path) as journal:
        for number, record in enumerate(making.green(), start=1):
            journal.write(record)
            assert (len(synced), synced[-1]) == (number, path.stat().st_size)
            assert len(read(path)) == number


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    path = making.save([making.run()], tmp_path)
    path.write_text(path.read_text() + "x\n" * 30)
    assert len(scan(path).faults) == 30


def test_a_journal_without_a_head_is_refused(tmp_path: Path) -> None:
    (found,) = scan(making.save([making.end()], tmp_path)).faults
    assert found.startswith("line 1: a journal begins with a run record")


def test_an_empty_journal_has_no_records(tmp_path: Path) -> None:
    assert read(making.save([], tmp_path)) == []


def test_a_new_journal_forgets_the_old_one(tmp_path: Path) -> None:
    making.save(making.green(), tmp_path)
    assert read(making.save([making.run()], tmp_path)) == [making.run()]


def test_samples_can_be_left_behind(tmp_path: Path) -> None:
    path = making.save([making.run(), making.check("x", measurement={"ranks": [1, 2]})], tmp_path)
    light = scan(path, measurements=False).records[1]
    assert isinstance(light, CheckRecord)
    assert "ranks" not in light.measurement
    assert light.measurement


def test_checks_of_one_run_hold_its_samples_once(tmp_path: Path) -> None:
    samples = {"ranks": [{"seconds": [0.25] * 500}]}
    one, two = (making.check(name, measurement=samples) for name in ("x", "y"))
    other = making.check("z", measurement={"ranks": [{"seconds": [0.5] * 500}]})
    path = making.save([making.run(), one, two, other, making.end()], tmp_path)
    assert path.read_text().count('"seconds":[0.25,') == 1
    assert read(path) == [making.run(), one, two, other, making.end()]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2]]))
    assert "line 2: no line before it holds the measurement of 'x'" in scan(path).faults


def test_later_repeats_are_in_the_record_of_their_check(tmp_path: Path) -> None:
    found = making.check("x", outcome=Outcome.FAIL, measurement={"ranks": [{"seconds": [0.25] * 500}]})
    again = [Repeat((node,), Outcome.PASS, judgements=(making.GREEN,)) for node in making.NODES]
    late = [AgainRecord("x", (one,)) for one in again]
    path = making.save([making.run(), found, late[0], making.check("y"), late[1], making.end()], tmp_path)
    content = scan(path)
    whole = replace(found, repeats=tuple(again))
    assert content.records == [making.run(), whole, making.check("y"), making.end()]
    assert (content.faults, content.numbers) == ([], [1, 2, 4, 6])
    assert Samples(path, scan(path, measurements=False)).check("x") == whole
    making.save([making.run(), late[0], found], tmp_path)
    assert scan(path).faults == ["line 2: it repeats 'x', which has not reported"]


def test_samples_of_many_ranks_are_compressed(tmp_path: Path) -> None:
    many = making.check(
        "x", measurement={"ranks": [{"rank": rank, "seconds": [0.25] * 20} for rank in range(500)]}
    )
    path = making.save([making.run(), many, making.end()], tmp_path)
    assert path.stat().st_size < 4000
    assert read(path) == [making.run(), many, making.end()]
    for damage in ("bm90IHpsaWI=", "%"):
        line = mangled(many, measurement={"zlib": damage})
        making.save([making.run()], tmp_path)
        grow(path, line)
        assert scan(path).faults[0].startswith("line 2: its measurement cannot be unpacked (")


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Journal(path) as journal:
        journal.write(making.run())
        writers = [
            threading.Thread(target=journal.write, args=(making.check(f"check {number}", detail="x" * 9999),))
            for number in range(20)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert len(read(path)) == 21


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_then_full(file: int, data: bytes) -> None:
        os.write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "results.jsonl"
    with Journal(path) as journal:
        journal.write(making.run())
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "_write_all", half_then_full)
            with pytest.raises(OSError, match="No space left"):
                journal.write(making.check("lost"))
        journal.write(making.end())
    assert read(path) == [making.run(), making.end()]


def test_a_closed_journal_refuses_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "results.jsonl")
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="after the journal was closed"):
        journal.write(making.end())
