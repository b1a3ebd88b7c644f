"""`--hardware auto`: the one file whose [match] says what the nodes say they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from thresholds.faults import Fault, HardwareFileError
from thresholds.hardware import Hardware
from thresholds.load import load, shipped

Facts = Mapping[str, str | int]


class RecogniseError(Exception):
    """No file, or more than one, matches the facts; the text shows field by field why."""


def recognise(facts: Facts, files: Iterable[Path] | None = None) -> Hardware:
    """The one hardware file (of the shipped ones, when none are named) that matches these facts.

    A file with `auto = false` takes part only where it is the only one, which is how a named file is checked.
    """
    candidates = _load_all(shipped().values() if files is None else files)
    alone = len(candidates) == 1
    matching = [one for one in candidates if (one.auto or alone) and not differences(one, facts)]
    if len(matching) == 1:
        return matching[0]
    said = ", ".join(f"{name} = {value}" for name, value in facts.items()) or "nothing"
    if matching:
        names = ", ".join(hardware.name for hardware in matching)
        raise RecogniseError(f"several hardware files match ({said}): {names}; name one with --hardware")
    lines = [f"no hardware file matches ({said}); name one with --hardware, or run with --hardware none"]
    lines += [
        f"  {one.name}: {'; '.join(differences(one, facts)) or 'chosen by name only'}" for one in candidates
    ]
    raise RecogniseError("\n".join(lines))


def differences(hardware: Hardware, facts: Facts) -> list[str]:
    """The fields of [match] that the facts do not meet; none when the file matches."""
    found = []
    for name, wanted in hardware.match.items():
        if name not in facts:
            found.append(f"{name} must be {wanted}, and the nodes did not say")
        elif not _alike(wanted, facts[name]):
            found.append(f"{name} must be {wanted}, and is {facts[name]}")
    return found


def _alike(wanted: str | int, found: str | int) -> bool:
    """Equal but for case; a * in the file stands for any text."""
    parts = (re.escape(part) for part in str(wanted).strip().split("*"))
    return re.fullmatch(".*".join(parts), str(found).strip(), re.IGNORECASE | re.DOTALL) is not None


def _load_all(files: Iterable[Path]) -> list[Hardware]:
    loaded: list[Hardware] = []
    faults: list[Fault] = []
    for path in files:
        try:
            loaded.append(load(path))
        except HardwareFileError as error:
            faults.extend(error.faults)
    if faults:
        raise HardwareFileError(faults)
    return loaded
