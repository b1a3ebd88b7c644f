"""From a TOML file to a `Hardware`, or to all of its faults at once."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from pathlib import Path

from thresholds import rules
from thresholds.faults import Fault, HardwareFileError
from thresholds.hardware import Experts, Gap, Hardware, Limit, LimitKind, LineRate, Row, Sweep
from thresholds.parse import Sections
from thresholds.schema import (
    ExpectSection,
    ExpertsSection,
    GapSection,
    HardwareSection,
    LayerSection,
    LimitSection,
    LineRateSection,
    RowSection,
    Section,
    SweepSection,
)
from thresholds.units import INSIDE_LINKS

HERE = Path(__file__).parent


def shipped() -> Mapping[str, Path]:
    """The hardware files that come with the suite, by name."""
    return {path.stem: path for path in sorted(HERE.glob("*.toml"))}


def resolve(name_or_path: str) -> Path:
    """The file meant by `--hardware`: a shipped name, or a path (with a slash, or ending in .toml)."""
    known = shipped()
    if name_or_path in known:
        return known[name_or_path]
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    near = difflib.get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    text = f"no hardware file of that name; {hint}. A file of your own is named by its path"
    raise HardwareFileError([Fault(name_or_path, 1, text)])


def load(path: Path | str) -> Hardware:
    """Read and check one hardware file; raises `HardwareFileError` with every fault of it."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        text = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise HardwareFileError([Fault(str(path), 1, text)]) from error
    return read(data, path)


def read(data: bytes, path: Path) -> Hardware:
    """The same for bytes that are at hand."""
    sections = Sections(str(path), data)
    placed = _rows(sections, path.name)
    rows = tuple(row for row, _ in placed)
    _check_tables(sections)
    hardware = _hardware(sections, rows, path, hashlib.sha256(data).hexdigest())
    if hardware is not None:
        _check_rows(sections, placed, hardware)
    for position, text in rules.overlaps(rows):
        sections.fault(text, *placed[position][1])
    if sections.faults or hardware is None:
        raise HardwareFileError(sections.faults)
    return hardware


Place = tuple[str, int]  # limit or gap, and the how manyth


def _rows(sections: Sections, name: str) -> list[tuple[Row, Place]]:
    found: list[tuple[Row, Place]] = []
    for kind, index, section in sections.rows:
        for text in rules.limit_kind(section) if isinstance(section, LimitSection) else ():
            sections.fault(text, kind, index)
        row = _row(section, f"{name}:{sections.lines.of(kind, index)}")
        if row is not None:
            found.append((row, (kind, index)))
    return found


def _row(section: RowSection, where: str) -> Row | None:
    metrics, selectors = tuple(section.metric), section.selectors()
    if isinstance(section, GapSection):
        return Gap(metrics, selectors, section.reason, where)
    if not isinstance(section, LimitSection):
        return None
    kinds: tuple[LimitKind, ...] = ("min", "max", "min_of_bound")
    given = [(kind, getattr(section, kind)) for kind in kinds if getattr(section, kind) is not None]
    if not given:
        return None
    kind, value = given[0]
    about = (section.source, section.date, section.derived, section.min_samples, where)
    return Limit(metrics, selectors, kind, value, *about)


def _check_tables(sections: Sections) -> None:
    about, rates = sections.tables.get("hardware"), sections.tables.get("line_rate")
    expect = sections.tables.get("expect", ExpectSection())
    if isinstance(rates, LineRateSection) and isinstance(expect, ExpectSection):
        inside = about.inside if isinstance(about, HardwareSection) else None
        for text in rules.line_rates(inside, rates, expect):
            sections.fault(text, "line_rate")


def _check_rows(sections: Sections, placed: list[tuple[Row, Place]], hardware: Hardware) -> None:
    for text in rules.plateau(hardware):
        sections.fault(text, "sweep", "plateau")
    for row, place in placed:
        for text in (*rules.reachable(row, hardware), *rules.physics(row, hardware)):
            sections.fault(text, *place)


def _hardware(sections: Sections, rows: tuple[Row, ...], path: Path, sha256: str) -> Hardware | None:
    about, rates, sweep = (sections.tables.get(name) for name in ("hardware", "line_rate", "sweep"))
    expect = sections.tables.get("expect", ExpectSection())
    if not (isinstance(about, HardwareSection) and isinstance(rates, LineRateSection)):
        return None
    if not isinstance(sweep, SweepSection):
        return None
    return Hardware(
        name=about.name,
        about=about.about,
        inside=about.inside,
        judges=about.judges or "",
        auto=about.auto,
        match=sections.loose.match or {},
        expect=expect.model_dump(exclude_none=True),
        env=sections.loose.env or {},
        absent=sections.loose.absent or {},
        line_rate=_line_rate(about.inside, rates),
        sweep=Sweep(tuple(sweep.bandwidth), tuple(sweep.plateau), tuple(sweep.latency), sweep.iterations),
        limits=tuple(row for row in rows if isinstance(row, Limit)),
        gaps=tuple(row for row in rows if isinstance(row, Gap)),
        experts=_experts(sections.tables.get("experts")),
        path=path,
        sha256=sha256,
    )


def _experts(section: Section | None) -> Experts | None:
    if not isinstance(section, ExpertsSection):
        return None

    def layer(one: LayerSection) -> tuple[int, int, int]:
        return one.tokens, one.hidden, one.top_k

    return Experts(layer(section.normal), layer(section.low_latency), tuple(section.m2n), section.source)


def _line_rate(inside: str, section: LineRateSection) -> LineRate:
    given = section.model_dump(exclude_none=True, include={*INSIDE_LINKS, "network"})
    links = {link: None if rate == "measured" else rate for link, rate in given.items()}
    if section.network_per_node is not None:
        links["network"] = section.network_per_node
    per_node = section.network_per_node is not None
    return LineRate(inside, links, per_node, section.network_burst, section.nvls, section.sharp)
