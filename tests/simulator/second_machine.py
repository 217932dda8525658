"""The second machine of a simulated swarm: its standby, its promotion, and what becomes of the first one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.sim_coordinator import SimCoordinator
from simulator.sim_standby import SimStandby, restored
from simulator.virtual_time import ProcessDied
from thinwire_coordinator.hall.ledger.backup import LEDGER
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.standby.standing import promote
from thinwire_coordinator.star.calls import StarService

if TYPE_CHECKING:
    from simulator.world import World


class SecondMachine:
    """Where the world's coordinator goes on when it is lost; then there may be a third, and so on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: Path | None = None
        self.replaced: SimCoordinator | None = None
        """A coordinator that lives although another machine was promoted."""
        self.standby: SimStandby | None = None
        self.is_cut_off = False
        self.on_row: dict[str, Callable[[], None]] = {}
        """What happens once when a row `is sent` to the standby, or `is there`."""
        self.lost_positions: set[int] = set()
        """Sample positions in rows that were lost with a machine."""
        self.cannot_reach_replaced: set[str] = set()
        self._machine = 1

    def start(self) -> None:
        folder, address = self._world.folder.with_name(f"machine-{self._machine + 1}"), f"simulated:{self._machine + 1}"
        if not folder.exists():
            restored(self._world.folder, folder, f"simulated:{self._machine}")
        self.standby = SimStandby(folder, address, self._followed, self._row_at_standby)

    def _followed(self) -> Keeper | None:
        alive = self._world.sim_coordinator is not None and not self.is_cut_off
        return self._world.sim_coordinator.swarm.keeper if alive and self._world.sim_coordinator else None

    def _row_at_standby(self, where: str) -> None:
        if (act := self.on_row.pop(where, None)) is not None:
            act()
            raise ProcessDied

    def close(self) -> None:
        self.kill_replaced()
        self.kill()

    def cut_line(self) -> None:
        """End the stream to the standby."""
        if self.standby is not None:
            self.standby.cut()

    def cut_off(self) -> None:
        self.is_cut_off = True
        if self.standby is not None:
            self.standby.cut()

    def kill(self) -> None:
        standby, self.standby = self.standby, None
        if standby is not None:
            standby.kill()

    def lose_machine(self) -> None:
        """The coordinator's machine is lost, with its disk."""
        self._world.kill_coordinator()
        assert self.standby is not None
        self._note_lost_rows(self._world.folder, self.standby.state.folder)
        shutil.rmtree(self._world.folder)

    def _note_lost_rows(self, folder: Path, kept_in: Path) -> None:
        """Note what is in the ledger of one machine alone, which is lost."""
        found, kept = (_contributions(one) for one in (folder, kept_in))
        self.lost_positions |= {at for name in found - kept for at in self._world.sent.get(name, ())}

    def promote(self) -> None:
        """Make the standby the coordinator. The one before goes on, if it lives."""
        self.kill()
        self.replaced, self._world.sim_coordinator = self._world.sim_coordinator, None
        self._machine += 1
        self._before, self._world.folder = self._world.folder, self._world.folder.with_name(f"machine-{self._machine}")
        promote(self._world.folder)
        self._world.start_coordinator()

    def start_replaced(self) -> None:
        """Start the coordinator before on its own disk. It may not know of the promotion."""
        assert self._before is not None
        self.replaced = SimCoordinator(self._before, self._world.shared, self._world.random, self._world.wait_for)

    def kill_replaced(self) -> None:
        replaced, self.replaced = self.replaced, None
        if replaced is not None:
            replaced.kill()
            self._note_lost_rows(replaced.state.folder, self._world.folder)
            for connection in list(self._world.network.connections.values()):
                connection.die("the coordinator is gone")

    def service_at(self, address: str, node: str) -> StarService | None:
        """The service of the coordinator at an address, if a node reaches it."""
        is_newest = address == f"simulated:{self._machine}"
        found = self._world.sim_coordinator if is_newest else self.replaced
        if not is_newest and node in self.cannot_reach_replaced:
            return None
        if found is not None and found.swarm.superseded:
            return None  # its process has ended
        return found.service if found is not None else None


def _contributions(folder: Path) -> set[bytes]:
    """The hashes of the contributions in a ledger."""
    with closing(sqlite3.connect(folder / LEDGER)) as db:
        return {name for (name,) in db.execute("SELECT hash FROM contributions")}
