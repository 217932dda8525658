"""*Bandwidth*: bytes by direction, kind and node.

Bytes are payload (protobuf messages as passed to gRPC) unless a panel says "on the wire"; docs/watching.md explains the
layers. Up is from the nodes to the coordinator, down the other way.
"""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, PanelRow, Query

UP = 'thinwire_coordinator_payload_bytes_total{direction="received"}'
DOWN = 'thinwire_coordinator_payload_bytes_total{direction="sent"}'
ALL_REDUCE = "thinwire_coordinator_dense_allreduce_bytes_total"
COUNTED = 'thinwire_coordinator_contributions_total{outcome="counted"}'
SEALED = 'thinwire_coordinator_rounds_total{result="sealed"}'
UP_COMPONENTS, DOWN_COMPONENTS = (
    f'thinwire_coordinator_components_total{{direction="{way}"}}' for way in ("up", "down")
)
UP_BYTES, DOWN_BYTES = (f'thinwire_coordinator_component_bytes_total{{direction="{way}"}}' for way in ("up", "down"))
TOKENS = "thinwire_coordinator_tokens_total"


def _for_each(metric: str, of: str) -> str:
    """Increase of a metric for each unit of another, over five minutes, because a round may be longer than
    $__rate_interval. Nothing where the other stands still, as at the end of a run."""
    return f"sum(rate({metric}[5m])) / (sum(rate({of}[5m])) > 0)"


TOTALS = PanelRow(
    "Since the coordinator started",
    (
        Panel("Up", "Payload sent by all nodes.", "number", "bytes", (Query(f"sum({UP})", "up"),), width=6),
        Panel("Down", "Payload received by all nodes.", "number", "bytes", (Query(f"sum({DOWN})", "down"),), width=6),
        Panel(
            "All-reduce baseline",
            "Bytes that the same nodes would have sent and received in the same rounds with a ring all-reduce of fp32 "
            "gradients.",
            "number",
            "bytes",
            (Query(f"2 * {ALL_REDUCE}", "all-reduce"),),
            width=6,
        ),
        Panel(
            "Bytes saved",
            "Bytes of the all-reduce baseline, divided by those of the received contributions and sent updates.",
            "number",
            "times",
            (
                Query(
                    f"2 * {ALL_REDUCE} / "
                    '(thinwire_coordinator_payload_bytes_total{direction="received", kind="contribution"} '
                    "+ ignoring (direction, kind) "
                    'thinwire_coordinator_payload_bytes_total{direction="sent", kind="update"})',
                    "ratio",
                ),
            ),
            width=6,
            decimals=0,
        ),
    ),
)
BY_KIND = PanelRow(
    "By kind of message",
    (
        Panel(
            "Up",
            "Payload a second from all nodes together, by kind of message.",
            "stack",
            "bytes/s",
            (Query(f"sum by (kind) (rate({UP}[$__rate_interval]))", "{{kind}}"),),
        ),
        Panel(
            "Down",
            "Payload a second to all nodes together. Snapshot and corpus are sent once to each node.",
            "stack",
            "bytes/s",
            (Query(f"sum by (kind) (rate({DOWN}[$__rate_interval]))", "{{kind}}"),),
        ),
        Panel(
            "On the wire",
            "TCP segments with headers and retransmissions, counted by the kernel (Linux only). Providers bill this.",
            "lines",
            "bytes/s",
            (Query("rate(thinwire_coordinator_wire_bytes_total[$__rate_interval])", "{{direction}}"),),
        ),
        Panel(
            "Overhead of HTTP/2 and TCP",
            "Bytes on the wire divided by payload bytes, minus one.",
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
BY_NODE = PanelRow(
    "By node (only nodes scraped by Prometheus)",
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
            "Total sent and received",
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
            "Contribution bytes sent a second, divided by the uplink capacity that the node measured during uploads. "
            "The remaining capacity would allow more components or shorter rounds.",
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
EACH = PanelRow(
    "Per round, token and parameter",
    (
        Panel(
            "Per round",
            "Payload of all nodes together for each sealed round.",
            "lines",
            "bytes",
            (
                Query(_for_each(UP, SEALED), "up"),
                Query(_for_each(DOWN, SEALED), "down"),
                Query(_for_each(ALL_REDUCE, SEALED), "all-reduce, each way"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Per token",
            "Payload of all nodes together for each counted token.",
            "lines",
            "bytes",
            (
                Query(_for_each(UP, TOKENS), "up"),
                Query(_for_each(DOWN, TOKENS), "down"),
                Query(_for_each(ALL_REDUCE, TOKENS), "all-reduce, each way"),
            ),
            width=8,
            log=True,
        ),
        Panel(
            "Per parameter",
            "Bytes that one node sends and receives in one round, divided by the number of model parameters. Only "
            "rounds that the node contributes to.",
            "lines",
            "bytes a parameter",
            (
                Query(f"{_for_each(UP, COUNTED)} / scalar(thinwire_coordinator_parameters)", "up"),
                Query(f"{_for_each(DOWN, COUNTED)} / scalar(thinwire_coordinator_parameters)", "down"),
                Query(
                    f"{_for_each(ALL_REDUCE, COUNTED)} / scalar(thinwire_coordinator_parameters)",
                    "all-reduce, each way",
                ),
            ),
            width=8,
            log=True,
        ),
    ),
)
CODEC = PanelRow(
    "The codec",
    (
        Panel(
            "Bits a component",
            "Payload bits of contributions for each vote, and of updates for each component. For contributions, 9.3 is "
            "the entropy at k = 32.",
            "lines",
            "bits",
            (
                Query(
                    "8 * " + _for_each(UP_BYTES, UP_COMPONENTS),
                    "up",
                ),
                Query(
                    "8 * " + _for_each(DOWN_BYTES, DOWN_COMPONENTS),
                    "down",
                ),
            ),
            width=12,
        ),
        Panel(
            "Size of updates and contributions",
            "Mean payload. An update grows with the number of nodes, because their votes seldom coincide.",
            "lines",
            "bytes",
            (
                Query(_for_each(DOWN_BYTES, SEALED), "update"),
                Query(
                    _for_each(UP_BYTES, 'thinwire_coordinator_contribution_seconds_count{of="receive"}'),
                    "contribution",
                ),
            ),
            width=12,
        ),
    ),
)
BANDWIDTH = Dashboard(
    "bandwidth",
    "thinwire: bandwidth",
    "Bytes by direction, kind and node, compared with an all-reduce and with the capacity of the links.",
    (TOTALS, BY_KIND, BY_NODE, EACH, CODEC),
)
