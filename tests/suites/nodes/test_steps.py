"""Steps of the nodes suite in real worlds: healthy ones are green, and every rank says all that is judged."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.cluster.measurement import Measurement, RankReport, World
from fixtures.ranks import timing
from fixtures.ranks.steps import Context, Unsupported
from reports.record import Outcome
from suites.nodes import amounts, steps, test_compute, test_links, test_memory, test_repeatability
from suites.nodes.compute import lasting, matmul, memory, repeats, series, together, training
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.nodes import judging
from tests.suites.parallel import assert_green
from thresholds import metrics

COMPUTE = [
    *(test_compute.OVERLAP + test_compute.TRAINING + test_memory.MEMORY),
    *(test_memory.PATTERN + test_repeatability.REPEATED),
]
CASES = [(case.step, case.parameters) for case in COMPUTE]
TIMED = [*test_compute.MATMUL, *test_memory.MEMORY]
PRODUCTS = [("nodes.matmul", {"dtype": dtype}) for dtype in ("fp32", "bf16", "fp16")]


@pytest.mark.alone  # their floors are those of a core that nobody else uses
@pytest.mark.parametrize("size", [1, 2])
def test_healthy_devices_are_green(size: int) -> None:
    cases = [case for case in [*CASES, *PRODUCTS] if size > 1 or case[0] != "nodes.overlap"]
    assert_green(size, cases, parts=())


@pytest.mark.parametrize(("step", "asked"), [*PRODUCTS, ("nodes.memory", {})])
def test_ranks_do_as_much_as_the_plan_counts(step: str, asked: dict[str, Any]) -> None:
    """The controller takes no more for the work of a device; what it takes is the plan's."""
    run = {"nodes.matmul": steps.matmul, "nodes.memory": steps.memory}[step]
    planned = [case for case in TIMED if (case.step, case.parameters) == (step, asked)]
    assert [case.amounts for case in planned] == [amounts.most]
    [answer] = run_world(1, lambda ctx: run(ctx, **asked))
    said = {one["metric"]: one["amount"] for one in answer["series"]}
    assert said == amounts.most(step, asked, False)


def test_copies_of_a_device_are_counted_by_the_plan_too() -> None:
    planned = [*test_links.HOST, *test_links.PAIRS]
    found = {case.step: case.amounts(case.step, case.parameters, True) for case in planned if case.amounts}
    assert found == {
        "nodes.host_links": dict.fromkeys(("host_to_device", "device_to_host"), amounts.COPIED_BYTES),
        "nodes.peer_links": {"peer_to_peer": amounts.COPIED_BYTES},
    }


@pytest.mark.quiet
def test_a_healthy_device_keeps_its_speed() -> None:
    assert_green(2, [(case.step, case.parameters) for case in test_compute.SLOPE], parts=("series",))


@pytest.mark.parametrize("dtype", ["tf32", "fp8_e4m3"])
def test_a_dtype_that_a_device_lacks_is_not_applicable(dtype: str) -> None:
    with pytest.raises(Unsupported, match=f"no {dtype} of its own"):
        matmul.measured(context(0, 1), dtype)


def test_ranks_measure_alone_one_after_the_other() -> None:
    def run(ctx: Context) -> Any:
        def measured(alone: Context) -> tuple[float, float, bool]:
            began = time.monotonic()
            end = began + 0.05
            while time.monotonic() < end:
                pass
            return began, time.monotonic(), alone.alone

        return timing.in_turn(ctx, measured)

    spans = sorted(run_world(3, run))
    assert [alone for _, _, alone in spans] == [True] * 3
    assert all(end <= begin for (_, end, _), (begin, _, _) in itertools.pairwise(spans))


def test_the_flops_of_a_token_are_those_of_the_paper() -> None:
    """PaLM 8B: 8.63e9 parameters, 32 layers, 16 heads of 256 channels, sequences of 2048 tokens."""
    assert (
        training.flops_per_token(8_630_000_000, 32, 16 * 256, 2048) == 6 * 8.63e9 + 12 * 32 * 16 * 256 * 2048
    )


@pytest.mark.parametrize(
    ("windows", "lost"),
    [
        ([0.02] * 40, 0.0),  # healthy
        ([0.02] * 20 + [0.04] * 20, 0.5),  # half the speed from the middle on
        ([0.02 + 0.001 * number for number in range(40)], 0.57),  # slower and slower
        ([2.0] * 3 + [1.0] * 9, -1.0),  # twice as fast
        ([0.02] * 37 + [1.0] + [0.02] * 2, 0.0),  # one stall, which is no slope
    ],
)
def test_the_slope_is_the_speed_that_was_lost(windows: list[float], lost: float) -> None:
    assert metrics.slope(windows) == pytest.approx(lost, abs=0.02)


class Clock:
    """Stands for the time of a device: only its products take any, each `growth` longer than the last."""

    def __init__(self, growth: float) -> None:
        self.now, self._takes, self._growth = 0.0, 0.01, growth
        self._multiply = torch.mm

    def perf_counter(self) -> float:
        return self.now

    def mm(self, *arguments: Any, **named: Any) -> torch.Tensor:
        self.now += self._takes
        self._takes *= 1.0 + self._growth
        return self._multiply(*arguments, **named)


