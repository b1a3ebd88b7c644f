"""`python -m thresholds` says what is wrong, which row judges a case, and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.each import each
from tests.house.tree import ROOT
from tests.thresholds.calibrate.journals import Script, write_runs
from tests.thresholds.files import FIRST, GOOD
from thresholds.__main__ import main
from thresholds.loading.load import shipped

CASE = ["collective=all_reduce", "path=network", "nodes=2", "ranks_per_node=2", "size=8GiB"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(GOOD)
    return str(path)


def test_lint_of_all_shipped_files(capsys: Capture) -> None:
    assert main(["lint"]) == 0
    out, err = capsys.readouterr()
    assert (err, out.count(": good (")) == ("", len(shipped()))


def test_a_reader_that_goes_ends_it_without_a_word() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "thresholds", "lint", "lab-200mbit"],
        cwd=ROOT,
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_lint_names_every_fault_of_every_file(tmp_path: Path, small: str, capsys: Capture) -> None:
    bad = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for path in bad:
        path.write_text(GOOD.replace("min = 80.0", "min = 800.0").replace("max = 100.0", "max = nan"))
    assert main(["lint", *map(str, bad), small]) == 1
    out, err = capsys.readouterr()
    assert (out.count("good"), err.count("physical bound"), err.count("limit.max")) == (1, 2, 2)


def test_lint_of_an_unknown_name_is_a_fault(capsys: Capture) -> None:
    assert main(["lint", "no-such-hardware"]) == 1
    assert "no hardware file of that name" in capsys.readouterr().err


def test_explain_shows_the_row_its_source_and_the_physics(small: str, capsys: Capture) -> None:
    assert main(["explain", small, "busbw", *CASE]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"small.toml:{FIRST} judges it: min = 80 GB/s\n")
    for line in ("nodes = 2..4 matches 2", "source: example/repository", "bound of this algorithm: 100 GB/s"):
        assert line in out
    assert "above 150 GB/s something else was measured" in out


def test_explain_derives_the_limit_of_ranks_that_send_to_the_others(capsys: Capture) -> None:
    case = ["step=expert.m2n_speed", "path=network", "nodes=4", "ranks_per_node=8", "size=3MiB"]
    assert main(["explain", "h100-sxm5-ndr400", "pattern", *case]) == 0
    assert "all_to_all of 64MiB: " in capsys.readouterr().out  # two thirds of 32 x 3 MiB


def test_explain_works_out_a_share_of_the_bound(capsys: Capture) -> None:
    case = ["collective=all_to_all", "path=network", "nodes=4", "ranks_per_node=8", "size=8GiB"]
    assert main(["explain", "h100-sxm5-ndr400", "busbw", *case]) == 0
    assert "floor: 0.75 x 64.6 = 48.4 GB/s" in capsys.readouterr().out


def test_explain_says_when_nothing_judges_a_case(small: str, capsys: Capture) -> None:
    assert main(["explain", small, "busbw", *CASE[1:], "collective=reduce"]) == 1
    assert "unchecked: busbw of (" in capsys.readouterr().err
    assert main(["explain", small, "busbw", *CASE[1:], "collective=gather"]) == 0
    assert "n/a: this library has no gather" in capsys.readouterr().out


def test_explain_of_a_measured_rate_says_that_it_must_be_measured(capsys: Capture) -> None:
    case = ["collective=all_reduce", "path=memory", "nodes=1", "ranks_per_node=2", "size=4MiB"]
    assert main(["explain", "cpu-local", "busbw", *case]) == 0
    assert "bound: the bound is the copy rate measured in the same run" in capsys.readouterr().out


@each("pair", ["size=8GB", "nodes=two", "nodes=2..4", "colour=red", "size", "collective=hug"])
def test_a_case_that_makes_no_sense_is_refused(small: str, pair: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", small, "busbw", pair])
    assert ended.value.code == 2
    assert capsys.readouterr().err


RATES = ["--line-rate", "nvlink=450", "--line-rate", "network=50"]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return write_runs(tmp_path, [Script(network=busbw) for busbw in (90.0, 90.2, 89.9, 90.1, 89.8)])


def test_calibrate_writes_a_file_that_lint_takes(runs: list[str], tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.toml"
    assert main(["calibrate", *runs, *RATES, "--name", "mine", "-o", str(file)]) == 0
    assert "- 6 limits and 0 gaps\n" in capsys.readouterr().err
    assert main(["lint", str(file)]) == 0
    assert main(["calibrate", *runs, *RATES, "--name", "mine"]) == 0
    assert capsys.readouterr().out.endswith(file.read_text())
    assert main(["calibrate", *runs, *RATES, "-o", str(file)]) == 1
    assert "mine.toml is there already; name a new file" in capsys.readouterr().err


def test_calibrate_refuses_and_writes_nothing(runs: list[str], tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.toml"
    assert main(["calibrate", *runs[:3], *RATES, "-o", str(file)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("refused, and nothing is written:\n- all_reduce busbw")
    assert not file.exists()
    assert main(["calibrate", *runs, *RATES, "-o", str(tmp_path / "no" / "where.toml")]) == 1
    assert "where.toml cannot be written: No such file or directory" in capsys.readouterr().err


@each("words", [["--line-rate", "warp=9"], ["--line-rate", "network=nan"], ["--most-margin", "x=1"]])
def test_calibrate_of_figures_that_make_no_sense(runs: list[str], words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *runs, *words])
    assert ended.value.code == 2
    assert "is not NAME=NUMBER with a name of: " in capsys.readouterr().err


def test_calibrate_takes_line_rates_from_one_place(runs: list[str], small: str, capsys: Capture) -> None:
    assert main(["calibrate", *runs, *RATES, "--like", small]) == 2
    assert "leave --line-rate out" in capsys.readouterr().err
