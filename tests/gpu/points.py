"""Points about the machine and what measures it: tools, the suite, process groups, the clock, payloads."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fixtures.node.inventory import amd_smi, links, nvidia_smi
from fixtures.node.inventory.tools import Answers, ask
from fixtures.node.nccl.log import from_nccl_log
from fixtures.ranks import timing
from fixtures.ranks.exact import payload
from fixtures.ranks.exact.dtypes import FORMATS
from fixtures.ranks.exact.rotating import reduction
from fixtures.ranks.groups import divided_into
from fixtures.ranks.steps import Context
from fixtures.ranks.study.calibrated import Pace
from fixtures.wire.collectives import AVERAGED, NONFINITE, ROUNDED
from tests.gpu.frame import Here, Impossible, world_of_one
from tests.house.tree import ROOT
from thresholds.loading.load import load, resolve, shipped

ROUNDS, SETTLED = 20, 5  # what is made once and kept is made in the first few
DRIFT_BYTES = 64 << 20  # over 15 rounds; one communicator that stayed in each would be several times as much
SPINS_S = (0.001, 0.01, 0.1)
CLOCKS_DIFFER, LAUNCH_S = 0.05, 100e-6  # the share, and what a launch and a wait cost the host
BARRIERS = 1000
OPERATIONS = ("sum", "prod", "min", "max", "avg")
RANKS, START, COUNT = 4, 3, 100_003


def tools(here: Here) -> str:
    """What the vendor's tools print, kept as it is, and read by the suite's own parsers."""
    return read(here, ask(None, 60.0))


def read(here: Here, answers: Answers) -> str:
    """Read them; a GPU that is not understood is red."""
    for name, text in answers.texts.items():
        (here.place / f"{name}.txt").write_text(text, encoding="utf-8")
    here.keep(failures=dict(answers.failures))
    if "log" in answers.texts:
        about, gpus = nvidia_smi.parse_log(answers.text("log"))
        faults = [str(about["fault"])] if "fault" in about else []
        nvlink = links.parse_nvlink(answers.texts.get("nvlink", ""))
        near = links.parse_topology(answers.texts.get("topology", ""))
        here.keep(about=about, gpus=gpus, nvlink=nvlink, topology=near)
        assert not faults, f"not understood: {'; '.join(faults)}"
        assert near, f"topo -m was not understood: {answers.texts.get('topology')!r:.200}"
        garbled = {uuid: why for uuid, (_, unknown) in nvlink.items() if (why := unknown.get("nvlinks"))}
        assert not garbled, f"nvlink -s was not understood: {garbled}"
    elif answers.has("amd-smi"):
        gpus, faults = amd_smi.parse_gpus(answers)
        here.keep(gpus=gpus)
    elif answers.has("nvidia-smi"):
        raise AssertionError(f"nvidia-smi -q -x printed nothing: {answers.failures['log']}")
    else:
        raise Impossible("neither nvidia-smi nor amd-smi is installed")
    assert gpus, "the tool describes no GPU"
    assert not faults, f"not understood: {'; '.join(faults)}"
    unknown = sorted({name for _, names in gpus for name in names})
    return f"{len(gpus)} GPUs; not told: {', '.join(unknown) or 'nothing'}"


def suite_measured(here: Here) -> str:
    """The cases of a node, measured and held to no limit."""
    return measured(*_suite(here, "--hardware", "none"))


def suite_judged(here: Here) -> str:
    """The same, judged by the hardware file that recognises this machine."""
    return judged(*_suite(here), torch.cuda.device_count())


def _suite(here: Here, *arguments: str) -> tuple[int, Mapping[str, Any]]:
    here.keep(device=here.device)
    place = here.place / "report"
    command = [sys.executable, "-m", "pytest", "suites/", "--workload", "nodes", "--report-dir", str(place)]
    status = subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode
    return status, json.loads((place / "verdict.json").read_text(encoding="utf-8"))


def measured(status: int, verdict: Mapping[str, Any]) -> str:
    """Without limits nobody is accepted (2); what was wrong, cut short or silent is red."""
    checks, wrong = verdict["counts"]["checks"], [*verdict["blame"], *verdict["not_reported"]]
    assert (status, checks.get("fail", 0), wrong) == (2, 0, []), f"status {status}, {checks}, {wrong}"
    return f"{checks}"


def judged(status: int, verdict: Mapping[str, Any], gpus: int) -> str:
    """Only a node that is accepted is green; one with fewer GPUs than its hardware file expects cannot be."""
    why = [reason for node in verdict["nodes"] for reason in node.get("reasons", ())]
    if verdict["hardware"] == "not recognised":
        raise Impossible(f"no hardware file recognises this machine: {why}")
    if status and verdict["hardware"] in shipped():
        expected = load(resolve(verdict["hardware"])).expect.get("gpus_per_node", 0)
        if gpus < expected:
            raise Impossible(f"{verdict['hardware']} is of {expected} GPUs, and here are {gpus}: {why}")
    assert status == 0, f"status {status} by {verdict['hardware']}: {why}"
    return f"accepted by {verdict['hardware']}"


def process_groups(here: Here) -> str:
    """A world, its division and a mesh, made and destroyed: seconds, memory, and what NCCL's log says."""
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(here.place / "nccl.log"))
    seconds, free = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with world_of_one(here) as ctx:
            mesh = DeviceMesh(ctx.device.type, [[0]], mesh_dim_names=("outer", "inner"))
            groups = [dist.group.WORLD, divided_into([[0]]), *mesh.get_all_groups()]
            for group in groups:
                one = torch.ones(1, device=ctx.device)
                dist.all_reduce(one, group=group)
                assert one.item() == 1.0, f"a sum of one rank's 1 is {one.item()}"
        seconds.append(time.perf_counter() - began)
        free.append(torch.cuda.mem_get_info(ctx.device)[0] if ctx.device.type == "cuda" else 0)
    drift_bytes = free[SETTLED] - free[-1]
    here.keep(seconds=seconds, free_bytes=free, drift_bytes=drift_bytes)
    if ctx.backend == "nccl":
        logged = from_nccl_log((here.place / "nccl.log").read_text(encoding="utf-8", errors="replace"))
        here.keep(log=logged)
        assert logged["version"], "the log of NCCL names no version"
    assert drift_bytes <= DRIFT_BYTES, f"{drift_bytes} bytes of the device were not given back"
    return f"{statistics.median(seconds):.3f} s a round, drift {drift_bytes} bytes"


