"""`python -m tests.faults.scale`: one link of 4, 8, 16, 32 is a tenth slow. Who is named, in how many rounds?

All links together stay below 800 Mbit/s, so that one machine can be all of these nodes: 25 Mbit/s each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from reports.record import BlameKind
from tests.faults.matrix.draw import draw, fresh_seed
from tests.faults.rounds import Searched, rounds
from tests.lab import Lab

MBIT, SLOW_MBIT = 25.0, 22.5
SIZES = (4, 8, 16, 32)


def trial(nodes: int, seed: int, repeat: int) -> tuple[str, Searched]:
    """Search once among so many nodes; returns whose link was slow as well."""
    with Lab.up(nodes, f"{MBIT:g}mbit") as lab:
        [slow] = draw(lab.nodes, 1, seed, f"slow link of {nodes}", repeat)
        lab.shape(slow, f"{SLOW_MBIT:g}mbit")
        with rounds(lab, MBIT) as links:
            return slow, links.search(seed + repeat)


def is_right(slow: str, searched: Searched) -> bool:
    """Whether it named the slow link and nothing else."""
    return searched.named == ((BlameKind.NIC, (slow,)),)


def said(nodes: int, slow: str, searched: Searched) -> str:
    """One search in one line of the table."""
    end = "right" if is_right(slow, searched) else f"WRONG: {searched.sentence}"
    return f"{nodes:5}  {slow:5}  {searched.rounds:6}  {searched.seconds:7.1f}  {end}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per search; 0 only if all named the slow link and nothing else."""
    top = argparse.ArgumentParser(prog="python -m tests.faults.scale", description=__doc__)
    top.add_argument("--nodes", type=int, nargs="+", default=SIZES, metavar="N", help="how many (4 8 16 32)")
    top.add_argument("--repeats", type=int, default=1, metavar="N", help="searches of each size (default: 1)")
    top.add_argument("--seed", type=int, help="draws the same nodes again")
    options = top.parse_args(arguments)
    seed = fresh_seed() if options.seed is None else options.seed
    print(f"seed {seed}; links of {MBIT:g} Mbit/s, one of {SLOW_MBIT:g}", flush=True)
    print("nodes  slow   rounds  seconds", flush=True)
    right = True
    for nodes in options.nodes:
        for repeat in range(options.repeats):
            slow, searched = trial(nodes, seed, repeat)
            print(said(nodes, slow, searched), flush=True)
            right = right and is_right(slow, searched)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
