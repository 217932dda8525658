"""Write tests/slow.txt from a report of all tests: `make test-all PYTEST_ARGS=--junitxml=FILE`, then this with FILE."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "slow.txt"
CASE_MAX_S, FUNCTION_MAX_S = 1.0, 5.0
"""A test is slow if one of its cases, or all of them together, cost more."""
HEAD = f"""\
# Tests that `make test` leaves out and `make test-all` runs: a case costs more than {CASE_MAX_S:g} s, or all cases of a
# function more than {FUNCTION_MAX_S:g} s (tests/support/tiers.py). Made by `python -m tools.slow_tests`.
"""


def costs(report: Path) -> dict[str, list[float]]:
    """The costs of all cases by test, as path::function."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        for one in case.iter("property"):
            if one.get("name") == "cost_s":
                name = f"{_path(case.get('classname', ''))}::{case.get('name', '').partition('[')[0]}"
                found[name].append(float(one.get("value", "0")))
    return found


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def main() -> None:
    found = costs(Path(sys.argv[1]))
    slow = [name for name, cases in found.items() if max(cases) > CASE_MAX_S or sum(cases) > FUNCTION_MAX_S]
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")
    quick_s = sum(sum(cases) for name, cases in found.items() if name not in slow)
    all_s = sum(map(sum, found.values()))
    print(f"{len(slow)} of {len(found)} tests are slow: {all_s - quick_s:.0f} s of {all_s:.0f} s")


if __name__ == "__main__":
    main()
