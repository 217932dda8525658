"""The commands `thinwire-coordinator backup`, `restore` and `promote`."""

from __future__ import annotations

from pathlib import Path

from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.ledger import backup
from thinwire_coordinator.hall.standby import standing
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.contract import parse_contract


def back_up(folder: Path, url: str) -> None:
    """Copy a run, and print what was copied. Raises ThinwireError, OSError."""
    if newer := standing.read_standing(folder).newer:
        raise standing.Superseded(newer)  # its backup would take the place of one of the machine that leads
    done = backup.back_up(folder, url, print)
    copied = f"{done.copied:,} files copied, {human_bytes(done.copied_bytes)}"
    print(f"step {done.step} is in {url}: {copied}; {done.files - done.copied:,} were there")
    print(f"it has the keys of the run: who can read it can be its coordinator; to bring it back: restore {url}")


def restore(url: str, folder: Path) -> None:
    """Bring a run back, and print what to do next. Raises ThinwireError, OSError."""
    listed = backup.restore(url, folder, print)
    print(f"{folder} has the run up to step {listed.step}: {len(listed.files):,} files")
    print(f"start it: thinwire-coordinator serve --state-dir {folder}")
    contract = parse_contract((folder / backup.CONTRACT).read_bytes())
    if kind_of(contract).has_standby and not (folder / "bodies.url").exists():
        print("if the coordinator of this run lives, be its standby: add --follow HOST:PORT")
    print(
        "otherwise make sure that no other coordinator of this run lives; a node that knows of a step after "
        f"{listed.step} refuses this one, because it has lost that step"
    )


def promote(folder: Path) -> None:
    """Make a standby the coordinator, and print what to do next. Raises ThinwireError, OSError."""
    term = standing.promote(folder).promoted
    print(f"{folder} is the coordinator of its run from term {term:,} on")
    print(f"it has {standing.rows_in(folder):,} steps; what was sealed elsewhere after them is lost")
    print("if its standby runs there, it takes over within seconds; otherwise start it as before: `serve`")
    print("nodes that hear of it refuse the coordinator before it; stop that one, if you can reach it")
