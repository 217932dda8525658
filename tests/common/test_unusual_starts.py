"""Programs that are started in unusual ways: without standard streams, told to end at once, with small limits."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.real import RealSwarm, ended, run_text
from thinwire_coordinator.hall.access.admission import LEAST

MAINS = ("thinwire_node", "thinwire_coordinator", "thinwire_planner")
LOADED = [(main, name) for main in MAINS for name in ("thinwire_common.program", "thinwire_proto.errors", "argparse")]
LOADED += [(main, "thinwire_common.logs") for main in MAINS[:2]]
"""Programs, and a module of each that is loaded while it begins; the last ones by their commands."""
COORDINATOR = str(Path(sys.executable).with_name("thinwire-coordinator"))
SENDS_AT_IMPORT = """
import os, signal, sys
program, module, number = sys.argv[1:]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            print("sent", flush=True)
            os.kill(os.getpid(), getattr(signal, number))
sys.meta_path.insert(0, Finder())
main = __import__(program + ".__main__", fromlist=["main"]).main
sys.argv[1:] = ["status", "--state-dir", "/nowhere"]
main()
"""


def run_python(program: str, *arguments: str, closed: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    close = " ".join(f"{number}<&-" for number in closed)
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {close}', "bash", sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_coordinator_without_standard_streams_starts_and_ends_as_usual(swarm: RealSwarm) -> None:
    (swarm.folder / "RUN.toml").write_text(run_text(1000))
    places = ["--state-dir", str(swarm.state), "--listen", "127.0.0.1:0"]
    serve = [COORDINATOR, "serve", "--run", str(swarm.folder / "RUN.toml"), *places]
    closed = (shutil.which("bash") or "bash", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "bash")
    coordinator = swarm.start("coordinator", *closed, *serve)
    coordinator.wait_until_ready(swarm.state, 60)
    coordinator.tell(signal.SIGTERM)
    assert ended(coordinator) == 0


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("main", "module"), LOADED)
def test_ctrl_c_while_a_program_is_loaded_ends_it_without_a_traceback(main: str, module: str) -> None:
    done = run_python(SENDS_AT_IMPORT, main, module, "SIGINT")
    assert (done.stdout, done.stderr) == ("sent\n", "")
    assert done.returncode == 130


def test_a_coordinator_with_too_few_open_files_says_so_before_it_begins(tmp_path: Path) -> None:
    few = f"ulimit -n {LEAST - 1}; "
    serve = f"exec {COORDINATOR} serve --state-dir {tmp_path}/state"
    done = subprocess.run(["bash", "-c", few + serve], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"may have {LEAST - 1} files open, and needs at least {LEAST}" in done.stderr
    assert "ulimit -n 4096" in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_program_raises_its_limit_of_open_files_itself() -> None:
    shows = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    program = f"from thinwire_common.program import run_program\nrun_program('x', lambda: exec({shows!r}))"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -S -n 64; exec "$@"', "bash", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert int(done.stdout) == (4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)), done.stderr
