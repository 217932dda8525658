"""The coordinator's key is lost, replaced and restored: what the organizer and the nodes are told, and what goes on."""

from __future__ import annotations

import shutil

from support.real import PATIENCE_S, RealSwarm, ended, run_text, until
from thinwire_proto.identity.keys import KEY_FILE, SecretKey

RUN = run_text(100_000)


def refused_start(swarm: RealSwarm) -> str:
    """What `serve` says when it does not start."""
    command = ["serve", "--state-dir", str(swarm.state), "--listen", swarm.address, "--http", "off"]
    process = swarm.start("coordinator", "thinwire-coordinator", *command)
    assert ended(process) == 1
    assert "Traceback" not in process.text()
    return process.text()


def test_a_run_goes_on_with_its_own_key_and_with_no_other(swarm: RealSwarm) -> None:
    coordinator, node = swarm.coordinator(RUN), swarm.node("ada")
    until(lambda: swarm.counted("ada") > 0, "it is counted", node)
    coordinator.end(PATIENCE_S)
    key, copy = swarm.state / KEY_FILE, swarm.folder / "copy.key"
    shutil.copy2(key, copy)

    key.unlink()
    text = refused_start(swarm)
    assert "restore it from a copy; without one, this run has ended: export its model" in " ".join(text.split())
    assert not key.exists(), "a new key would hide that the old one is lost"
    key.write_bytes(SecretKey().data)
    key.chmod(0o600)
    assert "restore the key that signed them" in " ".join(refused_start(swarm).split())
    assert swarm.command("export", "--out", str(swarm.folder / "model.safetensors")).returncode == 0, "needs no key"
    assert node.running

    shutil.copy2(copy, key)
    shutil.rmtree(swarm.state / "tls")  # the key signs new ones
    swarm.coordinator()
    until(lambda: swarm.counted("ada") > 0, "the node is back without a new invite", node)
