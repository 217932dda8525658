"""Write the dashboards' JSON from their description, or check that the committed ones are up to date (`--check`)."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.dashboards.description import DASHBOARDS

FOLDER = Path(__file__).resolve().parent.parent / "grafana" / "dashboards"


def main() -> None:
    if sys.version_info < (3, 11):
        print("Grafana's types need Python 3.11 or newer: the dashboards were not checked")
        return
    from deploy.dashboards.build import to_json  # noqa: PLC0415 - not there before Python 3.11

    fresh = {f"{dashboard.uid}.json": to_json(dashboard) for dashboard in DASHBOARDS}
    if sys.argv[1:] != ["--check"]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in fresh.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in fresh | there if fresh.get(name) != there.get(name))
    if stale:
        raise SystemExit(
            f"stale: {', '.join(stale)}; deploy/dashboards has changed since: run `make dashboards` and commit"
        )
    print("the dashboards are up to date")


if __name__ == "__main__":
    main()