def clock(here: Here) -> str:
    """The device's clock around spins beside the host's around the same, and barriers by the host's."""
    with world_of_one(here) as ctx:
        pace = Pace(ctx.device)
        worst = max(_apart(here, ctx, pace, length_s) for length_s in SPINS_S)
        spent = []
        for _ in range(BARRIERS):
            began = time.perf_counter()
            timing.barrier(ctx)
            spent.append(time.perf_counter() - began)
    spent.sort()
    here.keep(barriers_s=spent)
    assert worst <= CLOCKS_DIFFER, f"the clocks of device and host are {worst:.1%} apart"
    middle, late = (1e6 * spent[round(share * (BARRIERS - 1))] for share in (0.5, 0.99))
    return f"clocks at most {worst:.1%} apart; barrier {middle:.0f} us, 99 of 100 within {late:.0f} us"


def _apart(here: Here, ctx: Context, pace: Pace, length_s: float) -> float:
    """The largest difference to the host's median, of which a launch is no part; also in lockstep."""
    found = {}
    for name, host, lockstep in (("host", True, False), ("device", False, False), ("lockstep", False, True)):
        work = _Spin(pace, ctx, length_s, host, lockstep)
        found[name] = statistics.median(timing.measure(ctx, work, 20, 40 * length_s, name).seconds)
    here.keep(length_s=length_s, medians_s=found)
    return max(max(abs(one - found["host"]) - LAUNCH_S, 0.0) for one in found.values()) / found["host"]


class _Spin(timing.Kernel):
    """A spin that is complete when it returns where the host's clock is used."""

    def __init__(self, pace: Pace, ctx: Context, length_s: float, host: bool, lockstep: bool) -> None:
        super().__init__(lambda: pace.spend(length_s))
        self.host_clock, self.lockstep, self._ctx = host, lockstep, ctx

    def run(self, i: int) -> None:
        """Spin once."""
        super().run(i)
        if self.host_clock:
            timing.complete(self._ctx)


def payloads(here: Here) -> str:
    """What ranks send, and what every reduction must give, made here and on the processor, bit for bit."""
    device, compared, wrong = here.device, 0, []
    for form in FORMATS.values():
        made = {}
        for place in (device, torch.device("cpu")):
            moved = payload.pattern(form, [payload.key(1), payload.key(2)], START, COUNT, place)
            made[place] = {"moved": moved}
            for op in (*OPERATIONS, ROUNDED, AVERAGED, NONFINITE) if form.floating else OPERATIONS:
                sums = reduction(form, op, RANKS, 7, place)
                parts = [sums.given(rank, 5, START, COUNT) for rank in range(RANKS)]
                made[place][op] = torch.stack([*parts, sums.result(5, START, COUNT)])
        right = made[torch.device("cpu")]
        differ = {op: int((got.cpu() != right[op]).sum()) for op, got in made[device].items()}
        here.keep(dtype=form.name, differ=differ)
        compared += sum(one.numel() for one in right.values())
        wrong += [f"{form.name} {op}: {count}" for op, count in differ.items() if count]
    assert not wrong, f"elements that differ: {', '.join(wrong)}"
    return f"{compared} elements of {len(FORMATS)} dtypes are equal"
