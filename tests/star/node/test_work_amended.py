"""A node takes an amendment between two jobs of its compute thread, and again if it was cut off before that."""

from __future__ import annotations

import time
from pathlib import Path

from support.cut_off import cut_off
from support.small import random_replica, small_contract
from support.small_trainer import small_trainer
from thinwire_node.star.work import Work
from thinwire_node.storage.state import NodeState
from thinwire_node.training.threads import Threads, WorkerThread
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.exact.amendments import amended


async def test_an_amendment_waits_for_what_is_computed_and_comes_again_if_it_is_cut_off(tmp_path: Path) -> None:
    contract, taken = small_contract(), list[Contract]()
    trainer = small_trainer(contract, random_replica(contract))
    threads = Threads(WorkerThread("compute"), WorkerThread("saver"), WorkerThread("journal"))
    work = Work(contract, NodeState(tmp_path), trainer, threads, time.monotonic, None, taken.append)
    slower = amended(contract, Amendment(0, {"schedule.learning_rate": 1e-5}))

    def nothing_is_taken() -> None:
        assert not taken  # a pass is divided as the contract before allows, to its end
        assert work.contract == contract

    await cut_off(work, work.amend(slower), nothing_is_taken)
    await work.amend(slower)  # the next session begins
    assert work.contract == trainer._contract == slower
    assert taken == [slower]
    work.close()
