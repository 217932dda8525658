"""*Node*: one volunteer's machine, chosen by name."""

from __future__ import annotations

from deploy.dashboards.panels import Choice, Dashboard, Panel, Query, Row

THIS = '{instance="$node"}'


def _rate(metric: str, labels: str = "") -> str:
    return f'rate(thinwire_node_{metric}{{instance="$node"{labels}}}[$__rate_interval])'


NOW = Row(
    "Now",
    (
        Panel(
            "The node is",
            "What it does now.",
            "number",
            "number",
            (Query(f"thinwire_node_state{THIS} == 1", "{{state}}"),),
            width=4,
            shows_legend=True,
        ),
        Panel(
            "Step",
            "Updates that its replica holds.",
            "number",
            "number",
            (Query(f"thinwire_node_step{THIS}", "step"),),
            width=4,
            decimals=0,
        ),
        Panel(
            "Updates behind",
            "Sealed, and not applied here yet: it catches up.",
            "number",
            "number",
            (Query(f"thinwire_node_steps_behind{THIS}", "behind"),),
            width=4,
            bad_from=10,
        ),
        Panel(
            "Counted",
            "Contributions that were, since the node started.",
            "number",
            "number",
            (Query('thinwire_node_contributions_total{instance="$node", outcome="counted"}', "counted"),),
            width=4,
        ),
        Panel(
            "Tokens given",
            "In contributions that were counted, since the node started.",
            "number",
            "number",
            (Query(f"thinwire_node_tokens_total{THIS}", "tokens"),),
            width=4,
        ),
        Panel(
            "Replica differed",
            "Times that its parameters were not the swarm's, and were fetched anew. More than once: faulty memory?",
            "number",
            "number",
            (Query(f"thinwire_node_fingerprint_mismatches_total{THIS}", "times"),),
            width=4,
            bad_from=1,
        ),
    ),
)
WORK = Row(
    "Work",
    (
        Panel(
            "Loss",
            "In training, of the newest contribution; beside it that of the whole swarm.",
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
            "In contributions that were counted.",
            "lines",
            "tokens/s",
            (Query(_rate("tokens_total"), "tokens"),),
            width=8,
        ),
        Panel(
            "What became of contributions",
            "Receipts a second: counted, or why not.",
            "stack",
            "times/s",
            (Query(_rate("contributions_total"), "{{outcome}}"),),
            width=8,
        ),
        Panel(
            "Share of time",
            "Seconds of each phase in a second. Uploading goes on beside computing.",
            "stack",
            "share",
            (Query(_rate("phase_seconds_sum"), "{{phase}}"),),
            width=8,
        ),
        Panel(
            "Samples",
            "Those that it may still train on (its lease), and those of a micro-batch, which it makes small enough "
            "for the round.",
            "lines",
            "number",
            (
                Query(f"thinwire_node_lease_samples{THIS}", "lease"),
                Query(f"thinwire_node_micro_batch_samples{THIS}", "micro-batch"),
            ),
            width=8,
        ),
        Panel(
            "Thrown away",
            "A second: micro-batches that were not finite, gradients whose base was too old, replicas given up, "
            "sessions lost.",
            "lines",
            "times/s",
            (
                Query(_rate("micro_batches_dropped_total"), "micro-batches"),
                Query(_rate("gradients_dropped_total"), "gradients"),
                Query(_rate("resyncs_total"), "replicas"),
                Query(_rate("sessions_lost_total"), "sessions"),
            ),
            width=8,
        ),
    ),
)
LINK = Row(
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
            "The link",
            "On the wire: TCP segments with their headers, by the kernel's count (Linux only). Capacity: what it has "
            "carried upward while a contribution was under way.",
            "lines",
            "bytes/s",
            (
                Query(_rate("wire_bytes_total"), "{{direction}} on the wire"),
                Query(f"thinwire_node_upload_bytes_per_second{THIS}", "capacity upward"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Slack",
            "From the newest contribution's arrival to its round's deadline; below zero it was late.",
            "lines",
            "seconds",
            (
                Query(f"thinwire_node_upload_slack_seconds{THIS}", "slack"),
                Query(f"thinwire_node_round_length_seconds{THIS}", "length of a round"),
            ),
            width=8,
        ),
        Panel(
            "How wrong its clock can be",
            "The bound on the error in what it knows of the coordinator's clock; it cuts that much earlier.",
            "lines",
            "seconds",
            (Query(f"thinwire_node_clock_error_seconds{THIS}", "error"),),
            width=8,
        ),
        Panel(
            "Bits a component",
            "In the payload of its newest contribution.",
            "lines",
            "bits",
            (Query(f"8 * thinwire_node_component_bytes{THIS}", "bits"),),
            width=8,
        ),
    ),
)
MACHINE = Row(
    "Machine",
    (
        Panel(
            "Memory",
            "Held on the training device (on a CPU, by the process), and what that has.",
            "lines",
            "bytes",
            (
                Query(f"thinwire_node_device_memory_bytes{THIS}", "held"),
                Query(f"thinwire_node_device_memory_limit_bytes{THIS}", "there"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Processor",
            "Cores that the node's process keeps busy, and what of it this watching takes.",
            "lines",
            "number",
            (
                Query(f"rate(process_cpu_seconds_total{THIS}[$__rate_interval])", "in all"),
                Query(_rate("watching_cpu_seconds_total"), "watching"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Queues",
            "Jobs of the compute thread, and contributions without a receipt.",
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
    "One volunteer's machine: what it gives, over which link, and how it is.",
    (NOW, WORK, LINK, MACHINE),
    (
        Choice(
            "node",
            "Node",
            "query_result(thinwire_node_info)",
            '/instance="(?<value>[^"]+)".*name="(?<text>[^"]+)"/',
        ),
    ),
)
