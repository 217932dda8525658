"""Tests the page's answers and its stream, over a real socket or as ASGI, before a swarm exists and with many
browsers."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

import pytest

from thinwire_coordinator.hall.access.transport import plain_transport
from thinwire_coordinator.hall.events import Events
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.web import live
from thinwire_coordinator.hall.web.page import Page
from thinwire_coordinator.monitoring import WebServer


async def get(address: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    def ask() -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        connection.request("GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    return await asyncio.to_thread(ask)


async def test_routes_report_the_state_until_the_coordinator_is_ready() -> None:
    readiness = Readiness()
    readiness.text = "replaying <the> ledger"
    web = WebServer("127.0.0.1:0", plain_transport(), readiness, Page(readiness).routes, may_move=False)
    web.start()
    try:
        answer, body = await get(web.address, "/")
        assert answer.status == 503
        assert b"The coordinator is replaying &lt;the&gt; ledger." in body
        assert b'http-equiv="refresh"' in body
        for path in ("/api/status", "/api/history", "/api/live"):
            answer, body = await get(web.address, path)
            assert answer.status == 503, path
            assert json.loads(body) == {"state": "replaying <the> ledger"}
        for path in ("/api/status?nodes=0.5", "/api/status?sort=x", "/api/status?offset=-1", "/api/history?points=1"):
            answer, body = await get(web.address, path)
            assert answer.status == 400, path
            assert "must be" in json.loads(body)["error"]
        answer, body = await get(web.address, "/static/main.js")
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        again, body = await get(web.address, "/static/main.js", if_none_match=answer.headers["etag"])
        assert (again.status, body) == (304, b"")
        for path in ("/static/page.py", "/static/../page.py", "/static/%2e%2e%2fpage.py", "/static/"):
            assert (await get(web.address, path))[0].status == 404, path
    finally:
        await web.stop()


class Browser:
    """A browser that reads a stream. It reads nothing while `reads` is cleared."""

    def __init__(self, stream: live.Live, address: str = "192.0.2.1") -> None:
        self.got: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.closed = asyncio.Event()
        self.has = asyncio.Event()
        scope = {"type": "http", "client": (address, 5000)}
        self.task = asyncio.ensure_future(stream(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        self.got.append(message)
        self.has.set()

    async def message(self, text: bytes) -> None:
        """Wait until a message that contains `text` has arrived."""
        while not any(text in sent.get("body", b"") for sent in self.got):
            self.has.clear()
            await asyncio.wait_for(self.has.wait(), 10)


async def test_no_network_shuts_the_browsers_of_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 6)
    monkeypatch.setattr(live, "STREAMS_OF_A_NETWORK_MAX", 4)
    stream = live.Live(lambda: b"{}", Events().failed)

    async def come(address: str) -> Browser:
        browser = Browser(stream, address)
        await browser.message(b"")
        return browser

    crowd = [await come(f"192.0.2.{number}") for number in range(4)]
    refused = await come("192.0.2.9")
    assert refused.got[0]["status"] == 503
    assert b"4 browsers of your network are connected" in refused.got[1]["body"]
    others = [await come(address) for address in ("2001:db8::1", "2001:db8:0:1::1", "198.51.100.1", "203.0.113.1")]
    assert [other.got[0]["status"] for other in others] == [200] * 4
    await asyncio.gather(crowd[0].task, crowd[1].task)  # the oldest ones of the network with the most
    assert crowd[0].got[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not any(browser.task.done() for browser in (*crowd[2:], *others))
    late = await come("192.0.2.9")  # its network has as many as any other
    assert (late.got[0]["status"], b"6 of at most 6 browsers" in late.got[1]["body"]) == (503, True)
    stream.close()
    await asyncio.gather(*(browser.task for browser in (*crowd[2:], *others)))


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example"])
async def test_a_site_that_leads_its_name_here_reads_nothing(host: str) -> None:
    readiness = Readiness()
    web = WebServer("127.0.0.1:0", plain_transport(), readiness, Page(readiness).routes, may_move=False)
    web.start()
    port = web.address.rpartition(":")[2]
    for path in ("/", "/readyz", "/api/status", "/api/live", "/history.csv", "/static/main.js", "/nothing"):
        answer, body = await get(web.address, path, Host=f"{host}:{port}")
        assert (answer.status, body.count(b"\n")) == (421, 1), path
        assert b"only requests for localhost" in body
    await web.stop()
