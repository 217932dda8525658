"""`thinwire-coordinator verify`: replay the whole run and check every hash, fingerprint and signature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinwire_coordinator.hall.ledger.checks import SignatureCheck, check_blobs, check_length
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.errors import LedgerError


def verify(folder: Path, say: Callable[[str], None], fingerprint: bytes | None = None) -> None:
    """Replay the run and check it. Raises LedgerError at the first failure.

    The replay starts from the first state or, if retention has deleted it, from the oldest snapshot. say: receives each
    line of the report, which names the start and the checks. fingerprint: of the key that must have signed the rows;
    None: the one that the ledger names.
    """
    state = open_state(folder, read_only=True)
    began_with = min(state.snapshot_steps(), default=0)
    try:
        _verify(state, say, fingerprint)
    except LedgerError as error:
        oldest = min(state.snapshot_steps(), default=0)
        if oldest == began_with or error.step is None or error.step >= oldest:
            raise
        raise LedgerError(
            f"{error}; meanwhile the coordinator that runs on {folder} has deleted its files before step {oldest}; "
            "run verify again",
            error.step,
        ) from None
    finally:
        state.close()


def _verify(state: RunState, say: Callable[[str], None], fingerprint: bytes | None) -> None:
    say(f"contract {state.contract.hash.hex()}")
    say(state.data.describe())
    _check_blobs(state, say)
    check_length(state)
    signatures = SignatureCheck(state.ledger.signatures)
    if fingerprint is not None:
        signatures.check_key(fingerprint)
    kind_of(state.contract).verify(state, say, signatures)


def _check_blobs(state: RunState, say: Callable[[str], None]) -> None:
    right, missing = check_blobs(state)
    if right:
        say(f"blobs: the sizes of {right:,} files are correct")
    if missing:  # a copy of the directory without its data can be verified too
        say(f"blobs: {len(missing):,} files are not here, and were not checked")
