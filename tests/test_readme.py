"""What README.md says is true: its commands run as they stand there, its tables are those of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fixtures.run import options
from fixtures.run.planning import STATUS
from fixtures.transport.hosts import parse
from reports.decision import decide, exit_status
from reports.record import Outcome, Record
from tests.house.tree import ROOT, files
from tests.reports import making

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
BIN = ROOT / ".venv" / "bin"


def blocks(language: str) -> list[str]:
    """The code blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def table(heading: str) -> dict[str, str]:
    """First and second cell of the rows of the table that has this first heading."""
    lines = iter(README.splitlines())
    next(line for line in lines if line.startswith(f"| {heading} |"))
    rows = list(iter(lambda: next(lines, ""), ""))[1:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return {row[0]: row[1] for row in cells}


# -- commands --------------------------------------------------------------------------------------------

COMMANDS = [line for block in blocks("bash") for line in block.splitlines()]
FAULTS = next((line for line in COMMANDS if line.startswith("make faults")), "")
EXPLAIN = next((line for line in COMMANDS if " thresholds explain " in line), "")
ACCEPT = 'make accept HOSTS=nodes.txt ARGS="--hardware h100-sxm5-ndr400"'
PLAN = ".venv/bin/pytest suites/ --hosts nodes.txt --plan --hardware h100-sxm5-ndr400"
# Typed in a copy of the tree, and what is then said; of what needs a cluster, what would be run there.
RUN = {
    "make accept": ("make accept", "accepted  localhost"),
    ACCEPT: (f"{ACCEPT} --dry-run", "pytest suites/ --hosts 'nodes.txt' --hardware h100-sxm5-ndr400"),
    PLAN: (f"{PLAN} || test $? = 6", "plan: 17 nodes of 8, hardware h100-sxm5-ndr400"),
    ".venv/bin/python -m thresholds lint": ("", "cpu-local.toml: good"),
    ".venv/bin/python -m tests.teeth context": ("", "context.ring"),
    EXPLAIN: ("", "judges it: min = 460 GB/s"),
}
# Its family is one of tests/teeth/test_teeth.py, which are run with every change.
MARKS = {"make accept": pytest.mark.alone, ".venv/bin/python -m tests.teeth context": pytest.mark.long}
ELSEWHERE = {
    ".venv/bin/pytest suites/ --hosts nodes.txt --hardware h100-sxm5-ndr400": "what make accept runs",
    ".venv/bin/python -m reports render reports/out": "test_a_run_that_was_killed_still_has_an_answer",
    ".venv/bin/pytest suites/ --hosts nodes.txt --groups-of 8 -n 4": "test_workers.py runs it",
    ".venv/bin/pytest suites/ --hosts nodes.txt --resume reports/runs/20261120T141203Z-9f31c0": "test_resume",
    ".venv/bin/pytest suites/ --hosts repaired.txt --beside accepted.txt": "test_beside.py runs it",
    "make test": "it is what runs this test",
    FAULTS: "test_the_catalogue_has_the_rows_that_are_named",
    ".venv/bin/python -m tests.lab up --nodes 4 --rate 200mbit": "test_the_lab_says_what_to_run",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree as a user has it, with the environment of this one and README's hosts file."""
    place = tmp_path_factory.mktemp("checkout")
    for path in files(ROOT):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, place / path)
    (place / ".venv").symlink_to(ROOT / ".venv")
    (place / "nodes.txt").write_text(blocks("hosts")[0])
    (place / "wrong.txt").write_text("gpu[01-\n")
    return place


def shell(command: str, place: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    argv = ["bash", "-euc", command]
    # A reader's shell runs inside no make, which would print the directories that it enters.
    env = {name: word for name, word in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        argv, cwd=place, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == RUN.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("command", [pytest.param(one, marks=MARKS.get(one, ())) for one in RUN])
def test_the_command_does_what_it_says(checkout: Path, command: str) -> None:
    typed, words = RUN[command]
    done = shell(typed or command, checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words in done.stdout


def test_the_catalogue_has_the_rows_that_are_named(checkout: Path) -> None:
    done = shell(f'{FAULTS[:-1]} --collect-only -q"', checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"\[(.*)\]", done.stdout) == ["link-slow-tx", "rank-killed"]


@pytest.mark.lab
def test_the_lab_says_what_to_run(checkout: Path) -> None:
    """What it says is typed word for word in tests/test_lab.py."""
    argv = next(line for line in COMMANDS if "tests.lab up" in line).split()
    with subprocess.Popen(argv, cwd=checkout, stdout=subprocess.PIPE, text=True) as lab:
        try:
            assert lab.stdout is not None
            assert next(lab.stdout).startswith("4 nodes (n01 to n04), links 200mbit, in ")
            assert any(line.startswith("test them:") for line in lab.stdout)
        finally:
            lab.terminate()
            lab.communicate(timeout=60)


def test_a_run_that_was_killed_still_has_an_answer(checkout: Path) -> None:
    out = checkout / "reports" / "out"
    shutil.rmtree(out, ignore_errors=True)
    making.save(making.green()[:-1], out)
    done = shell(next(line for line in COMMANDS if " reports render " in line), checkout)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "unproven" in done.stdout
    assert (out / "unproven.txt").read_text() != ""


# -- tables ----------------------------------------------------------------------------------------------


class Parser:
    """Takes what the plugin adds to pytest's command line."""

    def __init__(self) -> None:
        self.added: dict[str, dict[str, object]] = {}

    def getgroup(self, *_: str) -> Parser:
        return self

    def addoption(self, name: str, **settings: object) -> None:
        self.added[name] = settings


def test_the_option_table_has_the_plugin_s_options_and_defaults() -> None:
    parser = Parser()
    options.add_options(parser)  # type: ignore[arg-type]
    written = {cell.strip("`").replace("\\|", "|"): word.strip("`") for cell, word in table("option").items()}
    offered = {
        f"{name} {settings.get('metavar') or ''}".strip(): settings.get("default")
        for name, settings in parser.added.items()
    }
    assert written.keys() == offered.keys()
    given = {name: str(default) for name, default in offered.items() if default}
    assert {name: written[name] for name in given} == given


def test_the_command_for_containers_is_the_one_that_help_shows() -> None:
    parser = Parser()
    options.add_options(parser)  # type: ignore[arg-type]
    command = str(parser.added["--launch-prefix"]["help"]).split("'")[1]
    assert f"`{command}`" in README


CUT_SHORT = [*making.green()[:-1], making.end(cut_short="SIGTERM")]
NOTHING = [making.run(), making.plan(), making.end(pytest_status=5)]


@pytest.mark.parametrize(
    ("status", "says", "run"),
    [
        pytest.param(0, "every planned check of every node passed", making.green(), id="accepted"),
        pytest.param(1, "rejected", making.rejected(), id="rejected"),
        pytest.param(2, "unproven", making.with_pair(Outcome.UNCHECKED), id="unproven"),
        pytest.param(2, "cut short", CUT_SHORT, id="cut-short"),
        pytest.param(5, "nothing was collected", NOTHING, id="nothing"),
    ],
)
def test_the_exit_status_is_what_the_table_says(status: int, says: str, run: Sequence[Record]) -> None:
    assert exit_status(run, decide(run)) == status
    assert any(says in text for text, number in statuses() if number == status)


def test_the_status_of_a_plan_is_in_the_table() -> None:
    assert any("--plan" in text for text, number in statuses() if number == STATUS)


def statuses() -> Iterator[tuple[str, int]]:
    """Meaning and number of each row; a number may have two."""
    for line in README.splitlines():
        if row := re.fullmatch(r"\| (\d) \| (.*) \|", line):
            yield row[2], int(row[1])


def test_the_outcomes_are_those_of_the_records() -> None:
    assert list(table("outcome")) == [outcome.value for outcome in Outcome]


# -- examples --------------------------------------------------------------------------------------------


def test_the_hosts_file_is_one() -> None:
    hosts = parse(blocks("hosts")[0], "nodes.txt")
    assert len(hosts) == 17
    assert (hosts[-1].user, hosts[-1].addr, hosts[-1].port, hosts[-1].rack) == (
        "ops",
        "192.168.7.17",
        2222,
        "r2",
    )


def test_the_jenkins_stage_takes_what_the_run_leaves_however_it_ends(checkout: Path) -> None:
    (stage,) = blocks("groovy")
    shells = re.findall(r"sh '(.*)'", stage)
    assert shells == ["make begin setup", ".venv/bin/pytest suites/ --hosts nodes.txt"]
    assert "keepProperties: true" in stage
    shutil.rmtree(checkout / "reports" / "out", ignore_errors=True)
    done = shell(shells[1].replace("nodes.txt", "wrong.txt"), checkout)
    assert done.returncode == 4 in {number for _, number in statuses()}
    assert (checkout / re.findall(r"testResults: '(.*?)'", stage)[0]).is_file()


@pytest.mark.parametrize("example", blocks("yaml"))
def test_other_servers_find_a_red_report_however_the_run_ends(checkout: Path, example: str) -> None:
    """Of a run that has not begun yet, and of one that never does."""
    begin, accept = re.findall(r"^ *- (?:run: )?((?:make|\.venv).*)$", example, re.MULTILINE)
    (answer,) = {checkout / place for place in re.findall(r"\banswer/", example)}
    assert "always" in example
    shutil.rmtree(answer, ignore_errors=True)
    done = shell(begin.replace(" setup", ""), checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<error" in (answer / "junit.xml").read_text()
    shutil.rmtree(answer)
    assert shell(accept.replace("nodes.txt", "wrong.txt"), checkout).returncode == 4
    assert "<error" in (answer / "junit.xml").read_text()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def expanded(path: str) -> list[str]:
    """What a path with braces stands for."""
    before, brace, rest = path.partition("{")
    words, _, after = rest.partition("}")
    return [one for word in words.split(",") for one in expanded(before + word + after)] if brace else [path]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_that_are_named_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|fixtures|reports|suites|tests|thresholds)/[^`\s]*)`", text)
    paths = [path for one in named for path in expanded(re.sub(r"<\w+>", "*", one).rstrip("/"))]
    written = ("reports/out", "reports/runs", "reports/gpu")  # by runs
    assert [path for path in paths if path not in written and not [*ROOT.glob(path)]] == []
