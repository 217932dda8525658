"""Settings in access.sqlite that a coordinator leaves for the organizer's commands, which may run without it."""

from __future__ import annotations

from thinwire_coordinator.hall.access.database import Database

ADDRESS = "address"
"""HOST:PORT in invites."""
PUBLIC_TLS = "public_tls"
"""Not empty if the certificate there is the organizer's own, or that of a proxy in front."""


class SettingsTable:
    def __init__(self, database: Database) -> None:
        self._db = database

    def get(self, key: str) -> str | None:
        for (value,) in self._db.execute("SELECT value FROM settings WHERE key = ?", key):
            return str(value)
        return None

    def put(self, key: str, value: str) -> None:
        if self.get(key) != value:
            self._db.write("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", key, value)