@pytest.mark.parametrize(("growth", "outcome"), [(0.0, Outcome.PASS), (0.02, Outcome.FAIL)])
def test_products_that_take_longer_and_longer_turn_the_slope_red(
    monkeypatch: pytest.MonkeyPatch, growth: float, outcome: Outcome
) -> None:
    clock = Clock(growth)
    monkeypatch.setattr(lasting, "time", clock)
    monkeypatch.setattr(torch, "mm", clock.mm)
    (said,) = lasting.measured(replace(context(0, 1), alone=True), 1.0)
    report = RankReport(0, "here", 0, "cpu", {"series": [said]})
    measurement = Measurement("nodes.slope", {}, World(("here",)), "1", "gloo", (report,), 0.1)
    outcomes = {one.metric: one.outcome for one in judging.judge(measurement, "series").judgements}
    assert outcomes["slope"] is outcome


def test_the_first_wrong_element_is_found_and_described() -> None:
    right = torch.arange(100, dtype=torch.float32)
    found = right.clone()
    found[40:42] = -found[40:42]
    said = series.unlike(context(0, 1), "kernel fp32", found, right, 7, start=1000)
    assert said is not None
    assert (said["collective"], said["first_offset"], said["count"], said["iteration"]) == (
        "kernel",
        1040,
        2,
        7,
    )
    assert said["looks_like"] == "bit 31 flipped in 2 elements"
    assert series.unlike(context(0, 1), "kernel fp32", right, right.clone(), 7) is None


def test_a_nan_is_compared_by_its_bits() -> None:
    nan = torch.full((4,), torch.nan)
    assert series.unlike(context(0, 1), "kernel", nan, nan.clone(), 0) is None
    assert series.unlike(context(0, 1), "kernel", nan, torch.zeros(4), 0) is not None


def test_the_result_of_most_repeats_is_right_even_if_the_first_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = iter([torch.ones(4), *(torch.zeros(4) for _ in range(9))])
    monkeypatch.setattr(repeats, "kernels", lambda device, seed: {"kernel": lambda: [next(results)]})
    said = repeats.repeated(context(0, 1), 10)
    assert [(one["iteration"], one["first_offset"]) for one in said["wrong"]] == [(0, 0)]
    assert said["digests"]["kernel"]["alike"] == 9


def test_products_beside_an_all_reduce_are_multiplied_as_those_that_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ROCm the library that torch prefers may add in another order each time."""
    used, ran = ["cublaslt"], list[str]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(
        torch.backends.cuda, "preferred_blas_library", lambda name="": used.append(name) if name else used[-1]
    )
    product = SimpleNamespace(out=torch.ones(4), run=lambda: ran.append(used[-1]))

    def at_once(i: int) -> None:
        product.run()
        product.out = torch.ones(4)

    exchange = SimpleNamespace(prepare=lambda i: None, check=lambda i: None)
    both: Any = SimpleNamespace(product=product, exchange=exchange, at_once=at_once)
    assert together._checked(context(0, 1), both, 2) == []
    assert (ran, used[-1]) == (["cublas"] * 3, "cublaslt")


def test_digests_tell_one_bit() -> None:
    a, b = torch.zeros(1000), torch.zeros(1000)
    assert repeats.digest(a) == repeats.digest(b)
    b.view(torch.int32)[999] ^= 1
    assert repeats.digest(a) != repeats.digest(b)


def test_a_cpus_model_and_features_tell_it_from_others(tmp_path: Any) -> None:
    texts = {
        "one": "processor : 0\nmodel name : A 100\nflags : fpu avx2\n\nprocessor : 1\n",
        "busy": "processor : 0\nmodel name : A 100\nflags : fpu avx2\ncpu MHz : 2400\n",
        "less": "model name : A 100\nflags : fpu\n",
        "none": "processor : 0\n",
    }
    said = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        said[name] = repeats.kind_of(torch.device("cpu"), str(tmp_path / name))["device"]
    assert said["one"] == said["busy"] != said["less"]
    assert said["one"].startswith("A 100 (")
    assert said["none"] == repeats.kind_of(torch.device("cpu"), "/nowhere")["device"] == ""


def test_devices_that_multiply_with_other_libraries_are_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with another nvidia-cublas computes other bits, and its device is no worse for that."""
    loaded = tmp_path / "nvidia/cublas/lib/libcublas.so.12"
    loaded.parent.mkdir(parents=True)
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 fe:00 42   {loaded}\n7f01-7f02 rw-p 00000000 00:00 0\n")
    said = set()
    for size in (7, 8):
        loaded.write_bytes(bytes(size))
        said.add(repeats.libraries(str(maps)))
    assert said == {"libcublas.so.12 of 7 bytes", "libcublas.so.12 of 8 bytes"}
    gpu = SimpleNamespace(name="H100", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(repeats, "libraries", lambda: "those of 12.8")
    assert repeats.kind_of(torch.device("cuda"))["libraries"] == "those of 12.8"


def test_a_cpu_is_filled_up_to_a_bounded_amount() -> None:
    said = memory.pattern(context(0, 1))["pattern"]
    assert 0 < said["bytes"] <= memory.MOST_BYTES
