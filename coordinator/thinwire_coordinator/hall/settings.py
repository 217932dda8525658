"""Settings of a coordinator process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thinwire_common.ready_file import READY_FILE
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.access.transport import TlsSettings
from thinwire_coordinator.hall.measuring import EvaluatedBy
from thinwire_coordinator.hall.observe.sinks.sinks import SinkSettings
from thinwire_proto.contract import RunSpec


@dataclass(frozen=True)
class CoordinatorSettings:
    """Settings of one coordinator process. The contract defines the run itself."""

    state_dir: Path
    listen: str
    run: RunSpec | None
    wait_for: int
    evaluate_every: int
    evaluate: EvaluatedBy = "coordinator"
    audit_every: int = 0
    """Rounds from one audit of contributions to the next; 0: no audits."""
    bodies: str | None = None
    """Address of the bodies; None: the address of the existing run, or the state directory for a new run."""
    keep: int | None = None
    """Number of snapshots to keep; see `retention`."""
    address: str | None = None
    """HOST:PORT in invites; None: derived from `listen`."""
    invite_file: Path | None = None
    """Keep an invite for any number of nodes in this file."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Certificates, or plain text."""
    http: str | None = None
    """Address of the page and the metrics; None: do not serve them."""
    http_may_move: bool = False
    """Whether the page may use another port if this one is taken."""
    threads: int | None = None
    """CPU threads of torch; None: see `workers.default_threads`."""
    sinks: SinkSettings = field(default_factory=SinkSettings)
    """Other targets of the curves and the metrics."""

    planned: Sequence[Order] = ()
    """The amendments of the run file."""
    follow: str | None = None
    """HOST:PORT of the coordinator whose standby this machine is; None: it is no standby."""
    seal_after_standby: bool = False
    """Whether a step is sealed only when the standby has it."""

    @property
    def ready(self) -> Path:
        return self.state_dir / READY_FILE
