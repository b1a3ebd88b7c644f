"""`diff` says what differs between files, and how a run stands to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thresholds.calibrate.journals import Script, write
from tests.thresholds.files import GOOD
from thresholds.__main__ import main
from thresholds.diff import BadInput, diff

Capture = pytest.CaptureFixture[str]
ACROSS = GOOD.replace('"2..4"', "3").replace(
    'size = "8GiB"\nmin', 'size = "8GiB"\nstep = "collectives.sweep"\nmin'
)
ONLY_BUSBW = ACROSS[: ACROSS.index('[[limit]]\nmetric = ["latency"')]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(GOOD.replace('name = "small"', f'name = "{name}"'))
    return tmp_path / "a.toml", tmp_path / "b.toml"


def of(files: tuple[Path, Path], *changes: tuple[str, str]) -> list[str]:
    """The lines after changes in the second file."""
    text = files[1].read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    files[1].write_text(text)
    found = diff(*map(str, files))
    assert found.differs == bool(found.lines)
    return list(found.lines)


def test_files_that_judge_alike_do_not_differ(files: tuple[Path, Path], capsys: Capture) -> None:
    assert of(files, ("file:1", "file:9"), ("2026-05-01", "2026-06-01"), ("two", "2")) == []
    assert main(["diff", *map(str, files)]) == 0
    assert capsys.readouterr().out == ""


def test_a_floor_that_changed_is_said_in_per_cent(files: tuple[Path, Path], capsys: Capture) -> None:
    head, line = of(files, ("min = 80.0", "min = 84.0"))
    assert head.split() == ["figure", "for", "a", "b"]
    words = "collective = all_reduce, nodes = 2..4, path = network, size = 8GiB"
    assert [cell.strip() for cell in line.split("  ") if cell] == [
        "busbw",
        words,
        "min 80 GB/s",
        "min 84 GB/s (+5.0 %)",
    ]
    assert main(["diff", *map(str, files)]) == 1
    assert "+5.0 %" in capsys.readouterr().out


def test_rows_and_gaps_that_came_and_went(files: tuple[Path, Path]) -> None:
    lines = of(
        files,
        ('metric = ["latency", "latency_p99"]', 'metric = "latency"'),
        ('nodes = ">=5"\nreason', 'nodes = ">=6"\nreason'),
        ("min = 80.0", "min_of_bound = 0.8\nmin_samples = 20"),
    )
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[1:]]
    assert ["busbw", "nodes = >=5, path = network", "gap", "-"] in cells
    assert ["busbw", "nodes = >=6, path = network", "-", "gap"] in cells
    assert ["latency_p99", "path = network", "max 100 us", "-"] in cells
    changed = next(line for line in cells if "all_reduce" in line[1])
    assert changed[2:] == ["min 80 GB/s", "min_of_bound 0.8 of 20 samples"]
    assert lines[1:] == sorted(lines[1:])


def test_the_order_in_which_a_list_is_written_is_no_difference(files: tuple[Path, Path]) -> None:
    for number, text in enumerate(('["all_reduce", "reduce"]', '["reduce", "all_reduce"]')):
        files[number].write_text(
            files[number].read_text().replace('collective = "all_reduce"', f"collective = {text}")
        )
    assert of(files) == []


def test_facts_that_changed(files: tuple[Path, Path]) -> None:
    lines = of(
        files,
        ("nic_gigabits_per_s = 400", "nic_gigabits_per_s = 200"),
        ("network = 50.0", "network = 25.0"),
        ("min = 80.0", "min = 30.0"),
        ('NCCL_IB_HCA = "mlx5"', 'NCCL_IB_GID_INDEX = "3"'),
    )
    facts = [line.split() for line in lines[: lines.index("")]]
    assert facts == [
        ["fact", "a", "b"],
        ["env.NCCL_IB_GID_INDEX", "-", "3"],
        ["env.NCCL_IB_HCA", "mlx5", "-"],
        ["expect.nic_gigabits_per_s", "400", "200"],
        ["line_rate.network", "50.0", "25.0"],
    ]


def run_of(tmp_path: Path, script: Script) -> str:
    return write(tmp_path / "run", script.records())


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "file.toml"
    path.write_text(text)
    return str(path)


def test_a_run_beside_its_file(tmp_path: Path) -> None:
    found = diff(file_of(tmp_path, ONLY_BUSBW), run_of(tmp_path, Script(network=88.0)))
    head, line = found.lines[:2]
    assert head.split() == ["row", "figure", "limit", "measured", "n", "margin"]
    assert [cell.strip() for cell in line.split("  ") if cell] == [
        "file.toml:30",
        "all_reduce busbw at 8GiB over network on 3 nodes",
        ">= 80 GB/s",
        "88 GB/s",
        "1",
        "+10.0 %",
    ]
    rest = found.lines[2:]
    assert found.differs
    assert [line.split(":")[0] for line in rest] == ["no row"] * 5
    assert any(
        line.startswith("no row: busbw_mean of (step=collectives.sweep, path=network") for line in rest
    )


def test_a_run_that_meets_all_and_uses_all_does_not_differ(tmp_path: Path, capsys: Capture) -> None:
    rows = [
        f'[[limit]]\nmetric = {metric}\n{limit}\nsource = "somewhere"\ndate = 2026-05-01\n'
        for metric, limit in (
            ('"slow_fraction"', "max = 0.2"),
            ('["busbw", "busbw_mean"]\npath = "network"', "min_of_bound = 0.8"),
            ('["busbw", "busbw_mean"]\npath = "nvlink"', "min_of_bound = 0.8"),
        )
    ]
    text = file_of(tmp_path, GOOD[: GOOD.index("[[limit]]")] + "\n".join(rows))
    run = run_of(tmp_path, Script())
    assert main(["diff", text, run]) == 0
    out = capsys.readouterr().out
    assert ">= 80 GB/s   90 GB/s" in out
    assert "+75.0 %" in out  # a slow_fraction of 0.05, and 0.2 are allowed
    stalling = write(tmp_path / "stalling", Script(slow=0.2).records())
    assert main(["diff", text, stalling]) == 0
    assert "+0.0 %" in capsys.readouterr().out
    slower = write(tmp_path / "slower", Script(network=79.9).records())
    assert main(["diff", text, slower]) == 1
    assert "-0.1 %" in capsys.readouterr().out


def test_rows_that_judged_nothing(tmp_path: Path) -> None:
    lines = diff(file_of(tmp_path, ACROSS), run_of(tmp_path, Script())).lines
    assert any(
        line.startswith("judged nothing: file.toml:41: latency, latency_p99 for path = network")
        for line in lines
    )


def test_a_run_that_is_not_sound_is_compared_and_says_so(tmp_path: Path) -> None:
    found = diff(file_of(tmp_path, ONLY_BUSBW), run_of(tmp_path, Script(cut_short="stopped by SIGINT")))
    assert any("not a sound run: " in line and "cut short: stopped by SIGINT" in line for line in found.lines)
    assert found.differs


def test_bad_input_is_refused_with_all_of_it(tmp_path: Path, capsys: Capture) -> None:
    bad = file_of(tmp_path, GOOD.replace("min = 80.0", "min = 800.0"))
    (tmp_path / "empty").mkdir()
    assert main(["diff", bad, str(tmp_path / "empty")]) == 2
    said = capsys.readouterr().err
    assert "physical bound" in said
    assert "no journal can be read" in said
    with pytest.raises(BadInput, match="name a hardware file first"):
        diff(str(tmp_path / "empty"), bad)
    assert main(["diff", "no-such-hardware", bad]) == 2
