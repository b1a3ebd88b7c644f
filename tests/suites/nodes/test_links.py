"""Links are timed with all at once and alone, what crosses them is compared, and unknown links say why."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.ranks import timing
from fixtures.ranks.steps import Context, Unsupported
from suites.nodes import steps
from suites.nodes.compute import links, pcie
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.teeth.bug import replaced
from tests.teeth.patches.flips import flip

WORDS = 1 << 12
CPUS = [torch.device("cpu")] * 3
ALONE = replace(context(0, 1), alone=True)
Call = Callable[..., Any]
GEN5 = "5, 16, 5, 16\n"


def memory() -> torch.Tensor:
    return torch.empty(WORDS, dtype=torch.int64)


def copies(change: Callable[[Call, torch.Tensor, torch.Tensor, bool], None]) -> AbstractContextManager[None]:
    """Let something happen in the place of each copy, of which some are timed: they do not block."""

    def make(original: Call) -> Call:
        def call(target: torch.Tensor, source: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            change(original, target, source, "non_blocking" in kwargs)
            return target

        return call

    return replaced(torch.Tensor, "copy_", make)


def test_both_directions_to_the_host_are_timed_and_right() -> None:
    def run(ctx: Context) -> Any:
        return links.host(ctx, memory(), memory())

    for series, wrong in run_world(2, run):
        assert wrong == []
        said = [(one["metric"], one["load"], one["amount"]) for one in series]
        both = ("host_to_device", "device_to_host")
        assert said == [(metric, load, 8.0 * WORDS) for metric in both for load in ("all at once", "alone")]
        assert all(len(one["seconds"]) >= 10 for one in series)


@pytest.mark.parametrize("first", [2, 60])
def test_what_a_link_to_the_host_spoils_is_seen(first: int) -> None:
    calls = itertools.count(1)

    def spoil(copy: Call, target: torch.Tensor, source: torch.Tensor, _: bool) -> None:
        copy(target, source)
        if next(calls) >= first:
            flip(target, 5)

    with copies(spoil):
        wrong = links.host(ALONE, memory(), memory())[1][0]
    assert (wrong["rank"], wrong["source_rank"], wrong["first_offset"]) == (0, 0, 5)
    assert wrong["looks_like"].startswith("bit 0 flipped")


def test_every_pair_is_timed_in_both_directions() -> None:
    pairs, wrong = links.peers(context(0, 3), CPUS, WORDS)
    assert wrong == []
    assert [(pair["from"], pair["to"]) for pair in pairs] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert {pair["amount"] for pair in pairs} == {float(WORDS)}


def test_a_pair_whose_copies_arrive_spoiled_is_named() -> None:
    def spoil(copy: Call, target: torch.Tensor, source: torch.Tensor, timed: bool) -> None:
        copy(target, source)
        if timed:
            flip(target, 9, 7)

    with copies(spoil):
        _, wrong = links.peers(context(0, 2), CPUS[:2], WORDS)
    assert [(one["source_rank"], one["rank"], one["first_offset"]) for one in wrong] == [(0, 1, 9), (1, 0, 9)]


def test_copies_that_do_not_happen_are_seen() -> None:
    def lose(copy: Call, target: torch.Tensor, source: torch.Tensor, timed: bool) -> None:
        if not timed:
            copy(target, source)

    with copies(lose):
        _, wrong = links.peers(context(0, 2), CPUS[:2], WORDS)
        lost = links.host(ALONE, memory(), memory())[1][0]
    assert {one["found"] for one in wrong} == {"0x0000000000000000"}
    assert lost["collective"] == "host to device"


def test_the_others_wait_without_a_kernel_until_the_first_rank_has_measured() -> None:
    def run(ctx: Context) -> Any:
        return [timing.first_alone(ctx, lambda alone: alone.alone) for _ in range(2)]

    def slowly(ctx: Context) -> Any:
        def measured(alone: Context) -> float:
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                pass
            return time.monotonic()

        return timing.first_alone(ctx, measured), time.monotonic()

    assert run_world(3, run) == [[True, True], [None, None], [None, None]]
    (ended, _), *waited = run_world(3, slowly)
    assert all(found is None and at >= ended for found, at in waited)


def test_what_the_first_rank_lacks_all_of_them_say() -> None:
    def run(ctx: Context) -> Any:
        def measured(alone: Context) -> None:
            raise Unsupported("one process to a device")

        with pytest.raises(Unsupported, match="one process to a device"):
            timing.first_alone(ctx, measured)
        return True

    assert run_world(2, run) == [True, True]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", Unsupported),
        ("CUDA error: out of memory", RuntimeError),
    ],
)
def test_devices_that_let_one_process_in_have_no_links_to_measure(
    said: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(kind, match=r"compute mode is exclusive|out of memory"):
        links.touch(CPUS)


def pci(tmp_path: Path, cpus: str) -> Path:
    (tmp_path / "local_cpulist").write_text(f"{cpus}\n")
    (tmp_path / "numa_node").write_text("1\n")
    return tmp_path


def test_what_is_copied_lies_beside_the_device_and_afterwards_all_is_as_before(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with contextlib.suppress(LookupError), pcie.beside(pci(tmp_path, f"{one},4090-4095")) as said:
        assert (os.sched_getaffinity(0), said) == ({one}, {"numa": 1})
        raise LookupError
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", ["4090-4095", "", "all"])
def test_without_a_cpu_beside_it_a_process_stays_where_it_is_and_says_why(tmp_path: Path, cpus: str) -> None:
    before = os.sched_getaffinity(0)
    with pcie.beside(pci(tmp_path, cpus)) as said:
        assert os.sched_getaffinity(0) == before
    assert list(said) == ["numa_unknown"]


def test_a_node_without_accelerators_says_that_it_has_no_links() -> None:
    for step in (steps.host_links, steps.peer_links):
        with pytest.raises(Unsupported, match="this node has no accelerator"):
            step(context(0, 2))


# the PCIe link


def test_a_link_is_read_while_the_load_runs() -> None:
    loads: list[None] = []
    wait = "import time; time.sleep(0.3); print('5, 8, 5, 16')"
    said = pcie._ask([sys.executable, "-c", wait], pcie.parse, lambda: loads.append(None))
    assert (said["generation"], said["width"], said["most_width"]) == (5, 8, 16)
    assert len(loads) > 10


def test_a_tool_that_is_missing_makes_the_link_unknown() -> None:
    said = pcie._ask(["/nowhere/nvidia-smi"], pcie.parse, lambda: None)
    assert said == {"unknown": "/nowhere/nvidia-smi cannot be run: No such file or directory"}


def test_a_tool_that_never_answers_makes_the_link_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcie, "DEADLINE_S", 0.2)
    said = pcie._ask([sys.executable, "-c", "import signal; signal.pause()"], pcie.parse, lambda: None)
    assert "said nothing" in said["unknown"]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "[N/A], [N/A], 5, 16", "5, 16, 5", GEN5 * 2])
def test_what_is_no_link_is_unknown(text: str) -> None:
    assert "nvidia-smi says" in pcie.parse(text)["unknown"]


@given(st.text())
def test_any_text_is_a_link_or_unknown(text: str) -> None:
    for said in (pcie.parse(text), pcie.parse_amd(text)):
        assert "unknown" in said or {"generation", "width"} <= set(said)


def test_the_link_of_a_virtual_function_which_the_kernel_does_not_show_is_told_by_amd_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PCI Express Base Specification, SR-IOV: the Link Status of a virtual function is reserved."""
    numbers = {"pci_domain_id": 0, "pci_bus_id": 0xFD, "pci_device_id": 0}
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**numbers))
    pcie_now = {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "replay_count": 0}
    said = json.dumps({"gpu_data": [{"gpu": 0, "pcie": pcie_now}]})
    (tmp_path / "amd-smi").write_text(f"#!/bin/sh\n[ $5 = 0000:fd:00.0 ] && echo '{said}'\n")
    (tmp_path / "amd-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = pcie.under_load(torch.device("cuda", 0), lambda: None, str(tmp_path / "sys"))
    assert (found.get("generation"), found.get("width")) == (5, 16), found


@pytest.mark.parametrize(
    ("speed", "width", "found"),
    [
        ("32.0 GT/s PCIe\n", "16\n", (5, 16)),
        ("16.0 GT/s PCIe\n", "8\n", (4, 8)),
        ("Unknown\n", "63\n", None),
        ("2.5 GT/s PCIe\n", "0\n", None),  # a virtual function
    ],
)
def test_the_kernels_files_are_read_too(
    tmp_path: Path, speed: str, width: str, found: tuple[int, int] | None
) -> None:
    (tmp_path / "current_link_speed").write_text(speed)
    (tmp_path / "current_link_width").write_text(width)
    said = pcie.from_sysfs(tmp_path)
    assert ("unknown" in said) == (found is None)
    assert (said.get("generation"), said.get("width")) == (found or (None, None))


def test_a_device_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert "says no link" in pcie.from_sysfs(tmp_path / "nothing")["unknown"]


def test_the_steps_of_nodes_import_nothing_but_torch() -> None:
    code = "import suites.nodes.steps, sys; print({'pytest', 'pydantic', 'hypothesis'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
