"""Kernels held to arithmetic written out: healthy ones keep every bound, and each that is wrong is named."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from fixtures.check.judges import corruption, device_data
from fixtures.check.outcome import Evidence, Rejected
from fixtures.cluster.measurement import Measurement, Unchecked
from fixtures.ranks.steps import Unsupported
from reports.record import BlameKind
from suites.nodes import test_compute
from suites.nodes.compute import kernels
from suites.nodes.compute.rounded import ROUNDED, total
from suites.nodes.compute.whole import WHOLE, to_bf16, to_fp16
from tests.fixtures.check.answered import aimed, answered
from tests.fixtures.check.answered import measured as of_ranks
from tests.fixtures.ranks.gloo_world import context
from tests.suites.parallel import assert_green
from tests.teeth.bug import Maker, Patch, planted, replacing
from tests.teeth.patches import kernels as patches

CASE = test_compute.KERNELS[0]
TABLE = {**ROUNDED, **WHOLE}
FORMS = {f"{name} {form}" for name, kernel in TABLE.items() for form in kernel.forms}


def held(*names: str, seed: int = 7, rank: int = 0) -> dict[str, Any]:
    """What a rank says of some kernels, or of all of them."""
    ctx = context(rank, rank + 1)
    ctx.seed = seed
    return kernels.measured(ctx, TABLE, names or list(TABLE))


@pytest.mark.parametrize("size", [1, 2])
def test_healthy_devices_are_green_and_leave_nothing_out(size: int) -> None:
    [ranks] = assert_green(size, [(CASE.step, CASE.parameters)], parts=("wrong", "kernels"))
    for rank in ranks:
        assert rank["kernels"].keys() == FORMS
        assert [one for one in rank["kernels"].values() if not isinstance(one, float)] == []


def test_the_plan_names_every_kernel_of_the_tables() -> None:
    assert [*ROUNDED, *WHOLE] == test_compute.HELD


@pytest.mark.parametrize("seed", range(1000, 1003))
def test_no_draw_of_operands_breaks_a_bound(seed: int) -> None:
    assert held(seed=seed)["wrong"] == []


# what is wrong


def given(change: Callable[[torch.Tensor], Any]) -> Maker:
    """Hand the kernel other operands than it is given."""
    return lambda original: (
        lambda *args, **kwargs: original(
            *(change(one) if isinstance(one, torch.Tensor) else one for one in args), **kwargs
        )
    )


def found(change: Callable[[Any], Any]) -> Maker:
    """Change what the kernel finds."""
    return lambda original: lambda *args, **kwargs: change(original(*args, **kwargs))


def in_tf32(value: torch.Tensor) -> torch.Tensor:
    """Ten bits of fp32's mantissa."""
    fixed = value.detach()
    if fixed.dtype is not torch.float32:
        return value
    return value + ((fixed.view(torch.int32) & ~0x1FFF).view(torch.float32) - fixed)


def one_up(value: torch.Tensor) -> torch.Tensor:
    """The next number of bf16, as if it were not rounded to the nearest."""
    return (value.view(torch.int16) + 1).view(value.dtype) if value.dtype is torch.bfloat16 else value


@replacing
def without_mask(original: Any, *args: Any, is_causal: bool) -> Any:
    """Attend to what comes later too."""
    assert is_causal
    return original(*args)


@replacing
def one_mask(original: Any, x: torch.Tensor, share: float) -> torch.Tensor:
    """Every second element is dropped."""
    return x / share * (torch.arange(x.numel()) % 2)


