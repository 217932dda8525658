"""Renews the certificate of a running coordinator. Open connections go on; new ones get the new certificate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timezone

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.tls_files import Certificates
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.certificates import Certificate

log = logging.getLogger("thinwire.coordinator")

LOOK_EVERY_S = 60.0


class Rotation:
    """Looks every LOOK_EVERY_S whether the certificate is due. watchers: receive each new certificate."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._problem = ""
        self.watchers: list[Callable[[Certificate], None]] = []

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look(utc_now())

    async def look(self, now: datetime) -> None:
        """Renew the certificate if it is due. A failure is logged once; the old certificate stays in use."""
        before = self._certificates.current
        try:
            reason = await asyncio.to_thread(self._certificates.renew, now)
            problem = ""
        except ConfigError as error:
            reason, problem = None, str(error)
        if problem and problem != self._problem:
            text = f"the TLS certificate cannot be renewed: {problem}"
            tell(log, logging.WARNING, "coordinator.certificate_not_renewed", text, reason=problem)
        self._problem = problem
        if self._certificates.current != before:
            ends = self._certificates.current.parsed.not_valid_after_utc
            text = f"new TLS certificate, valid until {ends:%Y-%m-%d}: {reason}"
            tell(log, logging.INFO, "coordinator.certificate_renewed", text, ends=ends.isoformat(), reason=reason)
            for watcher in self.watchers:
                watcher(self._certificates.current)


def utc_now() -> datetime:
    """The time of day. Only certificates need it."""
    return datetime.now(timezone.utc)
