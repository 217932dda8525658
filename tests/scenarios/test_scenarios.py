"""Runs every scenario in this folder in virtual time, with the real node and the real coordinator."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulator import virtual_time
from simulator.scenario import BadScenario, Scenario
from simulator.volunteer import Broken
from support.fork_server import beside_the_tests

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def play(text: str, seed: int = 1) -> None:
    async def to_its_end() -> None:
        scenario = Scenario(text, seed)
        try:
            await scenario.run()
        finally:
            scenario.world.close()

    virtual_time.run(to_its_end())


@pytest.mark.timeout(900)  # a thousand nodes take minutes
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    play(path.read_text())


def test_equal_seeds_give_equal_histories() -> None:
    """Each run has its own process, with different string hashes."""
    histories = {}
    for seed, hashing in ((1, 1), (1, 2), (2, 1)):
        command = [sys.executable, "-m", "simulator", "--hours", "0.02", "--nodes", "12", "--churn", "20%"]
        environment = beside_the_tests() | {"PYTHONHASHSEED": str(hashing)}
        done = subprocess.run(
            [*command, "--seed", str(seed)], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        found = re.search(r"every promise holds; history ([0-9a-f]{64})", done.stdout)
        assert found, done.stdout
        histories[seed, hashing] = found[1]
    assert histories[1, 1] == histories[1, 2]
    assert histories[1, 1] != histories[2, 1]


SMALL = "contract pace=barrier length=10s\nstart coordinator\nnodes a\nstart a\nuntil step 3\n"


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("expect counted of a >= 99", Broken, "line 6, 'expect counted of a >= 99': it is"),
        ("expect voids = 3", Broken, "it is 0"),
        ("expect update 1 holds a b", BadScenario, "there is no node"),
        ("expect update 1 lacks a", Broken, "it holds a"),
        ("start nobody", BadScenario, "there is no node 'nobody'"),
        ("dance", BadScenario, "unknown command"),
        ("wait 3 parsecs", BadScenario, "unknown command"),
        ("wait 3parsecs", BadScenario, "is not a number with one of the units"),
    ],
)
def test_a_failing_scenario_names_the_line(line: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        play(SMALL + line)


def test_the_final_check_finds_a_replica_that_differs() -> None:
    """No node has contributed on this replica, so only the final check can find it."""
    with pytest.raises(Broken, match="its replica differs at step"):
        play(SMALL + "wait 1s\nflip a bit of a\n")  # by then the update of step 2 has arrived
