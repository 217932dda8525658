from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

# The runs of several workers, and the processes that tests start, share the cores. A second thread then makes small
# regions of torch many times slower, because each waits at its barrier for a thread that the system has taken away.
# Torch reads this variable when it is first imported. Tests of several threads set their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nodes of several tests share the cores with the tests themselves, and must not wait until these are done.
os.environ.setdefault("THINWIRE_NODE_PRIORITY", "normal")

import torch

# Without a GPU, Triton's kernels run in numpy. Triton reads this variable only when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from support.real import RealSwarm, real_swarm

pytest_plugins = ("support.tiers",)


def is_of_this_test(record: logging.LogRecord) -> bool:
    """False for a late event of a gRPC call of an ended test.

    gRPC has one poller a process, which hands each event to the loop that runs. A call that was cancelled shortly
    before its test ended has its last event in the loop of the next test, which finds the call's loop closed, and
    asyncio logs that as an error of the next test."""
    error = record.exc_info[1] if record.exc_info else None
    is_late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return not (is_late and "PollerCompletionQueue._handle_events" in record.getMessage())


logging.getLogger("asyncio").addFilter(is_of_this_test)


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Undo what the test sets in its environment: the tests of a worker share it."""
    with patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test for caches, since nodes take bases from the caches of their user."""
    folder = tmp_path_factory.getbasetemp() / "caches" / secrets.token_hex(8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    """A swarm of real processes. All of them end with the test."""
    with real_swarm(tmp_path) as found:
        yield found


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Processes that the test starts end by Ctrl-C and a hang-up, although the tests may run under nohup, which ignores
    both."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
