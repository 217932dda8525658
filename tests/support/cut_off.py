"""An amendment whose session ends while the compute thread has something else to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from thinwire_node.gossip.work import GossipWork
from thinwire_node.star.work import Work
from thinwire_node.training.threads import NodeJob


async def cut_off(work: Work | GossipWork, amending: Coroutine[Any, Any, None], look: Callable[[], None]) -> None:
    """Cancel an amendment that waits for what is computed. look: is called before that."""
    computed = threading.Event()
    computing = work.run(NodeJob.MICRO_BATCH, computed.wait)
    task = asyncio.ensure_future(amending)
    await asyncio.sleep(0)
    look()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    computed.set()
    await computing
