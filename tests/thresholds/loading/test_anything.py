"""Whatever the bytes, a hardware file ends as `Hardware` or as faults with lines."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.thresholds.files import GOOD
from tests.thresholds.loading.test_extends import BOARD, CHILD, OWN_ROW
from thresholds.loading.faults import Fault, HardwareFileError
from thresholds.loading.load import load, read, shipped

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
        [
            *(
                "[[limit]]",
                "[[gap]]",
                "[match]",
                "[limit]",
                "[a.b]",
                "limit = []",
                '"""',
                "[",
                "#",
                "a.b = 1",
            ),
            *("[hardware]", "part = true", 'extends = "cpu-local"', 'extends = "./child.toml"', "with = [1]"),
        ]
    ),
    st.text(max_size=20),
)


SHIPPED = {name: path.read_text(encoding="utf-8").splitlines() for name, path in shipped().items()}
WORDS = st.one_of(
    st.text(max_size=12).map(lambda text: text.replace("\\", "").replace('"', "")),
    st.sampled_from(
        [
            "board.toml",
            "./child.toml",
            "..",
            ".",
            "/",
            "/dev/zero",
            "/proc/self/mem",
            "cpu-local",
            "a/" * 2000,
        ]
    ),
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


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SHIPPED)), st.floats(0, 1, exclude_max=True), JUNK, st.booleans())
def test_a_shipped_file_with_any_line_changed(name: str, share: float, line: str, instead: bool) -> None:
    lines = SHIPPED[name]
    number = int(share * len(lines))
    changed = "\n".join([*lines[:number], line, *lines[number + instead :]])
    reads(changed.encode("utf-8", "surrogatepass"))


def loads(path: Path) -> None:
    faults: tuple[Fault, ...] = ()
    hardware = None
    try:
        hardware = load(path)
    except HardwareFileError as error:
        faults = error.faults
    assert (hardware is None) == bool(faults)
    for fault in faults:
        lines = Path(fault.file).read_bytes().count(b"\n") + 1
        assert 1 <= fault.line <= lines, fault


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["child", "board"]),
    st.floats(0, 1, exclude_max=True),
    st.one_of(JUNK, VALUES),
    st.booleans(),
)
def test_a_file_and_what_it_extends_with_any_line_changed(
    tmp_path: Path, which: str, share: float, line: str, instead: bool
) -> None:
    texts = {"child": CHILD + OWN_ROW, "board": BOARD}
    lines = texts[which].splitlines()
    number = int(share * len(lines))
    if line and line[0] in '"[{0123456789' and "=" in lines[number]:
        line = f"{lines[number].partition('=')[0]}= {line}"
    texts[which] = "\n".join([*lines[:number], line, *lines[number + instead :]])
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    loads(tmp_path / "child.toml")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS)
def test_a_file_that_extends_anything(tmp_path: Path, word: str) -> None:
    (tmp_path / "board.toml").write_text(BOARD)
    text = CHILD.replace("./board.toml", word).encode("utf-8", "surrogatepass")
    (tmp_path / "child.toml").write_bytes(text)
    loads(tmp_path / "child.toml")
