"""State directories on file systems that keep no permissions, make no hard links, lock no files or sync no folders.

The C files of tests/support/preloaded imitate such file systems for one process; they need gcc, and no rights.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire_common.file_system import FileSystem, file_system_of

SOURCES = Path(__file__).parents[1] / "support" / "preloaded"
NODE = "from thinwire_node.storage.state import NodeState; print(NodeState(Path(sys.argv[1])).node_id)"
COORDINATOR = "from thinwire_coordinator.hall.ledger.state_directory import lock_state; lock_state(Path(sys.argv[1]))"
BEGIN = """
import sys
from pathlib import Path
from thinwire_common.program import run_program
run_program("x", lambda: exec(sys.argv[2]))
"""
MOUNTINFO = r"""22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/c rw,noatime shared:1 - 9p C:\134 rw,dirsync
31 22 0:41 / /media/a\040stick rw - exfat /dev/sdb1 rw
32 30 0:42 / /mnt/c/share rw - nfs4 server:/share rw
"""


def opened(folder: Path, source: str, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Open a state directory in a process that finds it on such a file system."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    library = folder.with_name(f"{source}.so")
    build = [compiler, "-w", "-shared", "-fPIC", "-o", str(library), str(SOURCES / f"{source}.c"), "-ldl"]
    subprocess.run(build, check=True)
    environment = os.environ | {"LD_PRELOAD": str(library)} | more
    command = [sys.executable, "-c", BEGIN, str(folder), program]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_node_keeps_its_key_where_permissions_have_no_effect_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    starts = [opened(folder, "permissions_ignored", NODE, DRVFS=str(folder), NOLINK="1") for _ in range(2)]
    assert [done.returncode for done in starts] == [0, 0], starts[0].stderr
    assert starts[0].stdout == starts[1].stdout
    assert {path.name for path in folder.iterdir()} == {"identity.key", "lock"}
    found = file_system_of(folder)
    for done in starts:
        assert f"the file system of {folder} ({found}) keeps no permissions" in done.stderr


def test_a_coordinator_refuses_to_keep_the_key_of_a_run_where_all_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    done = opened(folder, "permissions_ignored", COORDINATOR, DRVFS=str(folder))
    assert done.returncode == 1
    assert f"({file_system_of(folder)}) keeps no permissions" in done.stderr
    assert "give --state-dir a folder of a disk of this machine" in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("program", "number"), [(NODE, "37"), (COORDINATOR, "38")])  # ENOLCK, ENOSYS
def test_both_refuse_a_file_system_that_locks_no_files(tmp_path: Path, program: str, number: str) -> None:
    folder = tmp_path / "state"
    done = opened(folder, "no_locks", program, NOLOCK=str(folder), NOLOCK_ERRNO=number)
    assert done.returncode == 1
    assert f"({file_system_of(folder)}) locks no files" in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "kind", "place"),
    [
        ("/home/a", "ext4", "/"),
        ("/mnt/c/thinwire", "9p", "/mnt/c"),
        ("/mnt/cd", "ext4", "/"),
        ("/mnt/c/share/x", "nfs4", "/mnt/c/share"),
        ("/media/a stick/x", "exfat", "/media/a stick"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(
    tmp_path: Path, path: str, kind: str, place: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTINFO)
    assert file_system_of(Path(path), mounts) == FileSystem(kind, place)
    assert file_system_of(Path(path), tmp_path / "missing") is None
