"""`python -m tests.faults.scale`: one link of 4, 8, 16, 32 is a tenth slow. Who is named, in how many rounds?

All links together stay below 800 Mbit/s, so that one machine can be all of these nodes: 25 Mbit/s each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

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


def said(nodes: int, slow: str, searched: Searched) -> str:
    """One search in one line of the table."""
    right = searched.named == (("nic", (slow,)),)
    end = "right" if right else f"WRONG: {searched.sentence}"
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
    lines = []
    for nodes in options.nodes:
        for repeat in range(options.repeats):
            lines.append(said(nodes, *trial(nodes, seed, repeat)))
            print(lines[-1], flush=True)
    return int(any("WRONG" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
