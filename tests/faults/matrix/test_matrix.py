"""The runner: what it draws, what it does not do twice, what it prints, and when it is content."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.faults.matrix import __main__ as command
from tests.faults.matrix.catalogue import CANNOT, CATALOGUE
from tests.faults.matrix.draw import draw
from tests.faults.matrix.results import Result, Results
from tests.faults.matrix.rows import FEW, ROWS, chosen
from tests.faults.matrix.trial import Trial

NODES = ("n01", "n02", "n03", "n04")
Capture = pytest.CaptureFixture[str]


def result(trial: Trial, wrong: tuple[str, ...] = (), **changes: object) -> Result:
    fields: dict[str, object] = {
        "drawn": draw(NODES, trial.row.faulty, trial.seed, trial.row.name, trial.repeat),
        "status": 1,
        "seconds": 12.0,
        "detected": not wrong,
        "kind": True,
        "name": True,
        "healthy": 3,
        "of": 3,
        "misnamed": (),
        "rejected": (),
        "report": "kept/here" if wrong else "",
    }
    return Result(trial.row.name, trial.repeat, trial.seed, wrong=wrong, **{**fields, **changes})  # type: ignore[arg-type]


class Labs:
    """Stands for the labs: every trial ends at once, right unless it is said to be wrong."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int, int]] = []
        self.wrong: dict[tuple[str, int], str] = {}
        self.busy: list[bool] = []
        self.killed_after = 1000

    def run(self, trial: Trial, place: Path) -> Result:
        if len(self.ran) == self.killed_after:
            raise KeyboardInterrupt
        self.ran.append(trial.key)
        self.busy.append(trial.busy)
        flaw = self.wrong.get(trial.key[:2])
        return result(trial, (flaw,) if flaw else ())


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch) -> Labs:
    labs = Labs()
    monkeypatch.setattr(command, "run", labs.run)
    return labs


# what is drawn


def test_a_seed_draws_the_same_nodes_again_and_repeats_differ() -> None:
    first = [draw(NODES, 1, 7, "link-slow", repeat) for repeat in range(40)]
    assert first == [draw(NODES, 1, 7, "link-slow", repeat) for repeat in range(40)]
    assert {node for (node,) in first} == set(NODES)
    assert first != [draw(NODES, 1, 8, "link-slow", repeat) for repeat in range(40)]
    assert first != [draw(NODES, 1, 7, "power-off", repeat) for repeat in range(40)]
    assert all(len(set(draw(NODES, 2, 7, "two", repeat))) == 2 for repeat in range(40))


# what is not done twice


def test_finished_trials_are_not_run_again(labs: Labs, tmp_path: Path, capsys: Capture) -> None:
    words = ["--rows", "off", "held", "--results", str(tmp_path / "results")]
    labs.killed_after = 4
    with pytest.raises(KeyboardInterrupt):
        command.main([*words, "--seed", "7"])
    assert labs.ran == [(row, repeat, 7) for repeat in (0, 1) for row in ("off", "held")]
    labs.killed_after = 1000
    assert command.main(words) == 0  # with the seed of the file
    assert labs.ran[4:] == [("off", 2, 7), ("held", 2, 7)]
    assert command.main(words) == 0
    assert len(labs.ran) == 6
    assert "off" in capsys.readouterr().out
    assert command.main([*words, "--seed", "8", "--repeats", "1"]) == 0
    assert labs.ran[6:] == [("off", 0, 8), ("held", 0, 8)]


def test_a_line_that_was_cut_off_is_a_trial_without_result(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results"
    trials = [Trial(chosen(["off"])[0], repeat, 7) for repeat in (0, 1)]
    kept = Results(file)
    for trial in trials:
        kept.add(result(trial))
    file.write_text(file.read_text()[:-20])
    again = Results(file)
    assert again.of(trials[0].key) == result(trials[0])
    assert again.of(trials[1].key) is None
    again.add(result(trials[1]))
    assert Results(file).among(trial.key for trial in trials) == [result(trial) for trial in trials]


# when it is content


def test_one_wrong_answer_is_status_1_and_says_where_its_report_is(labs: Labs, capsys: Capture) -> None:
    labs.wrong["held", 1] = "n02 is accepted, not unproven"
    assert command.main(["--rows", "off", "held", "--seed", "7"]) == 1
    printed = capsys.readouterr().out
    lines = {line.split()[1]: line.split() for line in printed.splitlines() if line[:2].strip().isdigit()}
    assert lines["off"][-5:] == ["3/3", "3/3", "3/3", "12-12", "9/9"]
    assert lines["held"][-5:] == ["2/3", "3/3", "3/3", "12-12", "9/9"]
    assert printed.count("n02 is accepted, not unproven") == 2
    assert "    kept/here" in printed
    assert "missed: 1 of 6" in printed
    assert printed.startswith("seed 7; 6 trials")
    assert printed.endswith("seed 7\n")


def test_a_row_that_is_not_there_is_refused(labs: Labs, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        command.main(["--rows", "off", "gremlins*"])
    assert "no row is called gremlins*" in capsys.readouterr().err
    assert labs.ran == []


def test_the_table_ends_with_what_is_not_planted(labs: Labs, capsys: Capture) -> None:
    command.main(["--rows", "off", "--repeats", "1"])
    printed = capsys.readouterr().out
    assert all(one.fault in printed and one.reason in printed for one in CANNOT)


# rates


def test_healthy_runs_are_counted_with_their_bound(labs: Labs, capsys: Capture) -> None:
    assert command.main(["--healthy", "30", "--seed", "7", "--workload", "nodes"]) == 0
    printed = capsys.readouterr().out
    assert "false fails: 0 of 30 (0.0%), between 0.0% and 11.6% with 95% confidence" in printed
    assert len(labs.ran) == 30
    assert all(labs.busy)


def test_a_slow_link_is_named_or_not_or_somebody_else_is(capsys: Capture) -> None:
    row = chosen(["link-slow"])[0]
    trials = [Trial(row, repeat, 7) for repeat in range(4)]
    named = [result(trial, rejected=result(trial).drawn) for trial in trials[:2]]
    wrong = result(trials[3], ("n04 named",), misnamed=("n04",), rejected=("n04",))
    lines = list(command.of_slow_link([*named, result(trials[2], ("n01 is unproven",)), wrong]))
    assert [line.split(" (")[0] for line in lines] == [
        "named: 2 of 4",
        "not named, nobody else either: 1 of 4",
        "a wrong name: 1 of 4",
    ]


# the rows


def test_rows_have_names_of_their_own_and_places_in_the_catalogue() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len({row.fault for row in ROWS}) == len(ROWS) >= 30
    assert {row.catalogue for row in ROWS} <= set(CATALOGUE)
    assert {*(row.catalogue for row in ROWS), *(one.catalogue for one in CANNOT)} == set(CATALOGUE)
    assert set(FEW) <= {row.name for row in ROWS}


def test_no_row_selects_tests() -> None:
    """A selection accepts nobody, so that it would say nothing of healthy nodes."""
    folder = Path(inspect.getfile(command)).parent
    sources = [path.read_text() for path in folder.glob("rows*.py")]
    assert not any('"-k"' in text or '"-m"' in text for text in sources)


@pytest.mark.lab
@pytest.mark.usefixtures("require_lab")
@pytest.mark.parametrize("name", FEW)
def test_a_few_rows_of_each_kind_are_right(name: str, tmp_path: Path, capsys: Capture) -> None:
    status = command.main(["--rows", name, "--repeats", "1", "--keep", str(tmp_path)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert list(tmp_path.iterdir()) == []  # a right answer leaves nothing
