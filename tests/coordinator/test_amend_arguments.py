"""What `amend --set` takes, and what it refuses in words."""

from __future__ import annotations

from typing import Any

import pytest

from thinwire_coordinator.cli.amend import change_of
from thinwire_proto.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("schedule.learning_rate = 0.0009", ("schedule.learning_rate", 0.0009)),
        ("round.pace=clock", ("round.pace", "clock")),
        ("data.weights={ wiki = 2.0 }", ("data.weights", {"wiki": 2.0})),
    ],
)
def test_a_value_is_read_as_in_a_run_file(text: str, found: tuple[str, Any]) -> None:
    assert change_of(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps=5", "must be SECTION.KEY=VALUE"),
        ("schedule.learning_rate=nan", "must have finite numbers only"),
        ("demo.k=[inf]", "must have finite numbers only"),
        ("data.weights={ wiki = inf }", "must have finite numbers only"),
        ("schedule.steps=2024-01-01", "must be a number, a text, true or false, or a list or table of these"),
        ("data.held_out={}", "is added with --held-out NAME=FILE"),
    ],
)
def test_what_no_amendment_can_hold_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        change_of(text)
