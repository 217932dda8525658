"""The relay of a node's limits, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path

import pytest

from thinwire_node.limits.limits import check
from thinwire_node.limits.month import MonthlyBudget
from thinwire_node.limits.throttle import Throttle

RATES = (2e3, 10e3, 100e3, 1e6)
BUFFERED_S_MAX = {2e3: 5.0, 10e3: 1.0, 100e3: 1.0, 1e6: 1.0}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems size their buffers in their own ways")
@pytest.mark.parametrize("rate", RATES)
async def test_what_comes_at_once_is_little_of_a_minute(tmp_path: Path, rate: float) -> None:
    """A sender that is faster than the cap fills the receive buffer before the relay can hold it back."""
    throttle = Throttle(
        check({"max_download": f"{rate / 1e3:g}kB/s"}), MonthlyBudget(tmp_path / "month.json", None, 1, 0.0), time.time
    )
    with socket.create_server(("127.0.0.1", 0)) as server, throttle.make_socket(socket.AF_INET) as far:
        far.connect(server.getsockname())
        sender, _ = server.accept()
        with sender:
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.send(bytes(1448))
            at_once = len(far.recv(1 << 20, socket.MSG_PEEK))
    assert 0 < at_once <= BUFFERED_S_MAX[rate] * rate


async def test_a_folder_for_temporary_files_may_have_a_path_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a job of Slurm. The socket is where this user alone can connect to it."""
    deep = tmp_path / ("job-4711-" + 90 * "x")
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    throttle = Throttle(
        check({"max_download": "1MB/s"}), MonthlyBudget(tmp_path / "month.json", None, 1, 0.0), time.time
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with throttle.door(*server.getsockname()) as target:
            folder = Path(target.removeprefix("unix:")).parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            reader, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
            far, _ = await asyncio.to_thread(server.accept)
            with far:
                far.sendall(b"through")
            assert await reader.read(7) == b"through"
            writer.close()
    assert not folder.exists()
