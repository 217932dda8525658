"""*Node*: one volunteer's machine, selected by name."""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, PanelRow, Query, Variable

THIS = '{instance="$node"}'


def _rate(metric: str, labels: str = "") -> str:
    return f'rate(thinwire_node_{metric}{{instance="$node"{labels}}}[$__rate_interval])'


NOW = PanelRow(
    "Now",
    (
        Panel(
            "State",
            "What the node is doing now.",
            "number",
            "number",
            (Query(f"thinwire_node_state{THIS} == 1", "{{state}}"),),
            width=4,
            shows_legend=True,
        ),
        Panel(
            "Step",
            "Number of updates applied to the node's replica.",
            "number",
            "number",
            (Query(f"thinwire_node_step{THIS}", "step"),),
            width=4,
            decimals=0,
        ),
        Panel(
            "Updates behind",
            "Sealed updates that the node has not applied yet. The node is catching up.",
            "number",
            "number",
            (Query(f"thinwire_node_steps_behind{THIS}", "behind"),),
            width=4,
            bad_from=10,
        ),
        Panel(
            "Counted",
            "Counted contributions since the node started.",
            "number",
            "number",
            (Query('thinwire_node_contributions_total{instance="$node", outcome="counted"}', "counted"),),
            width=4,
        ),
        Panel(
            "Tokens contributed",
            "Tokens in counted contributions since the node started.",
            "number",
            "number",
            (Query(f"thinwire_node_tokens_total{THIS}", "tokens"),),
            width=4,
        ),
        Panel(
            "Replica mismatches",
            "How often the node's parameters differed from the swarm's and were downloaded again. If this happens "
            "repeatedly, check the memory of the machine.",
            "number",
            "number",
            (Query(f"thinwire_node_fingerprint_mismatches_total{THIS}", "times"),),
            width=4,
            bad_from=1,
        ),
    ),
)
WORK = PanelRow(
    "Work",
    (
        Panel(
            "Loss",
            "Training loss of the node's newest contribution, and of the whole swarm.",
            "lines",
            "nats",
            (
                Query(f"thinwire_node_loss{THIS}", "this node"),
                Query("thinwire_coordinator_training_loss", "swarm"),
            ),
            width=8,
        ),
        Panel(
            "Tokens a second",
            "Tokens in counted contributions.",
            "lines",
            "tokens/s",
            (Query(_rate("tokens_total"), "tokens"),),
            width=8,
        ),
        Panel(
            "Contribution outcomes",
            "Receipts a second, by outcome: counted, or the reason for refusal.",
            "stack",
            "times/s",
            (Query(_rate("contributions_total"), "{{outcome}}"),),
            width=8,
        ),
        Panel(
            "Share of time",
            "Seconds of each phase in a second. Uploading overlaps with computing.",
            "stack",
            "share",
            (Query(_rate("phase_seconds_sum"), "{{phase}}"),),
            width=8,
        ),
        Panel(
            "Samples",
            "Samples that the node may still train on (its lease), and samples in a micro-batch. The node keeps "
            "micro-batches small enough for the round.",
            "lines",
            "number",
            (
                Query(f"thinwire_node_lease_samples{THIS}", "lease"),
                Query(f"thinwire_node_micro_batch_samples{THIS}", "micro-batch"),
            ),
            width=8,
        ),
        Panel(
            "Dropped work",
            "Events a second: micro-batches that were not finite, gradients whose base was too old, samples and shards "
            "that could not be read, replicas fetched again, and lost sessions.",
            "lines",
            "times/s",
            (Query(_rate("dropped_total"), "{{what}}"),),
            width=8,
        ),
    ),
)
LINK = PanelRow(
    "Link and clock",
    (
        Panel(
            "Sent",
            "Payload a second, by kind of message.",
            "stack",
            "bytes/s",
            (Query(_rate("payload_bytes_total", ', direction="sent"'), "{{kind}}"),),
            width=8,
        ),
        Panel(
            "Received",
            "Payload a second, by kind of message.",
            "stack",
            "bytes/s",
            (Query(_rate("payload_bytes_total", ', direction="received"'), "{{kind}}"),),
            width=8,
        ),
        Panel(
            "Link usage",
            "On the wire: TCP segments with headers, counted by the kernel (Linux only). Uplink capacity: the rate "
            "measured during uploads of contributions.",
            "lines",
            "bytes/s",
            (
                Query(_rate("wire_bytes_total"), "{{direction}} on the wire"),
                Query(f"thinwire_node_upload_bytes_per_second{THIS}", "uplink capacity"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Slack",
            "Time from the arrival of the newest contribution to the deadline of its round. Below zero, it was late.",
            "lines",
            "seconds",
            (
                Query(f"thinwire_node_upload_slack_seconds{THIS}", "slack"),
                Query(f"thinwire_node_round_length_seconds{THIS}", "round length"),
            ),
            width=8,
        ),
        Panel(
            "Clock error",
            "Upper bound on the error of the node's estimate of the coordinator's clock. The node extracts its "
            "contribution that much earlier.",
            "lines",
            "seconds",
            (Query(f"thinwire_node_clock_error_seconds{THIS}", "error"),),
            width=8,
        ),
        Panel(
            "Bits a component",
            "Payload bits for each component of the newest contribution.",
            "lines",
            "bits",
            (Query(f"8 * thinwire_node_component_bytes{THIS}", "bits"),),
            width=8,
        ),
    ),
)
MACHINE = PanelRow(
    "Machine",
    (
        Panel(
            "Memory",
            "Memory used on the training device (on a CPU: by the process), and its total memory.",
            "lines",
            "bytes",
            (Query(f"thinwire_node_device_memory_bytes{THIS}", "{{of}}"),),
            width=8,
            log=True,
        ),
        Panel(
            "Processor",
            "Cores that the node's process keeps busy, and the part of them used for monitoring.",
            "lines",
            "number",
            (
                Query(f"rate(process_cpu_seconds_total{THIS}[$__rate_interval])", "total"),
                Query(_rate("watching_cpu_seconds_total"), "monitoring"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Queues",
            "Queued jobs of the compute thread, and contributions that wait for a receipt.",
            "lines",
            "number",
            (Query(f"thinwire_node_queue_depth{THIS}", "{{queue}}"),),
            width=8,
        ),
    ),
)
NODE = Dashboard(
    "node",
    "thinwire: node",
    "One volunteer's machine: its contributions, its link, and its resources.",
    (NOW, WORK, LINK, MACHINE),
    (
        Variable(
            "node",
            "Node",
            "query_result(thinwire_node_info)",
            '/instance="(?<value>[^"]+)".*name="(?<text>[^"]+)"/',
        ),
    ),
)
