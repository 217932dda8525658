"""All dashboards. Names of metrics: docs/metrics.md; of what is recorded: deploy/prometheus/rules.yml."""

from __future__ import annotations

from deploy.dashboards.bandwidth import BANDWIDTH
from deploy.dashboards.node import NODE
from deploy.dashboards.rounds import ROUNDS
from deploy.dashboards.swarm import SWARM

DASHBOARDS = (SWARM, BANDWIDTH, ROUNDS, NODE)
