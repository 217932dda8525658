"""*Bandwidth*: where every byte goes.

Bytes are payload (protobuf messages as gRPC hands them over) unless a panel says wire; docs/watching.md says which
layer is counted where. Up is from the nodes to the coordinator, down the other way."""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, Query, Row

UP = 'thinwire_coordinator_payload_bytes_total{direction="received"}'
DOWN = 'thinwire_coordinator_payload_bytes_total{direction="sent"}'
DENSE = "thinwire_coordinator_dense_allreduce_bytes_total"
COUNTED = 'thinwire_coordinator_contributions_total{outcome="counted"}'
SEALED = "thinwire_coordinator_rounds_sealed_total"
TOKENS = "thinwire_coordinator_tokens_total"


def _rate(metric: str) -> str:
    """All of it in a second."""
    return f"sum(rate({metric}[$__rate_interval]))"


TOTALS = Row(
    "Since the coordinator started",
    (
        Panel("Up", "All payload that nodes sent.", "number", "bytes", (Query(f"sum({UP})", "up"),), width=6),
        Panel(
            "Down", "All payload that nodes were sent.", "number", "bytes", (Query(f"sum({DOWN})", "down"),), width=6
        ),
        Panel(
            "A dense all-reduce",
            "What the same nodes would have sent and received for the same rounds with a ring all-reduce of fp32 "
            "gradients.",
            "number",
            "bytes",
            (Query(f"2 * {DENSE}", "dense"),),
            width=6,
        ),
        Panel(
            "Fewer bytes than dense",
            "The dense all-reduce's bytes by those of the contributions received and the updates sent.",
            "number",
            "times",
            (Query("thinwire_coordinator_compression_ratio", "fewer"),),
            width=6,
            decimals=0,
        ),
    ),
)
BY_KIND = Row(
    "By kind of message",
    (
        Panel(
            "Up",
            "Payload a second from all nodes together.",
            "stack",
            "bytes/s",
            (Query(f"sum by (kind) (rate({UP}[$__rate_interval]))", "{{kind}}"),),
        ),
        Panel(
            "Down",
            "Payload a second to all nodes together. Snapshot and corpus travel once to each node.",
            "stack",
            "bytes/s",
            (Query(f"sum by (kind) (rate({DOWN}[$__rate_interval]))", "{{kind}}"),),
        ),
        Panel(
            "On the wire",
            "TCP segments with their headers, repeats too, by the kernel's count: what a provider counts. Linux only.",
            "lines",
            "bytes/s",
            (Query("rate(thinwire_coordinator_wire_bytes_total[$__rate_interval])", "{{direction}}"),),
        ),
        Panel(
            "What HTTP/2 and TCP add",
            "Wire bytes over payload, less one.",
            "lines",
            "share",
            (
                Query(
                    "sum by (direction) (rate(thinwire_coordinator_wire_bytes_total[$__rate_interval])) / "
                    "sum by (direction) (rate(thinwire_coordinator_payload_bytes_total[$__rate_interval])) - 1",
                    "{{direction}}",
                ),
            ),
        ),
    ),
)
BY_NODE = Row(
    "By node (those that are scraped)",
    (
        Panel(
            "Up",
            "Payload a second that each node sends.",
            "stack",
            "bytes/s",
            (Query('name:thinwire_node_payload_bytes:rate1m{direction="sent"}', "{{name}}"),),
        ),
        Panel(
            "Down",
            "Payload a second that each node receives.",
            "stack",
            "bytes/s",
            (Query('name:thinwire_node_payload_bytes:rate1m{direction="received"}', "{{name}}"),),
        ),
        Panel(
            "Sent and received in all",
            "Payload since each node's process started.",
            "bars",
            "bytes",
            (
                Query(
                    "sum by (instance, direction) (thinwire_node_payload_bytes_total) "
                    "* on (instance) group_left (name) thinwire_node_info",
                    "{{name}} {{direction}}",
                ),
            ),
        ),
        Panel(
            "Share of the link's capacity",
            "Contributions sent a second, by what the link upward has carried while one was under way (as the node "
            "measures it). What is left could carry more components, or shorter rounds.",
            "lines",
            "share",
            (
                Query(
                    'sum by (instance) (rate(thinwire_node_payload_bytes_total{direction="sent", kind="contribution"}'
                    "[$__rate_interval])) / on (instance) thinwire_node_upload_bytes_per_second "
                    "* on (instance) group_left (name) thinwire_node_info",
                    "{{name}}",
                ),
            ),
        ),
    ),
)
EACH = Row(
    "For each round, token and parameter",
    (
        Panel(
            "A round",
            "Payload of all nodes together for each sealed round.",
            "lines",
            "bytes",
            (
                Query(f"{_rate(UP)} / {_rate(SEALED)}", "up"),
                Query(f"{_rate(DOWN)} / {_rate(SEALED)}", "down"),
                Query(f"{_rate(DENSE)} / {_rate(SEALED)}", "dense all-reduce, each way"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "A token",
            "Payload of all nodes together for each token that was counted.",
            "lines",
            "bytes",
            (
                Query(f"{_rate(UP)} / {_rate(TOKENS)}", "up"),
                Query(f"{_rate(DOWN)} / {_rate(TOKENS)}", "down"),
                Query(f"{_rate(DENSE)} / {_rate(TOKENS)}", "dense all-reduce, each way"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "A parameter",
            "Bytes for each parameter of the model, that a node sends and receives in a round that it contributes to.",
            "lines",
            "bytes a parameter",
            (
                Query(f"{_rate(UP)} / {_rate(COUNTED)} / scalar(thinwire_coordinator_parameters)", "up"),
                Query(f"{_rate(DOWN)} / {_rate(COUNTED)} / scalar(thinwire_coordinator_parameters)", "down"),
                Query(
                    f"{_rate(DENSE)} / {_rate(COUNTED)} / scalar(thinwire_coordinator_parameters)",
                    "dense all-reduce, each way",
                ),
            ),
            width=8,
            log=True,
        ),
    ),
)
CODEC = Row(
    "The codec",
    (
        Panel(
            "Bits a component",
            "Payload of contributions by their votes, and of updates by their components. 9.3 is the floor for k = 32 "
            "upward; the update's form follows what is the smallest.",
            "lines",
            "bits",
            (
                Query(
                    f"8 * {_rate('thinwire_coordinator_votes_bytes_total')} / "
                    f"{_rate('thinwire_coordinator_votes_total')}",
                    "up",
                ),
                Query(
                    f"8 * {_rate('thinwire_coordinator_update_body_bytes_total')} / "
                    f"{_rate('thinwire_coordinator_update_components_total')}",
                    "down",
                ),
            ),
            width=8,
        ),
        Panel(
            "The update's form",
            "Sealed updates a second, by the form that the codec found to be the smallest.",
            "stack",
            "times/s",
            (Query("sum by (codec) (rate(thinwire_coordinator_updates_total[$__rate_interval]))", "{{codec}}"),),
            width=8,
        ),
        Panel(
            "Size of an update, of a contribution",
            "Mean payload. An update grows with the nodes, whose votes seldom meet.",
            "lines",
            "bytes",
            (
                Query(f"{_rate('thinwire_coordinator_update_body_bytes_total')} / {_rate(SEALED)}", "update"),
                Query(
                    f"{_rate('thinwire_coordinator_votes_bytes_total')} / "
                    f"{_rate('thinwire_coordinator_contribution_after_open_seconds_count')}",
                    "contribution",
                ),
            ),
            width=8,
        ),
    ),
)
BANDWIDTH = Dashboard(
    "bandwidth",
    "thinwire: bandwidth",
    "Where every byte goes, beside a dense all-reduce and what the links can carry.",
    (TOTALS, BY_KIND, BY_NODE, EACH, CODEC),
)
