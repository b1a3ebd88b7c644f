"""`--hardware auto`: the one file whose [match] agrees with the nodes' facts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from thresholds.hardware import Hardware

Facts = Mapping[str, str | int]
COUNTED = {"gpu_count": "gpus_per_node", "nics": "nics_per_node"}  # in [match], and in [expect]
SHOWN = 8  # files in an error message, the nearest first


class RecogniseError(Exception):
    """No file, or more than one, matches the facts; the text says why, field by field."""


def choose(facts: Facts, loaded: Iterable[Hardware]) -> Hardware:
    """The one of these hardware files that matches these facts.

    A file with `auto = false` counts only where it is the only one, which is how a named file is checked.
    That one is chosen however many parts are missing of which it expects a number: it rejects the node.
    If several match, the one that is more specific than every other is chosen.
    """
    candidates = [one for one in loaded if not one.part]
    alone = len(candidates) == 1
    matching = [one for one in candidates if (one.auto or alone) and not differences(one, facts, alone)]
    special = [one for one in matching if all(one is other or specialises(one, other) for other in matching)]
    if len(special) == 1:
        return special[0]
    said = ", ".join(f"{name} = {value}" for name, value in facts.items()) or "nothing"
    if matching:
        names = ", ".join(hardware.name for hardware in matching)
        lines = [f"several hardware files match ({said}): {names}; name one with --hardware"]
        lines += [f"  {line}" for line in _apart(matching, facts)]
    elif alone:
        name, why = candidates[0].name, "; ".join(differences(candidates[0], facts, alone))
        lines = [f"{name} is for other hardware: {why}; name another file, or look for what is missing"]
    else:
        lines = [f"no hardware file matches ({said}); name one with --hardware, or run with --hardware none"]
        lines += [f"  {line}" for line in _nearest(candidates, facts)]
    raise RecogniseError("\n".join(lines))


def specialises(one: Hardware, other: Hardware) -> bool:
    """Whether a file extends the other, or its [match] has all of the other's fields and more."""
    extended = [path.resolve() for path in one.extends]
    return (other.path is not None and other.path.resolve() in extended) or set(other.match) < set(one.match)


def differences(hardware: Hardware, facts: Facts, named: bool = False) -> list[str]:
    """The fields of [match] that the facts do not meet; none when the file matches.

    How many parts a node has tells machines apart; of a file that was `named`, [expect] says what is missing.
    """
    found = []
    for name, wanted in hardware.match.items():
        if named and COUNTED.get(name) in hardware.expect:
            continue
        if name not in facts:
            found.append(f"{name} must be {_either(wanted)}, and the nodes did not say")
        elif not any(_alike(one, facts[name]) for one in wanted):
            found.append(f"{name} must be {_either(wanted)}, and is {facts[name]}")
    return found


def _either(wanted: Sequence[str | int]) -> str:
    return " or ".join(map(str, wanted))


def _alike(wanted: str | int, found: str | int) -> bool:
    """Equal except for case; in the file * stands for any text, and "38..41" for any number in that range."""
    text = str(wanted).strip()
    if isinstance(found, int) and (range_ := re.fullmatch(r"([0-9]{1,9})\.\.([0-9]{1,9})", text)):
        return int(range_[1]) <= found <= int(range_[2])
    parts = (re.escape(part) for part in text.split("*"))
    return re.fullmatch(".*".join(parts), str(found).strip(), re.IGNORECASE | re.DOTALL) is not None


def _apart(matching: Sequence[Hardware], facts: Facts) -> Iterator[str]:
    """The fields by which files that all match could be told apart, and what each file asks there."""
    fields = sorted({name for one in matching for name in one.match})
    for name in fields:
        asked = [_either(one.match[name]) if name in one.match else "nothing" for one in matching]
        if len(set(asked)) > 1:
            by_file = "; ".join(f"{one.name} asks {text}" for one, text in zip(matching, asked, strict=True))
            yield f"{name} (the nodes say {facts.get(name, 'nothing')}): {by_file}"
    unasked = [name for name in facts if name not in fields]
    if unasked:
        yield f"no [match] of these files asks: {', '.join(unasked)}; one of them may tell the files apart"


def _nearest(candidates: Sequence[Hardware], facts: Facts) -> Iterator[str]:
    """Why files do not match, field by field, the nearest files first."""

    def distance(one: Hardware) -> tuple[int, float]:
        names = [str(name).lower() for name in one.match.get("gpu", ())]
        said = str(facts.get("gpu", "")).lower()
        alike = max((difflib.SequenceMatcher(None, name, said).ratio() for name in names), default=0.0)
        return len(differences(one, facts)), -alike

    ordered = sorted(candidates, key=distance)
    for one in ordered[:SHOWN]:
        yield f"{one.name}: {'; '.join(differences(one, facts)) or 'chosen by name only'}"
    if len(ordered) > SHOWN:
        yield f"and {len(ordered) - SHOWN} more that are further away"
