"""The options of the catalogue of faults, and the table of its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.results import Results, table
from tests.faults.trial import Campaign, fresh_seed

CAMPAIGN = pytest.StashKey[Campaign]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """These options exist only where pytest is given tests/faults; elsewhere each row is tried once."""
    group = parser.getgroup("the catalogue of faults")
    group.addoption("--repeats", type=int, default=1, metavar="N", help="of every row (default: 1)")
    group.addoption("--seed", type=int, help="draws the same nodes again (default: that of --results)")
    group.addoption("--results", type=Path, metavar="FILE", help="appended after every trial; resumes")
    group.addoption("--busy", action="store_true", help="beside a foreign program that burns a core")


def pytest_configure(config: pytest.Config) -> None:
    """Read the results so far, and choose a seed."""
    results = Results(config.getoption("results", None))
    seeds = (config.getoption("seed", None), results.last_seed, fresh_seed())
    seed = next(seed for seed in seeds if seed is not None)
    config.stash[CAMPAIGN] = Campaign(results, seed, bool(config.getoption("busy", False)), [])


@pytest.fixture(scope="session")
def campaign(pytestconfig: pytest.Config) -> Campaign:
    """What runs the trials that have no result yet."""
    return pytestconfig.stash[CAMPAIGN]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of the trials that were asked for."""
    campaign = config.stash[CAMPAIGN]
    if campaign.asked:
        terminalreporter.section(f"faults, with seed {campaign.seed}")
        terminalreporter.write_line("\n".join(table(campaign.asked)))
