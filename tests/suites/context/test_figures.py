"""What is timed of a ring costs no more in a large world than in one of 64 ranks."""

from __future__ import annotations

import pytest

from suites.context.figures import SCALES, tokens_of


@pytest.mark.parametrize("kind", SCALES)
def test_blocks_get_smaller_as_there_are_more_of_them(kind: str) -> None:
    scale = SCALES[kind]
    assert [tokens_of(scale, ranks) for ranks in (2, 8, 64)] == [scale.tokens] * 3
    for ranks in (100, 512, 4096):
        tokens = tokens_of(scale, ranks)
        assert tokens % 64 == 0
        assert ranks * tokens**2 <= 64 * scale.tokens**2 or tokens == 64
