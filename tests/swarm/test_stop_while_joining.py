"""A node that is told to stop before it has joined ends, whatever it waits for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import silent_name_server
from thinwire_proto.identity.invite import TOKEN_BYTES, Invite
from thinwire_proto.identity.keys import SecretKey

NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
PATIENCE_S = 60
"""Much less than the time after which the system gives up a look-up (`support.silent_name_server`)."""


def test_a_node_ends_while_no_name_server_answers(tmp_path: Path) -> None:
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs unshare and ip")
    tried = subprocess.run([*NAMESPACES, "ip", "link", "set", "lo", "up"], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"only root can make namespaces: {tried.stderr.strip()}")
    invite = Invite("coordinator.example:7700", SecretKey().public.fingerprint, bytes(TOKEN_BYTES))
    node = ("-m", "thinwire_node", "start", str(invite), "--state-dir", str(tmp_path / "node"), "--log-format", "json")
    command = [*NAMESPACES, sys.executable, silent_name_server.__file__, sys.executable, *node]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "asked for a name" in done.stdout
    assert '"event": "node.totals"' in done.stderr
