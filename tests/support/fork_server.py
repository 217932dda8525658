"""Starts the tests' coordinators and nodes from a process that has already imported torch.

Importing torch takes two seconds of a core, and the tests start hundreds of coordinators, nodes and commands. So each
process that runs tests keeps one server. The server imports the modules once, has no threads, and forks for each start.
A started process has its own number, session, environment and files. It reads its own arguments, and ends by itself or
by a signal. `tests/swarm/test_make_swarm.py`, among others, starts the programs as they are installed.

    python -m support.fork_server DESCRIPTOR

DESCRIPTOR: a Unix socket of packets. A request is {"arguments", "environment", "folder"} in JSON, with two descriptors
for the output and the errors. Answers are {"started": PID} and, later, {"ended": PID, "status": as of Popen}.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

from deploy.local_swarm.processes import BIN

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = {"thinwire-coordinator": "thinwire_coordinator.__main__", "thinwire-node": "thinwire_node.__main__"}
IMPORTED = (*PROGRAMS.values(), "thinwire_coordinator.cli.serve", "thinwire_node.cli.start", "thinwire_proto.models")
REQUEST_BYTES_MAX = 1 << 17
WAIT_MAX_S = 60.0


class Forked:
    """A started process, with the part of Popen's interface that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    @property
    def returncode(self) -> int | None:
        return self._server.ended.get(self.pid)

    def poll(self) -> int | None:
        self._server.read(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        give_up_s = time.monotonic() + (WAIT_MAX_S if timeout is None else timeout)
        while (status := self.poll()) is None:
            if (left_s := give_up_s - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), WAIT_MAX_S if timeout is None else timeout)
            self._server.read(left_s)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server, as seen from the tests."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        """Exit status by process number; -N after signal N."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "support.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=beside_the_tests(),
                cwd=TESTS.parent,  # a test may have changed the folder before it starts the first process
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = ours

    def start(self, command: list[str], out: IO[bytes], errors: IO[bytes]) -> Forked:
        """Start a program of PROGRAMS, or `python SCRIPT …`, in this process's folder and environment."""
        request = {"arguments": command, "environment": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(self._socket, [json.dumps(request).encode()], [out.fileno(), errors.fileno()])
        while (pid := self.read(WAIT_MAX_S)) is None:
            pass
        self.ended.pop(pid, None)  # the system gives numbers again
        return Forked(self, pid)

    def read(self, timeout_s: float) -> int | None:
        """Read answers for up to `timeout_s`, until there are none left, or one says what was started (its number)."""
        while select.select([self._socket], [], [], timeout_s)[0]:
            packet = self._socket.recv(REQUEST_BYTES_MAX)
            if not packet:
                raise RuntimeError("the fork server has ended")
            answer = json.loads(packet)
            if "started" in answer:
                return int(answer["started"])
            self.ended[answer["ended"]] = answer["status"]
            timeout_s = 0.0
        return None

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def fork_server() -> ForkServer:
    """The server of this process. It ends with the process."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def beside_the_tests() -> dict[str, str]:
    """The environment for `python -m simulator` and the like, started in the repository's root."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}


def can_fork(command: Sequence[str]) -> bool:
    """Whether the server can start this command. Elsewhere than on Linux, a fork after the imports is not safe."""
    return sys.platform == "linux" and command[0] in (*PROGRAMS, "python")


def run(command: list[str], folder: Path, timeout_s: float = WAIT_MAX_S) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. folder: where its output is kept."""
    if not can_fork(command):
        installed = [str(BIN / command[0]), *command[1:]]
        return subprocess.run(installed, capture_output=True, text=True, check=False, timeout=timeout_s)
    out, errors = folder / "command.out", folder / "command.errors"
    with out.open("wb") as out_file, errors.open("wb") as errors_file:
        process = fork_server().start(command, out_file, errors_file)
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(command, status, out.read_text(), errors.read_text())


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns the request in the new process, and None in the server at its end."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        readable, _, _ = select.select([connection.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, 1024)
            report_ended(connection)
        if connection.fileno() not in readable:
            continue
        packet, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 2)
        if not packet:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run under nohup, which ignores it
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.setsid()
            os.dup2(descriptors[0], 1)
            os.dup2(descriptors[1], 2)
            for descriptor in (*descriptors, wake, woken):
                os.close(descriptor)
            connection.close()
            return dict(json.loads(packet))
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"started": pid}).encode())


def report_ended(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        with suppress(BrokenPipeError):  # the tests have ended
            connection.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def become(request: dict[str, Any]) -> None:
    """Run the requested program in this process."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    program, *arguments = request["arguments"]
    if program == "python" and arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = ""  # the folder that the test runs in, as Python does it
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif program == "python":
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        sys.argv = [program, *arguments]
        importlib.import_module(PROGRAMS[program]).main()


def _status_of(end: SystemExit) -> int:
    """The exit status that Python gives, after printing an error that is a text."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _end(status: int) -> NoReturn:
    """End as processes of multiprocessing do: wait for threads, run what is registered for the exit, and flush.

    Python would also take each module apart, 0.3 s of a core for each process, which would touch and so copy every page
    that it shares with the server. Garbage is still collected, because it may hold tasks and files left open.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # shared pages stay shared
    request = serve(connection)
    if request is None:
        return
    status = 0
    try:
        become(request)
    except SystemExit as end:  # other exceptions end the interpreter in its own way
        status = _status_of(end)
    _end(status)


if __name__ == "__main__":
    main()
