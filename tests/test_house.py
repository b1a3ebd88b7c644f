"""The rules of the house hold, and each rule finds what it is there to find."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import tomllib

from tests.house import imports, remote, shape, table, words
from tests.house.tree import ROOT, files

Plant = Callable[[Mapping[str, str]], Path]
WORLD = ("conftest.py", "fixtures", "suites", "thresholds", "reports", "tests")
# The Python of nodes may be older, and lacks parts of the standard library, whatever the types of torch are.
# The run beside it follows those; here they would cost three times as much as all that is sent.
OLDER = (
    *("mypy", "--python-version", "3.10", "--follow-imports=skip", "--no-warn-unused-ignores"),
    *("--allow-subclassing-any", "--allow-untyped-decorators", "--no-warn-return-any"),
)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """A tree of its own with these files, to be looked at by a rule."""

    def planted(contents: Mapping[str, str]) -> Path:
        for name, text in contents.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return planted


def report(faults: Iterator[str]) -> str:
    return "\n".join(faults)


def holds(faults: Iterator[str]) -> None:
    if text := report(faults):
        pytest.fail(text, pytrace=False)


# -- imports ---------------------------------------------------------------------------------------------


def test_imports_run_one_way() -> None:
    holds(imports.violations(ROOT, table.ROOMS))


# By file: imports that its room does not allow, one in every line.
FORBIDDEN = {
    "suites/zero/steps.py": ("from fixtures import job", "import numpy"),
    "suites/zero/test_a.py": ("import torch", "from reports import render"),
    "fixtures/ranks/worker.py": ("from fixtures.cluster.measurement import World", "from .. import measure"),
    "fixtures/transport/hosts.py": (
        "import thresholds.loading.schema",
        "if hosts: import suites.zero.steps",
        "from reports.junit import write",
    ),
    "thresholds/lookup.py": ("import pytest", "from fixtures import measure"),
    "reports/junit.py": ("from thresholds.lookup import x", "import paramiko"),
    "tests/test_a.py": ("import requests",),
    "tests/reports/test_a.py": ("import requests",),
}


def test_every_import_against_the_rule_is_found(plant: Plant) -> None:
    there = dict.fromkeys(
        ("fixtures/cluster/measurement.py", "fixtures/cluster/job.py", "reports/render.py"), ""
    )
    root = plant({**there, **{file: "\n".join(lines) for file, lines in FORBIDDEN.items()}})
    found = {":".join(fault.split(":")[:2]) for fault in imports.violations(root, table.ROOMS)}
    assert found >= {f"{file}:{1 + at}" for file, lines in FORBIDDEN.items() for at in range(len(lines))}


def test_a_module_outside_the_table_and_a_row_without_files_are_found(plant: Plant) -> None:
    found = report(imports.violations(plant({"tools/a.py": ""}), table.ROOMS))
    assert "tools/a.py: no row" in found
    assert "a row for reports/**/*.py, but there is no such file" in found


def test_every_package_of_the_table_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {re.split(r"[<>=!~\[; ]", line)[0] for line in declared}
    product = {name for row in table.ROOMS if not row.files.startswith("tests/") for name in row.packages}
    assert {name for row in table.ROOMS for name in row.packages} <= names
    assert product <= {re.split(r"[<>=!~\[; ]", line)[0] for line in project["dependencies"]}


def test_the_conftest_is_a_few_lines() -> None:
    assert len((ROOT / "conftest.py").read_text(encoding="utf-8").splitlines()) < 20


# -- shape -----------------------------------------------------------------------------------------------


def test_rooms_are_small() -> None:
    holds(shape.long_files(ROOT))
    holds(shape.long_functions(ROOT))
    holds(shape.crowded_folders(ROOT))


def test_a_crowded_folder_is_found(plant: Plant) -> None:
    many = {f"reports/page/part{number}.py": "" for number in range(17)}
    root = plant({**many, "reports/page/__init__.py": "", "reports/render.py": ""})
    assert report(shape.crowded_folders(root)) == "reports/page: 17 modules, at most 16"


def test_a_large_room_is_found(plant: Plant) -> None:
    body = "    pass\n" * 40
    root = plant({"fixtures/long.py": "\n" * 401, "fixtures/tall.py": f"async def tall():\n{body}"})
    assert report(shape.long_files(root)) == "fixtures/long.py: 401 lines, at most 400"
    found = report(shape.long_functions(root))
    assert "fixtures/tall.py:1: tall has 41 lines, at most 40" in found
    assert "the median function has 41 lines" in found


# -- what runs on a node ---------------------------------------------------------------------------------


def test_every_step_is_documented_registered_and_used() -> None:
    holds(remote.steps(ROOT))


def test_a_step_that_nobody_can_use_is_found(plant: Plant) -> None:
    steps = "@step\ndef good(ctx):\n    'Do it.'\n@step\ndef mute(ctx): ...\ndef loose(ctx):\n    'Do it.'\n"
    root = plant({"suites/zero/steps.py": steps, "suites/zero/test_a.py": "ask('zero.good', 'zero.gone')\n"})
    found = report(remote.steps(root))
    assert "mute has no docstring" in found
    assert "loose is public and not registered" in found
    assert "zero.mute is a step that no test asks for" in found
    assert "suites/zero/test_a.py:1: there is no step zero.gone" in found
    assert "good" not in found


# -- words -----------------------------------------------------------------------------------------------


def test_the_tree_says_nothing_that_only_its_authors_understand() -> None:
    holds(words.private_words(ROOT))


def test_only_agreed_names_lie_at_the_top() -> None:
    holds(words.strangers(ROOT))


def test_private_words_and_strangers_are_found(plant: Plant) -> None:
    hidden = ("see /w@ork/main", "as D@ESIGN.md says", "i@ssue 2 asks", "T@ODO: later", "net / work/s")
    lines = [line.replace("@", "") for line in hidden]  # so that this file does not say them
    root = plant({"notes.txt": "\n".join(lines)})
    assert len(list(words.private_words(root))) == 4
    assert "notes.txt: not one of" in report(words.strangers(root))


def test_every_file_is_seen_by_the_rules() -> None:
    assert {"Makefile", "fixtures", "suites", "thresholds", "reports", "tests"} <= {
        p.parts[0] for p in files(ROOT)
    }


# -- tools -----------------------------------------------------------------------------------------------


def tool(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(("ruff", "check", "--quiet", *WORLD), id="ruff"),
        pytest.param(("ruff", "format", "--quiet", "--check", *WORLD), id="format"),
        pytest.param(("mypy", "--no-error-summary"), id="mypy"),
        pytest.param((*OLDER, "--no-error-summary", *remote.sent(ROOT)), id="what is sent"),
    ],
)
def test_the_tools_have_nothing_to_say(argv: tuple[str, ...]) -> None:
    done = tool(*argv)
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        pytest.param(("ruff", "format", "--check", "--config", "pyproject.toml"), "x = { 1 }\n", id="format"),
        pytest.param(("mypy", "--config-file", "pyproject.toml"), "def f(x):\n    return x\n", id="mypy"),
        pytest.param((*OLDER, "--config-file", "pyproject.toml"), "from enum import StrEnum\n", id="name"),
        pytest.param((*OLDER, "--config-file", "pyproject.toml"), "import tomllib\n", id="module"),
    ],
)
def test_the_tools_are_strict(plant: Plant, argv: tuple[str, ...], text: str) -> None:
    done = tool(*argv, str(plant({"planted.py": text}) / "planted.py"))
    assert done.returncode == 1
    assert "planted.py" in done.stdout + done.stderr


# By rule: what it is met as.
HABITS = {
    "TID251": (
        *("import time\ntime.sleep(1)", "from time import sleep as doze", "import asyncio\nasyncio.sleep(1)"),
        *("import pytest\npytest.skip('later')", "from pytest import importorskip"),
        *(f"import pytest\n@pytest.mark.{mark}\ndef test(): ..." for mark in ("skip", "skipif", "xfail")),
        "import torch\ntorch.load('x')",
    ),
    "S602": ("import subprocess\nsubprocess.run('ls', shell=True)",),
    "S605": ("import os\nos.system('ls')",),
    "BLE001": ("try: ...\nexcept (OSError, Exception): ...",),
    "E722": ("try: ...\nexcept: ...",),
    "T201": ("print('hello')",),
    "S307": ("eval('1')",),
    "RUF100": ("x = 1  # noqa: T201 - no reason left",),
}


def test_every_habit_is_found_in_all_that_it_is_met_as(plant: Plant) -> None:
    bad = {f"{rule}_{at}.py": text for rule, texts in HABITS.items() for at, text in enumerate(texts)}
    check = ("ruff", "check", "--config", "pyproject.toml", "--output-format", "concise")
    told = tool(*check, str(plant(bad))).stdout
    for name, text in bad.items():
        assert re.search(rf"\b{name}:.* {name.partition('_')[0]} ", told), f"{text!r}: {told}"
