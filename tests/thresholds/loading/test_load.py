"""A good file is read as it stands; every fault of a bad one is named, with its line, all at once."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path

import pytest

from tests.each import each
from tests.thresholds.files import FIRST, GAP, GOOD, SECOND, changed, faults, loaded
from thresholds.environment import fault, permitted
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, resolve, shipped


def test_a_good_file_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(GOOD)
    hardware = load(path)
    assert (hardware.name, hardware.inside, hardware.path) == ("small", "nvlink", path)
    assert hardware.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    assert hardware.match == {"gpu": ("Some GPU",), "fabric": ("infiniband",)}
    assert hardware.expect == {"gpus_per_node": 2, "nics_per_node": 2, "nic_gigabits_per_s": 400}
    assert hardware.line_rate.links == {"nvlink": 450.0, "network": 50.0}
    assert hardware.sweep.bandwidth == (1 << 20, 8 << 30)
    assert (hardware.sweep.plateau, hardware.sweep.latency) == ((8 << 30,), (16 << 10,))
    assert (hardware.sweep.iterations, hardware.env, hardware.auto) == (20, {"NCCL_IB_HCA": "mlx5"}, True)
    assert hardware.absent == {"gather": "this library has no gather"}


def test_rows_know_their_place_and_source() -> None:
    hardware = loaded()
    first, second = hardware.limits
    assert (first.metrics, first.kind, first.value) == (("busbw",), "min", 80.0)
    assert (first.source, first.date) == ("example/repository@0000000 file:1", datetime.date(2026, 5, 1))
    assert (first.where, second.where) == (f"small.toml:{FIRST}", f"small.toml:{SECOND}")
    assert hardware.gaps[0].where == f"small.toml:{GAP}"
    assert (first.min_samples, first.derived) == (10, False)
    assert second.metrics == ("latency", "latency_p99")


@each(
    ("old", "new", "line", "words"),
    [
        # schema
        ('name = "small"', 'nam = "small"', 2, "unknown key hardware.nam; did you mean name?"),
        ('name = "small"', 'nam = "small"', 1, "hardware.name is missing"),
        ('name = "small"', 'name = "Small File"', 2, "hardware.name"),
        ('about = "two GPUs and a NIC each"', 'about = ""', 3, "hardware.about"),
        ('inside = "nvlink"', 'inside = "warp"', 4, "'warp' is not known; write one of: nvlink, xgmi"),
        ("[expect]", "[expekt]", 10, "unknown section [expekt]; did you mean expect?"),
        ("[match]", "[matched]", 1, "section [match] is missing"),
        ('gpu = "Some GPU"\nfabric = "infiniband"', "", 6, "match"),
        ('gpu = "Some GPU"', "gpu = true", 7, "True is no fact"),
        ('gpu = "Some GPU"', 'Gpu = "Some GPU"', 7, "match"),
        ('gpu = "Some GPU"', "gpu = []", 7, "an empty list matches nothing"),
        ('gpu = "Some GPU"', "gpu = [1.5]", 7, "1.5 is no fact"),
        ('fabric = "infiniband"', 'fabric = "warp"', 6, "fabric is one of: infiniband, roce, efa"),
        ('fabric = "infiniband"', 'fabric = ["roce", "infiniband"]', 6, "fabric is one of"),
        ("gpus_per_node = 2", 'gpus_per_node = 2\ndriver = ">=a"', 12, "'>=a' is no version"),
        ("gpus_per_node = 2", "gpus_per_node = 2\npersistence = 1", 12, "expect.persistence"),
        ("gpus_per_node = 2", 'gpus_per_node = 2\nkernel_log = "any"', 12, "expect.kernel_log"),
        ('inside = "nvlink"', "", 1, "hardware.inside is missing"),
        ('inside = "nvlink"', 'inside = "nvlink"\nwith = ["A B"]', 5, "hardware.with"),
        ('inside = "nvlink"', 'inside = "nvlink"\nwidth = 1', 5, "did you mean with?"),
        ("gpus_per_node = 2", "gpus_per_node = -2", 11, "expect.gpus_per_node"),
        ("gpus_per_node = 2", "gpus_per_node = 2.0", 11, "expect.gpus_per_node"),
        ("gpus_per_node = 2", "gpus = 2", 11, "unknown key expect.gpus; known are: gpus_per_node"),
        ("NCCL_IB_HCA", "nccl", 20, "env.nccl"),
        ('"mlx5"', "5", 20, "env.NCCL_IB_HCA"),
        ("NCCL_IB_HCA", "LD_PRELOAD", 19, "LD_PRELOAD: ranks are given only NCCL_*"),
        ("NCCL_IB_HCA", "LD_LIBRARY_PATH", 19, "LD_LIBRARY_PATH is given with --env alone"),
        ('NCCL_IB_HCA = "', 'NCCL_NET_PLUGIN = "/tmp/', 19, "NCCL_NET_PLUGIN is given with --env alone"),
        ("NCCL_IB_HCA", "NCCL_DEBUG_FILE", 19, "NCCL_DEBUG_FILE is set by the suite"),
        ('"mlx5"', r'"\u001b[2J"', 19, "the value holds control characters"),
        ('gather = "this', 'gathr = "this', 28, "'gathr' is not known"),
        ('gather = "this library has no gather"', 'gather = ""', 28, "absent.gather"),
        ("[[gap]]", "[gap]", GAP, "write [[gap]] with two brackets"),
        ('reason = "nobody measured more than four"', "", GAP, "gap.reason is missing"),
        # units
        ("nvlink = 450.0", "nvlink = 0", 16, "0 is no line rate"),
        ("nvlink = 450.0", "nvlink = nan", 16, "nan is no line rate"),
        ("nvlink = 450.0", 'nvlink = "450"', 16, "is no line rate"),
        ("nvlink = 450.0", "nvlink = true", 16, "True is no line rate"),
        ("network = 50.0", "network = 400.0", 15, "line rates are GB/s, NIC rates are Gb/s"),
        ("network = 50.0", "network = -1.0", 17, "line_rate.network"),
        ("network = 50.0", "network = 50.0\nnetwork_per_node = 100.0", 15, "exclude each other"),
        ("nvlink = 450.0", "pcie = 50.0", 15, '[hardware] inside = "nvlink" has no rate'),
        ('bandwidth = ["1MiB"', 'bandwidth = ["1MB"', 23, "'1MB' is not a size"),
        ('bandwidth = ["1MiB"', "bandwidth = [1048576", 23, "1048576 is not a size"),
        ('["1MiB", "8GiB"]', '["8GiB", "1MiB"]', 23, "the smallest first"),
        ('["1MiB", "8GiB"]', '["8GiB", "8GiB"]', 23, "each size once"),
        ('plateau = ["8GiB"]', "plateau = []", 24, "sweep.plateau"),
        ('plateau = ["8GiB"]', 'plateau = ["4GiB"]', 24, "4GiB is not in the sweep"),
        ('latency = ["16KiB"]', "iterations = 9", 22, "sweep.latency is missing"),
        ('latency = ["16KiB"]', "iterations = 9", 25, "sweep.iterations"),
        # rows
        (
            'metric = "busbw"',
            'metric = "busbandwidth"',
            31,
            "'busbandwidth' is not known; write one of: busbw,",
        ),
        ('metric = "busbw"', "metric = []", 31, "limit.metric"),
        ('metric = "busbw"', 'metric = ["busbw", "copy", "tflops"]', FIRST, "metrics of different units"),
        ('collective = "all_reduce"', 'collective = "allreduce"', 32, "'allreduce' is not known here"),
        ('collective = "all_reduce"', 'colective = "all_reduce"', 32, "did you mean collective?"),
        ('collective = "all_reduce"', 'dtype = "float"', 32, "'float' is not known here"),
        ('collective = "all_reduce"', 'algorithm = "magic"', 32, "'magic' is not known here"),
        ('path = "network"', 'path = "wires"', 33, "'wires' is not known here"),
        ('path = "network"', 'path = "xgmi"', FIRST, "path xgmi does not exist here"),
        ('path = "network"', 'path = "nvlink"', FIRST, "path nvlink never has nodes = 2..4"),
        ('nodes = "2..4"', 'nodes = "4..2"', 34, "write the smaller end first"),
        ('nodes = "2..4"', "nodes = 0", 34, "0 is not a count"),
        ('nodes = "2..4"', "nodes = true", 34, "True is not a count"),
        ('nodes = "2..4"', 'nodes = "a few"', 34, "'a few' is not a count"),
        ('nodes = "2..4"', "nodes = []", 34, "an empty list matches nothing"),
        ('nodes = "2..4"', 'nodes = ">=two"', 34, "'two' is not a count"),
        ('size = "8GiB"', 'size = "8 GB"', 35, "'8 GB' is not a size"),
        ('size = "8GiB"', 'size = ">=16GiB"', FIRST, ">=16GiB matches no size of the sweep"),
        ("min = 80.0", "", FIRST, "this one has none of them"),
        ("min = 80.0", "min = 80.0\nmax = 90.0", FIRST, "this one has min and max"),
        ("min = 80.0", "min = 80.0\nmin_of_bound = 0.5", FIRST, "this one has min and min_of_bound"),
        ("min = 80.0", "max = 80.0", FIRST, "max is no limit for busbw, of which more is better"),
        ("max = 100.0", "min = 100.0", SECOND, "min is no limit for latency, of which less is better"),
        ("max = 100.0", "min_of_bound = 0.9", SECOND, "latency has no physical bound"),
        ("min = 80.0", "min = inf", 36, "limit.min"),
        ("min = 80.0", "min = 0.0", 36, "limit.min"),
        ("min = 80.0", "min = -1.0", 36, "limit.min"),
        ("min = 80.0", 'min = "80"', 36, "limit.min"),
        ("min = 80.0", "min_of_bound = 1.1", 36, "limit.min_of_bound"),
        ('source = "example/repository@0000000 file:1"', "", FIRST, "limit.source is missing"),
        ('source = "example/repository@0000000 file:1"', 'source = "?"', 37, "'?' says nothing"),
        ("date = 2026-05-01", "", FIRST, "limit.date is missing"),
        ("date = 2026-05-01", 'date = "2026-05-01"', 38, "must be a date without quotes"),
        ("date = 2026-05-01", "date = 2026-05-01T10:00:00", 38, "limit.date"),
        ("date = 2026-05-01", "date = 2026-05-01\nmin_samples = 0", 39, "limit.min_samples"),
        # physics
        (
            "min = 80.0",
            "min = 117.0",
            FIRST,
            "is above 116.7 GB/s, the physical bound of all_reduce over network on 4 node(s) of 2",
        ),
        ("min = 80.0", 'min = 101.0\nalgorithm = "ring"', FIRST, "is above 100 GB/s"),
        ("min = 80.0", 'min = 80.0\nalgorithm = "nvls"', FIRST, "does not say nvls = true"),
        ("network = 50.0", "", FIRST, "[line_rate] says nothing about network"),
        ("gpus_per_node = 2", "", FIRST, "add ranks_per_node to the row, or gpus_per_node to [expect]"),
        ('gather = "this', 'network = "this', FIRST, "path network is declared absent"),
        # overlaps
        ('nodes = ">=5"', 'nodes = ">=4"', GAP, f"busbw: small.toml:{FIRST} matches the same cases"),
        (
            'metric = ["latency", "latency_p99"]\npath = "network"\nmax',
            'metric = "busbw"\nmin',
            SECOND,
            "the same",
        ),
        (
            'metric = ["latency", "latency_p99"]\npath = "network"\nmax = 100.0',
            'metric = "latency"\npath = "network"\nmax = 100.0\nsource = "a/repository@0000000 file:2"\n'
            'date = 2026-05-01\n\n[[limit]]\nmetric = "latency_p99"\npath = "network"\nnodes = 2\nmax = 99.0',
            SECOND,
            "latency_p99 may be 99 (small.toml:47), and latency 100 us: a tail is no faster than the middle",
        ),
    ],
)
def test_a_fault_is_named_with_its_line(old: str, new: str, line: int, words: str) -> None:
    found = faults(changed(old, new))
    assert any(fault.startswith(f"small.toml:{line}: ") and words in fault for fault in found), found


def test_all_faults_are_named_at_once() -> None:
    text = GOOD.replace("nvlink = 450.0", "nvlink = 0").replace("min = 80.0", "minimum = 80.0")
    text = text.replace('plateau = ["8GiB"]', 'plateau = ["8GB"]').replace("max = 100.0", "max = -1.0")
    lines = [int(fault.split(":")[1]) for fault in faults(text)]
    assert lines == sorted(lines)
    assert {16, 24, 36, 43} <= set(lines)


@each(
    ("text", "line", "words"),
    [
        ("[hardware\n", 1, "not TOML"),
        ('[hardware]\nname = "a\n', 2, "not TOML"),
        ("a = 1\na = 2\n", 2, "not TOML"),
        (b"[hardware]\nname = '\xff'\n", 2, "not UTF-8"),
        ("x = " + "[" * 5000, 1, "not TOML"),
        ("x = " + "9" * 5000, 1, "not TOML"),
        ("#" * (1 << 21), 1, "a hardware file has at most"),
        ("", 1, "section [hardware] is missing"),
        ("hardware = 1\nlimit = 2\n", 1, "hardware must be a table"),
        ("limit = [1, 2]\n", 1, "limit must be a table"),
    ],
)
def test_what_is_no_hardware_file_at_all_is_refused(text: str | bytes, line: int, words: str) -> None:
    found = faults(text)
    assert any(fault.startswith(f"small.toml:{line}: ") and words in fault for fault in found), found


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(HardwareFileError, match="No such file"):
        load(tmp_path / "gone.toml")
    with pytest.raises(HardwareFileError, match="directory"):
        load(tmp_path)
    with pytest.raises(HardwareFileError, match="cannot be read"):
        load("a\0b")


def test_line_ends_of_another_system_do_not_matter() -> None:
    assert faults(GOOD.replace("\n", "\r\n")) == []


def test_names_resolve_to_shipped_files_and_paths_to_themselves() -> None:
    assert set(shipped()) >= {"h100-sxm5-ndr400", "lab-200mbit", "cpu-local"}
    assert resolve("cpu-local") == shipped()["cpu-local"]
    assert resolve("./cpu-local") == Path("cpu-local")
    assert resolve("site.toml") == Path("site.toml")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(HardwareFileError, match=r"did you mean h100-sxm5-ndr400\?"):
        resolve("h100-sxm5-ndr200")
    with pytest.raises(HardwareFileError, match=r"did you mean .*h100-roce400 or .* or oci-h100\?"):
        resolve("H100")
    with pytest.raises(HardwareFileError, match=r"known are .*cpu-local, .*h100"):
        resolve("zebra")


def test_an_absolute_floor_needs_a_rate_that_is_known_beforehand() -> None:
    text = changed("nvlink = 450.0", 'nvlink = "measured"').replace(
        'path = "network"\nnodes = "2..4"', 'path = "nvlink"'
    )
    assert any("the bound is the copy rate measured in the same run" in fault for fault in faults(text))
    assert faults(text.replace("min = 80.0", "min_of_bound = 0.1")) == []


def test_a_share_that_could_never_fail_is_refused() -> None:
    text = changed('metric = "busbw"', 'metric = "slow_fraction"').replace("min = 80.0", "max = 1.0")
    assert any("max = 1.0 could never fail" in fault for fault in faults(text))


def test_code_by_its_path_and_files_that_are_written_are_the_operators_to_give() -> None:
    code = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "HSA_TOOLS_LIB")
    found = ("NCCL_CONF_FILE", "FI_PROVIDER_PATH", "UCX_MODULE_DIR")
    written = ("NCCL_TOPO_DUMP_FILE", "UCX_LOG_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    for name in (*code, *found, *written):
        with pytest.raises(ValueError, match=f"{name} is given with --env alone"):
            permitted({name: "/tmp/x.so"})
        assert fault(name, "/tmp/x.so") == ""  # by --env
    data = {"NCCL_TOPO_FILE": "/opt/topo.xml", "NCCL_TUNER_CONFIG_PATH": "/opt/a.textproto"}
    plain = {"NCCL_NET_PLUGIN": "ofi"}
    assert permitted(data | plain) == data | plain
