"""What all tests have: pytest's plugin for runs within a run, hypothesis' settings, and the need of a lab."""

from __future__ import annotations

from hypothesis import settings

from tests.fuzz import SHARED
from tests.lab.pytest_support import require_lab

__all__ = ["require_lab"]

pytest_plugins = ["pytester"]

settings.load_profile(SHARED)
