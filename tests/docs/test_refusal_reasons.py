"""docs/operating.md explains every word with which a coordinator refuses a call."""

from __future__ import annotations

import re
from pathlib import Path

from thinwire_coordinator.hall.access.door import DoorReason

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


def test_the_page_explains_each_reason() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("### Why a node is refused\n")[2].partition("\n### ")[0]
    first_cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    explained = [word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)]
    assert sorted(explained) == sorted(reason.value for reason in DoorReason)
