"""How hard hypothesis tries its properties: as usual in every run, ten times as hard by `make fuzz`."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100  # examples of a property that does not say how many: hypothesis's own number
TIMES = 10
SHARED = "shared"

# No deadline for an example: another program may have the core for a second.
settings.register_profile(SHARED, deadline=None, max_examples=USUAL)
settings.register_profile("fuzz", deadline=None, max_examples=TIMES * USUAL, print_blob=True)


def examples(usual: int) -> int:
    """How many examples a property gets that has so many as usual, because each takes long."""
    return usual * settings().max_examples // USUAL
