"""A lab by hand: `python -m tests.lab up`, and elsewhere `python -m tests.lab fault shape n02 150mbit`."""

from __future__ import annotations

import argparse
import inspect
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tests.lab import Lab, LabError
from tests.lab.faults.fabric_faults import FabricFaults
from tests.lab.faults.hardware_faults import HardwareFaults
from tests.lab.faults.limit_faults import LimitFaults
from tests.lab.faults.link_faults import LinkFaults
from tests.lab.faults.login_faults import LoginFaults
from tests.lab.faults.node_faults import NodeFaults
from tests.lab.parts.files import PLAN

Fault = Callable[..., Any]


def faults() -> dict[str, Fault]:
    """Every fault, by name."""
    found: dict[str, Fault] = {}
    for kind in (LinkFaults, FabricFaults, NodeFaults, LimitFaults, LoginFaults, HardwareFaults):
        found.update((name, f) for name, f in vars(kind).items() if not name.startswith("_") and callable(f))
    return found


def usage() -> str:
    """One line per fault."""
    lines = []
    for name, function in faults().items():
        parameters = list(inspect.signature(function).parameters.values())[1:]
        words = [p.name if p.default is p.empty else f"[{p.name}={p.default}]" for p in parameters]
        about = (inspect.getdoc(function) or "").splitlines()[0]
        lines.append(f"  {' '.join([name, *words])}\n      {about}")
    return "\n".join(lines)


def convert(word: str, wanted: object) -> object:
    """Read one word of the command line as the type that a fault declares; @FILE is the content of a file."""
    kinds = get_args(wanted) or (wanted,)
    if word == "none" and type(None) in kinds:
        return None
    for kind in (int, float, Path):
        if kind in kinds:
            return kind(word)
    return Path(word[1:]).read_text() if word.startswith("@") else word


def inject(lab: Lab, name: str, words: list[str]) -> object:
    """Cause the fault that the words of a command line name."""
    if name not in faults():
        raise LabError(f"no fault {name!r}; there are\n{usage()}")
    function = faults()[name]
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)[1:]
    if len(words) > len(parameters):
        raise LabError(f"{name} takes {' '.join(parameters)}, not {len(words)} words")
    arguments = [convert(word, hints[parameter]) for word, parameter in zip(words, parameters, strict=False)]
    try:
        inspect.signature(function).bind(lab, *arguments)
    except TypeError as error:
        raise LabError(f"{name}: {error}") from error
    return function(lab, *arguments)


def running(directory: Path | None) -> Lab:
    """The lab in `directory`, or without it the only one that is up."""
    if directory is not None:
        return Lab(directory)
    found = [plan.parent for plan in Path(tempfile.gettempdir()).glob(f"shakedown-lab-*/{PLAN}")]
    if len(found) != 1:
        labs = "".join(f"\n  --directory {place}" for place in found)
        raise LabError(f"{len(found)} labs are up in {tempfile.gettempdir()}; say which{labs}")
    return Lab(found[0])


def up(options: argparse.Namespace) -> None:
    """Hold a lab until ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        with Lab.up(options.nodes, options.rate, options.slots, options.directory) as lab:
            print(_welcome(lab), flush=True)
            assert lab.driver is not None
            lab.driver.wait()
        raise LabError("the lab's driver has ended; nothing is left of it")
    except KeyboardInterrupt:
        print("the lab is down", flush=True)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _welcome(lab: Lab) -> str:
    hardware = "none" if lab.plan.rate is None else f"lab-{lab.plan.rate}"
    pytest = [sys.executable, "-m", "pytest", "suites/", *lab.suite_arguments(), "--hardware", hardware]
    login = ["ssh", "-F", str(lab.ssh_config), lab.nodes[0]]
    last = lab.nodes[-1]
    links = lab.plan.rate or "unshaped"
    again = [sys.executable, "-m", "tests.lab", "fault"]
    shape = [*again, "--directory", str(lab.directory), "shape", last, "150mbit"]
    return f"""{len(lab.nodes)} nodes ({lab.nodes[0]} to {last}), links {links}, in {lab.directory}

test them:        {shlex.join(lab.controller_argv(pytest))}
log in to one:    {shlex.join(lab.controller_argv(login))}
break something:  {shlex.join(shape)}
                  (every fault: {shlex.join(again)})

ctrl-C ends it and leaves nothing."""


def fault(options: argparse.Namespace) -> None:
    """Cause one fault in a running lab."""
    if not options.words:
        print(f"{usage()}\n\nnone stands for None, @FILE for what a file holds")
        return
    result = inject(running(options.directory), options.words[0], options.words[1:])
    if result is not None:
        print(result)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = top.add_subparsers(required=True)
    bring = commands.add_parser("up", help="bring up a lab and hold it until ctrl-C")
    bring.add_argument("--nodes", type=int, default=4)
    bring.add_argument("--rate", help="of every link, as 200mbit; without it links are as fast as they can")
    bring.add_argument("--slots", type=int, default=1, help="ranks per node in the hosts file")
    bring.add_argument(
        "--directory", type=Path, help="for the files; must not exist yet (default: a temporary one)"
    )
    bring.set_defaults(command=up)
    broken = commands.add_parser("fault", help="break something in a running lab, or list what can be broken")
    broken.add_argument("--directory", type=Path, help="of the lab, where more than one is up")
    broken.add_argument("words", nargs="*", metavar="FAULT ARGUMENT", help="as in: shape n02 150mbit tx")
    broken.set_defaults(command=fault)
    return top


def main() -> int:
    """Run one command; a failure is one message and status 1."""
    options = parser().parse_args()
    try:
        options.command(options)
    except (LabError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
