"""`python -m tests.teeth [family ...]`: plant every seeded bug and print what caught it."""

from __future__ import annotations

import argparse

from tests.teeth.bug import Trial, trials
from tests.teeth.families import families, table


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the status is 0 when every bug is caught and every healthy run is green."""
    known = families()
    parser = argparse.ArgumentParser(prog="python -m tests.teeth", description=__doc__)
    parser.add_argument("family", nargs="*", help=f"one of {', '.join(known)}; all of them without a name")
    asked = parser.parse_args(arguments).family or list(known)
    if unknown := [name for name in asked if name not in known]:
        parser.error(f"no such family: {', '.join(unknown)}; there is: {', '.join(known)}")
    found: list[Trial] = [trial for name in asked for trial in trials(known[name])]
    for line in table(found):
        print(line)
    return int(not found or any(trial.survived for trial in found))


if __name__ == "__main__":
    raise SystemExit(main())
