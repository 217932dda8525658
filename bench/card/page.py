"""The page of a card's results."""
from pathlib import Path


def write_page(lines, into: Path) -> None: ...
