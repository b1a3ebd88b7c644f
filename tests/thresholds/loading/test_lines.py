"""Every key is found on its line, whatever strings and arrays lie before it."""

from __future__ import annotations

import tomllib

from thresholds.loading.faults import Lines

TEXT = '''# a comment with [brackets] and "quotes
top = 1
[table] # comment
text = """
[not.a.table]
key = 1
"""
array = [
  "]", # another
  1,
]
after = 'single # [quoted]'
inline = { inner = 1 }
[[row]]
first = 1
[[row]]
"second key" = 2
[row.below]
deep = 3
'''


def test_keys_and_tables_are_found_on_their_lines() -> None:
    tomllib.loads(TEXT)
    lines = Lines(TEXT)
    assert lines.of("top") == 2
    assert (lines.of("table"), lines.of("table", "text"), lines.of("table", "array")) == (3, 4, 8)
    assert (lines.of("table", "after"), lines.of("table", "inline", "inner")) == (12, 13)
    assert (lines.of("row", 0), lines.of("row", 0, "first")) == (14, 15)
    assert (lines.of("row", 1), lines.of("row", 1, "second key")) == (16, 17)


def test_what_is_not_there_falls_to_the_nearest_table() -> None:
    assert Lines(TEXT).of("table", "gone", "deeper") == 3
    assert Lines(TEXT).of("elsewhere") == 1
