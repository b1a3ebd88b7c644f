from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.record import Outcome
from reports.text import clean, first_line, redact, scrub, write_file
from tests.each import each

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


@each(
    ("dirty", "tidy"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07prompt", "prompt"),
        ("\x1b[\x1b[0m31mnested", "31mnested"),
        ("a\x00b\x08c\x7fd\x9be", "abcd"),
        ("one\r\ntwo\rthree\n\tfour", "one\ntwo\nthree\n\tfour"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("not\ufffe xml\uffff", "not xml"),
        ("gpu\u202e10upg", "gpu10upg"),
    ],
)
def test_terminal_escapes_and_control_bytes_go(dirty: str, tidy: str) -> None:
    assert clean(dirty) == tidy


@given(ANY_TEXT)
def test_clean_text_is_utf8_without_controls_and_stays_as_it_is(text: str) -> None:
    tidy = clean(text)
    assert tidy.encode("utf-8").decode("utf-8") == tidy
    assert not any(character < " " and character not in "\n\t" for character in tidy)
    assert clean(tidy) == tidy


@each(
    "text",
    [
        "WANDB_API_KEY=hunter2",
        "export HF_TOKEN='hunter2 and more'",
        '{"AWS_SECRET_ACCESS_KEY": "hunter2", "x": 1}',
        "MY_PASSWORD: hunter2",
        "--env REGISTRY_TOKEN=hunter2",
        "password=hunter2",
        "api_key=hunter2&x=1",
        "https://ops:hunter2@mirror.example/simple",
        "git+ssh://hunter2@example.org/x",
        "Authorization: Bearer hunter2hunter2",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2 and the rest was cut off",
    ],
)
def test_secrets_are_redacted(text: str) -> None:
    assert "hunter2" not in redact(text)
    assert "[redacted]" in redact(text)


@each(
    "text",
    [
        "host key: SHA256:abcdef changed",
        "test_dispatch[tokens=4096]",
        "gpu01 slots=8 addr=192.168.7.17",
        "tcp://10.0.0.1:29500",
        "ops@10.0.0.17 slots=8",
        "keyhost: unreachable",
        "NCCL_IB_HCA=mlx5",
        "NCCL_IB_PKEY=0x8001 UCX_IB_PKEY=0x1",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_secret_hidden_by_colours_is_still_found() -> None:
    assert "hunter2" not in str(scrub("HF_\x1b[1mTOKEN=hunter2"))


def test_a_variable_named_like_a_secret_loses_its_value_and_a_number_keeps_it() -> None:
    facts = {"HF_TOKEN": "hunter2", "NCCL_DEBUG": "INFO", "tokens": 4096, "nested": {"password": "x"}}
    assert scrub(facts) == {
        "HF_TOKEN": "[redacted]",
        "NCCL_DEBUG": "INFO",
        "tokens": 4096,
        "nested": {"password": "[redacted]"},
    }


@each("hostile", ["A_" * 50_000, "KEY" * 30_000, "a-" * 50_000, '"' * 50_000, "\x1b[" * 50_000])
def test_hostile_text_is_not_slow(hostile: str) -> None:
    began = time.process_time()
    scrub(hostile)
    assert time.process_time() - began < 2.0


def test_words_that_hundreds_of_ranks_say_are_searched_for_secrets_once() -> None:
    """A record of 512 ranks has a million texts, nearly all alike."""

    def cpu_s(words: list[str]) -> float:
        began_s = time.process_time()
        assert scrub([{"what": one} for one in words]) == [{"what": one} for one in words]
        return time.process_time() - began_s

    count = 4000
    different = cpu_s([f"keys of rank {number} (one bucket, bf16)" for number in range(count)])
    assert cpu_s(["keys of rank (one bucket, bf16)"] * count) < 0.5 * different


def test_what_json_lacks_becomes_text() -> None:
    values = [math.nan, math.inf, -math.inf, b"\x00\xff", {3, 1}, Path("a/b"), Outcome.PASS, (1, 2)]
    expected = ["NaN", "Infinity", "-Infinity", "00ff", [1, 3], "a/b", "pass", [1, 2]]
    assert json.loads(json.dumps(scrub(values), allow_nan=False)) == expected


def test_the_first_line_that_says_something_stands_alone() -> None:
    assert first_line("\n  \n a   sentence \nand more") == "a sentence"
    assert first_line("x" * 500, 10) == "x" * 9 + "…"
    assert first_line("") == ""


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "accepted.txt"
    write_file(path, "old\n")

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no"):
        write_file(path, "new\n")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_reports_can_be_read_by_the_ci_server(tmp_path: Path) -> None:
    write_file(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
