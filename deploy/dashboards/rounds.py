"""*Rounds*: where a round's time goes, who is late, and what came of it."""

from __future__ import annotations

from deploy.dashboards.panels import Dashboard, Panel, Query, Row


def _quantile(share: float, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket[$__rate_interval])))"


def _mean(histogram: str, by: str) -> str:
    parts = (f"sum by ({by}) (rate({histogram}_{part}[$__rate_interval]))" for part in ("sum", "count"))
    return " / ".join(parts)


NOW = Row(
    "Now",
    (
        Panel(
            "Round",
            "The newest one that was opened.",
            "number",
            "number",
            (Query("thinwire_coordinator_round", "round"),),
            width=6,
            decimals=0,
        ),
        Panel(
            "Since the last sealed round",
            "By the clock of Prometheus. More than three rounds' length is an alert.",
            "number",
            "seconds",
            (Query("time() - thinwire_coordinator_sealed_timestamp_seconds", "since"),),
            width=6,
            decimals=1,
        ),
        Panel(
            "Void rounds",
            "Share of the last five minutes' rounds that sealed no update.",
            "number",
            "share",
            (Query("instance:thinwire_coordinator_rounds_void:share5m", "void"),),
            width=6,
            bad_from=0.2,
        ),
        Panel(
            "Late contributions",
            "Share of the last five minutes' contributions that came after their round.",
            "number",
            "share",
            (Query("instance:thinwire_coordinator_contributions_late:share5m", "late"),),
            width=6,
            bad_from=0.1,
        ),
    ),
)
OUTCOME = Row(
    "What came of them",
    (
        Panel(
            "Sealed rounds",
            "A second, by how they ended: everybody had delivered, or time was up.",
            "stack",
            "times/s",
            (Query("rate(thinwire_coordinator_rounds_sealed_total[$__rate_interval])", "{{reason}}"),),
            width=8,
        ),
        Panel(
            "Void rounds",
            "A second, by how they ended with too few contributions.",
            "stack",
            "times/s",
            (Query("rate(thinwire_coordinator_rounds_void_total[$__rate_interval])", "{{reason}}"),),
            width=8,
        ),
        Panel(
            "What became of contributions",
            "Receipts a second: counted, or why not.",
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
PHASES = Row(
    "Phases",
    (
        Panel(
            "At the coordinator, in the mean",
            "gather: announced until over; merge: until the update is encoded; seal: until it is on disk; broadcast: "
            "until a node's stream has taken it; apply: to the coordinator's own replica.",
            "lines",
            "seconds",
            (Query(_mean("thinwire_coordinator_phase_seconds", "phase"), "{{phase}}"),),
            log=True,
        ),
        Panel(
            "At the coordinator, 95 of 100",
            "No more than one phase in twenty took longer.",
            "lines",
            "seconds",
            (Query(_quantile(0.95, "thinwire_coordinator_phase_seconds", "phase"), "{{phase}}"),),
            log=True,
        ),
        Panel(
            "At the nodes, in the mean",
            "compute: a micro-batch; encode: a cut; upload: first byte out to last byte in; receipt: from there; "
            "apply: an update; wait: nothing to train on. Of the nodes that are scraped.",
            "lines",
            "seconds",
            (Query(_mean("thinwire_node_phase_seconds", "phase"), "{{phase}}"),),
            log=True,
        ),
        Panel(
            "At the nodes, share of time",
            "Seconds of each phase in a second, in the mean over the nodes that are scraped. Uploading goes on beside "
            "computing, so they may add up to more than 100%.",
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
LATENESS = Row(
    "Lateness and stragglers",
    (
        Panel(
            "Before the deadline",
            "When contributions that are in their round arrived before its deadline: how many, by how much.",
            "heatmap",
            "seconds",
            (
                Query(
                    "sum by (le) (increase(thinwire_coordinator_contribution_before_deadline_seconds_bucket"
                    "[$__rate_interval]))",
                    "{{le}}",
                ),
            ),
        ),
        Panel(
            "After the announcement",
            "When contributions arrived after their round was opened. The distance between the middle and the last "
            "ones is what stragglers cost where a round waits for everybody.",
            "lines",
            "seconds",
            (
                Query(_quantile(0.5, "thinwire_coordinator_contribution_after_open_seconds"), "half"),
                Query(_quantile(0.95, "thinwire_coordinator_contribution_after_open_seconds"), "95 of 100"),
                Query(_quantile(0.99, "thinwire_coordinator_contribution_after_open_seconds"), "99 of 100"),
                Query("thinwire_coordinator_round_length_seconds", "length of a round"),
            ),
        ),
        Panel(
            "Slack of each node",
            "From the arrival of its newest contribution to the deadline; below zero it was late. Of the nodes that "
            "are scraped.",
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
            "From its first part to its last, as the coordinator sees it: how thin the links are.",
            "lines",
            "seconds",
            (
                Query(_quantile(0.5, "thinwire_coordinator_contribution_receive_seconds"), "half"),
                Query(_quantile(0.95, "thinwire_coordinator_contribution_receive_seconds"), "95 of 100"),
            ),
            log=True,
        ),
    ),
)
ROUNDS = Dashboard(
    "rounds",
    "thinwire: rounds",
    "Where a round's time goes, who is late, and what came of it.",
    (NOW, OUTCOME, PHASES, LATENESS),
)
