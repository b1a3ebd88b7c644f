"""Where no lab can be made, its tests are skipped by hand and fail in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NEEDS_A_LAB = """
from tests.lab.pytest_support import require_lab

def test_with_a_lab(require_lab):
    pass
"""


@pytest.mark.parametrize(("ci", "status", "said"), [("", 0, "1 skipped"), ("true", 1, "1 error")])
def test_without_the_programs(tmp_path: Path, ci: str, status: int, said: str) -> None:
    (tmp_path / "test_it.py").write_text(NEEDS_A_LAB)
    environment = {
        **os.environ,
        "PATH": "/nowhere",
        "CI": ci,
        "PYTHONPATH": str(REPOSITORY),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
        "test_it.py",
    ]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, said in done.stdout) == (status, True), done.stdout
    assert "a lab needs ip, tc" in done.stdout
