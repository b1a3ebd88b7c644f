"""Error rates of the localisation over many searches: no good node blamed, hardly a bad one missed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fixtures.blame.search.search import search
from tests.bounds import clopper_pearson
from tests.simulation.flapping import lines
from tests.simulation.study import NOISE, RARELY, Setting, settings, study, table
from tests.simulation.world import World, named

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("nodes", "bad"), [(64, 4), (64, 16), (128, 32)])
@pytest.mark.parametrize("shows", [0.9, 1.0])
def test_bad_nodes_are_found_and_good_ones_are_not_blamed(nodes: int, bad: int, shows: float) -> None:
    errors = study(Setting(nodes, bad, shows, NOISE), max(3, 60 // bad))
    assert errors.false == 0
    assert errors.paths == 0
    assert errors.missed + errors.undecided <= max(1, 0.005 * bad * errors.searches)
    assert max(errors.rounds) <= 30


def test_of_faults_that_always_show_none_is_missed_and_no_bound_is_crossed() -> None:
    errors = study(Setting(64, 8, 1.0, 0.0), 25)
    assert errors.missed == errors.undecided == errors.false == errors.paths == 0
    assert clopper_pearson(errors.missed, 8 * errors.searches)[1] < 0.02
    assert (
        max(errors.rounds) <= 15
    )  # two of the bad nodes are isolated, and all tried with each other, twice each


def test_rounds_do_not_grow_with_the_nodes_where_a_fault_always_shows() -> None:
    rounds = [study(Setting(nodes, nodes // 16, 1.0, 0.0), 3).rounds for nodes in (64, 512)]
    assert max(rounds[1]) <= max(rounds[0]) + 2


def test_of_faults_that_show_half_the_time_no_wrong_node_is_blamed_and_few_are_cleared() -> None:
    errors = study(Setting(64, 1, RARELY, NOISE), 40)
    assert errors.false == 0
    assert errors.missed + errors.undecided <= 0.5 * errors.searches


def test_healthy_nodes_are_not_blamed_however_noisy_the_readings_are() -> None:
    for false_alarm in (0.05, 0.1, 0.3):
        blamed = Counter[str]()
        for seed in range(8):
            located = search(named(16), World(seed, false_alarm=false_alarm), seed)
            blamed.update(blame.sentence for blame in located.blame if blame.convicts)
        assert not blamed


def test_a_bad_node_is_found_among_more_false_alarms_than_were_assumed() -> None:
    found = 0
    for seed in range(20):
        located = search(named(16), World(seed, ["n03"], shows=0.95, false_alarm=0.04), seed)
        convicted = {blame.nodes for blame in located.blame if blame.convicts}
        assert convicted <= {("n03",)}
        found += bool(convicted)
    assert found >= 18


def test_the_table_says_how_many_of_how_many_with_bounds() -> None:
    lines = list(table([study(Setting(64, 4, 1.0, 0.0), 2), study(Setting(64, 0, 1.0, NOISE), 2)]))
    head, rule, found, healthy = lines
    assert head.count("|") == rule.count("|") == found.count("|")
    assert "| 0 of 8 (0 to 37 %) |" in found
    assert "| 64 | 0 | 1 | 0.01 | 2 | - | - | 0 of 128 (0 to 2.8 %) |" in healthy


def test_the_settings_are_those_that_are_published() -> None:
    found = {(one.nodes, one.bad, one.shows, one.false_alarm) for one in settings([64])}
    asked = {
        (64, bad, shows, noise) for bad in (1, 4, 8, 16) for shows in (0.9, 1.0) for noise in (0.0, 0.01)
    }
    assert asked < found
    assert (64, 0, 1.0, 0.01) in found


def test_the_command_prints_the_table() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--nodes", "48", "16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("| nodes | bad | shows |")
    assert len(done.stdout.splitlines()) == 2 + len(list(settings([16])))


def test_the_table_of_flapping_nics_counts_every_search_once() -> None:
    head, rule, *rows = lines(1)
    assert head.count("|") == rule.count("|")
    assert len(rows) == 24
    for row in rows:
        searches, *counts = (int(cell) for cell in row.split(" | ")[3:9])
        assert sum(counts) == searches == 1
        assert counts[-1] == 0
