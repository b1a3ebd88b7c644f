"""A round of a soak has as many iterations as a tail is judged by, on the slowest healthy cluster."""

from __future__ import annotations

import itertools

from fixtures.check import cost, foresight, requests
from fixtures.check.plan import INSIDE, NETWORK, Case, Place, Planned, rounds
from fixtures.check.target import Target
from fixtures.ranks.timing import FEWEST
from suites.soak.test_soak import BANDWIDTH, EXCHANGES
from tests.each import each
from tests.thresholds.shipped.test_beyond import CLUSTERS
from thresholds import derived, lookup
from thresholds.hardware import Hardware
from thresholds.metrics import busbw_factor

PLACES = 2  # inside and across nodes: each has half of a case's share
WORLDS = [(INSIDE, 1), (NETWORK, 2), (NETWORK, 16), (NETWORK, 128)]


@each(("file", "case", "world"), itertools.product(CLUSTERS, EXCHANGES, WORLDS))
def test_a_round_at_the_floors_has_enough_iterations_and_is_foreseen(
    file: Hardware, case: Case, world: tuple[Place, int]
) -> None:
    place, nodes = world
    ranks = {f"n{number}": int(file.expect["gpus_per_node"]) for number in range(nodes)}
    first = rounds(1800.0, case.load / PLACES)[0]
    planned = Planned(case, place, tuple(ranks), "id", BANDWIDTH, round=first)
    target = Target(planned, ranks, file, "nccl", {})
    assert not list(foresight.lacking(target))
    request = requests.lasting(target)
    [size] = request.parameters["judged"]
    selectors = target.case(size=size)
    floor = derived.floor(file, selectors)[0]
    once_s = size * busbw_factor(str(selectors["collective"]), sum(ranks.values())) / floor / 1e9
    samples = max(int(first.seconds / once_s), request.parameters.get("fewest", FEWEST))
    assert samples >= lookup.find(file, "slow_fraction", selectors).min_samples
    assert samples * once_s < cost.case_s(target, request) < request.deadline_s / 2
