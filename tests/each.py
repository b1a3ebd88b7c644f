"""One test over a table: every row of it is tried, and all that are faulty are reported together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test with each row of a table, as `pytest.mark.parametrize` does, but as one test.

    Its fixtures are made once, for all rows together.
    """
    words = (names,) if isinstance(names, str) else names
    table = [(row,) if isinstance(names, str) else tuple(row) for row in rows]

    def decorate(test: Test) -> Test:
        def every(**fixtures: object) -> None:
            faults = []
            for row in table:
                try:
                    test(**fixtures, **dict(zip(words, row, strict=True)))
                except (AssertionError, pytest.fail.Exception) as fault:
                    faults.append(f"{row!r:.200}: {fault}")
            assert table, "a table without rows shows nothing"
            assert not faults, "\n\n".join(faults)

        signature = inspect.signature(test)
        own = [one for name, one in signature.parameters.items() if name not in words]
        every.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        every.__name__, every.__doc__, every.__module__ = test.__name__, test.__doc__, test.__module__
        return every

    return decorate
