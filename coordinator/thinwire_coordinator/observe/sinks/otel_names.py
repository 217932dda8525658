"""Names and units of metrics by OpenTelemetry's conventions, derived from their Prometheus names.

Each metric is defined once, in `observe/definitions.py`. OpenTelemetry writes namespaces with dots, and keeps units and
the kind of a metric out of its name, where Prometheus has them as suffixes. A backend that converts back, by
OpenTelemetry's rules for Prometheus, shows the names that /metrics shows.
"""

from __future__ import annotations

from thinwire_coordinator.observe.definitions import METRICS

SUFFIXES = {"bytes": "By", "seconds": "s", "ratio": "1"}
"""Units in UCUM, by the suffix that Prometheus asks for."""
PROCESS = {
    "process_cpu_seconds": ("process.cpu.time", "s"),
    "process_resident_memory_bytes": ("process.memory.usage", "By"),
    "process_virtual_memory_bytes": ("process.memory.virtual", "By"),
    "process_open_fds": ("process.unix.file_descriptor.count", "{file_descriptor}"),
}
"""Names of what prometheus_client measures of the process, by OpenTelemetry's semantic conventions for processes."""
PREFIXES = {METRICS.prefix: METRICS.prefix.replace("_", ".")}
UNITS = {definition.name.removesuffix("_total"): definition.unit for definition in METRICS}
"""Units that no suffix tells."""


def otel_name(family: str) -> tuple[str, str] | None:
    """Name and unit of a metric family of prometheus_client, whose name lacks `_total`; None: it has no equivalent."""
    if family in PROCESS:
        return PROCESS[family]
    for prefix, namespace in PREFIXES.items():
        if family.startswith(prefix):
            name, _, suffix = family.removeprefix(prefix).rpartition("_")
            if suffix not in SUFFIXES:
                return namespace + family.removeprefix(prefix), UNITS.get(family, "")
            if prefix + name in UNITS:  # two metrics need two names, so this one keeps its suffix
                name = f"{name}_{suffix}"
            return namespace + name, SUFFIXES[suffix]
    return None
