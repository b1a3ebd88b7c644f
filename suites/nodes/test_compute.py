"""Every device computes as fast as it should, and the right numbers."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import corruption, device_data, devices, peers
from fixtures.check.plan import INSIDE, NODE, Case
from suites.nodes import amounts
from thresholds.units import ARITHMETIC

# What models are trained in: their rates must have a limit. The others are judged where a file has a row.
TRAINED_IN = ("fp16", "bf16")
MATMUL = [
    Case(
        "nodes.matmul", (dtype,), {"dtype": dtype}, {"dtype": dtype}, 2.0, compared=True, amounts=amounts.most
    )
    for dtype in ARITHMETIC
]
TRAINED = [case for case in MATMUL if case.parameters["dtype"] in TRAINED_IN]
OTHERS = [case for case in MATMUL if case not in TRAINED]
# Each is in the table of a module beside this one: suites/nodes/compute/rounded.py and whole.py.
HELD = [
    *("linear", "matmul", "silu", "softmax", "attention", "norm", "cross_entropy", "sums"),
    *("embedding", "index_add", "to_bf16", "to_fp16", "from_bf16", "from_fp16", "rand", "dropout"),
    *("order", "counts", "largest"),
]
SLOPE = [Case("nodes.slope", (), {"seconds": {"cpu": 0.5, "cuda": 10.0}}, weight=4.0)]
KERNELS = [Case("nodes.kernels", (), {"kernels": HELD})]
OVERLAP = [Case("nodes.overlap", (), {"repeats": 10})]
SIZES = {
    "cpu": {"vocab": 64, "width": 32, "layers": 2, "heads": 4, "hidden": 64, "batch": 2, "length": 32},
    "cuda": {
        "vocab": 32000,
        "width": 4096,
        "layers": 4,
        "heads": 32,
        "hidden": 11008,
        "batch": 2,
        "length": 2048,
    },
}
TRAINING = [Case("nodes.training", (), {"sizes": SIZES, "steps": 20}, weight=4.0, compared=True)]


@over(
    TRAINED,
    NODE,
    ask=requests.step,
    judges=[corruption.right("products"), devices.figures, peers.of_devices],
    metrics=("tflops",),
)
def test_matrix_products_hold_their_floor(check: Check) -> None:
    """Operations per second of each device, all at once and alone: the slowest must hold the floor.

    None may lie far behind its equals either.
    """
    check.run()


@over(
    OTHERS, NODE, ask=requests.step, judges=[corruption.right("products"), devices.figures, peers.of_devices]
)
def test_other_matrix_products_are_right(check: Check) -> None:
    """The same in other dtypes: exact, and as fast as the hardware file says where it says something."""
    check.run()


@over(KERNELS, NODE, ask=requests.step, judges=[device_data.kernels])
def test_kernels_hold_to_arithmetic_written_out(check: Check) -> None:
    """Products, activations, attention, casts, draws and sorts are what they should be, but for rounding.

    What compares a step with the same kernels on the same node would not see one that is wrong.
    """
    check.run()


@over(SLOPE, NODE, ask=requests.step, judges=[devices.figures])
def test_speed_lasts(check: Check) -> None:
    """Products without a pause do not become slower."""
    check.run()


@over(OVERLAP, INSIDE, ask=requests.step, judges=[corruption.right("products and sums"), devices.figures])
def test_computing_beside_communication_stays_right(check: Check) -> None:
    """Products and an all_reduce at the same time: both exact, and how much they slow each other."""
    check.run()


@over(TRAINING, NODE, ask=requests.step, judges=[device_data.learning, devices.figures, peers.of_devices])
def test_a_model_learns(check: Check) -> None:
    """The loss of a transformer falls, and the share of the device that training uses is on record."""
    check.run()
