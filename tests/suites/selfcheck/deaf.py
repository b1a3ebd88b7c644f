"""A pytest plugin (`-p tests.suites.selfcheck.deaf`): ranks that run what is asked for, and plant nothing."""

from __future__ import annotations

import pytest

from fixtures.transport import bundle

PATH = "suites/selfcheck/plant.py"
PLANTING = '_FAULTS[plant["kind"]] if plant["rank"] == ctx.rank else _HEALTHY'


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Send nodes another text in the place of the real one."""
    honest = bundle.files

    def deaf() -> dict[str, str]:
        sources = honest()
        if PLANTING not in sources[PATH]:
            raise RuntimeError("there is nothing to make deaf")
        return {**sources, PATH: sources[PATH].replace(PLANTING, "_HEALTHY")}

    bundle.files = deaf
