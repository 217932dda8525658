"""Whether a state directory is that of the coordinator, of a standby, or of a machine that another one has replaced.

The file `standby.json` belongs to the machine: backups do not have it, so what is restored from one has no standing
yet. Only one process at a time uses a state directory, so a promotion is this file alone: the running standby reads it,
stops following, and begins a term after the promotion. If none runs, the next start does.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from thinwire_common.files import replace_synced
from thinwire_proto.errors import ConfigError, Damaged, LocalError
from thinwire_proto.identity.terms import promoted_from

FILE = "standby.json"
LEDGER = "ledger.sqlite"
TO_RETURN = "to make this machine its standby, back the run up there, and restore that here into an empty --state-dir"


class Superseded(LocalError):
    def __init__(self, term: int) -> None:
        super().__init__(
            f"another machine was promoted to be the coordinator of this run (term {term:,}), so this one seals "
            f"nothing any more, and must not be started again; {TO_RETURN}"
        )


@dataclass(frozen=True)
class Standing:
    """follows: HOST:PORT of the coordinator that is or was followed; empty: none. promoted: the first term after the
    promotion of this machine; 0: it was not promoted. newer: a term after the promotion of another machine."""

    follows: str = ""
    promoted: int = 0
    newer: int = 0

    @property
    def waits(self) -> bool:
        return bool(self.follows) and not self.promoted


def read_standing(folder: Path) -> Standing:
    """Raises Damaged, OSError."""
    path = folder / FILE
    try:
        return Standing(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Standing()
    except (ValueError, TypeError) as error:
        raise Damaged(f"{path}: {error}", restore="it") from None


def keep_standing(folder: Path, standing: Standing) -> None:
    """Write the file; it is on disk on return. Raises OSError."""
    replace_synced(folder / FILE, (json.dumps(asdict(standing), indent=2) + "\n").encode())


def check_leads(folder: Path) -> Standing:
    """The standing of a state directory on which a coordinator is about to start. Raises ConfigError or Superseded."""
    return _leading(folder, "start it with --follow {}")


def check_orders(folder: Path) -> None:
    """Raise ConfigError or Superseded if the organizer's orders are of no effect in a state directory."""
    _leading(folder, "that one does not hear of orders here, so give the order there")


def _leading(folder: Path, otherwise: str) -> Standing:
    """The standing of a state directory, unless it is that of a standby or of a machine that was replaced. otherwise:
    what to do with a standby; {} stands for the address that it follows."""
    standing = read_standing(folder)
    if standing.newer:
        raise Superseded(standing.newer)
    if standing.waits:
        raise ConfigError(
            f"{folder} is a standby of the coordinator at {standing.follows}: {otherwise.format(standing.follows)}; if "
            "that coordinator is lost, run `thinwire-coordinator promote` first"
        )
    return standing


def note_newer(folder: Path, term: int) -> Superseded:
    """Note the term of another machine that was promoted. Returns the error with which this one ends."""
    keep_standing(folder, replace(read_standing(folder), newer=term))
    return Superseded(term)


def promote(folder: Path) -> Standing:
    """Make a standby the coordinator, or a run that was restored from a backup. Returns its standing; a second call
    changes nothing. Raises ConfigError, also if a coordinator runs there already, Superseded, Damaged or OSError."""
    standing = read_standing(folder)
    if standing.newer:
        raise Superseded(standing.newer)
    if standing.promoted:
        return standing
    term = _newest_term(folder)
    if not standing.follows and term is None:
        raise ConfigError(f"{folder} has no run; restore a backup there first, or give another --state-dir")
    if not standing.follows:
        from thinwire_coordinator.hall.ledger.state_directory import lock_state  # noqa: PLC0415 - `status` needs no torch

        lock_state(folder).release()
    standing = replace(standing, promoted=promoted_from(term or 0))
    keep_standing(folder, standing)
    return standing


def _newest_term(folder: Path) -> int | None:
    """The newest term of the ledger: 0 if no coordinator has started yet; None if there is no ledger. Rows reach a
    standby before the term in which they were sealed does."""
    if not (folder / LEDGER).exists():
        return None
    return _number(
        folder, "SELECT coalesce(max(term), 0) FROM (SELECT term FROM terms UNION ALL SELECT term FROM rows)"
    )


def rows_in(folder: Path) -> int:
    """The number of rows in the ledger of a state directory. Raises Damaged."""
    return _number(folder, "SELECT count(*) FROM rows")


def _number(folder: Path, query: str) -> int:
    path = folder / LEDGER
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return int(db.execute(query).fetchone()[0])
    except sqlite3.Error as error:
        raise Damaged(f"{path}: {error}", restore="it") from None
