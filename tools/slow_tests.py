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
SETUP_MAX_S = 2.0
"""All tests of a file are slow if what one of them needs costs more: the others may need it too."""
HEAD = f"""\
# Tests that `make test` leaves out and `make test-all` runs: a case costs more than {CASE_MAX_S:g} s, or all cases of a
# function more than {FUNCTION_MAX_S:g} s; or what a test of the file sets up costs more than {SETUP_MAX_S:g} s
# (tests/support/tiers.py). Made by `python -m tools.slow_tests`.
"""


def costs(report: Path, kind: str) -> dict[str, list[float]]:
    """The costs of all cases by test, as path::function."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        for one in case.iter("property"):
            if one.get("name") == kind:
                name = f"{_path(case.get('classname', ''))}::{case.get('name', '').partition('[')[0]}"
                found[name].append(float(one.get("value", "0")))
    return found


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def main() -> None:
    """Tests that the report lacks keep their place."""
    found, setups = (costs(Path(sys.argv[1]), kind) for kind in ("cost_s", "setup_cost_s"))
    listed = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    files = {name.partition("::")[0] for name, cases in setups.items() if max(cases) > SETUP_MAX_S}
    files |= {name for name in listed if "::" not in name and not any(other.startswith(name) for other in found)}
    slow = {name for name, cases in found.items() if max(cases) > CASE_MAX_S or sum(cases) > FUNCTION_MAX_S}
    slow |= {name for name in listed if "::" in name and name not in found}
    slow = {name for name in slow if name.partition("::")[0] not in files} | files
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")
    print(f"{len(slow)} tests and files are slow")


if __name__ == "__main__":
    main()
