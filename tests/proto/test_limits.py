"""One table of time limits: the page and the code say the same, and no limit stands alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from thinwire_proto import limits

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(?P<name>[A-Z_]+)` \| (?P<rule>[^|]+) \| (?P<value>[\d.]+) s \|", re.MULTILINE)
FACTORS = {"R": 1.0, "R/2": 0.5, "R/4": 0.25}
NOT_LIMITS = re.compile(r"TICK_S|KEPT_S|RATE_OVER_S|([A-Z]+_)?EVERY_S")
"""Lengths that nobody waits for: how far the timer fires behind a deadline, and how often something is looked at."""


def test_the_page_says_what_the_code_does() -> None:
    rows = list(ROW.finditer((ROOT / "docs" / "time.md").read_text()))
    told = {row["name"]: (row["rule"].strip(), float(row["value"])) for row in rows}
    named = {name for name in vars(limits) if name.endswith("_S")}
    assert told.keys() == named
    for name, (rule, value) in told.items():
        factor = FACTORS.get(rule) or float(rule.removesuffix(" R"))
        assert value == getattr(limits, name) == factor * limits.ROUND_TRIP_MAX_S, name


def test_no_time_limit_stands_alone_in_the_code() -> None:
    """A named number of seconds or milliseconds anywhere else would be one."""
    found = []
    for room in ("proto", "coordinator", "node"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name == "limits.py" or "_pb2" in path.name:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                    found += [name for name in names if name.endswith(("_S", "_MS")) and not NOT_LIMITS.fullmatch(name)]
                elif isinstance(node, ast.Call) and any(
                    keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant) for keyword in node.keywords
                ):
                    found.append(f"{path.name}:{node.lineno}: timeout")
    assert found == []


@pytest.mark.parametrize("round_s", [0.05, 1.0, 30.0, 86_400.0])
def test_what_follows_from_the_round_fits_into_it(round_s: float) -> None:
    assert limits.margin_s(round_s) + limits.unmeasured_tail_s(round_s) < round_s / 2
    assert limits.void_lasts_s(round_s) <= round_s
    assert limits.ROUND_TRIP_MAX_S <= limits.probe_every_s(round_s) <= limits.HEARTBEAT_S
    assert limits.save_every_s(round_s, round_s) >= 100 * round_s
