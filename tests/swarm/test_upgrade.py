"""Tests that a swarm goes on while it is upgraded from the version before, in both orders, with kills."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from deploy.local_swarm.processes import JSON_LOG
from support.previous import installed_previous, program_of
from support.real import PATIENCE_S, RealSwarm, ended, run_text, until


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_previous(tmp_path_factory.mktemp("previous"))


class Upgraded(RealSwarm):
    """A swarm whose programs may be of the version before."""

    installed: Path

    def old_coordinator(self, run: str) -> None:
        (self.folder / "RUN.toml").write_text(run)
        command = [*program_of(self.installed, "thinwire_coordinator"), "serve", "--state-dir", str(self.state)]
        command += ["--listen", self.address, "--invite-file", str(self.invite_file), *JSON_LOG]
        self.ready = self.start("old coordinator", *command, "--run", str(self.folder / "RUN.toml")).wait_until_ready(
            self.state, PATIENCE_S
        )
        self.address = self.ready["address"]

    def old_node(self, name: str) -> None:
        command = [*program_of(self.installed, "thinwire_node"), "start", self.invitation, "--name", name]
        self.start(f"old {name}", *command, "--state-dir", str(self.folder / name), "--threads", "1", *JSON_LOG)

    def kill(self, name: str) -> None:
        process = next(one for one in reversed(self.processes) if one.name == name)
        process.tell(signal.SIGKILL)
        ended(process)

    def all_counted(self, *names: str) -> None:
        before = {name: self.counted(name) for name in names}
        alive = [one for one in self.processes if one.running]
        until(lambda: all(self.counted(name) >= before[name] + 3 for name in names), f"{names} are counted", *alive)


@pytest.fixture
def upgraded(swarm: RealSwarm, previous: Path) -> Upgraded:
    swarm.__class__ = Upgraded
    assert isinstance(swarm, Upgraded)
    swarm.installed = previous
    return swarm


def test_nodes_are_upgraded_before_their_coordinator_and_behind_it(upgraded: Upgraded) -> None:
    swarm = upgraded
    swarm.old_coordinator(run_text(100_000, length_ms=2000))
    swarm.old_node("one")
    swarm.old_node("two")
    swarm.all_counted("one", "two")
    swarm.kill("old one")
    swarm.node("one")
    swarm.all_counted("one", "two")
    swarm.kill("old coordinator")
    swarm.coordinator()
    swarm.all_counted("one", "two")
    swarm.kill("old two")
    swarm.node("two")
    swarm.all_counted("one", "two")
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_compared > 0
    assert status.fingerprints_different == 0
    assert "fingerprint" in swarm.verify()
