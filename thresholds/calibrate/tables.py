"""The tables of a calibrated file: those of another file, or made from the runs and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thresholds.calibrate.runs import Figure, Run
from thresholds.hardware import Hardware, LineRate
from thresholds.loading.extends import Family, contents
from thresholds.loading.schema import TABLES
from thresholds.units import INSIDE_LINKS, format_size

PER_NODE = "network_per_node"
Tables = dict[str, dict[str, object]]


def of_file(like: Hardware, name: str) -> Tables:
    """The tables of another file and of all that it extends, without rows."""
    assert like.path is not None
    family = Family(contents(like.path), like.path)
    tables: Tables = {key: dict(family.table(key)) for key in TABLES}
    for key in ("extends", "part"):
        tables["hardware"].pop(key, None)
    about = f"{tables['hardware'].get('about', like.about)}, calibrated on healthy nodes of one cluster"
    tables["hardware"] |= {"name": name or f"{like.name}-calibrated", "about": about}
    return tables


def of_runs(
    runs: Sequence[Run], figures: Sequence[Figure], name: str, line_rates: Mapping[str, float]
) -> Tables:
    """Tables from the nodes' own facts, and line rates from the command line."""
    said = next((facts for run in runs for facts in run.said.values()), {})
    gpu, count, fabric = said.get("gpu", "none"), said.get("gpu_count", 0), said.get("fabric", "ethernet")
    paths = {str(one.case.get("path")) for one in figures}
    inside = next((link for link in INSIDE_LINKS if link in paths or link in line_rates), "")
    inside = inside or ("memory" if gpu == "none" else "nvlink")
    about = f"{count} x {gpu} per node, {fabric}: calibrated on healthy nodes"
    judges = "bandwidth of machines without accelerators; this is no acceptance of GPU hardware"
    return {
        "hardware": {
            "name": name or "calibrated",
            "about": about,
            "inside": inside,
            **({"judges": judges} if gpu == "none" else {}),
        },
        "match": {"gpu": gpu, "fabric": fabric},
        "expect": {"gpus_per_node": count},
        "line_rate": {inside: "measured", **line_rates},
        "sweep": _sweep(runs, figures),
    }


def _sweep(runs: Sequence[Run], figures: Sequence[Figure]) -> dict[str, object]:
    """What the runs swept and judged."""

    def sizes(metric: str) -> set[int]:
        found = (one.case.get("size") for one in figures if one.metric == metric)
        return {size for size in found if isinstance(size, int) and size > 0}

    every = set().union(*(run.sizes for run in runs), sizes("busbw")) or {1 << 20}
    plateau, latency = sizes("busbw") or {max(every)}, sizes("latency") or {min(every)}
    named = {"bandwidth": every, "plateau": plateau, "latency": latency}
    counts = [one.samples for one in figures if one.metric == "busbw"]
    written = {name: [format_size(size) for size in sorted(found)] for name, found in named.items()}
    return {**written, "iterations": max(10, min(counts, default=20))}


def rates(table: Mapping[str, object]) -> LineRate:
    """The line rates of a new file as a `LineRate`."""
    links = {name: rate if isinstance(rate, float) else None for name, rate in table.items()}
    per_node = PER_NODE in links
    if per_node:
        links["network"] = links.pop(PER_NODE)
    inside = next(link for link in links if link in INSIDE_LINKS)
    return LineRate(inside, links, per_node)
