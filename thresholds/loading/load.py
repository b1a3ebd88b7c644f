"""From a TOML file to a `Hardware`, or to all of its faults at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from thresholds.hardware import Gap, Hardware, Limit, LineRate, Row, Sweep
from thresholds.loading import rules
from thresholds.loading.extends import Unreadable, contents, shipped, unknown_name
from thresholds.loading.faults import Fault, HardwareFileError
from thresholds.loading.parse import Placed, Sections
from thresholds.loading.schema import GapSection, LimitSection, LineRateSection, RowSection, SweepSection
from thresholds.units import INSIDE_LINKS, MNNVL

__all__ = ["load", "load_whole", "read", "resolve", "shipped"]

_NO_SWEEP = SweepSection.model_construct(bandwidth=(), plateau=(), latency=())
_AS_IT_STANDS = {"source", "date", "derived", "min_samples", "loose", "fabrics"}  # keys of a limit


def resolve(name_or_path: str) -> Path:
    """The file meant by `--hardware`: a shipped name, or a path (with a slash, or ending in .toml)."""
    known = shipped()
    if name_or_path in known:
        return known[name_or_path]
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    raise HardwareFileError([Fault(name_or_path, 1, unknown_name(name_or_path))])


def load(path: Path | str) -> Hardware:
    """Read and check one hardware file; raises `HardwareFileError` with every fault of it."""
    path = Path(path)
    try:
        data = contents(path)
    except Unreadable as error:
        raise HardwareFileError([Fault(str(path), 1, str(error))]) from error
    return read(data, path)


def load_whole(path: Path | str) -> Hardware:
    """Do the same for a file that judges nodes, which a part cannot."""
    hardware = load(path)
    if hardware.part:
        text = "this is only a part of hardware files; name a file that extends it"
        raise HardwareFileError([Fault(str(path), 1, text)])
    return hardware


def hardware_files(asked: str, here: Path) -> tuple[Hardware, ...]:
    """Load what `--hardware` names: one file, every shipped one for `auto`, nothing for `none`."""
    if asked == "none":
        return ()
    if asked != "auto":
        return (load_whole(here / os.path.expanduser(resolve(asked))),)
    loaded: list[Hardware] = []
    faults: list[Fault] = []
    for path in shipped().values():
        try:
            loaded.append(load(path))
        except HardwareFileError as refused:
            faults.extend(refused.faults)
    if faults:
        raise HardwareFileError(faults)
    return tuple(file for file in loaded if not file.part)


def read(data: bytes, path: Path) -> Hardware:
    """Do the same for given bytes; the files that it extends are found relative to `path`."""
    sections = Sections(path, data)
    placed = [*_rows(sections)]
    _check_tables(sections)
    hardware = _hardware(sections, tuple(row for row, _ in placed))
    if hardware is not None and sections.family.whole:
        _check_rows(sections, placed, hardware)
    _check_overlaps(sections, placed)
    _check_tails(sections, placed)
    if sections.faults or hardware is None:
        raise HardwareFileError(sections.faults)
    return hardware


def _rows(sections: Sections) -> Iterator[tuple[Row, Placed]]:
    for placed in sections.rows:
        section = placed.section
        for text in rules.limit_kind(section) if isinstance(section, LimitSection) else ():
            sections.fault(text, *placed.keys, at=placed.document)
        row = _row(section, placed.where)
        if row is not None and not _void(row, placed, sections):
            yield row, placed


def _void(row: Row, placed: Placed, sections: Sections) -> bool:
    """Whether a row of a farther file is about something that a nearer file declares absent."""
    for name in ("path", "collective"):
        words = row.selectors[name].samples() if name in row.selectors else ()
        if words and all(
            word in sections.tables.absent and sections.declared("absent", str(word)) < placed.distance
            for word in words
        ):
            return True
    return False


def _row(section: RowSection, where: str) -> Row | None:
    metrics, selectors = tuple(section.metric), section.selectors()
    if isinstance(section, GapSection):
        return Gap(metrics, selectors, section.reason, where)
    if not isinstance(section, LimitSection):
        return None
    kind = next((kind for kind in rules.KINDS if getattr(section, kind) is not None), None)
    if kind is None:
        return None
    return Limit(
        metrics=metrics,
        selectors=selectors,
        kind=kind,
        value=getattr(section, kind),
        where=where,
        **section.model_dump(include=_AS_IT_STANDS, exclude_none=True),
    )


def _check_tables(sections: Sections) -> None:
    about, rates = sections.tables.hardware, sections.tables.line_rate
    inside = about.inside if about else None
    if about and not (inside or about.part) and sections.family.whole:
        sections.fault("hardware.inside is missing; write it", "hardware")
    if rates:
        for text in rules.line_rates(None if sections.part else inside, rates, sections.tables.expect):
            sections.fault(text, "line_rate")


def _check_rows(sections: Sections, found: list[tuple[Row, Placed]], hardware: Hardware) -> None:
    for text in rules.plateau(hardware):
        sections.fault(text, "sweep", "plateau")
    for row, placed in found:
        here = f" (in {hardware.name}, which extends this)" if placed.distance else ""
        held = (rules.reachable, rules.physics, rules.fabrics)
        for text in (text for rule in held for text in rule(row, hardware)):
            sections.fault(text + here, *placed.keys, at=placed.document)


def _check_overlaps(sections: Sections, found: list[tuple[Row, Placed]]) -> None:
    """A clash with an inherited row is a fault of the file that inherits it."""
    for at, other, shared in rules.overlaps(tuple(row for row, _ in found)):
        near, far = sorted((found[at], found[other]), key=lambda one: one[1].distance)
        inherits = near[1].distance < far[1].distance
        (_, place), (clash, _) = (near, far) if inherits else (found[other], found[at])
        what = f"{', '.join(shared)}: {clash.where} matches the same cases; "
        how = "replace it by a row with the same selectors, or keep the two apart"
        told = what + (how if inherits else "keep the two apart")
        sections.fault(told, *place.keys, at=place.document)


def _check_tails(sections: Sections, found: list[tuple[Row, Placed]]) -> None:
    """A tail's ceiling below the middle's is a fault of the nearer of the two rows."""
    for at, other, text in rules.tails(tuple(row for row, _ in found)):
        place = min((found[at][1], found[other][1]), key=lambda one: one.distance)
        sections.fault(f"{text}: a tail is no faster than the middle", *place.keys, at=place.document)


def _hardware(sections: Sections, rows: tuple[Row, ...]) -> Hardware | None:
    tables = sections.tables
    about, rates, sweep = tables.hardware, tables.line_rate, tables.sweep
    if sections.part:
        rates, sweep = rates or LineRateSection(), sweep or _NO_SWEEP
    if not (about and rates and sweep and (about.inside or about.part)):
        return None
    first, *others = sections.family.documents
    return Hardware(
        **{"inside": "", **about.model_dump(exclude={"extends"}, exclude_none=True)},
        extends=tuple(one.path for one in others),
        match=tables.match,
        expect=tables.expect.model_dump(exclude_none=True),
        env=tables.env,
        absent=tables.absent,
        line_rate=_line_rate(about.inside or "", rates),
        sweep=Sweep(**{**sweep.model_dump(), "tail_iterations": sweep.tail_iterations or sweep.iterations}),
        limits=tuple(row for row in rows if isinstance(row, Limit)),
        gaps=tuple(row for row in rows if isinstance(row, Gap)),
        experts=tables.experts,
        model=tables.model,
        peers=tables.peers,
        beyond=tables.beyond,
        path=first.path,
        sha256=sections.family.sha256,
    )


def _line_rate(inside: str, section: LineRateSection) -> LineRate:
    given = section.model_dump(exclude_none=True, include={*INSIDE_LINKS, MNNVL, "network"})
    links = {link: None if rate == "measured" else rate for link, rate in given.items()}
    if section.network_per_node is not None:
        links["network"] = section.network_per_node
    per_node = section.network_per_node is not None
    burst, switch = section.network_burst, section.switch or section.nvls
    return LineRate(inside, links, per_node, burst, switch, section.nvls, section.sharp)
