"""All time limits are in one table: page, code and the copies outside of Python agree, and no other module defines a
limit of its own."""

from __future__ import annotations

import ast
import re
from inspect import isfunction
from pathlib import Path

import pytest

from thinwire_proto import limits

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(?P<name>[A-Z_]+)` \| (?P<rule>[^|]+) \| (?P<value>[\d.]+) s \|", re.MULTILINE)
FUNCTION_ROW = re.compile(r"^\| `([a-z_]+)` \| [^|]+ \| \|", re.MULTILINE)
FACTORS = {"R": 1.0, "R/2": 0.5, "R/4": 0.25, "R/8": 0.125}
NOT_LIMITS = re.compile(
    r"TICK_S|BAN_S(_MAX)?|LOGIN_S|ATTEMPTS_WITHIN_S|KEPT_S|(RATE|SEEN|SLEPT)_OVER_S|([A-Z]+_)?EVERY_S|BUCKETS_S|BOUNDS_S"
    r"|BURST_S|BUFFER_S|PIECE_S"
)
"""Durations that nobody waits for: timer ticks, polling intervals, bans, logins, bounds of histograms, and how finely
traffic is paced."""


def test_the_page_lists_the_values_of_the_code() -> None:
    rows = list(ROW.finditer((ROOT / "docs" / "time.md").read_text()))
    listed = {row["name"]: (row["rule"].strip(), float(row["value"])) for row in rows}
    named = {name for name in vars(limits) if name.endswith("_S")}
    assert listed.keys() == named
    for name, (rule, value) in listed.items():
        factor = FACTORS.get(rule) or float(rule.removesuffix(" R"))
        assert value == getattr(limits, name) == factor * limits.ROUND_TRIP_MAX_S, name


def test_the_page_lists_every_limit_derived_from_the_round() -> None:
    rows = FUNCTION_ROW.findall((ROOT / "docs" / "time.md").read_text())
    assert sorted(rows) == sorted(name for name, found in vars(limits).items() if isfunction(found))


def own_limits(module: ast.Module) -> list[str]:
    """Limits that a module defines itself: constants with a time suffix, and literal timeouts in calls."""
    found = []
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += [name for name in names if name.endswith(("_S", "_MS")) and not NOT_LIMITS.fullmatch(name)]
    for call in ast.walk(module):
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if "timeout" in (keyword.arg or "") and value is not None:
                found.append(f"line {keyword.lineno}: {keyword.arg}={value!r}")
    return found


def test_no_other_module_defines_a_time_limit() -> None:
    paths = [path for package in ("proto", "coordinator", "node", "planner") for path in (ROOT / package).rglob("*.py")]
    other = [path for path in paths if path.name != "limits.py" and "_pb2" not in path.name]
    assert [f"{path.name}: {found}" for path in other for found in own_limits(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize("round_s", [0.05, 1.0, 30.0, 86_400.0])
def test_limits_derived_from_the_round_fit_into_it(round_s: float) -> None:
    assert limits.margin_s(round_s) + limits.unmeasured_tail_s(round_s) < round_s / 2
    assert limits.void_lasts_s(round_s) <= round_s
    assert limits.ROUND_TRIP_MAX_S <= limits.probe_every_s(round_s) <= limits.HEARTBEAT_S
    assert limits.save_every_s(round_s, round_s) >= 100 * round_s
