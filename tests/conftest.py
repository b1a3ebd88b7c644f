"""On a CI server a lab test that did not run is a failure: green means that it ran."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.fuzz import SHARED
from tests.lab.pytest_support import require_lab

__all__ = ["require_lab"]

pytest_plugins = ["pytester"]

settings.load_profile(SHARED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped lab test into a failed one where CI is true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and item.get_closest_marker("lab"):
        report.outcome = "failed"
        report.longrepr = f"CI=true, and this lab test was skipped: {report.longreprtext}"
    return report
