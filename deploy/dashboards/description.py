"""All dashboards. docs/metrics.md lists the metrics, and deploy/prometheus/rules.yml the recorded ones."""

from __future__ import annotations

from deploy.dashboards.bandwidth import BANDWIDTH
from deploy.dashboards.node import NODE
from deploy.dashboards.rounds import ROUNDS
from deploy.dashboards.swarm import SWARM

DASHBOARDS = (SWARM, BANDWIDTH, ROUNDS, NODE)
