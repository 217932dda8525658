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
TO_RETURN = "to make this machine its standby, back the run up there, and restore that here into an empty --state-dir"


class Superseded(LocalError):
    """Another machine was promoted, and is the coordinator of this run now."""

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
        """Whether this is a standby that was not promoted."""
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
    standing = read_standing(folder)
    if standing.newer:
        raise Superseded(standing.newer)
    if standing.waits:
        raise ConfigError(
            f"{folder} is a standby of the coordinator at {standing.follows}: start it with --follow "
            f"{standing.follows}; if that coordinator is lost, run `thinwire-coordinator promote` first"
        )
    return standing


def note_newer(folder: Path, term: int) -> Superseded:
    """Note the term of another machine that was promoted. Returns the error with which this one ends."""
    keep_standing(folder, replace(read_standing(folder), newer=term))
    return Superseded(term)


def promote(folder: Path) -> Standing:
    """Make a standby the coordinator, or a run that was restored from a backup. Returns its standing; a second call
    changes nothing. Raises ConfigError, Superseded, Damaged or OSError."""
    standing = read_standing(folder)
    if standing.newer:
        raise Superseded(standing.newer)
    if standing.promoted:
        return standing
    term = _newest_term(folder)
    if not standing.follows and term is None:
        raise ConfigError(f"{folder} has no run; restore a backup there first, or give another --state-dir")
    standing = replace(standing, promoted=promoted_from(term or 0))
    keep_standing(folder, standing)
    return standing


def _newest_term(folder: Path) -> int | None:
    """The newest term of the ledger: 0 if no coordinator has started yet; None if there is no ledger."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT coalesce(max(term), 0) FROM terms").fetchone()[0])
    except sqlite3.Error as error:
        raise Damaged(f"{path}: {error}", restore="it") from None
