"""The SVG files of the page, drawn by matplotlib and free of styles: every property is an attribute.

Content policies that forbid inline styles (Jenkins serves artifacts under `style-src 'self'`) also hold for
an SVG file that is opened by itself, so matplotlib's `style="..."` becomes attributes.
"""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from reports.text import write_file

INK, QUIET, FAINT = "#333a42", "#68727d", "#dfe3e8"
PIXELS_PER_INCH = 96  # of a browser
_SVG = "http://www.w3.org/2000/svg"
_SETTINGS = {
    "svg.hashsalt": "shakedown",  # the same journal gives the same file
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "axes.edgecolor": "#9aa2ab",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_FONT = re.compile(r"([\d.]+)px (.+)")


@dataclass(frozen=True)
class Picture:
    """A picture below the report directory; `text` says in words what it shows. The size is in pixels."""

    file: str
    title: str
    text: str
    width: int
    height: int


def settings(**changes: object) -> AbstractContextManager[None]:
    """The context in which all pictures are drawn and saved, so that they look alike."""
    return mpl.rc_context({**_SETTINGS, **changes})  # type: ignore[dict-item]


Shapes = Mapping[str, ET.Element]  # what is put behind a part of a figure, by the gid of that part


def save(figure: Figure, report_dir: Path, picture: Picture, shapes: Shapes | None = None) -> None:
    """Write a figure as the picture's file."""
    buffer = StringIO()
    metadata = {"Date": None, "Creator": None, "Type": None, "Format": None}
    with warnings.catch_warnings():
        # A viewer may have the glyph that this font lacks, and warnings may be errors.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=metadata)
    write_file(report_dir / picture.file, without_styles(buffer.getvalue(), shapes or {}))


def shape(tag: str, text: str = "", **attributes: str | float) -> ET.Element:
    """An element of a picture, for what matplotlib would take long to draw."""
    told = {name: one if isinstance(one, str) else f"{one:.7g}" for name, one in attributes.items()}
    made = ET.Element(f"{{{_SVG}}}{tag}", told)
    made.text = text
    return made


def pixels(figure: Figure) -> tuple[int, int]:
    """Width and height of a figure on the page."""
    width, height = figure.get_size_inches() * PIXELS_PER_INCH
    return round(width), round(height)


def without_styles(svg: str, shapes: Shapes) -> str:
    """The same picture with presentation attributes in place of `style` attributes and elements."""
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(svg)  # noqa: S314 - matplotlib's own output
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in (f"{{{_SVG}}}style", f"{{{_SVG}}}metadata")]:
            parent.remove(child)
        for name, value in _declarations(parent.attrib.pop("style", "")):
            parent.set(name, value)
        if parent.get("id") in shapes:
            parent.append(shapes[parent.attrib["id"]])
    # What matplotlib's style sheet set for every element; both are inherited.
    root.attrib.update({"stroke-linejoin": "round", "stroke-linecap": "butt"})
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for name, _, value in (entry.partition(":") for entry in style.split(";") if entry.strip()):
        font = _FONT.search(value)
        if name.strip() == "font" and font:  # a shorthand, which is no attribute
            yield from (("font-size", font[1]), ("font-family", f"{font[2]}, sans-serif"))
        else:
            yield name.strip(), value.strip()
