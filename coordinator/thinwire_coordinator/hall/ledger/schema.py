"""The ledger's tables."""

from __future__ import annotations

SCHEMA_VERSION = 5
SCHEMA = (
    """CREATE TABLE rows (
        step INTEGER PRIMARY KEY, round INTEGER NOT NULL, term INTEGER NOT NULL, nonce BLOB NOT NULL,
        fingerprint BLOB NOT NULL, body_hash BLOB NOT NULL, body_bytes INTEGER NOT NULL, counted BLOB NOT NULL,
        previous BLOB NOT NULL, hash BLOB NOT NULL, extras BLOB NOT NULL, signature BLOB
    ) STRICT""",
    "CREATE TABLE contributions (hash BLOB PRIMARY KEY, step INTEGER NOT NULL, signature BLOB) STRICT",
    """CREATE TABLE voids (
        first_round INTEGER NOT NULL, last_round INTEGER NOT NULL, term INTEGER NOT NULL, reason TEXT NOT NULL
    ) STRICT""",
    "CREATE TABLE terms (term INTEGER PRIMARY KEY, first_round INTEGER NOT NULL) STRICT",
    """CREATE TABLE losses (
        name TEXT NOT NULL, step INTEGER NOT NULL, loss REAL NOT NULL, measured_by TEXT NOT NULL,
        PRIMARY KEY (name, step)
    ) STRICT""",
    "CREATE TABLE names (node TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT",
    "CREATE TABLE leases (only INTEGER PRIMARY KEY CHECK (only = 0), packed BLOB NOT NULL) STRICT",
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    "CREATE TABLE public_keys (node TEXT PRIMARY KEY, key BLOB NOT NULL) STRICT",
    "CREATE TABLE directory (key TEXT PRIMARY KEY, packed BLOB NOT NULL) STRICT",
)
"""The signatures are beside the rows, not in them: rows travel to all nodes. `losses` has the held-out losses by the
name of the set; measured_by: see `MeasuredBy`. `public_keys` has those of the nodes with counted contributions, by node
id. `directory` has the topology and the places of the nodes of a gossip run, as last recorded."""
