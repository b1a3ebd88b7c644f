from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from reports import render
from reports.__main__ import main
from reports.decision import Standing, decide, exit_status
from reports.journal import scan
from reports.page import html
from reports.record import AgainRecord, BlameKind, CheckRecord, Outcome, Repeat
from tests.each import each
from tests.reports import making
from tests.reports.making import PAIR, blame, check, green, green_checks, hosts, journal_of

EVERYTHING = {
    "junit.xml",
    "verdict.json",
    "accepted.txt",
    "rejected.txt",
    "unproven.txt",
    "report.html",
    "report.css",
}


FAMILIES = ["checks-collectives.html", "checks-nodes.html", "checks-selfcheck.html"]


def errors(path: Path) -> int:
    return int(ET.parse(path).getroot().get("errors", "0"))  # noqa: S314 - written by render


def test_a_green_journal_becomes_everything_that_a_run_leaves(tmp_path: Path) -> None:
    making.save(green(), tmp_path)
    assert making.render(tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {*EVERYTHING, *FAMILIES, "results.jsonl"}
    assert hosts((tmp_path / "accepted.txt").read_text()) == ["gpu01 slots=8", "gpu02 slots=8"]
    assert errors(tmp_path / "junit.xml") == 0


@pytest.mark.parametrize(("taken", "torn"), [(0, b""), (1, b""), (1, b'{"type":"check"')])
def test_of_a_run_that_was_killed_what_its_workers_wrote_is_told_too(
    tmp_path: Path, taken: int, torn: bytes
) -> None:
    """It may have begun to take that over, and may have been killed while it wrote a line."""
    run, plan, *found, _ = green()
    checks = [record for record in found if isinstance(record, CheckRecord)]
    path = making.save([run, plan, *checks[:taken]], tmp_path)
    path.write_bytes(path.read_bytes() + torn)
    making.save((run, *found), tmp_path / "parts").rename(tmp_path / "parts" / "00000.jsonl")
    assert making.render(tmp_path) == 2
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    counted = verdict["counts"]["checks"]
    assert (counted["pass"], counted["not reported"]) == (len(checks), 0)
    assert verdict["counts"]["nodes"]["accepted"] == 0
    assert verdict["run"]["cut_short"]


def test_what_a_worker_measured_again_counts_in_the_run(tmp_path: Path) -> None:
    """The pass across groups asks who is good so far, before the run has taken over what workers wrote."""
    run, plan, *found, _ = green()
    found[-1] = check(PAIR, outcome=Outcome.FAIL)
    again = AgainRecord(PAIR, (Repeat(making.NODES[:1], Outcome.PASS, judgements=(making.GREEN,)),))
    making.save((run, *found, again), tmp_path / "parts").rename(tmp_path / "parts" / "00000.jsonl")
    path = making.save([run, plan], tmp_path)
    [told] = [one for one in render.load(path) if isinstance(one, CheckRecord) and one.repeats]
    assert (told.id, told.repeats) == (PAIR, again.repeats)
    making.save([run, plan, found[-1], again], tmp_path)  # taken over, and the worker's is still there
    [told] = [one for one in render.load(path) if isinstance(one, CheckRecord) and one.repeats]
    assert told.repeats == again.repeats


def test_the_status_is_that_of_the_verdict(tmp_path: Path) -> None:
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(blame(BlameKind.WRONG_DATA, "gpu01"),))
    making.save(journal_of(*green_checks()[:2], corrupt), tmp_path)
    assert making.render(tmp_path) == 1
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_status"] == 1


def test_a_journal_torn_at_any_byte_accepts_nobody(tmp_path: Path) -> None:
    """What a SIGKILL or a power cut leaves: any beginning of the file but the whole of it."""
    path = making.save(green(), tmp_path)
    data = path.read_bytes()
    ends = [at for at, byte in enumerate(data) if byte == ord("\n")]
    near = {0, *(end + shift for end in ends for shift in (-1, 0, 1)), *range(0, len(data), 37)}
    for length in sorted(near - {len(data)}, reverse=True):
        os.truncate(path, length)
        records = render.load(path)
        verdict = decide(records)
        assert not verdict.standing(Standing.ACCEPTED), length
        assert exit_status(records, verdict) == 2, length


@each("length", [0, 1, 300, -1])
def test_a_torn_journal_is_rendered_red(tmp_path: Path, length: int) -> None:
    path = making.save(green(), tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert making.render(tmp_path) == 2
    assert errors(tmp_path / "junit.xml") >= 1
    assert hosts((tmp_path / "accepted.txt").read_text()) == []
    assert {path.name for path in tmp_path.iterdir()} >= EVERYTHING


@each("damage", ["oops\n", '{"type": "czech"}\n', "\n", "\x00\x00\n"])
def test_a_damaged_journal_keeps_its_evidence_and_accepts_nobody(tmp_path: Path, damage: str) -> None:
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(blame(BlameKind.WRONG_DATA, "gpu01"),))
    path = making.save(journal_of(*green_checks()[:2], corrupt), tmp_path)
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(first + damage + "".join(rest))
    assert making.render(tmp_path) == 2
    assert hosts((tmp_path / "rejected.txt").read_text()) == ["gpu01 slots=8"]
    assert hosts((tmp_path / "accepted.txt").read_text()) == []
    assert "damaged: line 2" in json.loads((tmp_path / "verdict.json").read_text())["run"]["cut_short"]


