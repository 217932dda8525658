"""*Swarm*: training progress, participating nodes, equality of replicas, and health of the coordinator."""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, PanelRow, Query

NOW = PanelRow(
    "Now",
    (
        Panel(
            "State",
            "State of the coordinator: starting (it replays the ledger), waiting (for nodes), training, complete, or "
            "failed (it could not seal an update).",
            "number",
            "number",
            (Query("thinwire_coordinator_state == 1", "{{state}}"),),
            width=4,
            shows_legend=True,
        ),
        Panel(
            "Steps sealed",
            "Share of the run's updates that are in the ledger.",
            "number",
            "share",
            (Query("thinwire_coordinator_step / thinwire_coordinator_steps", "sealed"),),
            width=4,
            decimals=1,
        ),
        Panel(
            "Held-out loss",
            "Newest measurement on held-out text, in nats a token.",
            "number",
            "nats",
            (Query("thinwire_coordinator_held_out_loss", "held-out: {{set}}"),),
            width=4,
            decimals=3,
        ),
        Panel(
            "Nodes",
            "Active nodes: they send heartbeats and hold a lease.",
            "number",
            "number",
            (Query('thinwire_coordinator_nodes{state="active"}', "active"),),
            width=4,
        ),
        Panel(
            "Tokens a second",
            "Tokens in counted contributions, over the last minute.",
            "number",
            "tokens/s",
            (Query("instance:thinwire_coordinator_tokens:rate1m", "tokens"),),
            width=4,
            decimals=0,
        ),
        Panel(
            "Replica mismatches",
            "Contributions since the coordinator started whose fingerprint differed from that of the swarm's "
            "parameters. 0 means that all replicas are equal to the bit.",
            "number",
            "number",
            (Query('thinwire_coordinator_fingerprints_compared_total{result="different"}', "different"),),
            width=4,
            bad_from=1,
        ),
    ),
)
LEARNING = PanelRow(
    "Learning",
    (
        Panel(
            "Loss",
            "Training: mean over the samples of the newest sealed round. Held-out: on text not used for training.",
            "lines",
            "nats",
            (
                Query("thinwire_coordinator_training_loss", "training"),
                Query("thinwire_coordinator_held_out_loss", "held-out: {{set}}"),
            ),
        ),
        Panel(
            "Tokens a second",
            "Tokens in counted contributions, by node. Only nodes scraped by Prometheus.",
            "stack",
            "tokens/s",
            (Query("name:thinwire_node_tokens:rate1m", "{{name}}"),),
        ),
        Panel(
            "Steps",
            "Sealed updates. Where the line is flat, no round was sealed.",
            "lines",
            "number",
            (Query("thinwire_coordinator_step", "sealed"),),
            width=8,
        ),
        Panel(
            "Tokens",
            "Tokens in counted contributions since the coordinator started.",
            "lines",
            "number",
            (Query("thinwire_coordinator_tokens_total", "tokens"),),
            width=8,
        ),
        Panel(
            "Learning rate",
            "Learning rate of the newest sealed update. It depends on the step, so it is flat while rounds are void.",
            "lines",
            "number",
            (Query("thinwire_coordinator_learning_rate", "learning rate"),),
            width=8,
        ),
    ),
)
NODES = PanelRow(
    "Nodes and replicas",
    (
        Panel(
            "Nodes",
            "Active: sends heartbeats and holds a lease. Away: known to this coordinator process, but not connected.",
            "stack",
            "number",
            (Query("thinwire_coordinator_nodes", "{{state}}"),),
            width=8,
        ),
        Panel(
            "Arrivals and departures",
            "Nodes a second that became active, that left, and whose connection was lost.",
            "lines",
            "times/s",
            (Query("rate(thinwire_coordinator_node_changes_total[$__rate_interval])", "{{change}}"),),
            width=8,
        ),
        Panel(
            "Fingerprints compared",
            "Fingerprints compared with the coordinator's, a second. One for each complete contribution.",
            "stack",
            "times/s",
            (Query("rate(thinwire_coordinator_fingerprints_compared_total[$__rate_interval])", "{{result}}"),),
            width=8,
        ),
        Panel(
            "Trust",
            "Decisions about the trust in nodes since the coordinator started: suspected (its votes are not merged), "
            "lowered (it counts as a newcomer), cleared, banned.",
            "lines",
            "number",
            (Query("thinwire_coordinator_trust_decisions_total", "{{verdict}}"),),
            width=8,
        ),
        Panel(
            "Joins refused",
            "Joins that the door refused, and sessions that it ended, a second.",
            "stack",
            "times/s",
            (Query('rate(thinwire_coordinator_refused_total{what="join"}[$__rate_interval])', "{{reason}}"),),
            width=8,
        ),
    ),
)
WITHOUT_CENTRE = PanelRow(
    "Gossip runs",
    (
        Panel(
            "Iterations",
            'Iterations that nodes have finished. Only with exchange.kind = "gossip". If they drift apart, '
            "some nodes cannot keep up.",
            "lines",
            "number",
            (Query("thinwire_coordinator_iterations", "{{of}}"),),
            width=8,
        ),
        Panel(
            "Disagreement",
            "Root mean square distance of the nodes' parameters from their mean, in steps of the optimizer. Estimated "
            "from sketches, with an error of 4.4%. If it grows, nodes train apart: send more bytes.",
            "lines",
            "number",
            (Query("thinwire_coordinator_disagreement_in_steps", "steps"),),
            width=8,
            log=True,
        ),
        Panel(
            "Topology",
            "Number of the newest topology. Each node that comes or goes makes a new one.",
            "lines",
            "number",
            (Query("thinwire_coordinator_topology", "number"),),
            width=8,
        ),
    ),
)
MACHINE = PanelRow(
    "The coordinator",
    (
        Panel(
            "Disk",
            "Free space for the state (and for the updates, if they are on another local disk), and the space that "
            "the rest of the run needs, estimated from the updates sealed so far.",
            "lines",
            "bytes",
            (
                Query("thinwire_coordinator_disk_free_bytes", "free for {{place}}"),
                Query("thinwire_coordinator_disk_needed_bytes", "needed for {{place}}"),
            ),
            width=6,
            log=True,
        ),
        Panel(
            "Queues",
            "Waiting and running jobs of each worker thread. A thread that stays above 1 cannot keep up.",
            "lines",
            "number",
            (Query("thinwire_coordinator_queue_depth", "{{queue}}"),),
            width=6,
        ),
        Panel(
            "Processor",
            "Cores that the coordinator's process keeps busy.",
            "lines",
            "number",
            (
                Query(
                    "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) thinwire_coordinator_info",
                    "cores",
                ),
            ),
            width=6,
        ),
        Panel(
            "Memory",
            "Resident memory of the coordinator's process.",
            "lines",
            "bytes",
            (Query("process_resident_memory_bytes and on (instance) thinwire_coordinator_info", "resident"),),
            width=6,
        ),
    ),
)
SWARM = Dashboard(
    "swarm",
    "thinwire: swarm",
    "Training progress, participating nodes, equality of replicas, and health of the coordinator.",
    (NOW, LEARNING, NODES, WITHOUT_CENTRE, MACHINE),
)
