"""Starts a program where no name server answers, and stops it as soon as it has asked for a name.

python -m support.silent_name_server PROGRAM …

It changes this machine's resolv.conf, so it must run in mount and network namespaces of its own.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ADDRESS = "127.0.0.53"
CONFIGURATION = f"nameserver {ADDRESS}\noptions timeout:30 attempts:5\n"
"""The system gives up after 150 seconds."""


def main(command: list[str]) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(CONFIGURATION)
        file.flush()
        Path(file.name).chmod(0o644)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind((ADDRESS, 53))
            child = subprocess.Popen(command)
            server.recv(512)
            print("asked for a name", flush=True)
            child.send_signal(signal.SIGTERM)
            return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
