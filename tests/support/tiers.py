"""Two tiers of tests, as a plugin of pytest: `make test` leaves out those that tests/slow.txt names.

A case's cost is the greater of its processor time, that of the processes that it waited for included, and half of the
time that passed: processes of the fork server are nobody's children, and a test that waits keeps a worker busy too.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

LIST = Path(__file__).resolve().parents[1] / "slow.txt"
PROCESSOR_MAX_S = 10.0
"""A test outside the list that takes more processor time than this fails. Far above the second at which a test belongs
on the list, because machines differ."""
ALONE = "tests/compose/"
"""Tests that neither tier has: `make test-compose` runs them."""
COST, SETUP_COST = "cost_s", "setup_cost_s"


def slow_tests() -> frozenset[str]:
    """The names on the list, as path::function or path, relative to the repository."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def name_of(node_id: str) -> str:
    """The name of a test on the list: without its parameters."""
    return node_id.partition("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: on tests/slow.txt, which `make test` leaves out")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = slow_tests()
    for item in items:
        on_list = not listed.isdisjoint((name_of(item.nodeid), item.nodeid.partition("::")[0]))
        if on_list or item.nodeid.startswith(ALONE):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    began = time.monotonic(), _processor_s()
    yield
    item.user_properties.append((SETUP_COST, round(_cost_s(*began), 3)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    began_s, processor_s = time.monotonic(), _processor_s()
    yield
    item.user_properties.append((COST, round(_cost_s(began_s, processor_s), 3)))
    taken_s = _processor_s() - processor_s
    if taken_s > PROCESSOR_MAX_S and "slow" not in item.keywords:
        pytest.fail(f"took {taken_s:.0f} s of processor: make it faster, or add {name_of(item.nodeid)} to {LIST.name}")


def _cost_s(began_s: float, processor_s: float) -> float:
    return max(_processor_s() - processor_s, (time.monotonic() - began_s) / 2)


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
