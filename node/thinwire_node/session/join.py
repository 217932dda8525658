"""Joins a swarm and fetches the contract, the data and a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from thinwire_common.logs import tell
from thinwire_node.exchange.port import Admission, Applicant, BeyondTheEnd, Entrance, Refused
from thinwire_node.storage.state import DATA_FILE, NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.models import check_manifest
from thinwire_proto.task import DataSource, data_kind_of

log = logging.getLogger("thinwire.node")


async def join(
    exchange: Entrance, state: NodeState, applicant: Applicant, check: Callable[[Contract], None] = check_manifest
) -> Admission:
    """Join and store the run's contract. Raises LinkLost, Refused or ContractError.

    check: raises a ThinwireError if this machine cannot take part in the run; it may take seconds."""
    kept = applicant.contract
    admission = await exchange.join(applicant)
    theirs = admission.contract
    if kept is not None and theirs.hash != kept.hash:
        raise Refused(
            "the coordinator accepted this node's contract and then sent a different one; to take part in the "
            "coordinator's run, give another --state-dir"
        )
    await asyncio.to_thread(
        check, theirs
    )  # a stored contract is checked again, because the node may have been upgraded
    if kept is None:
        state.write("contract.json", theirs.written)
    return admission


async def fetch_data(exchange: Entrance, state: NodeState, contract: Contract) -> DataSource:
    """Load the data from the state directory, or fetch it from the swarm."""
    data = await asyncio.to_thread(state.data, contract)
    if data is None:
        kind = data_kind_of(contract.data)
        size_max = kind.file_bytes_max(contract.data)
        text = f"fetching the data's file (at most {size_max:,} bytes); shards that it lists come as they are needed"
        log.info("%s", text)
        file = await exchange.corpus(contract)
        data = await asyncio.to_thread(kind.open, file, contract, state.blobs)
        state.write(DATA_FILE, file)
    return data


async def fetch_snapshot(exchange: Entrance, state: NodeState, contract: Contract) -> Replica:
    """Fetch the newest snapshot. Resumes a partial download where it broke off."""
    begun = state.partial_snapshot()
    held_bytes = begun.size if begun else 0
    text = "fetching a snapshot" + (f"; {held_bytes:,} bytes are already here" if begun else "")
    tell(log, logging.INFO, "node.fetching_snapshot", text, here_bytes=held_bytes)
    try:
        passing = await exchange.snapshot(state.path(""), contract, begun)
    except BeyondTheEnd as error:
        if begun is None:
            raise
        # the partial file would be too long at the next attempt as well
        log.warning("%s", str(error))
        begun.path.unlink()
        passing = await exchange.snapshot(state.path(""), contract, None)
    try:
        replica = await asyncio.to_thread(load_replica, contract, passing)
    except Exception:
        passing.unlink()  # the file is damaged; the next attempt starts from the beginning
        raise
    state.rename(passing, "replica.safetensors")
    text = f"snapshot of step {replica.step}, {replica.layout.parameters:,} parameters"
    tell(log, logging.INFO, "node.snapshot_fetched", text, step=replica.step)
    return replica
