"""`report.html`, `report.css` and `plots/`: no script, no inline style, nothing from other servers.

The page must look the same under the policy with which Jenkins serves artifacts
(`sandbox; default-src 'none'; img-src 'self'; style-src 'self'`) and from a disk without a network.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from reports import notation
from reports.begin import FAMILIES
from reports.decision import RunVerdict, Standing
from reports.page import page, plots, schedules
from reports.record import CheckRecord, Outcome, Record
from reports.text import clean, write_file

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = ("junit.xml", "verdict.json", "results.jsonl", "accepted.txt", "rejected.txt", "unproven.txt")


def write(report_dir: Path, records: Sequence[Record], verdict: RunVerdict) -> None:
    """Write the page with its style sheet and pictures into `report_dir`."""
    checks = [record for record in records if isinstance(record, CheckRecord)]
    curves, drawn = plots.draw(checks, report_dir), schedules.draw(checks, report_dir)
    write_file(report_dir / "report.css", (_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    content = page.build(records, verdict)
    environment = _environment()
    shared = {"page": content, "Standing": Standing, "Outcome": Outcome}
    family, chapters = environment.get_template("family.html.j2"), content["chapters"]
    for chapter in chapters:
        write_file(report_dir / chapter.file, family.render(chapter=chapter, **shared))
    first = environment.get_template("report.html.j2").render(
        curves=curves,
        schedules=drawn,
        files=[name for name in _FILES if (report_dir / name).is_file()],
        **shared,
    )
    write_file(report_dir / "report.html", first)
    for old in {*report_dir.glob(FAMILIES)} - {report_dir / chapter.file for chapter in chapters}:
        old.unlink()  # of an earlier rendering, and nothing links there any more


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        fold=notation.fold,
        duration=notation.duration,
        wraps=_wraps,
        slug=lambda text: re.sub(r"[^a-z]", "", str(text).lower()),
        command=shlex.join,
    )
    environment.globals["MOST_CHECKS"] = page.MOST_CHECKS
    return environment


def _printable(value: object) -> object:
    """Clean every text that a template prints, except the markup of the templates themselves."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _wraps(name: str) -> Markup:
    """A name that may be broken only between its words, in a narrow column."""
    return Markup(re.sub(r"([_/.:,\[]+)(?=\w)", r"\1<wbr>", str(escape(clean(name)))))  # noqa: S704 - escaped
