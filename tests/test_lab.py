"""The life of a lab: what it brings up, what it keeps apart, and that it leaves nothing whatever ends it."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import site
import stat
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, LabError
from tests.lab.__main__ import inject
from tests.lab.probe import login
from tests.lab.processes import members, namespace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

REPOSITORY = Path(__file__).parents[1]


class Witness:
    """Holds on to every process of a lab, to see it end whatever becomes of its number."""

    def __init__(self, lab: Lab) -> None:
        self.directory = lab.directory
        state = lab._request("state")
        nets = {namespace(pid, "net") for pid in (state["driver"], *state["nodes"].values())}
        pids = {pid for net in nets for pid in members("net", net)}
        assert len(pids) >= 1 + 2 * len(lab.nodes)  # the driver; each node's sshd and its parent
        self._handles = [os.pidfd_open(pid) for pid in pids]

    def processes_ended(self, within_s: float = 0.0) -> bool:
        """Whether all of them are gone."""
        deadline = time.monotonic() + within_s
        while self._handles:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._handles[-1]], [], [], left)[0]:
                return False
            os.close(self._handles.pop())
        return True

    def nothing_left(self, within_s: float = 0.0) -> bool:
        """Whether all of them are gone, and the files (the driver removes these before it ends)."""
        return self.processes_ended(within_s) and not self.directory.exists()


def root_network() -> str:
    commands = (["ip", "-o", "link"], ["ip", "-o", "address"], ["ip", "route"], ["ip", "netns"])
    return "".join(subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in commands)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab.up(nodes=2, rate="200mbit", slots=3) as up:
        yield up


def test_the_files_say_what_the_suite_needs(lab: Lab) -> None:
    assert lab.hosts_file.read_text() == "n01 slots=3 addr=10.77.0.1\nn02 slots=3 addr=10.77.0.2\n"
    assert stat.S_IMODE((lab.directory / "client_key").stat().st_mode) == 0o600
    assert [line.split()[0] for line in lab.known_hosts.read_text().splitlines()] == [
        "n01,10.77.0.1",
        "n02,10.77.0.2",
    ]
    assert lab.suite_arguments()[::2] == ["--hosts", "--ssh-config", "--known-hosts", "--remote-python"]
    assert all(Path(value).exists() for value in lab.suite_arguments()[1::2])


def test_ssh_logs_in_with_strict_host_keys(lab: Lab) -> None:
    done = login(
        lab, "n01", "hostname; id -u; ls /sys/class/net; cat /proc/sys/net/ipv4/tcp_congestion_control"
    )
    assert (done.stdout.split(), done.stderr) == (["n01", "0", "eth0", "lo", "reno"], "")


def test_nodes_are_machines_of_their_own(lab: Lab) -> None:
    lab.on("n01", ["touch", "/tmp/mine", "/dev/shm/mine", "/run/mine", "/var/tmp/mine"])
    look = ["sh", "-c", "find /tmp /dev/shm /run /var/tmp -name mine"]
    assert len(lab.on("n01", look).stdout.split()) == 4
    assert lab.on("n02", look).stdout == ""
    assert not any(Path(place, "mine").exists() for place in ("/tmp", "/dev/shm", "/run", "/var/tmp"))
    identity = ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")
    seen = {
        *lab.on("n01", ["cat", *identity]).stdout.split(),
        *lab.on("n02", ["cat", *identity]).stdout.split(),
    }
    assert len(seen | {Path(path).read_text().strip() for path in identity}) == 6
    assert [process.pid for process in lab.processes("n01")] == [1]


def test_run_passes_environment_and_status_but_not_pytests_own(lab: Lab) -> None:
    done = lab.run(["sh", "-c", "echo $GIVEN/$PYTEST_CURRENT_TEST; exit 3"], env={"GIVEN": "x"})
    assert (done.returncode, done.stdout) == (3, "x/\n")


def test_run_kills_the_whole_group_at_its_timeout(lab: Lab) -> None:
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run(["sh", "-c", "sleep 61.5 & sleep 61.5"], timeout_s=0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        lab.on("n01", ["sh", "-c", "sleep 61.5 & sleep 61.5"], timeout_s=0.2)
    assert time.monotonic() - started < 20
    assert lab.processes("n01", "sleep 61.5") == []


def test_nothing_of_the_machine_changes_and_nothing_is_left() -> None:
    before, mounts = root_network(), Path("/proc/self/mountinfo").read_text()
    with Lab.up(nodes=3, rate="100mbit") as lab:
        witness = Witness(lab)
        assert root_network() == before
        assert Path("/proc/self/mountinfo").read_text() == mounts
    assert witness.nothing_left()
    assert root_network() == before


def test_what_still_runs_on_the_controller_ends_with_the_lab() -> None:
    with Lab.up(nodes=1) as lab:
        # The second leaves the group that `popen` could end.
        process = lab.popen(["sh", "-c", "setsid sleep 62 & echo; exec sleep 62"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        witness = Witness(lab)
    assert process.returncode == -signal.SIGKILL
    assert witness.nothing_left()


def test_a_killed_driver_leaves_nothing() -> None:
    with Lab.up(nodes=3, rate="100mbit") as lab:
        witness = Witness(lab)
        assert lab.driver is not None
        lab.driver.kill()
        assert witness.processes_ended(within_s=10)
        with pytest.raises(LabError, match="does not answer"):
            lab.on("n01", ["true"])
    assert witness.nothing_left()


@contextlib.contextmanager
def by_hand(directory: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`python -m tests.lab up` as a user types it, and what it said when it was up."""
    argv = [sys.executable, "-m", "tests.lab", "up", "--directory", str(directory), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "ctrl-C ends it and leaves nothing.\n"))
        try:
            yield process, said
        finally:
            process.kill()


