"""The command `thinwire-coordinator serve`."""

from __future__ import annotations

import asyncio

from thinwire_common.logs import log_to_stderr
from thinwire_common.program import ending_signals
from thinwire_coordinator.cli.options import DEFAULT_HTTP, NO_HTTP, ServeOptions
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.access.transport import TlsSettings
from thinwire_coordinator.hall.observe.sinks.sinks import SinkSettings
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.planning.problems import read_run_file
from thinwire_coordinator.standby import Standby


def serve(options: ServeOptions) -> None:
    """Run a coordinator, or its standby, until SIGINT, SIGTERM or SIGHUP. Raises ThinwireError."""
    log_to_stderr(options.log_level, options.log_format)
    run, planned = read_run_file(options.run) if options.run else (None, ())
    settings = CoordinatorSettings(
        state_dir=options.state_dir,
        listen=options.listen,
        run=run,
        planned=planned,
        wait_for=options.wait_for,
        threads=options.threads,
        evaluate_every=options.evaluate_every,
        evaluate=options.evaluate,
        audit_every=options.audit_every,
        bodies=options.bodies,
        keep=options.keep,
        address=options.address,
        invite_file=options.invite_file,
        tls=TlsSettings(
            options.tls_certificate,
            options.tls_key,
            options.tls_proxy,
            options.insecure,
            options.tls_ca_file,
            options.tls_proxy_forwards,
        ),
        http=None if options.http == NO_HTTP else options.http or DEFAULT_HTTP,
        http_may_move=options.http is None,
        sinks=SinkSettings(options.tensorboard, options.wandb),
        follow=options.follow,
        seal_after_standby=options.seal_after_standby,
    )

    async def until_stopped() -> None:
        stop = asyncio.Event()
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        if settings.follow is None or await Standby(settings).run(stop):
            await Coordinator(settings).run(stop)

    import uvloop  # noqa: PLC0415 - not available on Windows, where the other commands work

    uvloop.run(until_stopped())
