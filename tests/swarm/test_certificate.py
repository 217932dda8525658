"""A volunteer asks for a certificate of contribution, which somebody else checks, and lets the model write."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.real import RealSwarm, ended, real_swarm, run_text, until, without_a_centre
from thinwire_proto.identity.contribution_certificate import read_certificate

STEPS = 30
RUNS = {
    "star": run_text(STEPS),
    "gossip": run_text(STEPS, length_ms=1000, rounds='pace = "clock"') + without_a_centre(2, 4, topology="complete"),
}


def asked(*arguments: str | Path, command: str = "certificate") -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).parent / "thinwire-node"), command, *map(str, arguments)]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("exchange", RUNS)
def test_what_a_node_gave_is_certified_after_a_restart_of_the_coordinator(tmp_path: Path, exchange: str) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(RUNS[exchange])
        nodes = {name: swarm.node(name) for name in ("first", "second")}
        assert [ended(node) for node in nodes.values()] == [0, 0]
        coordinator.end(8.0)
        swarm.coordinator(None)
        until(lambda: swarm.status().HasField("whole"), "the ledger is read", *swarm.processes[-1:])
        told = swarm.status()
        shares = {share.node_id: share for share in told.whole.nodes}
        for name in nodes:
            file, badge = tmp_path / f"{name}.json", tmp_path / f"{name}.svg"
            done = asked("--state-dir", tmp_path / name, "--out", file, "--badge", badge)
            assert (done.returncode, done.stderr) == (0, "")
            found = read_certificate(file.read_bytes())
            share = shares.pop(found.node)
            assert (found.counted, found.tokens) == (share.counted, share.tokens)
            assert found.run_tokens == told.whole.tokens
            assert (found.rows, bytes.fromhex(found.row)) == _newest_row(swarm)
            checked = asked("--check", file, f"@{swarm.invite_file}")
            assert checked.stdout.startswith("the coordinator that the invite names has signed it")
            unnamed = asked("--check", file).stdout
            assert unnamed.startswith("the signature fits the key in the file")
            assert "Check it with an invite of the run" in unnamed
            assert ElementTree.fromstring(badge.read_text()).get("role") == "img"
        assert not shares
        wrote = [asked("--state-dir", tmp_path / "first", "--seed", seed, command="sample") for seed in ("1", "1", "2")]
        assert [done.returncode for done in wrote] == [0, 0, 0], wrote[0].stderr
        assert wrote[0].stdout.startswith("def ")
        assert wrote[0].stdout == wrote[1].stdout != wrote[2].stdout
        file.write_text(file.read_text().replace(f'"tokens": {found.tokens}', f'"tokens": {found.tokens + 1}'))
        changed = asked("--check", file)
        assert changed.returncode != 0
        assert "signature does not fit" in changed.stderr


def _newest_row(swarm: RealSwarm) -> tuple[int, bytes]:
    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as ledger:
        step, row = ledger.execute("SELECT step, hash FROM rows ORDER BY step DESC LIMIT 1").fetchone()
    return step + 1, row


def test_a_node_that_has_not_enrolled_is_told_what_to_do(tmp_path: Path) -> None:
    for command, why in (("certificate", "has not enrolled yet"), ("sample", "has no model yet")):
        done = asked("--state-dir", tmp_path, command=command)
        assert done.returncode != 0
        assert why in done.stderr
