"""Grafana's dashboards, written from one description (`description`) with Grafana's own types (`build`)."""
