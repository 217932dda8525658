"""The simulated standby: the real state directory and `Follower`, over a line that can be cut."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from simulator.sim_coordinator import DISK_S
from simulator.virtual_time import ProcessDied
from thinwire_coordinator.hall.ledger.backup import LEDGER, copy_database
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.items import unpack
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.standby.standing import Standing, keep_standing
from thinwire_proto.limits import BACKOFF_FIRST_S

DELAY_S = 0.02
"""Of the line between the two machines, in one direction."""


def restored(folder: Path, target: Path, follows: str) -> None:
    """A standby's state directory, as `restore` makes it from a backup of the coordinator's."""
    target.mkdir()
    for name in ("contract.json", "corpus.zst", "identity.key"):
        shutil.copy(folder / name, target / name)
    for name in ("snapshots", "updates", "blobs"):
        if (folder / name).exists():
            shutil.copytree(folder / name, target / name)
    copy_database(folder / LEDGER, target / LEDGER)
    keep_standing(target, Standing(follows))


class SimStandby:
    """One life of a standby's process.

    address: where nodes find it. keeper: of the coordinator that it follows; None while that cannot be reached.
    on_row: called just before and just after a row is on disk; may raise ProcessDied."""

    def __init__(
        self, folder: Path, address: str, keeper: Callable[[], Keeper | None], on_row: Callable[[str], None]
    ) -> None:
        self._keeper = keeper
        self._on_row = on_row
        self.state = open_state(folder)
        self.follower = Follower(self.state, address)
        self._task = asyncio.get_running_loop().create_task(self._life())
        self._stream: asyncio.Task[None] | None = None

    async def _life(self) -> None:
        while True:
            if (keeper := self._keeper()) is not None:
                self._stream = asyncio.get_running_loop().create_task(self._follow(keeper))
                await asyncio.wait({self._stream})
                if not self._stream.cancelled() and not isinstance(self._stream.exception(), ProcessDied):
                    self._stream.result()
            await asyncio.sleep(BACKOFF_FIRST_S)

    async def _follow(self, keeper: Keeper) -> None:
        await asyncio.sleep(2 * DELAY_S)
        position = self.follower.position()
        if why := await keeper.why_not(position):
            raise AssertionError(why)
        following, loop, count = keeper.begin(position), asyncio.get_running_loop(), 0
        acknowledgements: list[asyncio.TimerHandle] = []
        try:
            async with aclosing(following.items()) as items:  # type: ignore[type-var]
                async for item in items:
                    await asyncio.sleep(DELAY_S)
                    is_row = "row" in unpack(item)
                    if is_row:
                        self._on_row("is sent")
                    self.follower.apply(item)
                    await asyncio.sleep(DISK_S)
                    count += 1
                    if is_row:
                        self._on_row("is there")
                    acknowledgements.append(loop.call_later(DELAY_S, following.synced, count))
        finally:
            for one in acknowledgements:
                one.cancel()
            keeper.ended(following)

    def cut(self) -> None:
        """End the stream, as a line that is cut does. What is under way is lost."""
        if self._stream is not None:
            self._stream.cancel()

    def kill(self) -> None:
        self._task.cancel()
        self.cut()
        self.state.close()
