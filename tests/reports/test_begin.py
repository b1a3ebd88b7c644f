"""The green of the last run does not survive the beginning of the next, wherever reports go."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from reports.begin import JOURNAL, UnusableError, begin, junit_path, main, take
from reports.hold import HeldError, Hold
from tests.house.tree import ROOT
from tests.reports import making

Contents = dict[str, bytes]


@pytest.fixture
def last_night(tmp_path: Path) -> Path:
    """A report directory with all that a green run leaves."""
    out = tmp_path / "out"
    making.save(making.green(), out)
    assert making.render(out) == 0
    return out


def contents(directory: Path) -> Contents:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def red(junit: Path) -> bool:
    return int(ET.parse(junit).getroot().get("errors", "0")) > 0  # noqa: S314 - our own file


def command(
    *arguments: str, wrapper: tuple[str, ...] = (), before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command with the standard library alone, as a system's Python has it."""
    argv = [*wrapper, sys.executable, "-S", "-m", "reports.begin", *arguments]
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=before,
    )


@pytest.mark.parametrize("spelling", [["--report-dir", "{}"], ["--hosts", "x", "--report-dir={}", "-q"]])
def test_the_command_leaves_red_with_the_standard_library_alone(
    last_night: Path, spelling: list[str]
) -> None:
    own = last_night.parent / "own.xml"
    shutil.copy(last_night / "junit.xml", own)
    (last_night / "plots").mkdir()
    (last_night / "plots/old.svg").touch()
    with (last_night / "report.html").open("a", encoding="utf-8") as page:
        page.write('<img src="plots/old.svg">')
    done = command(*(word.format(last_night) for word in spelling), "--junitxml", str(own))
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in last_night.iterdir()} == {"junit.xml", ".lock"}
    assert red(last_night / "junit.xml")
    assert red(own)