ATTENTION = "scaled_dot_product_attention"
WRONG: list[tuple[str, Patch, str, str]] = [
    ("fp8 instead of bf16", patches.products_of_fp8, "linear output", "bf16"),
    ("fp8 of batches", planted(torch, "matmul", given(patches.in_fp8)), "matmul output", "bf16"),
    ("tf32 instead of fp32", planted(functional, "linear", given(in_tf32)), "linear output", "fp32"),
    ("tf32 of batches", planted(torch, "matmul", given(in_tf32)), "matmul output", "fp32"),
    ("not the nearest product", planted(torch, "matmul", found(one_up)), "matmul output", "bf16"),
    ("another constant", patches.silu_of_another_constant, "silu output", "fp32"),
    ("another slope", patches.silu_of_another_constant, "silu gradient", "fp32"),
    ("no numbers", planted(functional, "silu", found(lambda x: x * math.nan)), "silu output", "fp64"),
    ("another base", planted(functional, "softmax", given(lambda x: x * 1.001)), "softmax output", "fp32"),
    ("another scale", planted(functional, ATTENTION, given(lambda x: x * 1.1)), "attention output", "bf16"),
    ("no mask", planted(functional, ATTENTION, without_mask), "attention output", "bf16"),
    ("an inexact root", planted(torch, "rsqrt", found(lambda x: x * 1.0001)), "norm output", "fp32"),
    (
        "an inexact loss",
        planted(functional, "cross_entropy", found(lambda x: x * 1.001)),
        "cross_entropy output",
        "fp32",
    ),
    ("a sum without a term", planted(torch.Tensor, "sum", given(lambda x: x[:, 1:])), "sums sum", "fp32"),
    ("other rows", planted(functional, "embedding", given(lambda x: x.flip(0))), "embedding output", "fp32"),
    (
        "rows that are not added",
        planted(torch.Tensor, "index_add", lambda _: torch.Tensor.index_copy),
        "index_add output",
        "fp32",
    ),
    ("casts that cut off", patches.casts_cut_off, "to_bf16 by to", "fp32"),
    ("copies that cut off", patches.casts_cut_off, "to_bf16 by copy_", "fp32"),
    ("no bits", planted(torch.Tensor, "float", found(lambda x: x * 2)), "from_fp16 values", "fp16"),
    ("seeds are ignored", patches.seeds_ignored, "rand draws alike with two seeds", "fp32"),
    ("uneven draws", planted(torch, "rand", found(lambda x: x * 0.95)), "rand share below 0.5", "fp32"),
    (
        "one mask for all",
        planted(functional, "dropout", one_mask),
        "dropout share alike in two masks",
        "fp32",
    ),
    (
        "places that are not the numbers'",
        planted(torch.Tensor, "sort", found(lambda x: (x[0], x[1].flip(1)))),
        "order places",
        "int64",
    ),
    ("the smallest", planted(torch.Tensor, "topk", given(lambda x: -x)), "order largest", "bf16"),
    ("one too many", planted(torch, "bincount", found(lambda x: x + 1)), "counts bincount", "int64"),
    ("too few", planted(torch, "bincount", found(lambda x: x[1:])), "counts bincount", "int64"),
    (
        "no number is passed over",
        planted(torch.Tensor, "amax", given(lambda x: x.nan_to_num(-9.0))),
        "largest amax",
        "bf16",
    ),
]


@pytest.mark.parametrize(("patch", "named", "form"), [pytest.param(*row[1:], id=row[0]) for row in WRONG])
def test_a_wrong_kernel_is_red_and_named(patch: Patch, named: str, form: str) -> None:
    kernel = named.partition(" ")[0]
    with patch():
        said = held(kernel)
    assert named in [one["collective"] for one in said["wrong"]]
    assert said["kernels"][f"{kernel} {form}"] > 1.0


def test_bf16_products_made_of_fp8_are_far_out() -> None:
    with patches.products_of_fp8():
        assert held("linear")["kernels"]["linear bf16"] > 10.0


def test_the_device_that_is_wrong_is_named() -> None:
    good = held("silu")
    with patches.silu_of_another_constant():
        bad = held("silu", rank=1)
    ranks = of_ranks(CASE.step, ["n1", "n1"], [good, bad], device="GPU").ranks
    evidence = Evidence(nodes=("n1",))
    words = r"rank 1 on n1 \(GPU-1\): silu output fp64 of 65536 bytes, .* an error of \S+ times its bound"
    with pytest.raises(Rejected, match=words):
        corruption.refuse(ranks, evidence)
    [blame] = evidence.blame
    assert (blame.kind, blame.nodes, blame.rank, blame.device) == (BlameKind.WRONG_DATA, ("n1",), 1, "GPU-1")


def test_what_is_no_number_is_told_as_it_is() -> None:
    with planted(functional, "silu", found(lambda x: x * math.nan))():
        wrong = held("silu")["wrong"][0]
    assert (wrong["found"], wrong["looks_like"], wrong["count"]) == ("nan", "", 64 * 128)


# what is lacking


