"""Reads Prometheus's text format and queries its HTTP API."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 10
Series = tuple[str, frozenset[tuple[str, str]]]


def read(url: str) -> str:
    with urlopen(url, timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def parsed(exposition: str) -> dict[Series, float]:
    """The samples in the body of `/metrics`, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for found in text_string_to_metric_families(exposition)
        for sample in found.samples
    }


def value(samples: dict[Series, float], name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


class Prometheus:
    """A client of a running Prometheus. `url`: its address."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _ask(self, path: str, **query: str) -> Any:
        try:
            return json.loads(read(f"{self._url}/api/v1/{path}?{urlencode(query)}"))["data"]
        except OSError:
            return None  # Prometheus does not listen yet

    def targets(self) -> dict[str, str]:
        """The health of each target, by address."""
        found = self._ask("targets")
        return {target["labels"]["instance"]: target["health"] for target in found["activeTargets"]} if found else {}

    def value(self, expression: str) -> float:
        """The single value of an expression; NaN if there is none."""
        found = self._ask("query", query=expression)
        return float(found["result"][0]["value"][1]) if found and found["result"] else math.nan

    def names(self) -> set[str]:
        return set(self._ask("label/__name__/values"))
