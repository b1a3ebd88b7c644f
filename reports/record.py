"""The plain records of a run, which are all that other packages pass to the reports.

One run leaves one journal, `results.jsonl`: a JSON object per line, each with a `type` (`run`, `plan`,
`node`, `job`, `check`, `again`, `end`) and, in the first line, the schema version. Everything in `reports/`
is rendered from that file alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

SCHEMA_VERSION = 3
NON_FINITE = ("NaN", "Infinity", "-Infinity")  # how the journal writes numbers that JSON lacks


def _number(value: object) -> object:
    """A number, which the journal writes as a word where it is not finite."""
    return float(value) if isinstance(value, str) and value in NON_FINITE else value


Number = Annotated[float, BeforeValidator(_number)]


class Outcome(str, Enum):
    """The outcome of a check; see README.md. Only `PASS` and a declared `NOT_APPLICABLE` are green."""

    PASS = "pass"
    FAIL = "fail"
    UNCHECKED = "unchecked"
    NOT_APPLICABLE = "n/a"


class BlameKind(str, Enum):
    """What the evidence names. Which of them convict the node they name: see `Blame.convicts`."""

    NODE = "node"
    DEVICE = "device"
    NIC = "nic"
    WRONG_DATA = "wrong data"
    HANG = "hang"
    CRASH = "crash"
    LOST = "lost"
    LINK_DIRECTION = "link direction"
    PATH = "path"
    SCALE = "scale-only"
    FABRIC = "fabric"
    SOFTWARE = "software"


CONVICTING = frozenset({BlameKind.NODE, BlameKind.DEVICE, BlameKind.NIC, BlameKind.WRONG_DATA})
# These may be chance, and convict only if they came back.
RETURNING = frozenset({BlameKind.HANG, BlameKind.CRASH})


@dataclass(frozen=True)
class Blame:
    """The part that the evidence of one check names.

    `nodes` holds one name, or both ends of a path (for a direction: from the first to the second), or all
    behind a bad part of the fabric, or none: what is bad only at scale belongs to no node. `evidence` has the
    observations behind it, one line each, and `confidence` is how sure a search is of it. `proved`: the fault
    came back when the case was run again, or was shown in another way.
    """

    kind: BlameKind
    nodes: tuple[str, ...]
    sentence: str
    rank: int | None = None
    device: str | None = None
    evidence: tuple[str, ...] = ()
    confidence: Number | None = None
    proved: bool = False

    @property
    def of_a_path(self) -> bool:
        """Whether a search or a proof blames what lies between nodes; a hang alone is only a sign.

        That is the path between two, or what joins several to all others.
        """
        sure = self.proved or self.confidence is not None
        paths = self.kind in (BlameKind.PATH, BlameKind.LINK_DIRECTION) and len(self.nodes) == 2
        return sure and (paths or (self.kind is BlameKind.FABRIC and bool(self.nodes)))

    @property
    def convicts(self) -> bool:
        """Whether this convicts one node. A bad path between two nodes convicts neither."""
        kinds = CONVICTING | RETURNING if self.proved else CONVICTING
        return self.kind in kinds and len(self.nodes) == 1


@dataclass(frozen=True)
class Judgement:
    """One metric compared with one limit.

    `value` and `limit_value` are in `unit` (`GB/s`, `us`, ...; "" for ratios and counts). `sentence` can be
    read alone: it says what was measured, what the limit is and by how much it was missed. `case` holds the
    selectors (collective, path, nodes, size in bytes, ...) that found the limit's row.
    """

    metric: str
    outcome: Outcome
    sentence: str
    value: Number | None = None
    unit: str = ""
    limit: str = ""
    limit_value: Number | None = None
    source: str = ""
    case: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """The first line of the journal. `selection` is why this run can accept nobody ("" when it can)."""

    run_id: str
    started: str  # ISO 8601 with zone
    controller: str
    command: tuple[str, ...]
    workload: str
    hardware: str
    hosts: Mapping[str, str]  # node name -> its line in the hosts file
    selection: str = ""
    notes: tuple[str, ...] = ()  # what a reader should know first
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)  # sha256 of the run's inputs
    schema: int = SCHEMA_VERSION
    type: Literal["run"] = "run"


@dataclass(frozen=True)
class PlannedCheck:
    """One check that must report, and the nodes whose verdict rests on it.

    A check without nodes, such as those of the self-check, may speak only for `for_nodes`: the nodes of one
    group, which has its own self-check.
    """

    id: str
    nodes: tuple[str, ...]
    for_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanRecord:
    """Every check that was collected; written before the first connection."""

    checks: tuple[PlannedCheck, ...]
    type: Literal["plan"] = "plan"


READY, SET_ASIDE = "ready", "set aside"
# A property of a check whose answer an earlier run measured: the id of that run.
ORIGIN = "taken over from"
# A fact of a node in a resumed run: its inventory before the first rank of the run that was cut off.
FIRST_INVENTORY = "first_inventory"
BESIDE = "beside"  # key in the inputs of a run: its nodes that take part and are not judged


@dataclass(frozen=True)
class NodeRecord:
    """The state of a node: `ready`, or why it is not: `unreachable`, `busy`, `lost`, ..."""

    name: str
    state: str
    reason: str = ""
    hardware: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    type: Literal["node"] = "node"

    @property
    def sentence(self) -> str:
        """Its state and the reason, in one sentence."""
        return f"{self.name} is {self.state}: {self.reason}".rstrip(": ")


@dataclass(frozen=True)
class JobRecord:
    """One torchrun launch: what each rank reports of itself, and how the job ended ("" while it runs)."""

    id: str
    nodes: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: tuple[Mapping[str, Any], ...] = ()
    start_seconds: Number | None = None
    ended: str = ""
    type: Literal["job"] = "job"


@dataclass(frozen=True)
class Repeat:
    """A check measured again without the nodes that were set aside; it has the fields of a check.

    For `nodes` the last repeat counts. For the nodes that were left out the failure before it still counts.
    """

    nodes: tuple[str, ...]
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    judgements: tuple[Judgement, ...] = ()
    blame: tuple[Blame, ...] = ()
    recorded: Mapping[str, Any] = field(default_factory=dict)
    measurement: Mapping[str, Any] = field(default_factory=dict)
    seconds: Number = 0.0


@dataclass(frozen=True)
class CheckRecord:
    """How one check ended. `reason` is one line that can be read alone; `detail` may have many lines.

    `measurement` holds the raw samples of every rank, `recorded` the derived figures that were not judged.
    """

    id: str
    suite: str  # dotted, JUnit's classname: suites.collectives.test_bandwidth
    name: str  # test_busbw[all_reduce-network]
    nodes: tuple[str, ...]
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    judgements: tuple[Judgement, ...] = ()
    blame: tuple[Blame, ...] = ()
    recorded: Mapping[str, Any] = field(default_factory=dict)
    measurement: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: Number = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)
    attachments: tuple[str, ...] = ()  # always empty: journals of this schema have it
    repeats: tuple[Repeat, ...] = ()
    type: Literal["check"] = "check"

    @property
    def parts(self) -> tuple[CheckRecord | Repeat, ...]:
        """The check and each of its repeats."""
        return (self, *self.repeats)

    @property
    def failed_alone(self) -> bool:
        """Whether it failed on one node and blames no part."""
        return self.outcome is Outcome.FAIL and len(self.nodes) == 1 and not self.blame


@dataclass(frozen=True)
class AgainRecord:
    """More repeats of a check that has reported, made once a later check had named the node at fault."""

    check: str
    repeats: tuple[Repeat, ...]
    type: Literal["again"] = "again"


@dataclass(frozen=True)
class EndRecord:
    """The last line. `cut_short` says why the run ended before its plan was done ("" when it did not)."""

    ended: str
    seconds: Number
    pytest_status: int
    cut_short: str = ""
    type: Literal["end"] = "end"


Record = RunRecord | PlanRecord | NodeRecord | JobRecord | CheckRecord | AgainRecord | EndRecord
