"""Random faults, and what holds after each run all the same.

python -m tests.chaos --minutes 5 --seed 1     scripted nodes under the real controller, a second or two a run
python -m tests.chaos --runs 20 --real         runs of this machine's own nodes workload, killed at random
python -m tests.chaos --runs 20 --lab          runs in a lab of four nodes; something happens to one or two
python -m tests.chaos --runs 1 --seed 4711     one run again

Each run has a seed of its own, which is printed where something is wrong. Everything happens in namespaces
of its own, which takes root: what a run leaves behind is then all that is there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos import trials
from tests.chaos.in_lab import in_lab
from tests.chaos.invariants import left

Trial = Callable[[int, Path], trials.Tried]
INSIDE = "SHAKEDOWN_CHAOS"
SPACES = ("--mount", "--pid", "--fork", "--mount-proc", "--net", "--ipc")


def isolated(arguments: list[str]) -> int:
    """Run this again where there is nobody else: no process, no file in /tmp and /dev/shm, no neighbour."""
    if os.geteuid() != 0:
        print("chaos takes root, for namespaces of its own", file=sys.stderr)
        return 2
    argv = ["unshare", *SPACES, "--", sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(argv, env={**os.environ, INSIDE: "1"}, check=False).returncode


def main(arguments: list[str]) -> int:
    """Draw, run, look; returns 1 when anything was wrong."""
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, unless --runs are done before")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.set_defaults(trial=trials.scripted)
    others = parser.add_mutually_exclusive_group()
    for option, trial, words in (
        ("--real", trials.real, "kill real runs on this machine"),
        ("--lab", in_lab, "let something happen to nodes of a lab"),
    ):
        others.add_argument(option, dest="trial", action="store_const", const=trial, help=words)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="what wrong runs left, a folder for each seed"
    )
    chosen = parser.parse_args(arguments)
    if INSIDE not in os.environ:
        return isolated(arguments)
    mebibytes = 64 if chosen.trial is trials.scripted else 1024
    for command in (
        # What scripted runs fill is small, so that it is quickly full.
        *(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "chaos", place]
            for place in ("/tmp", "/dev/shm")
        ),
        ["ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(command, check=True)
    seeds = range(chosen.seed, chosen.seed + chosen.runs)
    return tried(chosen.trial, seeds, 60 * chosen.minutes, chosen.keep)


def tried(trial: Trial, seeds: Sequence[int], limit_s: float, kept: Path | None) -> int:
    """Run with one seed after the other until the time is up; whether anything was wrong."""
    began, runs, bad = time.monotonic(), 0, 0
    for seed in seeds:
        if time.monotonic() - began > limit_s:
            break
        place = Path("/tmp/chaos")
        place.mkdir()
        run, befell, wrong = trial(seed, place)
        wrong += left({str(place)})
        runs, bad = runs + 1, bad + bool(wrong)
        if wrong or trial is in_lab:
            print(f"--seed {seed} --runs 1: {befell}", *wrong, sep="\n    ", flush=True)
        if wrong:
            print(*run.output.splitlines()[-12:], sep="\n        ", flush=True)
        if wrong and kept is not None:
            shutil.copytree(place, kept / str(seed), dirs_exist_ok=True)
        shutil.rmtree(place)
    said = f"seeds {seeds[0]} to {seeds[0] + runs - 1}"
    print(f"{runs} runs in {time.monotonic() - began:.0f} s ({said}), {bad} of them wrong")
    return int(bad > 0 or runs == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
