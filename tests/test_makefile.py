"""The set-up behind `make accept` and `make test`: what it runs, when it runs nothing, and what it says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tomllib

from tests.house.tree import ROOT

NEEDED = ("sh", "id", "touch", "env", "echo", "make", "cat", "sed")
RUN, TEST, TORCH = "requirements.txt", "requirements-test.txt", "requirements-torch.txt"


class Machine:
    """A checkout on a machine whose commands are those that a test puts there."""

    def __init__(self, place: Path) -> None:
        self.tree, self.bin, self.log = place / "tree", place / "bin", place / "log"
        for folder in (self.tree / ".venv" / "bin", self.bin):
            folder.mkdir(parents=True)
        for path in (ROOT / "Makefile", *ROOT.glob("requirements*.txt")):
            shutil.copy2(path, self.tree)
        for name in NEEDED:
            (self.bin / name).symlink_to(shutil.which(name) or name)

    def command(self, name: str, body: str = "") -> None:
        """Put a command there that notes its arguments and then does `body`."""
        path = self.tree / name if "/" in name else self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {self.log}\n{body}\n')
        path.chmod(0o755)

    def done(self, *stamps: str) -> None:
        """Say that these steps of the set-up were done, in this order."""
        for number, name in enumerate(stamps):
            stamp = self.tree / ".venv" / name
            stamp.touch()
            os.utime(stamp, (2_000_000_000 + number,) * 2)

    def make(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run make with nothing but those commands."""
        environment = {"PATH": str(self.bin), "HOME": str(self.tree)}
        command = ["make", "--no-print-directory", "-C", str(self.tree), *argv]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def calls(self) -> list[str]:
        """What was run, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_python_it_says_what_to_install(machine: Machine) -> None:
    done = machine.make("setup")
    assert done.returncode == 2
    assert "no Python 3.11 or newer found. Install one (Debian 12 or newer: apt-get install" in done.stderr


def test_a_python_that_is_too_old_is_passed_over(machine: Machine) -> None:
    machine.command("python3", "exit 1")
    done = machine.make("setup", "PYTHON=python3")
    assert "no Python 3.11 or newer found at python3." in done.stderr


def without_ensurepip(machine: Machine) -> None:
    machine.command("python3", f'case "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"')


def test_without_ensurepip_and_apt_it_names_the_package(machine: Machine) -> None:
    without_ensurepip(machine)
    done = machine.make("setup")
    version = ".".join(str(part) for part in sys.version_info[:2])
    assert done.returncode == 2
    assert "python3 has no ensurepip" in done.stdout
    assert f"install what Debian calls: python{version}-venv" in done.stderr


def test_without_root_it_says_what_to_run(machine: Machine) -> None:
    without_ensurepip(machine)
    machine.command("id", "echo 1000")
    machine.command("apt-get")
    done = machine.make("setup")
    assert "this needs root; run it yourself, then call make again: sudo apt-get update" in done.stderr
    assert not [call for call in machine.calls() if call.startswith("apt-get")]


def test_a_machine_without_the_lab_s_commands_gets_their_packages(machine: Machine) -> None:
    machine.done(".made", ".run", ".test")
    machine.command("id", "echo 0")
    machine.command("apt-get")
    assert machine.make(".venv/.lab", "COMMANDS=sh no-such-command").returncode == 0
    update, install = (call for call in machine.calls() if call.startswith("apt-get"))
    assert update == "apt-get update -qq"
    assert install.endswith("openssh-server openssh-client iproute2 util-linux mount chromium")


def test_a_machine_that_has_them_is_left_alone(machine: Machine) -> None:
    machine.done(".made", ".run", ".test")
    assert machine.make(".venv/.lab", "COMMANDS=sh touch").returncode == 0
    assert machine.calls() == []


def test_an_operator_gets_what_the_suite_needs_and_a_test_what_it_needs_besides(machine: Machine) -> None:
    machine.done(".made")
    machine.command(".venv/bin/python")
    install = "python -m pip install --quiet --requirement requirements"
    assert machine.make("setup").returncode == 0
    assert machine.calls() == [f"{install}.txt", f"{install}-torch.txt"]
    assert machine.make(".venv/.test").returncode == 0
    assert machine.calls()[-1] == f"{install}-test.txt"


def a_package(name: str, folder: Path) -> str:
    """Put a wheel there; returns its version and hash, as a line of requirements."""
    path, about = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.mark.parametrize("target", [RUN, TEST])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda line: line, ""),
        (lambda line: line[:-65] + "0" * 64 + "\n", "THESE PACKAGES DO NOT MATCH THE HASHES"),
        (lambda line: line.partition(" ")[0] + "\n", "Hashes are required in --require-hashes mode"),
    ],
    ids=["the right hash", "another hash", "none"],
)
def test_a_package_with_another_hash_ends_the_set_up(
    target: str, spoil: Callable[[str], str], said: str, machine: Machine, tmp_path: Path
) -> None:
    machine.done(".made")
    packages = (
        f"PIP_NO_INDEX=1 PIP_FIND_LINKS={tmp_path} PIP_TARGET={tmp_path}/installed PIP_CONFIG_FILE=/dev/null"
    )
    machine.command(".venv/bin/python", f'{packages} exec {sys.executable} "$@"')
    lines = {RUN: a_package("needed", tmp_path), TEST: a_package("tested", tmp_path)}
    a_package("torch", tmp_path)
    for name, line in {**lines, target: spoil(lines[target])}.items():
        path = machine.tree / name
        head = [text for text in path.read_text().splitlines() if text.startswith(("#", "--"))]
        path.write_text("\n".join([*head, line]))
    (machine.tree / TORCH).write_text("torch==1.0\n")
    done = machine.make(".venv/.test")
    assert done.returncode == (2 if said else 0), done.stderr
    assert said in done.stderr
    assert (machine.tree / ".venv" / {RUN: ".run", TEST: ".test"}[target]).exists() == (not said)


def test_a_failed_installation_is_tried_again(machine: Machine) -> None:
    machine.done(".made")
    machine.command(".venv/bin/python", "exit 1")
    assert machine.make("setup").returncode == 2
    first = len(machine.calls())
    machine.make("setup")
    assert len(machine.calls()) == 2 * first > 0


def test_the_second_call_costs_nothing(machine: Machine) -> None:
    machine.done(".made", ".run", ".test", ".lab")
    for name in ("python", "pytest", "ruff", "mypy"):
        machine.command(f".venv/bin/{name}")
    machine.make("accept")
    machine.make("test")
    assert machine.calls() == ["pytest suites/", "python -m tests.parts"]


def test_hosts_and_arguments_are_passed_through(machine: Machine) -> None:
    machine.done(".made", ".run")
    machine.command(".venv/bin/pytest")
    machine.make("accept", "HOSTS=my nodes.txt", "ARGS=--workload nodes --env A=b")
    assert machine.calls() == ["pytest suites/ --hosts my nodes.txt --workload nodes --env A=b"]


def test_hosts_that_are_empty_are_not_this_machine(machine: Machine) -> None:
    machine.done(".made", ".run")
    machine.command(".venv/bin/pytest")
    machine.make("accept", "HOSTS=")
    assert machine.calls() == ["pytest suites/ --hosts "]


def test_a_hosts_file_in_the_report_directory_is_not_removed_before_the_run(machine: Machine) -> None:
    machine.done(".made", ".run")
    machine.command(".venv/bin/pytest")
    shutil.copytree(ROOT / "reports", machine.tree / "reports", ignore=shutil.ignore_patterns("out", "runs"))
    hosts = machine.tree / "answer/accepted.txt"
    hosts.parent.mkdir()
    hosts.write_text("n1\n")
    words = ("HOSTS=answer/accepted.txt", "ARGS=--report-dir answer", f"PYTHON={sys.executable}")
    done = machine.make("accept", *words)
    assert hosts.read_text() == "n1\n", done.stderr
    assert (done.returncode, machine.calls()) == (2, [])


@pytest.mark.parametrize(("status", "made"), [(0, 0), (1, 2), (2, 2), (5, 2)])
def test_a_run_that_is_not_green_is_not_green_for_make(machine: Machine, status: int, made: int) -> None:
    machine.done(".made", ".run")
    machine.command(".venv/bin/pytest", f"exit {status}")
    assert machine.make("accept").returncode == made


def test_every_package_is_pinned_and_every_one_but_torch_by_hash() -> None:
    hashed = [pin for name in (RUN, TEST) for pin in pins_of(name)]
    assert all(" --hash=sha256:" in pin for pin in hashed)
    pins = [*hashed, *pins_of(TORCH)]
    assert pins_of(TORCH) == [pin for pin in pins if normal(pin).startswith("torch==") and "+" not in pin]
    assert all("==" in pin for pin in pins)
    listed = [sys.executable, "-m", "pip", "list", "--format=json", "--exclude", "pip"]
    done = subprocess.run(listed, capture_output=True, text=True, timeout=60, check=True)
    installed = {normal(package["name"]) for package in json.loads(done.stdout)}
    brought_by_torch = {name for name in installed if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert installed - brought_by_torch <= {normal(pin.split("==")[0]) for pin in pins}


def pins_of(name: str) -> list[str]:
    """The lines of a file of requirements, with their hashes."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    return [line for line in text.splitlines() if not line.startswith(("#", "--"))]