@each("head", ['{"type":"run","schema":2,"run_id":"20250101"}', '{"task":"gsm8k","score":0.5}', "[1]"])
def test_the_answer_of_another_version_or_program_is_not_replaced(
    tmp_path: Path, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.jsonl").write_text(f"{head}\n{{}}\n")
    (tmp_path / "accepted.txt").write_text("gpu01\n")
    assert main(["render", str(tmp_path)]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"results.jsonl", "accepted.txt"}
    assert (tmp_path / "accepted.txt").read_text() == "gpu01\n"
    assert "results.jsonl: written by " in capsys.readouterr().err


def test_an_answer_is_printed_where_the_locale_lacks_a_character(tmp_path: Path) -> None:
    making.save(
        journal_of(*green_checks()[:-1], check(PAIR, outcome=Outcome.FAIL, reason="n\u00f6")), tmp_path
    )
    done = subprocess.run(
        [sys.executable, "-m", "reports", "render", str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"n\\xf6" in done.stdout


def test_without_a_journal_everything_is_red(tmp_path: Path) -> None:
    assert making.render(tmp_path) == 2
    assert errors(tmp_path / "junit.xml") >= 1


def test_a_page_that_cannot_be_drawn_costs_only_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(html, "write", broken)
    making.save(green(), tmp_path)
    assert making.render(tmp_path) == 0
    assert errors(tmp_path / "junit.xml") == 0
    assert "no fonts" in (tmp_path / "logs/report-html.txt").read_text()
    assert "report.html could not be drawn" in capsys.readouterr().err


def test_neither_does_one_whose_fault_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "write", Mock(side_effect=OSError("no room")))
    making.save(green(), tmp_path)
    (tmp_path / "logs").touch()  # in the place of the folder
    assert making.render(tmp_path) == 0


def test_what_gates_nodes_is_written_before_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the list that hands nodes over after the lists that keep them back."""
    order: list[str] = []
    replace = os.replace

    def note(source: str, target: Path) -> None:
        order.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr("os.replace", note)
    making.save(green(), tmp_path)
    making.render(tmp_path)
    assert order == [
        "verdict.json",
        "rejected.txt",
        "unproven.txt",
        "accepted.txt",
        "junit.xml",
        "report.css",
        *FAMILIES,
        "report.html",
    ]


def test_the_command_renders_a_killed_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = making.save(green(), tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    assert main(["render", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert "0 accepted, 0 rejected, 2 unproven" in said
    assert "cut short" in said
    assert errors(tmp_path / "junit.xml") >= 1


def test_the_command_says_when_there_is_no_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", str(tmp_path)]) == 4
    assert "holds no results.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("fault", [OSError("no room"), RecursionError(), ValueError("too many digits")])
def test_a_report_that_cannot_be_written_whole_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception
) -> None:
    making.save(green(), tmp_path)
    assert making.render(tmp_path) == 0
    monkeypatch.setattr("reports.junit.write", Mock(side_effect=fault))
    assert main(["render", str(tmp_path)]) == 2
    assert "nobody is accepted by it" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "junit.xml",
        "results.jsonl",
        "report.css",
    }
    assert errors(tmp_path / "junit.xml") == 1


def test_rendering_twice_changes_nothing(tmp_path: Path) -> None:
    making.save(green(), tmp_path)
    making.render(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    making.render(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert scan(tmp_path / "results.jsonl").records == green()


def test_a_check_takes_few_bytes_on_its_family_page(tmp_path: Path) -> None:
    """At 64 nodes a family has ten thousand, and its page is to stay below 3 MB.

    Those that differ in nothing but the node have one line; the others are told apart.
    """
    sizes = []
    for differ in (0.1, 0.0):
        checks = [
            check(
                f"suites/zero/test_zero.py::test_x[inside-n{n}]",
                [f"n{n}"],
                judgements=(replace(making.GREEN, value=350 + differ * n),),
            )
            for n in range(1000, 1200)
        ]
        making.save(journal_of(*checks), tmp_path)
        making.render(tmp_path)
        sizes.append((tmp_path / "checks-zero.html").stat().st_size)
    assert sizes[0] < 300 * len(checks)
    page = (tmp_path / "checks-zero.html").read_text()
    assert sizes[1] < 3000
    assert "n[1000-1199]" in page
    assert "test_<wbr>x[<wbr>inside]" in page
