"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table that ends with a line break. head: the titles of the columns."""
    title, *lines = (f"| {' | '.join(str(cell) for cell in line)} |" for line in (head, *rows))
    return "\n".join([title, "|---" * len(head) + "|", *lines, ""])
