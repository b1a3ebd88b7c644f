"""What a table of a hardware file and its keys may hold; each refusal says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from thresholds.units import METRICS, is_finite, parse_size

MOST_GIGABYTES = 100_000


class Section(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


def known(names: tuple[str, ...]) -> Callable[[str], str]:
    """Refuse every name but these."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"{name!r} is not known; write one of: {', '.join(names)}")
        return name

    return check


def _rising(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if not 1 <= len(sizes) <= 64:
        raise ValueError("write 1 to 64 sizes")
    if sorted(set(sizes)) != [*sizes]:
        raise ValueError("write each size once, the smallest first")
    return sizes


def of_words(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse sizes that are not a whole number of the payload's words."""
    if any(size % 8 for size in sizes):
        raise ValueError("write sizes of whole words, multiples of 8B: the payload is 64-bit integers")
    return sizes


def _says_something(text: str) -> str:
    if len([letter for letter in text if letter.isalnum()]) < 4:
        raise ValueError(f"{text!r} says nothing; write a sentence, or repository@commit and path")
    return text


def _rate(raw: object) -> float | str:
    if raw == "measured":
        return "measured"
    if not is_finite(raw) or not 0 < raw <= MOST_GIGABYTES:
        raise ValueError(f'{raw!r} is no line rate; write GB/s (400 Gb/s are 50.0), or "measured"')
    return float(raw)


def _facts(raw: object) -> tuple[str | int, ...]:
    found = raw if isinstance(raw, list) else [raw]
    if not found:
        raise ValueError("an empty list matches nothing; write a text, a whole number or a list of them")
    for one in found:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise ValueError(f"{one!r} is no fact to recognise hardware by; write a text or a whole number")
    return tuple(found)


def _version(text: str) -> str:
    if not re.fullmatch(r"(>=)? ?[0-9]+([.][0-9a-z+-]+)*", text):
        raise ValueError(
            f'{text!r} is no version; write "570.86.15" for this one, ">=570.86" for it or later'
        )
    return text


Sentence = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_says_something)]
FileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=64)]
LowerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Size = Annotated[int, PlainValidator(parse_size)]
Sizes = Annotated[tuple[Size, ...], Field(strict=False), AfterValidator(_rising)]
Gigabytes = Annotated[float, Field(gt=0, le=MOST_GIGABYTES, allow_inf_nan=False)]
Inside = Annotated[float | str, PlainValidator(_rate)]
Facts = Annotated[tuple[str | int, ...], PlainValidator(_facts)]
Version = Annotated[str, Field(max_length=64), AfterValidator(_version)]
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^\S+( \S+)*$")]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
MetricName = Annotated[str, AfterValidator(known(tuple(METRICS)))]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
MetricNames = Annotated[
    list[MetricName],
    Field(min_length=1),
    BeforeValidator(lambda raw: [raw] if isinstance(raw, str) else raw),
]