def fault(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.lab", "fault", *words]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False)


def test_a_killed_user_leaves_nothing(tmp_path: Path) -> None:
    with by_hand(tmp_path / "lab") as (process, _):
        witness = Witness(Lab(tmp_path / "lab"))
        process.kill()
        assert witness.nothing_left(within_s=10)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_by_hand_up_break_and_down(tmp_path: Path, how: signal.Signals) -> None:
    with by_hand(tmp_path / "lab", "--nodes", "2", "--rate", "100mbit") as (process, said):
        lab = Lab(tmp_path / "lab")
        witness = Witness(lab)
        command = next(line for line in said.splitlines() if line.startswith("test them:"))
        assert shlex.split(command)[-len(lab.suite_arguments()) - 2 :] == [
            *lab.suite_arguments(),
            *("--hardware", "lab-100mbit"),
        ]
        ssh = next(line for line in said.splitlines() if line.startswith("log in")).partition(":")[2]
        assert subprocess.check_output([*shlex.split(ssh), "hostname"], text=True) == "n01\n"
        assert fault("--directory", str(lab.directory), "shape", "n02", "50mbit", "tx").stderr == ""
        assert "rate 50Mbit" in lab.on("n02", ["tc", "qdisc", "show", "dev", "eth0"]).stdout
        process.send_signal(how)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, "the lab is down\n", "")
    assert witness.nothing_left()


def test_faults_by_hand_are_listed_and_wrong_ones_refused(lab: Lab) -> None:
    assert "shape node rate [direction=both]" in fault().stdout
    done = fault("--directory", str(lab.directory), "shape", "n09", "5mbit")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no node 'n09' in this lab: it has n01 to n02\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("melt n01", "no fault 'melt'; there are\n  shape node rate"),
        ("shape n01 5", "rate '5' is not a rate"),
        ("shape n01", "shape: missing a required argument: 'rate'"),
        ("link_up n01 now", "link_up takes node, not 2 words"),
        ("mtu n01 many", "invalid literal"),
    ],
)
def test_a_fault_in_wrong_words_is_refused(lab: Lab, words: str, reason: str) -> None:
    name, *rest = words.split()
    with pytest.raises((LabError, ValueError), match=reason):
        inject(lab, name, rest)


def test_words_become_what_a_fault_asks_for(lab: Lab, tmp_path: Path) -> None:
    inject(lab, "env", ["n01", "NAME", "7"])
    assert login(lab, "n01", "echo $NAME").stdout == "7\n"
    inject(lab, "env", ["n01", "NAME", "none"])
    assert login(lab, "n01", "echo $NAME").stdout == "\n"
    (tmp_path / "text").write_text("from a file")
    inject(lab, "noisy_shell", ["n01", f"@{tmp_path}/text"])
    assert login(lab, "n01", "true").stdout == "from a file\n"
    inject(lab, "quiet_shell", ["n01"])


def test_two_labs_at_once_do_not_meet() -> None:
    with Lab.up(nodes=2) as one, Lab.up(nodes=2) as other:
        assert one.address("n02") == other.address("n02")
        one.on("n02", ["touch", "/tmp/only-here"])  # a checkout below /tmp is kept there as well
        assert "only-here" in login(one, "n02", "ls /tmp").stdout.split()
        assert "only-here" not in login(other, "n02", "ls /tmp").stdout.split()
        one.power_off("n02")
        assert login(other, "n02", "hostname").stdout == "n02\n"


def test_sixty_four_nodes_come_up_in_seconds() -> None:
    started = time.monotonic()
    with Lab.up(nodes=64, rate="100mbit") as lab:
        assert time.monotonic() - started < 20
        assert login(lab, "n64", "hostname").stdout == "n64\n"


def test_a_lab_that_cannot_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "tc"
    stub.write_text("#!/bin/sh\necho no shaper on this kernel >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LabError, match="no shaper on this kernel"), Lab.up(1, "100mbit", 1, tmp_path / "lab"):
        pass
    assert not (tmp_path / "lab").exists()


def test_a_directory_that_exists_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), Lab.up(nodes=1, directory=tmp_path):
        pass
    assert tmp_path.exists()


def test_a_python_below_tmp_is_there_on_the_nodes(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    program = """
import sys
from tests.lab import Lab
with Lab.up(nodes=1) as lab:
    print(lab.on("n01", [sys.executable, "-c", "import sys; print(sys.prefix)"]).stdout, end="")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *site.getsitepackages()])}
    argv = [str(tmp_path / "venv" / "bin" / "python"), "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/venv\n", "")