def test_a_dtype_that_the_library_lacks_is_left_out_and_told() -> None:
    @replacing
    def lacking(original: Any, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float16:
            raise NotImplementedError("\"silu_cpu\" not implemented for 'Half'")
        done: torch.Tensor = original(x)
        return done

    with planted(functional, "silu", lacking)():
        said = held("silu")
    assert said["wrong"] == []
    assert "not implemented for 'Half'" in said["kernels"]["silu fp16"]
    assert isinstance(said["kernels"]["silu bf16"], float)


def test_a_dtype_that_the_device_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(form: str, device: torch.device) -> None:
        if form == "bf16":
            raise Unsupported(f"{device.type} has no bf16 of its own")

    monkeypatch.setattr(kernels, "refuse", refuse)
    ctx = context(0, 1)
    ctx.device = torch.device("meta")
    kernel = kernels.Kernel(lambda given: [], list, dict, ("bf16", "fp16"))
    said = kernels.measured(ctx, {"none": kernel}, ["none"])["kernels"]
    assert said == {"none bf16": "meta has no bf16 of its own", "none fp16": 0.0}


def test_any_other_error_is_no_lack() -> None:
    @replacing
    def fails(_original: Any, *_: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    with planted(functional, "silu", fails)(), pytest.raises(RuntimeError, match="illegal memory access"):
        held("silu")


def measurement(*said: Any, asked: tuple[str, ...] = ("silu", "rand")) -> Measurement:
    results = [{"wrong": [], "kernels": each} for each in said]
    return of_ranks(CASE.step, ["n1"] * len(said), results, {"kernels": asked}, device="GPU", backend="nccl")


def judged(measured: Measurement) -> Any:
    target = aimed(measured)
    return device_data.kernels(answered(measured, target))


def test_kernels_that_were_held_pass_and_what_was_left_out_is_told() -> None:
    good = {"silu bf16": 0.4, "rand fp32": 0.0}
    without = good | {"silu bf16": "it has none"}
    findings = judged(measurement(without, without))
    [told] = findings.judgements
    assert told.sentence == (
        "the kernels of 2 ranks are right, but for what rounding explains; "
        "left out are silu bf16 (it has none)"
    )
    assert findings.recorded["kernels"][0] == without
    assert "left out" not in judged(measurement(good)).judgements[0].sentence


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "does not say its kernels"),
        ({"silu bf16": 0.4}, "does not say whether its rand is right"),
        ({"silu bf16": "it has none", "rand fp32": "it has none"}, "held none of its kernels to anything"),
        ({"silu bf16": 0.4, "rand fp32": [1]}, "says something else of its kernels"),
        (
            {"silu bf16": "it has none", "rand fp32": 0.0},
            r"held other kernels .*\(silu bf16\)",
        ),
    ],
)
def test_a_rank_that_does_not_say_how_right_it_is_costs_its_node_the_verdict(said: Any, why: str) -> None:
    good = {"silu bf16": 0.4, "rand fp32": 0.0}
    with pytest.raises(Unchecked, match=rf"rank 1 on n1.* {why}"):
        judged(measurement(good, said))


# what is right


def test_the_right_half_of_any_number_is_pythons() -> None:
    numbers, bits = WHOLE["to_fp16"].operands(
        kernels.Given(context(0, 1).device, torch.float32, torch.Generator())
    )
    right = to_fp16(numbers, bits)["by to"].value.tolist()
    for number, found_bits in zip(numbers.tolist(), right, strict=True):
        if math.isnan(number):
            assert found_bits == 0x7FFF
        elif abs(number) < 65520:  # Python refuses what becomes infinite
            assert found_bits == int.from_bytes(struct.pack("<e", number), "little")
        else:
            assert found_bits & 0x7FFF == 0x7C00


@pytest.mark.parametrize(
    ("bits", "right"),
    [
        (0x3F800000, 0x3F80),
        (0x3F807FFF, 0x3F80),
        (0x3F808000, 0x3F80),  # the middle: to even, which is below
        (0x3F808001, 0x3F81),
        (0x3F818000, 0x3F82),  # the middle: to even, which is above
        (0x7F7F8000, 0x7F80),  # beyond the largest
        (0x7F800000, 0x7F80),
        (0x7FC00001, 0x7FFF),
        (0x3F808001 - (1 << 31), 0xBF81),
    ],
)
def test_the_right_bits_of_bf16_are_the_nearest_even(bits: int, right: int) -> None:
    assert to_bf16(torch.zeros(1), torch.tensor([bits]))["by to"].value.tolist() == [right]


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_sums_by_halves_are_sums(count: int) -> None:
    assert total(torch.arange(2 * count).view(count, 2), 0).tolist() == [count * (count - 1), count * count]


def test_sums_are_asked_for_in_fp32_for_a_while() -> None:
    flags = torch.backends.cuda.matmul
    before = flags.allow_bf16_reduced_precision_reduction, flags.allow_fp16_reduced_precision_reduction
    with kernels.sums_in_fp32():
        assert not flags.allow_bf16_reduced_precision_reduction
        assert not flags.allow_fp16_reduced_precision_reduction
    assert before == (
        flags.allow_bf16_reduced_precision_reduction,
        flags.allow_fp16_reduced_precision_reduction,
    )
