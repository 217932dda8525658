"""kill -9 at any time: the others go on, nothing sealed is lost, and whoever comes back catches up."""

from __future__ import annotations

import signal
import sqlite3

from support.real import RealSwarm, ended, last_fingerprint, run_text, totals, until


def test_a_killed_node_is_not_missed_and_comes_back(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000))
    others = [swarm.node("a"), swarm.node("b")]
    victim = swarm.node("victim")
    until(lambda: any(n.name == "victim" and n.counted > 3 for n in swarm.status().nodes), "it counts", victim)
    victim.tell(signal.SIGKILL)
    ended(victim)
    killed_at = swarm.status().step
    swarm.reached(killed_at + 20)
    assert all(other.running for other in others)

    again = swarm.node("victim", "--rounds", "5")
    assert ended(again) == 0
    assert totals(again) == (5, 0)
    step, _ = last_fingerprint(again)
    assert step > killed_at + 20
    assert swarm.status().fingerprints_different == 0


def test_a_killed_coordinator_loses_no_sealed_step_and_nodes_come_back_by_themselves(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(400))
    nodes = [swarm.node("a"), swarm.node("b")]
    sealed = 0
    for life in range(1, 4):
        swarm.reached(sealed + 15)
        sealed = swarm.status().step
        coordinator.tell(signal.SIGKILL)
        ended(coordinator)
        swarm.verify()
        coordinator = swarm.coordinator()  # the same state directory and the same port
        status = swarm.status()
        assert status.step >= sealed
        assert status.term == life + 1
    swarm.reached(sealed + 15)
    assert all(node.running for node in nodes)
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0]
    assert swarm.status().fingerprints_different == 0
    for node in nodes:
        assert not node.events("node.resync")
        assert any(not event["joined"] for event in node.events("node.no_session"))
    coordinator.end(10)
    verified = swarm.verify()
    # each contribution is in one update at most
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        (counted,) = db.execute("SELECT count(*) FROM contributions").fetchone()
    db.close()
    assert f"{counted:,} contributions" in verified


def test_a_ledger_that_lost_its_last_rows_is_found_out_by_a_node_that_saw_them(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(100_000))
    node = swarm.node("witness")
    swarm.reached(15)
    coordinator.end(10)
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        db.execute("DELETE FROM rows WHERE step >= 10")
        db.execute("DELETE FROM contributions WHERE step >= 10")
    db.close()
    swarm.coordinator()
    assert ended(node) == 1
    assert "this coordinator's ledger ends at step 10, but the node has seen step" in node.text()
    # and also after a restart of the node, from what it kept on disk
    again = swarm.node("witness")
    assert ended(again) == 1
    assert "the ledger has lost rows" in again.text()


def test_another_lineage_is_found_out_too(swarm: RealSwarm) -> None:
    """The rows were lost, and others were sealed in their place by a node that had not seen them."""
    coordinator = swarm.coordinator(run_text(100_000))
    witness = swarm.node("witness")
    swarm.reached(15)
    witness.tell(signal.SIGTERM)
    ended(witness)
    coordinator.end(10)
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        db.execute("DELETE FROM rows WHERE step >= 5")
        db.execute("DELETE FROM contributions WHERE step >= 5")
    db.close()
    swarm.coordinator()
    swarm.node("innocent")
    swarm.reached(60)
    again = swarm.node("witness")
    assert ended(again) == 1
    assert "they are two lineages" in again.text()


def test_a_node_that_stood_still_for_a_while_is_counted_again(swarm: RealSwarm) -> None:
    """It misses rounds, which then run at the pace of a faster node; it must not be too late for ever after."""
    text = run_text(100_000).replace("length_ms = 5000", "length_ms = 1500").replace("samples = 4", "samples = 12")
    swarm.coordinator(text)
    swarm.node("quick", "--micro-batch", "12")
    slow = swarm.node("slow", "--micro-batch", "1")  # twelve passes where the other one needs one

    def counted() -> int:
        return next((node.counted for node in swarm.status().nodes if node.name == "slow"), 0)

    until(lambda: counted() > 3, "it counts", slow)
    slow.tell(signal.SIGSTOP)
    step = swarm.status().step
    swarm.reached(step + 3)
    before = counted()
    slow.tell(signal.SIGCONT)
    until(lambda: counted() > before + 10, "it counts again", slow)
    assert swarm.status().fingerprints_different == 0


def test_a_disk_that_fails_ends_the_coordinator_with_words_and_loses_nothing(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(100_000))
    node = swarm.node("a")
    swarm.reached(5)
    updates = swarm.state / "updates"
    updates.rename(swarm.state / "elsewhere")
    updates.write_text("not a folder any more")
    assert ended(coordinator) == 1
    assert "the disk fails" in coordinator.text()
    assert "nothing that was sealed is lost" in coordinator.text()
    updates.unlink()
    (swarm.state / "elsewhere").rename(updates)
    swarm.verify()
    swarm.coordinator()
    before = swarm.status().step
    swarm.reached(before + 5)
    assert node.running
    assert swarm.status().fingerprints_different == 0
