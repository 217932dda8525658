"""How log lines look: for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """time (UTC), level, logger, message; what a line was given as `extra={"fields": {…}}`; and an exception's text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def formatter(name: str) -> logging.Formatter:
    """One of FORMATS."""
    return JsonFormatter() if name == "json" else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
