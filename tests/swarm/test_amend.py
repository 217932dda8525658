"""The organizer amends a run of real processes, under kills, and adds steps when it is complete."""

from __future__ import annotations

import json
import signal
import sysconfig
from contextlib import closing
from functools import partial
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.fork_server import run
from support.real import ended, real_swarm, run_text, until
from thinwire_coordinator.hall.ledger.state_directory import open_state


def _is_told(node: Process) -> bool:
    return bool(node.events("node.amended"))


def _killed(*processes: Process) -> None:
    for process in processes:
        process.tell(signal.SIGKILL)
        ended(process)


STEPS, MORE = 200, 310
BY_NODES = ("--evaluate", "nodes", "--evaluate-every", "10")


def test_another_mixture_holds_for_samples_that_nobody_had(tmp_path: Path) -> None:
    """The coordinator and a node are killed while it begins."""
    with real_swarm(tmp_path) as swarm:
        library, folder = Path(sysconfig.get_paths()["stdlib"]), tmp_path / "prepared"
        sources = [f"{name}={library / name}/*.py" for name in ("json", "email")]
        done = run(["thinwire-coordinator", "prepare", *sources, "--out", str(folder), "--held-out", "30%"], tmp_path)
        assert done.returncode == 0, done.stderr
        data = f'[data]\nkind = "tokens"\nfolder = "{folder}"\nweights = {{ json = 1.0 }}\n'
        coordinator = swarm.coordinator(run_text(STEPS, model="vocabulary = 256") + data, *BY_NODES)
        nodes = [swarm.node(name) for name in ("first", "second")]
        swarm.reached(10)
        unknown = swarm.command("amend", "--set", "data.weights={ html = 1.0 }")
        assert "there is no source 'html' in the data" in unknown.stderr
        (tmp_path / "news.txt").write_text((library / "ast.py").read_text())
        added = f"news={tmp_path / 'news.txt'}"
        taken = swarm.command("amend", "--held-out", added.replace("news=", "json="))
        assert "the data have a source 'json' already" in taken.stderr
        blobs = sorted((swarm.state / "blobs").iterdir())
        assert "nothing is ordered" in swarm.command("amend", "--held-out", added, "--dry-run").stdout
        assert sorted((swarm.state / "blobs").iterdir()) == blobs
        done = swarm.command("amend", "--held-out", added, "--because", "what is not code")
        assert done.returncode == 0, done.stderr
        done = swarm.command("amend", "--set", "data.weights={ email = 1.0 }", "--because", "json is learned")
        assert done.returncode == 0, done.stderr
        until(partial(_is_told, nodes[1]), "a node is told", *swarm.processes)
        _killed(coordinator, nodes[0])
        coordinator, nodes[0] = swarm.coordinator(None, *BY_NODES), swarm.node("first")
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        assert "json is learned" in swarm.verify()
        measured = [one for one in coordinator.events("coordinator.loss_measured") if one["set"] == "news"]
        assert {one["measured_by"] for one in measured} >= {"nodes"}
        assert {one.name for one in swarm.status().held_out} == {"json", "email", "news"}
        with closing(open_state(swarm.state, read_only=True)) as state:
            amendment = state.contract.amendments[-1]
            assert state.ledger.losses("news")
            end = state.ledger.leases().cursor
            assert 0 < amendment.position < end
            before, after = (
                {blob.hash for blob in state.data.needs([positions])}
                for positions in (range(amendment.position), range(amendment.position, end))
            )
        manifest = json.loads((folder / "manifest.json").read_text())
        of = {source["name"]: {shard["hash"] for shard in source["train"]} for source in manifest["sources"]}
        assert before <= of["json"]
        assert after <= of["email"]
