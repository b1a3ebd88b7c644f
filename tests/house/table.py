"""The rules of this house as data: who imports whom, and where a habit is excepted, each with its reason."""

from __future__ import annotations

from tests.house import habits
from tests.house.habits import EVERYWHERE, LIBRARY, Habit
from tests.house.imports import HOUSE, RECORDS, Room

NODE = "it is sent to the nodes as it is, where there is Python and torch and nothing else"
LIBRARY_OF_NODES = "a library: it reaches machines, without pytest, and judges nothing"
ALL = ("fixtures", *RECORDS)

# Where pytest meets the house.
FACING = {
    "acceptance": "pytest's hooks of a run",
    "check": "the fixture that a test takes",
    "console": "writes between pytest's own lines",
    "ledger": "sees what pytest collected and deselected",
    "outcome": "makes four outcomes out of pytest's many",
    "plan": "makes pytest items of cases and places",
    "plugin": "what conftest.py names",
    "selfcheck": "the fixture that a test of the self-check takes",
    "selfcheck_first": "sees that pytest leaves the self-check in",
}
# Where a measurement meets its limit.
JUDGING = {
    "busy": "tells a missed speed from other figures",
    "peers": "holds nodes and devices against their equals",
    "peers_shown": "says in the units of limits how far a device is behind its equals",
    "device_data": "tells numbers from what is none, as limits do",
    "devices": "holds what every device of a node measured against limits",
    "parallel": "holds the parts of a parallel step against closed forms and limits",
    "inventory": "holds what a node's supervisor read against its hardware file",
    "inventory_ports": "tells by the hardware file which ports are the fabric's",
    "foresight": "tells which planned cases have no limit",
    "judging": "holds measurements against limits",
    "selfcheck_limits": "makes limits of healthy samples",
    "recognition": "finds the hardware file that a node answers to",
    "target": "asks the hardware file what is absent",
}

# The first row whose glob matches a file counts.
ROOMS = (
    Room("conftest.py", ("fixtures.plugin",), (), "a few lines: which plugins"),
    Room("fixtures/remote/**/*.py", ("fixtures.remote",), ("torch",), NODE),
    Room("suites/*/steps.py", ("fixtures.remote",), ("torch",), NODE),
    Room("suites/**/*.py", ("suites", "thresholds", *ALL), ("pytest",), "suites say what must hold"),
    *(Room(f"fixtures/{name}.py", ALL, ("pytest",), why) for name, why in FACING.items()),
    *(Room(f"fixtures/{name}.py", (*ALL, "thresholds"), (), why) for name, why in JUDGING.items()),
    Room(
        "fixtures/options.py",
        (*ALL, "thresholds"),
        ("pytest",),
        "loads the files that the command line names",
    ),
    Room(
        "fixtures/session.py", ("fixtures", "reports"), ("pytest",), "ends the run: decides, renders, sums up"
    ),
    Room(
        "fixtures/first.py",
        ("reports.begin", "reports.hold"),
        ("pytest",),
        "leaves a red report before anything else, so it imports nothing that may be missing",
    ),
    Room(
        "fixtures/wake.py",
        ("fixtures", "reports"),
        ("pytest",),
        "says all that is wrong with a beginning",
    ),
    Room("fixtures/cluster.py", (*ALL, "reports.clean"), (), "keeps whole outputs in logs, free of escapes"),
    Room("fixtures/blame/links*.py", (*ALL, "thresholds"), (), "tells by the hardware file what links do"),
    Room("fixtures/blame/*.py", ALL, (), "finds the part that is bad; asks for measurements, and makes none"),
    Room("fixtures/*.py", ALL, ("paramiko", "cryptography"), LIBRARY_OF_NODES),
    Room("thresholds/calibrate*.py", ("thresholds", "reports"), (), "pure, and reads the journals of runs"),
    Room("thresholds/*.py", ("thresholds", "reports.record"), ("pydantic",), "pure: no pytest, no network"),
    Room("reports/*.py", ("reports",), ("jinja2", "markupsafe", "junitparser", "matplotlib"), "a leaf"),
    Room(
        "tests/**/*.py",
        HOUSE,
        ("cryptography", "hypothesis", "junitparser", "paramiko", "pydantic", "pytest", "torch"),
        "tests may look at everything, with the packages that pyproject.toml names",
    ),
)

HABITS = (
    Habit(
        "a sleep in place of a condition",
        habits.sleeps,
        EVERYWHERE,
        "wait for the thing itself, with a deadline",
        {
            "fixtures/remote/processes.py": "wait_until: what nothing announces is polled, in one place",
            "fixtures/remote/evidence.py": "until: the same between tasks, which must not stop each other",
            "fixtures/remote/supervisor.py": "the tick of its loop: beats and the lease",
            "fixtures/remote/calibrated.py": "lasting is the work there, and nothing is waited for",
            "tests/fixtures/remote/test_timing.py": "iterations of a known length are what it times",
        },
    ),
    Habit("a shell", habits.shells, EVERYWHERE, "pass an argument list"),
    Habit(
        "a broad except",
        habits.broad_except,
        EVERYWHERE,
        "name what can go wrong",
        {
            "fixtures/remote/worker.py": "a step may raise anything, and all of it is evidence",
            "reports/render.py": "a page that cannot be drawn costs the page, not the verdict",
            "tests/fixtures/remote/gloo_world.py": "a forked rank hands whatever it raised to its parent",
        },
    ),
    Habit(
        "print in library code",
        habits.calls("print"),
        LIBRARY,
        "return it, or hand it to the console",
        {
            "reports/__main__.py": "a command line",
            "reports/begin.py": "a command line, on standard error: why nothing can begin",
            "reports/render.py": "on standard error: why there is no page",
        },
    ),
    Habit(
        "a skip or an expected failure",
        habits.skips,
        EVERYWHERE,
        "let it say what it found",
        {
            "fixtures/outcome.py": "Declared is the one skip that is a verdict; any other is told from it",
            "tests/fixtures/remote/test_ports.py": "a kernel without IPv6 has none to try",
            "tests/lab/pytest_support.py": "where no lab can be made; on a CI server that is a failure",
        },
    ),
    Habit("evaluation of data", habits.evaluates, LIBRARY, "parse it"),
)
