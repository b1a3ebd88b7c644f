"""Whatever the bytes, a hardware file ends as `Hardware` or as faults with lines."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thresholds.files import GOOD
from thresholds.faults import Fault, HardwareFileError
from thresholds.load import read

LINES = GOOD.splitlines()
VALUES = st.sampled_from(
    [
        *("nan", "inf", "-1", "0", "1e400", "true", "0x" + "f" * 5000, "2026-05-01", "07:00:00", "9" * 20),
        *('""', '"x"', '"\\u0000"', '"measured"', '"8GiB"', '">=0"', '"1GiB..8GiB"', '"99999999999999.."'),
        *("[]", "{}", "[[]]", "[1, [2]]", "{a = 1}"),
    ]
)
JUNK = st.one_of(
    st.tuples(st.sampled_from(["min", "max", "nodes", "size", "metric", "path", "new", "'q u'"]), VALUES).map(
        " = ".join
    ),
    st.sampled_from(
        ["[[limit]]", "[[gap]]", "[match]", "[limit]", "[a.b]", "limit = []", '"""', "[", "#", "a.b = 1"]
    ),
    st.text(max_size=20),
)


def reads(data: bytes) -> None:
    faults: tuple[Fault, ...] = ()
    hardware = None
    try:
        hardware = read(data, Path("any.toml"))
    except HardwareFileError as error:
        faults = error.faults
    assert (hardware is None) == bool(faults)
    assert all(fault.line >= 1 and fault.text for fault in faults)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    reads(data)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    reads(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(LINES) - 1), JUNK, st.booleans())
def test_a_good_file_with_any_line_changed(number: int, line: str, instead: bool) -> None:
    changed = [*LINES[:number], line, *LINES[number + instead :]]
    reads("\n".join(changed).encode("utf-8", "surrogatepass"))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(LINES) - 1), VALUES)
def test_a_good_file_with_any_value_changed(number: int, value: str) -> None:
    key, equals, _ = LINES[number].partition(" = ")
    reads("\n".join([*LINES[:number], f"{key}{equals}{value}", *LINES[number + 1 :]]).encode())
