"""A node of the version before cannot follow an amendment of a gossip run, and leaves with a sentence that says so."""

from __future__ import annotations

import signal
from pathlib import Path

from deploy.local_swarm.processes import JSON_LOG
from support.previous import installed_previous, program_of
from support.real import PATIENCE_S, ended, real_swarm, run_text, until, without_a_centre


def test_a_node_of_the_version_before_leaves_when_the_run_is_amended(tmp_path: Path) -> None:
    installed = installed_previous(tmp_path)
    with real_swarm(tmp_path) as swarm:
        run = run_text(100_000, length_ms=2000, rounds='pace = "clock"')
        run += without_a_centre(2, 2, topology="complete", patience_ms=2000)
        (tmp_path / "RUN.toml").write_text(run)
        first = [*program_of(installed, "thinwire_coordinator"), "serve", "--state-dir", str(swarm.state), *JSON_LOG]
        first += ["--listen", swarm.address, "--invite-file", str(swarm.invite_file)]
        before = swarm.start("before", *first, "--run", str(tmp_path / "RUN.toml"))
        before.wait_until_ready(swarm.state, PATIENCE_S)
        command = [*program_of(installed, "thinwire_node"), "start", swarm.invitation, "--name", "old"]
        old = swarm.start("old", *command, "--state-dir", str(tmp_path / "old"), "--threads", "1", *JSON_LOG)
        new = swarm.node("new")
        swarm.reached(10)
        before.tell(signal.SIGKILL)
        ended(before)
        coordinator = swarm.coordinator()
        swarm.reached(swarm.status().step + 10)
        done = swarm.command("amend", "--set", "schedule.learning_rate=0.0005")
        assert done.returncode == 0, done.stderr
        assert ended(old) == 1
        assert "the node's version of thinwire cannot follow; it needs thinwire" in old.text()
        assert "Traceback" not in old.text()
        until(lambda: new.events("node.amended"), "the other one follows", coordinator, new)
        swarm.reached(new.events("node.amended")[0]["step"] + 10)
        again = swarm.start("old again", *command, "--state-dir", str(tmp_path / "old"), "--threads", "1", *JSON_LOG)
        assert ended(again) == 1
        assert "cannot be amended" in again.text()
        new.tell(signal.SIGTERM)
        assert ended(new) == 0, new.tail(20)
