"""Ceilings of latency let the machines through that published theirs, and no tenfold of it."""

from __future__ import annotations

from reports.record import Outcome
from tests.each import each
from tests.thresholds.files import case, whole
from thresholds.verdict import judge

A100 = "microsoft/superbenchmark@700d650 tests/data/nccl_"
AIC = "ai-dynamo/aiconfigurator@095f58a aic-core/src/aiconfigurator_core/systems/data/"
AWS = "aws-samples/awsome-distributed-training@7217859 micro-benchmarks/nccl-tests/README.md:"
GCP = "GoogleCloudPlatform/cluster-toolkit@1047080 examples/"
MOST = 1.3  # beside a published mean of twenty in a row: each call is timed by itself here
# In us, of small messages or of the smallest that were published.
PUBLISHED = [
    ("aws-p4de", "all_reduce", 2, 164.3, AWS + "159"),
    ("aws-p5", "all_reduce", 2, 69.12, AWS + "194"),
    ("aws-p6-b200", "all_reduce", 4, 358.0, "stas00/ml-engineering@744d01e network/README.md:1404-1423"),
    ("gcp-a3-high", "all_gather", 2, 942.9, GCP + "gke-a3-highgpu/multi-node-test-plan.md:123"),
    ("gcp-a3-mega", "all_gather", 2, 86.95, GCP + "gke-a3-megagpu/README.md:121"),
    (
        "gcp-a3-mega",
        "all_reduce",
        2,
        138.6,
        "lessizzmore/create-a3mega-ztan-fork@02dd8f4 ztan-NCCL-test-result",
    ),
    ("gcp-a3-ultra", "all_gather", 2, 54.07, GCP + "gke-consumption-options/dws-flex-start/README.md:158"),
    ("a100-sxm4-40-hdr200", "all_to_all", 1, 89.0, A100 + "alltoall.log:21"),
    ("a100-sxm4-40-hdr200", "reduce", 1, 36.35, A100 + "reduce.log:20"),
    ("a100-sxm4-80-hdr200", "all_reduce", 1, 22.57, AIC + "a100_sxm"),
    ("h100-sxm5-ndr400", "all_reduce", 1, 15.59, AIC + "h100_sxm"),
    ("h200-ndr400", "all_reduce", 1, 16.01, AIC + "h200_sxm"),
    ("b200-ndr400", "all_reduce", 1, 25.09, AIC + "b200_sxm"),
    ("aws-p6-b300", "all_reduce", 1, 24.64, AIC + "b300_sxm"),
    ("gb200-nvl72-ndr400", "all_reduce", 1, 15.63, AIC + "gb200"),
    ("l40s", "all_reduce", 1, 22.6, AIC + "l40s"),
]


@each(("name", "collective", "nodes", "published_us", "source"), PUBLISHED)
def test_a_ceiling_lets_through_what_was_published_and_not_ten_times_that(
    name: str, collective: str, nodes: int, published_us: float, source: str
) -> None:
    file = whole()[name]
    path, ranks = ("network" if nodes > 1 else file.inside), int(file.expect.get("gpus_per_node", 8))
    asked = case(collective, nodes, path, ranks, size=16 << 10)
    found = [judge(file, "latency", asked, value, 20) for value in (MOST * published_us, 10 * published_us)]
    assert [one.outcome for one in found if one] == [Outcome.PASS, Outcome.FAIL], source
