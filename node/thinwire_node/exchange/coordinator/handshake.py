"""The handshake, and what a node fetches before it can take part: contract, corpus, snapshot."""

from __future__ import annotations

import asyncio
import logging

from thinwire_common.logs import tell
from thinwire_node.exchange.coordinator.link import BeyondTheEnd, Link, Refused
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.data.corpus import Corpus, corpus_of, unpack_corpus
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.models import check_manifest
from thinwire_proto.wire.service_pb2 import JoinReply, KeptMomentum

log = logging.getLogger("thinwire.node")


async def join(
    link: Link,
    state: NodeState,
    name: str,
    contract: Contract | None,
    replica: Replica | None,
    momentum: KeptMomentum | None,
) -> tuple[Contract, JoinReply]:
    """The run's contract, and what the coordinator says besides. Raises Refused or LinkLost."""
    replica_step = replica.step if replica else None
    reply = await link.join(contract, state.node_id, name, state.head, replica_step, momentum)
    theirs = parse_contract(reply.contract)
    if contract is not None and theirs.hash != contract.hash:
        raise Refused(
            "the coordinator took this node's contract and then named another; give another --state-dir to take part "
            "in the run that it names"
        )
    check_manifest(theirs)  # also of a contract from before: the node may have been upgraded since
    if contract is None:
        state.write("contract.json", theirs.written)
    return theirs, reply


async def fetch_corpus(link: Link, state: NodeState, contract: Contract) -> Corpus:
    """From the state directory, else from the coordinator."""
    data, corpus = corpus_of(contract.data), await asyncio.to_thread(state.corpus, contract)
    if corpus is None:
        size = data.corpus_bytes
        tell(log, logging.INFO, "node.fetching_corpus", f"fetching the corpus of {size:,} bytes", bytes=size)
        packed = await link.corpus(contract)
        corpus = await asyncio.to_thread(unpack_corpus, packed, data)
        state.write("corpus.zst", packed)
    return corpus


async def fetch_snapshot(link: Link, state: NodeState, contract: Contract) -> Replica:
    """The coordinator's newest snapshot; what came of it before the link was lost is not fetched again."""
    begun = state.partial_snapshot()
    here = begun[2] if begun else 0
    text = "fetching a snapshot" + (f", {here:,} bytes of which are here" if begun else "")
    tell(log, logging.INFO, "node.fetching_snapshot", text, here_bytes=here)
    try:
        passing = await link.snapshot(state.path(""), contract, begun)
    except BeyondTheEnd as error:
        if begun is None:
            raise
        # it would be the next time, too
        tell(log, logging.WARNING, "node.fetching_snapshot_anew", str(error), reason=str(error))
        begun[0].unlink()
        passing = await link.snapshot(state.path(""), contract, None)
    try:
        replica = await asyncio.to_thread(load_replica, contract, passing)
    except Exception:
        passing.unlink()  # what came together does not make a whole; the next attempt begins anew
        raise
    state.rename(passing, "replica.safetensors")
    text = f"snapshot of step {replica.step}, {replica.layout.parameters:,} parameters"
    tell(log, logging.INFO, "node.snapshot_fetched", text, step=replica.step)
    return replica
