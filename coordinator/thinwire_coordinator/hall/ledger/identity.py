"""The coordinator's key of a run, by which nodes know the run, and whose state directory a folder is.

A node's state directory has files of the same names in part.
"""

from __future__ import annotations

import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

from thinwire_common.sqlite_errors import is_locked, mend
from thinwire_proto.errors import ConfigError, Locked
from thinwire_proto.identity.keys import KEY_FILE, PublicKey, SecretKey, open_key

RUN_ENDED = "this run has ended: export its model, and start a new run from that (docs/operating.md, lost keys)"
NOTHING_SEALED = "delete it if no coordinator of this run has sealed anything; invites made so far are then void"


def open_identity(folder: Path) -> SecretKey:
    """Open the key of the run in a state directory, or create one if no key has signed its rows yet.

    Raises ConfigError if the key is missing or another than the one that signed them: nodes would refuse all rows.
    """
    path, known = folder / KEY_FILE, _key_that_signed(folder / "ledger.sqlite")
    if known is None:
        return open_key(path, NOTHING_SEALED)
    if not path.exists():
        text = "is missing: it signs the rows, and nodes know this run by it; restore it from a copy; without one, "
        raise ConfigError(f"{path} {text}{RUN_ENDED}")
    key = open_key(path, RUN_ENDED)
    if key.public != known:
        raise ConfigError(
            f"{path} is the key {key.public.fingerprint.hex()[:16]}…, but the rows of this run are signed by "
            f"{known.fingerprint.hex()[:16]}…; restore the key that signed them"
        )
    return key


def open_existing_identity(folder: Path) -> SecretKey:
    """Open the key in a state directory on which a coordinator has started. Raises ConfigError as `open_identity` does,
    or if none has started there."""
    check_not_of_a_node(folder)
    if not (folder / KEY_FILE).exists() and _key_that_signed(folder / "ledger.sqlite") is None:
        serve = shlex.join(["thinwire-coordinator", "serve", "--state-dir", str(folder)])
        raise ConfigError(f"{folder}: no coordinator has started here yet; run: {serve}")
    return open_identity(folder)


def _key_that_signed(ledger: Path) -> PublicKey | None:
    """The key that a ledger names. None if there is none; whoever opens the ledger next says what is wrong with it."""
    if not ledger.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT value FROM about WHERE key = 'coordinator_key'").fetchone()
    except sqlite3.Error as error:
        if is_locked(error):
            raise Locked(f"cannot read {ledger}: {error}; {mend(ledger, error)}") from None
        return None
    return None if found is None else PublicKey(bytes.fromhex(found[0]))


OF_NODES = ("enrolment.json", "head.json")
OF_COORDINATORS = "ledger.sqlite"
OF_BEGUN_RUNS = frozenset({OF_COORDINATORS, "contract.json", "lock", KEY_FILE, "snapshots", "updates"})
"""A coordinator that has begun in a folder has left one of these there, and so has a copy of it."""
OF_SYSTEMS = "lost+found"
"""The top of a file system may have this."""
OF_ORGANIZERS = (".toml", ".pem", ".crt", ".key")
"""The run file and certificates, which an organizer may keep beside the run."""


def check_not_of_a_node(folder: Path) -> None:
    """Raise ConfigError if a folder is the state directory of a node, before anything is written to it."""
    if (folder / OF_COORDINATORS).exists() or not any((folder / name).exists() for name in OF_NODES):
        return
    raise ConfigError(f"{folder} is the state directory of a node; give the coordinator's --state-dir")


def check_begun_or_empty(folder: Path) -> None:
    """Raise ConfigError if a folder has files of others, and no coordinator has begun in it. Hidden ones do not count,
    nor do the organizer's."""
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if found & OF_BEGUN_RUNS:
        return
    own = {name for name in found if name == OF_SYSTEMS or name.startswith(".") or name.endswith(OF_ORGANIZERS)}
    if foreign := sorted(found - own):
        raise ConfigError(
            f"{folder} has {foreign[0]}, and no coordinator has started there; give --state-dir an empty folder, or "
            "one that does not exist yet"
        )
