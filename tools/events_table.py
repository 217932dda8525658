"""Write docs/events.md from the table of events in the code, or check that it is up to date (`--check`)."""

from __future__ import annotations

from collections.abc import Mapping

from thinwire_common.event_ids import COORDINATOR, FIELDS, NODE, EventType
from tools.generated import write_or_check

OPENING = """# Events

`thinwire-coordinator serve` and `thinwire-node start` log to stderr. With `--log-format json`, each line is a JSON
object with `time` (UTC), `level`, `logger` and `message`; an exception adds `exception`. If the line is an event of the
tables below, it also has its id as `event`, and the event's fields:

    {"time": "2026-11-22T07:00:00.000+00:00", "level": "info", "logger": "thinwire.coordinator",
     "message": "step 20: snapshot written", "event": "coordinator.snapshot_written", "step": 20}

Ids and fields are an interface and do not change. A message may change at any time, so no program should read
it. To learn where a daemon listens, wait for its [ready file](operating.md#the-ready-file) instead.

`python -m tools.events_table` generates this page from the code.
"""


def page() -> str:
    used = {field for event in (COORDINATOR | NODE).values() for field in event.fields}
    fields = ["## Fields", "", "| field | content |", "|---|---|"]
    fields += [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items() if name in used]
    sections = [_section("The coordinator", COORDINATOR), _section("A node", NODE), "\n".join([*fields, ""])]
    return "\n".join([OPENING, *sections])


def _section(title: str, events: Mapping[str, EventType]) -> str:
    lines = [f"## {title}", "", "| event | fields | meaning |", "|---|---|---|"]
    for name, event in events.items():
        fields = ", ".join(f"`{field}`" for field in event.fields)
        lines.append(f"| `{name}` | {fields} | {event.meaning} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    write_or_check("events.md", page(), "tools.events_table")
