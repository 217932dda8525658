"""Grafana's dashboards: each has a description in YAML here, from which its JSON is generated."""
