"""The organizer amends a run of real processes, under kills, and adds steps when it is complete."""

from __future__ import annotations

import json
import signal
import sysconfig
import urllib.request
from contextlib import closing
from functools import partial
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.fork_server import run
from support.real import RealSwarm, ended, real_swarm, run_text, until
from thinwire_coordinator.hall.ledger.state_directory import open_state


def _is_told(node: Process) -> bool:
    return bool(node.events("node.amended"))


def _killed(*processes: Process) -> None:
    for process in processes:
        process.tell(signal.SIGKILL)
        ended(process)


def _killed_and_back(swarm: RealSwarm, coordinator: Process, first: Process) -> tuple[Process, Process]:
    """Kill the coordinator and the node `first`, and start both again."""
    _killed(coordinator, first)
    return swarm.coordinator(None), swarm.node("first")


STEPS, MORE = 200, 310
BY_NODES = ("--evaluate", "nodes", "--evaluate-every", "10")


def test_nodes_follow_what_the_organizer_amends(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(run_text(STEPS))
        nodes = [swarm.node(name) for name in ("first", "second")]
        swarm.reached(4)

        refused = swarm.command("amend", "--set", "model.width=64")
        assert refused.returncode == 1
        assert "cannot change within a run" in refused.stderr
        assert "schedule.learning_rate" in refused.stderr
        dry = swarm.command("amend", "--set", "demo.k=16", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert "96 → 16" in dry.stdout
        assert "each volunteer" in dry.stdout
        assert "no amendments" in swarm.command("amend").stdout

        later = swarm.command("amend", "--set", "demo.k=8", "--at", str(STEPS - 1), "--because", "to be withdrawn")
        assert later.returncode == 0, later.stderr
        assert "withdrawn: demo.k = 8" in swarm.command("amend", "--withdraw").stdout

        reason = "a spike at 4"
        done = swarm.command(
            "amend", "--set", "schedule.learning_rate=0.0005", "--set", "demo.k=16", "--because", reason
        )
        assert done.returncode == 0, done.stderr
        for node in nodes:
            until(partial(_is_told, node), "the node is told", *swarm.processes)
            assert reason in node.events("node.amended")[0]["reason"]
        coordinator, nodes[0] = _killed_and_back(swarm, coordinator, nodes[0])
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        assert swarm.status().step == STEPS

        assert "--withdraw is given alone" in swarm.command("amend", "--withdraw", "--set", "demo.k=8").stderr
        assert "no amendment waits" in swarm.command("amend", "--withdraw").stdout
        longer = swarm.command("amend", "--set", f"schedule.steps={MORE}", "--because", "it still learns")
        assert longer.returncode == 0, longer.stderr
        until(lambda: swarm.status().steps == MORE, "the run is longer", coordinator)
        nodes = [swarm.node(name) for name in ("first", "second")]
        swarm.reached(STEPS + 20)  # all join again beyond the first end
        coordinator, nodes[0] = _killed_and_back(swarm, coordinator, nodes[0])
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        assert swarm.status().step == MORE

        listed = swarm.command("amend").stdout
        assert f"from step {STEPS} on: schedule.steps = {MORE}: it still learns" in listed
        page = str(swarm.ready["page"])
        with urllib.request.urlopen(f"{page}/api/status") as reply:
            marks = json.load(reply)["run"]["amendments"]
        assert [mark["step"] for mark in marks] == [marks[0]["step"], STEPS]
        verified = swarm.verify()
        assert "demo.k = 8" not in verified
        assert reason in verified
        assert f"step {MORE}: head" in verified


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
