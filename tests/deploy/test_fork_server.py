"""A program that the tests' fork server starts ends as one that Python starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.fork_server import can_fork, run

ENDS = {
    "returns": ("print('done')", 0),
    "exits with a number": ("import sys\nsys.exit(3)", 3),
    "exits with a text": ("import sys\nsys.exit('no such file')", 1),
    "exits without a status": ("import sys\nsys.exit()", 0),
    "raises": ("raise RuntimeError('broken')", 1),
    "waits for its threads": (
        "import threading\nready = threading.Event()\n"
        "threading.Thread(target=lambda: (ready.wait(), print('the thread ends'))).start()\n"
        "threading.Timer(0.1, ready.set).start()\nprint('the program ends')",
        0,
    ),
    "stops its pools": ("from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(print, 1)", 0),
    "runs what is registered": ("import atexit\natexit.register(print, 'registered')", 0),
    "tells of forgotten work": (
        "async def work():\n    pass\ndef forget():\n    cycle = [work()]\n    cycle.append(cycle)\nforget()",
        0,
    ),
}


@pytest.mark.skipif(not can_fork(["python"]), reason="the fork server is for Linux")
@pytest.mark.parametrize("end", ENDS)
def test_status_and_output_are_those_of_python(end: str, tmp_path: Path) -> None:
    text, status = ENDS[end]
    script = tmp_path / "script.py"
    script.write_text(text)
    forked = run(["python", str(script)], tmp_path)
    started = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert forked.returncode == started.returncode == status
    assert forked.stdout == started.stdout
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]
    assert forked.stdout + forked.stderr or not end.startswith(("returns", "waits", "stops", "runs", "tells", "raises"))
