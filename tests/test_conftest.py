"""On a CI server a skipped lab test is a failure; anywhere else, and any other skip, is what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

BODIES = {
    "called": "def test_lab(): pytest.skip('no root')",
    "marked": "@pytest.mark.skipif(True, reason='no root')\ndef test_lab(): pass",
    "setup": "@pytest.fixture\ndef lab(): pytest.skip('no root')\ndef test_lab(lab): pass",
}


def run(place: Path, text: str, ci: str) -> subprocess.CompletedProcess[str]:
    shutil.copy2(ROOT / "tests" / "conftest.py", place)
    (place / "pytest.ini").write_text("[pytest]\nmarkers = lab\n")
    (place / "test_a.py").write_text(f"import pytest\n{text}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(place), str(place)]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("how", BODIES)
def test_a_lab_test_that_is_skipped_on_ci_fails(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, f"pytestmark = pytest.mark.lab\n{BODIES[how]}", "true")
    assert done.returncode == 1
    assert "CI=true, and this lab test was skipped" in done.stdout
    assert "no root" in done.stdout


@pytest.mark.parametrize(("mark", "ci"), [("pytest.mark.lab", ""), ("pytest.mark.usefixtures()", "true")])
def test_other_skips_stay_skips(tmp_path: Path, mark: str, ci: str) -> None:
    done = run(tmp_path, f"pytestmark = {mark}\n{BODIES['called']}", ci)
    assert done.returncode == 0
    assert "1 skipped" in done.stdout
