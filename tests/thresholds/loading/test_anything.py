"""Whatever the bytes, a hardware file ends as `Hardware` or as faults with lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import examples
from tests.thresholds.files import GOOD
from tests.thresholds.loading.test_extends import BOARD, CHILD, OWN_ROW
from thresholds.hardware import Hardware
from thresholds.loading.faults import Fault, HardwareFileError
from thresholds.loading.load import load, read, shipped

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
TEXTS = {"": GOOD, **{name: path.read_text(encoding="utf-8") for name, path in shipped().items()}}
PLACE = st.floats(0, 1, exclude_max=True)
LOSSLESS = ("utf-8", "surrogatepass")
PLACES = ("board.toml", "./child.toml", "..", ".", "/", "/dev/zero", "/proc/self/mem", "cpu-local")
WORDS = st.one_of(
    st.text(max_size=12).map(lambda text: text.replace("\\", "").replace('"', "")),
    st.sampled_from([*PLACES, "a/" * 2000]),
)


def spoiled(text: str, share: float, line: str, instead: bool) -> bytes:
    """The text with a line before or in place of one of its own, or with another value in that one."""
    lines = text.splitlines()
    number = int(share * len(lines))
    if line and line[0] in '"[{0123456789' and "=" in lines[number]:
        line = f"{lines[number].partition('=')[0]}= {line}"
    return "\n".join([*lines[:number], line, *lines[number + instead :]]).encode(*LOSSLESS)


def faults_of(do: Callable[[], Hardware]) -> tuple[Fault, ...]:
    """Read a file: it is good, or has faults with lines and words."""
    faults: tuple[Fault, ...] = ()
    hardware = None
    try:
        hardware = do()
    except HardwareFileError as error:
        faults = error.faults
    assert (hardware is None) == bool(faults)
    assert all(fault.line >= 1 and fault.text for fault in faults)
    return faults


def reads(data: bytes) -> None:
    faults_of(lambda: read(data, Path("any.toml")))


def loads(path: Path) -> None:
    for fault in faults_of(lambda: load(path)):
        lines = Path(fault.file).read_bytes().count(b"\n") + 1
        assert fault.line <= lines, fault


@settings(max_examples=examples(150))
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(*LOSSLESS))))
def test_any_bytes(data: bytes) -> None:
    reads(data)


@settings(max_examples=examples(200))
@given(st.sampled_from(sorted(TEXTS)), PLACE, st.one_of(JUNK, VALUES), st.booleans())
def test_a_good_file_with_any_line_changed(name: str, place: float, line: str, instead: bool) -> None:
    reads(spoiled(TEXTS[name], place, line, instead))


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["child", "board"]), PLACE, st.one_of(JUNK, VALUES), st.booleans())
def test_a_file_and_what_it_extends_with_any_line_changed(
    tmp_path: Path, which: str, share: float, line: str, instead: bool
) -> None:
    texts = {"child": CHILD + OWN_ROW, "board": BOARD}
    for name, text in texts.items():
        data = spoiled(text, share, line, instead) if name == which else text.encode()
        (tmp_path / f"{name}.toml").write_bytes(data)
    loads(tmp_path / "child.toml")


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS)
def test_a_file_that_extends_anything(tmp_path: Path, word: str) -> None:
    (tmp_path / "board.toml").write_text(BOARD)
    text = CHILD.replace("./board.toml", word).encode(*LOSSLESS)
    (tmp_path / "child.toml").write_bytes(text)
    loads(tmp_path / "child.toml")
