"""Writes the dashboards' JSON from their description, or checks that the committed files are up to date (`--check`)."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.dashboards.description import DASHBOARDS

FOLDER = Path(__file__).resolve().parent.parent / "grafana" / "dashboards"


def main() -> None:
    if sys.version_info < (3, 11):
        print("the dashboards were not checked: Grafana's types need Python 3.11 or newer")
        return
    from deploy.dashboards.build import to_json  # noqa: PLC0415 - needs Python 3.11

    fresh = {f"{dashboard.uid}.json": to_json(dashboard) for dashboard in DASHBOARDS}
    if sys.argv[1:] != ["--check"]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in fresh.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in fresh | committed if fresh.get(name) != committed.get(name))
    if stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; run `make dashboards` and commit the result")
    print("the dashboards are up to date")


if __name__ == "__main__":
    main()
