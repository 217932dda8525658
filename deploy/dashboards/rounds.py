"""*Rounds*: duration of the phases, late contributions, and outcomes."""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, PanelRow, Query


def _quantile(share: float, histogram: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({histogram}_bucket[$__rate_interval])))"


def _of_contributions(share: float, of: str) -> str:
    return (
        f"histogram_quantile({share}, sum by (le) "
        f'(rate(thinwire_coordinator_contribution_seconds_bucket{{of="{of}"}}[$__rate_interval])))'
    )


def _mean(histogram: str, by: str) -> str:
    parts = (f"sum by ({by}) (rate({histogram}_{part}[$__rate_interval]))" for part in ("sum", "count"))
    return " / ".join(parts)


NOW = PanelRow(
    "Now",
    (
        Panel(
            "Round",
            "Number of the newest round.",
            "number",
            "number",
            (Query("thinwire_coordinator_round", "round"),),
            width=6,
            decimals=0,
        ),
        Panel(
            "Since the last sealed round",
            "By Prometheus' clock. More than three round lengths raise an alert.",
            "number",
            "seconds",
            (Query("time() - thinwire_coordinator_sealed_timestamp_seconds", "since"),),
            width=6,
            decimals=1,
        ),
        Panel(
            "Void rounds",
            "Share of rounds in the last five minutes that sealed no update.",
            "number",
            "share",
            (Query("instance:thinwire_coordinator_rounds_void:share5m", "void"),),
            width=6,
            bad_from=0.2,
        ),
        Panel(
            "Late contributions",
            "Share of contributions in the last five minutes that arrived after the end of their round.",
            "number",
            "share",
            (Query("instance:thinwire_coordinator_contributions_late:share5m", "late"),),
            width=6,
            bad_from=0.1,
        ),
    ),
)
OUTCOME = PanelRow(
    "Outcomes",
    (
        Panel(
            "Sealed rounds",
            "Rounds a second, by why they ended: all nodes had contributed, or the time was up.",
            "stack",
            "times/s",
            (Query('rate(thinwire_coordinator_rounds_total{result="sealed"}[$__rate_interval])', "{{reason}}"),),
            width=8,
        ),
        Panel(
            "Void rounds",
            "Rounds a second that ended with too few contributions, by why they ended.",
            "stack",
            "times/s",
            (Query('rate(thinwire_coordinator_rounds_total{result="void"}[$__rate_interval])', "{{reason}}"),),
            width=8,
        ),
        Panel(
            "Contribution outcomes",
            "Receipts a second, by outcome: counted, or the reason for refusal.",
            "stack",
            "times/s",
            (
                Query(
                    "sum by (outcome) (rate(thinwire_coordinator_contributions_total[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            width=8,
        ),
    ),
)
PHASES = PanelRow(
    "Phases",
    (
        Panel(
            "Coordinator, mean",
            "gather: from the announcement to the end of the round; merge: until the update is encoded; seal: until it "
            "is on disk; broadcast: until a node's stream has accepted it; apply: to the coordinator's own replica.",
            "lines",
            "seconds",
            (Query(_mean("thinwire_coordinator_phase_seconds", "phase"), "{{phase}}"),),
            log=True,
        ),
        Panel(
            "Coordinator, 95th percentile",
            "One phase in twenty took longer.",
            "lines",
            "seconds",
            (Query(_quantile(0.95, "thinwire_coordinator_phase_seconds", "phase"), "{{phase}}"),),
            log=True,
        ),
        Panel(
            "Nodes, mean",
            "compute: a micro-batch; encode: extraction and encoding; upload: from the first byte sent to the last "
            "byte received; receipt: from then to the receipt; apply: an update; wait: nothing to train on. Only "
            "nodes scraped by Prometheus.",
            "lines",
            "seconds",
            (Query(_mean("thinwire_node_phase_seconds", "phase"), "{{phase}}"),),
            log=True,
        ),
        Panel(
            "Nodes, share of time",
            "Seconds of each phase in a second, mean over the nodes scraped by Prometheus. Uploading overlaps with "
            "computing, so the sum may exceed 100%.",
            "stack",
            "share",
            (
                Query(
                    "sum by (phase) (rate(thinwire_node_phase_seconds_sum[$__rate_interval])) "
                    "/ scalar(count(thinwire_node_info))",
                    "{{phase}}",
                ),
            ),
        ),
    ),
)
LATENESS = PanelRow(
    "Lateness and stragglers",
    (
        Panel(
            "Before the deadline",
            "Number of contributions in time, by how long before the deadline they arrived.",
            "heatmap",
            "seconds",
            (
                Query(
                    "sum by (le) (increase(thinwire_coordinator_contribution_seconds_bucket"
                    '{of="before_deadline"}[$__rate_interval]))',
                    "{{le}}",
                ),
            ),
        ),
        Panel(
            "After the announcement",
            "Time from the opening of a round to the arrival of contributions. If a round waits for all nodes, the "
            "distance from the median to the last ones is the cost of stragglers.",
            "lines",
            "seconds",
            (
                Query(_of_contributions(0.5, "after_open"), "median"),
                Query(_of_contributions(0.95, "after_open"), "95 of 100"),
                Query(_of_contributions(0.99, "after_open"), "99 of 100"),
                Query("thinwire_coordinator_round_length_seconds", "round length"),
            ),
        ),
        Panel(
            "Slack of each node",
            "Time from the arrival of a node's newest contribution to the deadline. Below zero, it was late. Only "
            "nodes scraped by Prometheus.",
            "lines",
            "seconds",
            (
                Query(
                    "thinwire_node_upload_slack_seconds * on (instance) group_left (name) thinwire_node_info",
                    "{{name}}",
                ),
            ),
        ),
        Panel(
            "Time to receive a contribution",
            "Time from the first part to the last, measured by the coordinator. It shows how slow the links are.",
            "lines",
            "seconds",
            (
                Query(_of_contributions(0.5, "receive"), "median"),
                Query(_of_contributions(0.95, "receive"), "95 of 100"),
            ),
            log=True,
        ),
    ),
)
ROUNDS = Dashboard(
    "rounds",
    "thinwire: rounds",
    "Duration of the phases, late contributions, and outcomes.",
    (NOW, OUTCOME, PHASES, LATENESS),
)
