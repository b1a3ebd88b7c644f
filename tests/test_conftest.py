"""On a CI server a skipped lab test is a failure; anywhere else, and any other skip, is what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

SKIPPED = """
import pytest

@pytest.fixture
def nowhere(): pytest.skip('no root')

@pytest.mark.lab
def test_called(): pytest.skip('no root')

@pytest.mark.lab
@pytest.mark.skipif(True, reason='no root')
def test_marked(): pass

@pytest.mark.lab
def test_set_up(nowhere): pass

def test_of_no_lab(): pytest.skip('no root')
"""


@pytest.mark.parametrize(
    ("ci", "status", "ends"), [("true", 1, "1 failed, 1 skipped, 2 errors"), ("", 0, "4 skipped")]
)
def test_a_lab_test_that_is_skipped_fails_on_ci_alone(
    tmp_path: Path, ci: str, status: int, ends: str
) -> None:
    shutil.copy2(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = lab\n")
    (tmp_path / "test_a.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, ends in done.stdout) == (status, True), done.stdout
    assert done.stdout.count("CI=true, and this lab test was skipped") == (6 if ci else 0)
