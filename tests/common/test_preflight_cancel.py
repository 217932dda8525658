"""A search for a way to a server ends when it is cancelled, also in the moment in which it fails by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.preflight import find_way


async def test_a_search_that_is_cancelled_as_it_fails_is_cancelled() -> None:
    refused = asyncio.Event()

    def refusal(_address: Any) -> str:
        refused.set()
        return "this node does not connect to it"

    for steps in range(50):
        refused.clear()
        search = asyncio.ensure_future(find_way("127.0.0.1", 1, None, public_tls=False, refusal=refusal))
        await refused.wait()  # the search fails within a few steps of the loop now
        for _ in range(steps):
            await asyncio.sleep(0)
        if not search.cancel():
            break  # it had failed already
        with pytest.raises(asyncio.CancelledError):
            await search
    with pytest.raises(Unreachable):
        await search
