"""Opens, feeds and closes all that shows a coordinator at work: health endpoints, page, metrics and sinks.

The port opens before the ledger is replayed, so that health checks report the coordinator as alive but not ready.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.routing import BaseRoute

from thinwire_common.http import HttpServer, bind
from thinwire_common.tls import ServerTls
from thinwire_coordinator.hall.access.addresses import group_of, is_forwarded
from thinwire_coordinator.hall.access.admission import page_connections
from thinwire_coordinator.hall.access.organizer import FILE as SECRET_FILE
from thinwire_coordinator.hall.access.organizer import Logins, OrganizerSecret
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.observe.exposition import Exposition
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.observe.sinks.sinks import Sinks
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.run_opening import ReplayedRun, StartWorker
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.view import WholeRun
from thinwire_coordinator.hall.web.organizer import AccessPanel, Organizer
from thinwire_coordinator.hall.web.page import Page
from thinwire_coordinator.hall.workers import Workers

log = logging.getLogger("thinwire.coordinator")


class Monitoring:
    """The monitoring of one coordinator process.

    In the life cycle of the process, call `check` first, `start` before the ledger is replayed, `begin` with the swarm,
    `listening` once nodes can join, and `close` last.
    """

    def __init__(self, settings: CoordinatorSettings, workers: Workers) -> None:
        self._settings = settings
        self.readiness = Readiness()
        self._exposition = Exposition(self.readiness, workers)
        self._sinks = Sinks(settings.sinks, settings.state_dir)
        self._exposition.metrics.registry.register(self._sinks)
        self._page = Page(self.readiness)
        self._web: WebServer | None = None
        self._organizer: Organizer | None = None

    @property
    def page_address(self) -> str | None:
        """The address of the page, or None if it is not served."""
        return self._web.address if self._web is not None else None

    def check(self) -> None:
        """Raise ConfigError if a sink cannot work."""
        self._sinks.check()

    def start(self, transport: Transport, secret: OrganizerSecret) -> None:
        """Serve the page and the metrics, if the settings have an address. secret: the organizer's."""
        settings = self._settings
        if settings.http is None:
            return
        self._organizer = Organizer(Logins(secret), behind_proxy=transport.behind_proxy)
        knows, private = self._organizer.knows, transport.is_private(settings.http)
        self._page.sees_all = lambda request: knows(request) or (private and not is_forwarded(request.headers))
        routes = (self._exposition.route, *self._page.routes, *self._organizer.routes)
        self._web = WebServer(settings.http, transport, self.readiness, routes, may_move=settings.http_may_move)
        self._web.start()

    async def begin(self, run: Run, access: AccessStore, replayed: ReplayedRun, worker: StartWorker) -> None:
        """Start to watch the run."""
        settings = self._settings
        if self._web is not None:
            self._exposition.begin(run, replayed.measure_disks, replayed.needs, replayed.losses)
        self._page.open(run)  # even if it is not served: its history answers the status call
        if self._organizer is not None:
            self._organizer.panel = AccessPanel(access, settings.state_dir, run)
        self._sinks.begin(run, await worker.run(self._sinks.recall, run))

    def whole_run(self, asked: str = "") -> WholeRun | None:
        """Figures of all terms of the coordinator; None until they are read from the ledger."""
        return self._page.whole_run(asked)

    def listening(self, run: Run, port: int) -> None:
        """Show that nodes can join."""
        self._exposition.listening(port)
        self.readiness.swarm = run.view
        if (address := self.page_address) is not None:
            log.info("the page is at %s", address)
            secret = self._settings.state_dir / SECRET_FILE
            log.info("the organizer's panel is at %s/organizer; its secret is in %s", address, secret)

    async def close(self) -> None:
        await self._sinks.close()
        self._page.close()
        if self._web is not None:
            await self._web.stop()


ADVICE = "choose another address with --http HOST:PORT, or use --http off"


class WebServer:
    """The HTTP server at `listen` (HOST:PORT). It speaks HTTPS, except on loopback and to a proxy in front.

    If that port is taken: uses another one if `may_move`, otherwise raises ConfigError.
    """

    def __init__(
        self, listen: str, transport: Transport, readiness: Readiness, routes: Sequence[BaseRoute], *, may_move: bool
    ) -> None:
        host, _, port = listen.rpartition(":")
        certificate = transport.page_certificate(listen)
        tls = None if certificate is None else ServerTls(certificate.chain, certificate.key)
        if tls is not None and transport.rotation is not None:
            transport.rotation.watchers.append(lambda new: tls.replace(new.chain, new.key))
        may_connect = transport.may_connect if tls is None else lambda _: True
        bound = bind(host, int(port), ADVICE, may_move=may_move)
        every = [*readiness.routes, *routes]
        self._server = HttpServer(
            bound,
            every,
            page_connections(),
            tls,
            may_connect,
            transport.client_of,
            behind_proxy=transport.behind_proxy,
            network_of=group_of,
        )
        self.address = f"{self._server.scheme}://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
