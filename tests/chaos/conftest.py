"""The invariants are tried on runs of the small tree."""

from tests.fixtures.conftest import scenario

__all__ = ["scenario"]