def test_what_is_pinned_is_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    from_nowhere = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", *asked]
    assert subprocess.run(from_nowhere, capture_output=True, timeout=60, check=False).returncode == 0


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_ci_calls_make_test_with_ci_set_and_nothing_to_read(machine: Machine, tmp_path: Path) -> None:
    machine.command("make", f"env > {tmp_path}/env; cat > {tmp_path}/stdin; exit 3")
    for name in ("bash", "timeout", "dirname"):
        (machine.bin / name).symlink_to(shutil.which(name) or name)
    shutil.copytree(ROOT / ".ci", machine.tree / ".ci")
    command = ["bash", str(machine.tree / ".ci" / "run")]
    done = subprocess.run(
        command, env={"PATH": str(machine.bin)}, input="typed\n", text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert machine.calls() == ["make test"]
    assert "CI=true" in (tmp_path / "env").read_text().splitlines()
    assert (tmp_path / "stdin").read_text() == ""


def test_a_red_part_turns_make_test_red(machine: Machine) -> None:
    machine.done(".made", ".run", ".test", ".lab")
    machine.command(".venv/bin/python", "exit 1")
    assert machine.make("test").returncode == 2


@pytest.mark.parametrize(
    ("target", "tests"),
    [
        ("test", "tests/ -m not quiet and not long"),
        ("long", "tests/ -m long and not quiet and not catalogue"),
        ("timing", "tests/ -m quiet"),
        ("faults", "tests/faults -m catalogue"),
    ],
)
def test_arguments_go_to_one_run_of_all_tests(machine: Machine, target: str, tests: str) -> None:
    machine.done(".made", ".run", ".test", ".lab")
    for name in ("python", "pytest", "ruff", "mypy"):
        machine.command(f".venv/bin/{name}")
    machine.make(target, "ARGS=-k 'one or two'")
    pytest_calls = [call for call in machine.calls() if call.startswith("pytest")]
    assert pytest_calls == [f"pytest {tests} -k one or two"]


def test_a_look_at_a_gpu_writes_where_it_is_told(machine: Machine) -> None:
    machine.done(".made", ".run", ".test")
    machine.command(".venv/bin/python", "exit 1")
    assert machine.make("gpu", "ARGS=somewhere").returncode == 2
    assert machine.calls() == ["python -m tests.gpu somewhere"]


def test_help_lists_every_target(machine: Machine) -> None:
    makefile = (ROOT / "Makefile").read_text()
    [phony] = [line for line in makefile.splitlines() if line.startswith(".PHONY: ")]
    listed = [line.split()[1] for line in machine.make("help").stdout.splitlines()]
    assert sorted(listed) == sorted(phony.split()[1:])
