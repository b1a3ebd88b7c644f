"""Who imports whom in this code base, as data: a row for every part, each with its reason."""

from __future__ import annotations

from tests.house.imports import HOUSE, RECORDS, Room

SENT = ("fixtures.wire", "fixtures.node", "fixtures.ranks")
CHECKING = ("fixtures.wire", "fixtures.transport", "fixtures.cluster", "fixtures.check")
READ = ("thresholds", *RECORDS)
_FAMILIES = ("context", "expert", "mesh", "mesh.moe", "pipeline", "tensor", "zero")
_ORDERS = ("suites.pipeline.schedules",)
ISSUED = (
    *(f"suites.{family}.issued" for family in _FAMILIES),
    *(f"suites.{family}.held" for family in ("expert", "mesh.moe", "zero")),
    *(f"suites.{family}.figures" for family in ("pipeline", "expert.disaggregated")),
    "suites.nodes.amounts",
    "suites.mesh.layout",
)
SAYING = ("jinja2", "markupsafe", "junitparser", "matplotlib", "pydantic", "pydantic_core")

# The first row whose glob matches a file counts. Each package imports from its own floor only itself.
ROOMS = (
    Room("conftest.py", ("fixtures.run.plugin", "fixtures.run.first"), (), "a few lines: which plugins"),
    Room("fixtures/__init__.py", (), (), "a package is its modules"),
    Room("fixtures/wire/**/*.py", SENT[:1], (), "floor 1, sent: what all sides say, in the standard library"),
    Room("fixtures/node/facts.py", SENT[:2], ("torch",), "asks torch, where somebody waits for the answer"),
    Room("fixtures/node/**/*.py", SENT[:2], (), "floor 2, sent: the supervisor knows no torch"),
    Room(
        "fixtures/transport/**/*.py",
        ("fixtures.wire", "fixtures.transport"),
        ("paramiko", "cryptography"),
        "floor 2: reaches machines and knows of no rank",
    ),
    Room("fixtures/ranks/**/*.py", SENT, ("torch",), "floor 3, sent: where there is Python and torch"),
    Room(
        "fixtures/cluster/**/*.py",
        (*CHECKING[:3], "fixtures.node.processes", "reports.text", *RECORDS),
        (),
        "floor 3: measures on nodes, and judges nothing",
    ),
    Room(
        "fixtures/check/**/*.py",
        (*CHECKING, "reports.text", "reports.compare.earlier", *READ),
        ("pytest",),
        "floor 4: one check, planned and judged",
    ),
    Room(
        "fixtures/blame/**/*.py",
        (*CHECKING, "fixtures.blame", *READ),
        ("pytest",),
        "floor 5: finds the part that is bad; asks for measurements, and makes none",
    ),
    Room(
        "fixtures/run/first.py",
        ("reports.begin", "reports.hold"),
        ("pytest",),
        "leaves a red report before anything else, so it imports nothing that may be missing",
    ),
    Room("fixtures/run/**/*.py", ("fixtures", "thresholds", "reports"), ("pytest",), "floor 6: the run"),
    Room("suites/pipeline/schedules.py", (), (), "sent, and read by the controller: pure orders"),
    Room("suites/mesh/layout.py", (), (), "sent, and read by the controller: how ranks lie along axes"),
    Room("suites/pipeline/simulator.py", _ORDERS, (), "sent, and read by the controller: orders in time"),
    *(
        Room(
            f"suites/**/{name}.py",
            ("fixtures.wire", *_ORDERS, "suites.pipeline.simulator", *ISSUED),
            (),
            "sent, and read by the controller: what both compute of a step, of parameters and world alone",
        )
        for name in ("issued", "held", "figures", "amounts")
    ),
    Room(
        "suites/**/test_*.py",
        ("fixtures.wire", "fixtures.check", "fixtures.blame.selfcheck", *ISSUED, *READ),
        ("pytest",),
        "says what must hold, on the controller, without torch",
    ),
    Room(
        "suites/**/*.py", (*SENT, "suites"), ("torch",), "sent to the nodes, where there is Python and torch"
    ),
    Room("thresholds/calibrate/*.py", ("thresholds", "reports"), (), "pure, and reads the journals of runs"),
    Room(
        "thresholds/**/*.py",
        ("thresholds", "fixtures.wire.collectives", "reports.record"),
        ("pydantic",),
        "pure: no pytest, no network",
    ),
    Room("reports/**/*.py", ("reports",), SAYING, "a leaf"),
    Room(
        "tests/**/*.py",
        HOUSE,
        ("cryptography", "hypothesis", "junitparser", "paramiko", "pydantic", "pytest", "torch"),
        "tests may look at everything, with the packages that pyproject.toml names",
    ),
)
