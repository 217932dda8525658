"""*Swarm*: does it learn, who takes part, are the replicas equal, and is the coordinator well?"""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, Query, Row

NOW = Row(
    "Now",
    (
        Panel(
            "The swarm is",
            "What the coordinator does: starting (the ledger is replayed meanwhile), waiting (for nodes), training, "
            "complete, failed (it could not seal).",
            "number",
            "number",
            (Query("thinwire_coordinator_state == 1", "{{state}}"),),
            width=4,
            shows_legend=True,
        ),
        Panel(
            "Steps sealed",
            "Updates that are in the ledger, of those that the whole run will have.",
            "number",
            "share",
            (Query("thinwire_coordinator_step / thinwire_coordinator_steps", "sealed"),),
            width=4,
            decimals=1,
        ),
        Panel(
            "Held-out loss",
            "On text that nobody trains on, the newest measurement, nats a token.",
            "number",
            "nats",
            (Query("thinwire_coordinator_held_out_loss", "held-out"),),
            width=4,
            decimals=3,
        ),
        Panel(
            "Nodes",
            "Active ones: their heartbeat lives, and they hold a lease.",
            "number",
            "number",
            (Query('thinwire_coordinator_nodes{state="active"}', "active"),),
            width=4,
        ),
        Panel(
            "Tokens a second",
            "In contributions that were counted, over the last minute.",
            "number",
            "tokens/s",
            (Query("instance:thinwire_coordinator_tokens:rate1m", "tokens"),),
            width=4,
            decimals=0,
        ),
        Panel(
            "Replicas that differed",
            "Times, since the coordinator started, that a contribution's fingerprint was not that of the swarm's "
            "parameters. 0 means that all replicas are equal to the bit.",
            "number",
            "number",
            (Query('thinwire_coordinator_fingerprints_compared_total{result="different"}', "different"),),
            width=4,
            bad_from=1,
        ),
    ),
)
LEARNING = Row(
    "Learning",
    (
        Panel(
            "Loss",
            "Training: mean over the samples of the newest sealed round. Held-out: on text that nobody trains on.",
            "lines",
            "nats",
            (
                Query("thinwire_coordinator_training_loss", "training"),
                Query("thinwire_coordinator_held_out_loss", "held-out"),
            ),
        ),
        Panel(
            "Tokens a second",
            "In contributions that were counted, by node: of those that are scraped.",
            "stack",
            "tokens/s",
            (Query("name:thinwire_node_tokens:rate1m", "{{name}}"),),
        ),
        Panel(
            "Steps",
            "Updates that are sealed. A flat stretch is one in which nothing was.",
            "lines",
            "number",
            (Query("thinwire_coordinator_step", "sealed"),),
            width=8,
        ),
        Panel(
            "Tokens",
            "In contributions that were counted, since the coordinator started.",
            "lines",
            "number",
            (Query("thinwire_coordinator_tokens_total", "tokens"),),
            width=8,
        ),
        Panel(
            "Learning rate",
            "Of the newest sealed update: it follows the step, so it is flat while rounds are void.",
            "lines",
            "number",
            (Query("thinwire_coordinator_learning_rate", "learning rate"),),
            width=8,
        ),
    ),
)
NODES = Row(
    "Nodes and replicas",
    (
        Panel(
            "Nodes",
            "Active: the heartbeat lives, and it holds a lease. Away: this coordinator process has known it.",
            "stack",
            "number",
            (Query("thinwire_coordinator_nodes", "{{state}}"),),
            width=8,
        ),
        Panel(
            "Coming and going",
            "Nodes a second that became active, that left, and that were lost without a word.",
            "lines",
            "times/s",
            (
                Query("rate(thinwire_coordinator_nodes_came_total[$__rate_interval])", "came"),
                Query("rate(thinwire_coordinator_nodes_went_total[$__rate_interval])", "{{reason}}"),
            ),
            width=8,
        ),
        Panel(
            "Fingerprints compared",
            "Replicas compared with the coordinator's a second: one for each contribution that came whole.",
            "stack",
            "times/s",
            (Query("rate(thinwire_coordinator_fingerprints_compared_total[$__rate_interval])", "{{result}}"),),
            width=8,
        ),
    ),
)
MACHINE = Row(
    "The coordinator",
    (
        Panel(
            "Disk",
            "Free where the state lies (and the updates, if on another local disk), and what the rest of the run "
            "will take of it, foretold from the updates sealed so far.",
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
            "Jobs of a worker thread that wait or run. One that stays above 1 is behind.",
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
            "Of the coordinator's process, resident.",
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
    "Does it learn, who takes part, are the replicas equal, and is the coordinator well?",
    (NOW, LEARNING, NODES, MACHINE),
)