def test_what_the_operator_keeps_in_folders_of_these_names_stays(last_night: Path) -> None:
    own = [last_night / name for name in ("plots/mine.svg", "plots/a/b.png", "parts/bolts.txt")]
    for path in (*own, last_night / "parts/00001.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    begin(last_night)
    assert all(path.exists() for path in own)
    assert not (last_night / "parts/00001.jsonl").exists()


@pytest.mark.parametrize("word", ["--collect-only", "--co", "--help", "-h", "--version", "--markers"])
def test_what_runs_nothing_writes_nothing(last_night: Path, word: str) -> None:
    before = contents(last_night)
    assert command("--report-dir", str(last_night), word).returncode == 0
    assert contents(last_night) == before


def test_arguments_in_a_file_and_an_open_quotation_are_read_too(
    last_night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (last_night / "words").write_text(f"--report-dir\n{last_night}\n--plan\n")
    before = contents(last_night)
    assert main([f"@{last_night / 'words'}"]) == 0
    assert contents(last_night) == before
    (last_night / "again").write_text(f"@{last_night / 'again'}\n--report-dir\n{last_night / 'other'}\n")
    assert main([f"@{last_night / 'again'}"]) == 0  # with which pytest does not start
    assert red(last_night / "other" / "junit.xml")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--report-dir {last_night} -k 'sweep")
    assert main([]) == 0
    assert red(last_night / "junit.xml")


def test_a_directory_that_another_run_holds_is_not_touched(last_night: Path) -> None:
    hold = Hold(last_night)
    before = contents(last_night)
    done = command("--report-dir", str(last_night))
    hold.release()
    assert done.returncode == 4
    assert f"held by another run (process {os.getpid()} on " in done.stderr
    assert contents(last_night) == before


def test_the_users_own_report_is_red_also_where_another_run_holds_the_directory(last_night: Path) -> None:
    own = Path(shutil.copy(last_night / "junit.xml", last_night.parent / "own.xml"))
    hold = Hold(last_night)
    done = command("--report-dir", str(last_night), "--junitxml", str(own))
    hold.release()
    assert (done.returncode, red(own)) == (4, True)


def test_junit_xml_turns_red_before_anything_is_removed(
    last_night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between any two operations then leaves no green one."""
    gone: list[str] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        assert red(last_night / "junit.xml")
        assert red(last_night.parent / "own.xml")
        gone.append(path.name)
        unlink(path, missing_ok)

    shutil.copy(last_night / "junit.xml", last_night.parent / "own.xml")
    monkeypatch.setattr(Path, "unlink", note)
    begin(last_night, user_junit=last_night.parent / "own.xml")
    assert gone[0] == "accepted.txt"
    assert {"verdict.json", "results.jsonl"} <= set(gone)


def no_room() -> None:
    """Let every write of this process fail, as on a full disk; removing works there."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_disk_too_full_for_the_red_file_keeps_nothing_green(last_night: Path) -> None:
    done = command("--report-dir", str(last_night), before=no_room)
    assert done.returncode == 4
    assert "junit.xml cannot be written" in done.stderr
    assert not any(contents(last_night).values())
    assert "junit.xml" not in contents(last_night)


def test_room_that_the_old_report_took_is_room_for_the_red_one(
    last_night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def full(handle: int) -> None:
        if (last_night / "results.jsonl").exists():
            raise OSError("No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    begin(last_night)
    assert set(contents(last_night)) == {"junit.xml"}
    assert red(last_night / "junit.xml")


def unprivileged() -> tuple[str, ...]:
    """What makes permissions count for root too."""
    return () if os.getuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.parametrize("mode", [0o644, 0o444], ids=["writable", "read-only"])
def test_a_read_only_directory_is_emptied_or_its_report_disowned(last_night: Path, mode: int) -> None:
    before = contents(last_night)
    for name in before:
        (last_night / name).chmod(mode)
    last_night.chmod(0o555)
    done = command("--report-dir", str(last_night), wrapper=unprivileged())
    last_night.chmod(0o755)
    assert done.returncode == 4
    assert "junit.xml cannot be written: Permission denied" in done.stderr
    if mode == 0o644:
        assert not any(contents(last_night).values())
    else:
        assert "do not believe it: junit.xml, accepted.txt" in done.stderr
        assert contents(last_night) == before


def test_no_place_at_all_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command("--report-dir", str(tmp_path / "file"))
    assert done.returncode == 4
    assert f"--report-dir {tmp_path}/file: " in done.stderr


def test_a_pipe_or_a_device_is_no_report_of_last_night_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert (junit_path(str(pipe)), junit_path("/dev/null")) == (None, None)
    assert junit_path(str(tmp_path / "junit.xml")) == tmp_path / "junit.xml"


# -- runs that are kept ----------------------------------------------------------------------------------


@pytest.fixture
def kept(last_night: Path) -> tuple[Path, Path]:
    """Where reports go and where runs are kept, with last night's run among them."""
    runs = last_night.with_name("runs")
    take(last_night, runs=runs).release()
    return last_night, runs


@pytest.mark.parametrize("named", ["", JOURNAL])
def test_the_run_that_is_gone_on_with_is_not_begun_in(last_night: Path, named: str) -> None:
    before = contents(last_night)
    done = command("--report-dir", str(last_night), "--resume", str(last_night / named))
    assert done.returncode == 4
    assert "what was measured there must stay" in done.stderr
    assert contents(last_night) == before


def test_a_run_leaves_the_last_one_as_it_was(kept: tuple[Path, Path]) -> None:
    """The directory of an earlier version becomes a run, and what never ran is gone with the next."""
    place, runs = kept
    for _ in range(2):
        hold = take(place, place / "junit.xml", runs)
        hold.release()
        last, new = sorted(path for path in runs.iterdir() if path.is_dir() and path != hold.directory), hold
        assert place.is_symlink()
        assert place.resolve() == new.directory
        assert os.readlink(place) == f"runs/{hold.run_id}"
        assert [path.name for path in new.directory.iterdir()] == ["junit.xml"]
        assert red(place / "junit.xml")
        assert [set(contents(path)) > {"results.jsonl", "accepted.txt"} for path in last] == [True]
        assert not red(last[0] / "junit.xml")


def test_a_run_that_began_is_never_removed(kept: tuple[Path, Path]) -> None:
    place, runs = kept
    for _ in range(2):
        hold = take(place, runs=runs)
        (place / "results.jsonl").touch()
        hold.release()
    assert len([path for path in runs.iterdir() if path.is_dir()]) == 3


def test_the_link_leads_from_red_to_red(kept: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment does it lead nowhere, or to a directory without a red report."""
    place, runs = kept
    replace, moments = os.replace, []

    def look(source: str | Path, target: str | Path) -> None:
        if target == place:
            moments.append((red(place / "junit.xml"), red(Path(source) / "junit.xml")))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    take(place, runs=runs).release()
    assert moments == [(True, True)]


def test_a_second_run_is_refused_and_changes_nothing(kept: tuple[Path, Path]) -> None:
    place, runs = kept
    hold = take(place, runs=runs)
    with pytest.raises(HeldError, match=r"out is held by another run"):
        take(place, runs=runs)
    assert place.resolve() == hold.directory
    hold.release()


def test_a_directory_in_use_is_not_moved(last_night: Path) -> None:
    hold = Hold(last_night)
    with pytest.raises(HeldError):
        take(last_night, runs=last_night.with_name("runs"))
    hold.release()
    assert not last_night.is_symlink()


@pytest.mark.parametrize("why", ["somebody else's link", "no links are made"])
def test_where_no_run_can_be_kept_the_place_itself_is_begun_in(
    kept: tuple[Path, Path], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, runs = kept
    if why == "somebody else's link":
        place.unlink()
        (place.parent / "scratch").mkdir()
        place.symlink_to("scratch")
    else:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(why)

        monkeypatch.setattr(Path, "symlink_to", refuse)
    last = {path.parent: contents(path.parent) for path in runs.glob("*/results.jsonl")}
    hold = take(place, runs=runs)
    hold.release()
    assert hold.directory == place
    assert red(place / "junit.xml")
    assert place.is_symlink() == (why == "somebody else's link")
    assert all(contents(path) == before for path, before in last.items())
    assert last


def test_a_file_in_the_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(UnusableError, match="File exists"):
        take(tmp_path / "out", runs=tmp_path / "runs")
    assert (tmp_path / "out").is_file()
