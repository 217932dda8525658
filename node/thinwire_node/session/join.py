"""Joining a swarm, and what a node fetches before it can take part: contract, data, snapshot."""

from __future__ import annotations

import asyncio
import logging

from thinwire_common.logs import tell
from thinwire_node.exchange.port import Admission, Applicant, BeyondTheEnd, Exchange, Refused
from thinwire_node.storage.state import DATA_FILE, NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.models import check_manifest
from thinwire_proto.task import DataSource, data_kind_of

log = logging.getLogger("thinwire.node")


async def join(exchange: Exchange, state: NodeState, applicant: Applicant) -> Admission:
    """Join, and keep the run's contract. Raises LinkLost, Refused or ContractError."""
    kept = applicant.contract
    admission = await exchange.join(applicant)
    theirs = admission.contract
    if kept is not None and theirs.hash != kept.hash:
        raise Refused(
            "the coordinator took this node's contract and then named another; give another --state-dir to take part "
            "in the run that it names"
        )
    check_manifest(theirs)  # also of a contract from before: the node may have been upgraded since
    if kept is None:
        state.write("contract.json", theirs.written)
    return admission


async def fetch_data(exchange: Exchange, state: NodeState, contract: Contract) -> DataSource:
    """From the state directory, else from the swarm."""
    data = await asyncio.to_thread(state.data, contract)
    if data is None:
        kind = data_kind_of(contract.data)
        size_max = kind.file_bytes_max(contract.data)
        tell(
            log, logging.INFO, "node.fetching_corpus", f"fetching the data, at most {size_max:,} bytes", bytes=size_max
        )
        file = await exchange.corpus(contract)
        data = await asyncio.to_thread(kind.open, file, contract)
        state.write(DATA_FILE, file)
    return data


async def fetch_snapshot(exchange: Exchange, state: NodeState, contract: Contract) -> Replica:
    """The newest snapshot; what came of it before the link was lost is not fetched again."""
    begun = state.partial_snapshot()
    here = begun.size if begun else 0
    text = "fetching a snapshot" + (f", {here:,} bytes of which are here" if begun else "")
    tell(log, logging.INFO, "node.fetching_snapshot", text, here_bytes=here)
    try:
        passing = await exchange.snapshot(state.path(""), contract, begun)
    except BeyondTheEnd as error:
        if begun is None:
            raise
        # it would be the next time, too
        tell(log, logging.WARNING, "node.fetching_snapshot_anew", str(error), reason=str(error))
        begun.path.unlink()
        passing = await exchange.snapshot(state.path(""), contract, None)
    try:
        replica = await asyncio.to_thread(load_replica, contract, passing)
    except Exception:
        passing.unlink()  # what came together does not make a whole; the next attempt begins anew
        raise
    state.rename(passing, "replica.safetensors")
    text = f"snapshot of step {replica.step}, {replica.layout.parameters:,} parameters"
    tell(log, logging.INFO, "node.snapshot_fetched", text, step=replica.step)
    return replica
