"""Probes over real sockets, the bounds of whoever answers, and what a machine measures of itself."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire_planner.__main__ import main
from thinwire_planner.probe import answer
from thinwire_planner.probe.answer import CONNECTIONS_MAX, answering
from thinwire_planner.probe.line import MeasuredLine, measure_line
from thinwire_planner.probe.machine import STEPS_MIN, exact_rates, steps_of
from thinwire_planner.probe.messages import REQUEST, SIZE_BYTES_MAX, Direction, Request
from thinwire_proto.errors import ConfigError, PayloadError

HOST = "127.0.0.1"


async def test_a_line_is_measured_in_both_directions() -> None:
    async with answering(HOST, 0) as (host, port):
        line: MeasuredLine = await asyncio.to_thread(measure_line, host, port)
    for way in (line.up, line.down):
        assert 0 < way.rtt_s < 1
        assert way.rate_bits_s > 1e6


async def test_whoever_is_no_probe_gets_nothing() -> None:
    async with answering(HOST, 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_more_connections_than_allowed_are_closed_at_once_and_others_still_answered() -> None:
    async with answering(HOST, 0) as (host, port):
        idle = [await asyncio.open_connection(host, port) for _ in range(CONNECTIONS_MAX)]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(Request(Direction.DOWN, 10).encode())
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(10)
        for _, one in idle:
            one.write(Request(Direction.DOWN, 10).encode())
        assert [await one.readexactly(10) for one, _ in idle] == [bytes(10)] * CONNECTIONS_MAX
        for _, one in idle:
            one.close()


async def test_whoever_says_nothing_is_noted_and_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before Python 3.11, asyncio's error is a class of its own."""
    monkeypatch.setattr(asyncio, "TimeoutError", type("TimeoutError", (Exception,), {}))
    monkeypatch.setattr(answer, "PLAN_PROBE_S", 0.0)
    caplog.set_level(logging.INFO)
    async with answering(HOST, 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
    assert [record.message for record in caplog.records if record.name != "asyncio"] == [
        "a probe was not answered: TimeoutError()"
    ]
    assert [record for record in caplog.records if record.name == "asyncio" and record.levelno > logging.INFO] == []


@pytest.mark.parametrize(("direction", "size"), [(0, 10), (3, 10), (1, 0), (2, SIZE_BYTES_MAX + 1)])
def test_a_request_beyond_the_bounds_is_refused(direction: int, size: int) -> None:
    with pytest.raises(PayloadError):
        Request.decode(struct.pack("!16sBI", b"thinwire-probe-1", direction, size))


def test_requests_round_trip() -> None:
    for way in Direction:
        request = Request(way, 4096)
        assert len(request.encode()) == REQUEST.size
        assert Request.decode(request.encode()) == request


def test_nobody_there_is_said_with_what_to_start() -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"start `thinwire plan --answer 0.0.0.0:{port}` there"):
        measure_line(HOST, port)


def test_a_machine_measures_its_steps_and_the_exact_path() -> None:
    times = steps_of("byte-1m", 1, work_seconds=0.0)
    assert len(times) == STEPS_MIN
    assert min(times) > 0
    assert min(exact_rates()) > 1e5


GROUPS = """
[model]
parameters = 885_888
[compute]
seconds = 0.4
[[group]]
hosts = 4
up_mbit = 10
"""


@pytest.mark.parametrize("has_groups", [False, True])
def test_the_command_probes_a_machine_that_answers(has_groups: bool, tmp_path: Path) -> None:
    """Groups have rates of their own, and get the round trip alone."""
    path = tmp_path / "plan.toml"
    path.write_text(GROUPS)
    given = [str(path)] if has_groups else ["--parameters", "885888", "--compute", "0.4", "--nodes", "4"]
    command = [sys.executable, "-m", "thinwire_planner", "plan"]
    with subprocess.Popen([*command, "--answer", f"{HOST}:0"], stdout=subprocess.PIPE, text=True) as answerer:
        try:
            assert answerer.stdout is not None
            address = answerer.stdout.readline().split()[-1]
            words = ["--probe", address, *given, "--json"]
            out = subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout
        finally:
            answerer.terminate()
    document = json.loads(out)
    assert document["setting"]["nodes"] == 4
    assert document["take"]["seconds"] > 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes = 3\n" + GROUPS, "nodes must be a section"),
        (GROUPS.replace("0.4", "0"), "compute.seconds"),
        ("compute = 1\n[model]\npreset = 'none'\n", "compute must be a section"),
        ("[model]\npreset = 'none'\n[nodes]\ncount = 4\n", "model.preset: 'none' does not exist"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_measured(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["thinwire", "plan", str(path), "--probe", f"{HOST}:1"])  # nobody answers there
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert problem in (told := capsys.readouterr().err)
    assert str(path) in told or "preset" in problem
