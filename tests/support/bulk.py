"""Two programs that fill a line both ways: `serve HOST PORT`, and `pass HOST PORT LIMITS…` behind the limits of an
owner. Both run until they are killed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from thinwire_node.limits import limits
from thinwire_node.limits.month import MonthlyBudget
from thinwire_node.limits.throttle import Throttle

PIECE = bytes(1 << 16)


async def send(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(PIECE)
        await writer.drain()


async def receive(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await asyncio.gather(send(writer), receive(reader))


async def serve(host: str, port: str) -> None:
    server = await asyncio.start_server(both, host, int(port))
    print("listening", flush=True)
    await server.serve_forever()


async def pass_through(host: str, port: str, folder: str, *given: str) -> None:
    found = limits.check(limits.read_changes(list(given)))
    budget = MonthlyBudget(Path(folder) / "month.json", found.monthly_data, found.monthly_reset_day, time.time())
    throttle = Throttle(found, budget, time.time)
    async with throttle.door(host, int(port)) as target:
        lines = [await asyncio.open_unix_connection(target.removeprefix("unix:")) for _ in range(2)]
        await asyncio.gather(*(both(*line) for line in lines))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    asyncio.run(serve(*arguments) if what == "serve" else pass_through(*arguments))
