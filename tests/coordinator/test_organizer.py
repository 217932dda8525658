"""The organizer's login over real sockets: who gets in, who waits, and what a page of another site can do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest

from thinwire_common.http import BODY_BYTES_MAX, HttpServer, bind
from thinwire_coordinator.hall.access.organizer import (
    ATTEMPTS_MAX,
    ATTEMPTS_WITHIN_S,
    FILE,
    LOGIN_S,
    Logins,
    OrganizerSecret,
    open_organizer_secret,
    organizer_proof,
    proves_organizer,
)
from thinwire_coordinator.hall.access.transport import TlsSettings, Transport
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.web.organizer import COOKIE, Organizer
from thinwire_coordinator.monitoring import WebServer
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.limits import STATUS_PROOF_S

KEY = SecretKey()
SECRET = "a secret of the organizer"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def site(clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    routes = Organizer(Logins(OrganizerSecret(SECRET)), clock).routes
    server = HttpServer(bind("127.0.0.1", 0, ""), routes, 8)
    server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield client
    await server.stop()


async def log_in(site: httpx.AsyncClient, secret: str = SECRET, **headers: str) -> httpx.Response:
    return await site.post("/organizer/login", json={"secret": secret}, headers=headers)


def test_the_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    open_organizer_secret(tmp_path)
    path = tmp_path / FILE
    secret = path.read_text().strip()
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = open_organizer_secret(tmp_path)
    assert again.is_said_by(secret)
    assert not again.is_said_by(secret + "x")
    assert not again.is_said_by("")


def test_a_secret_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text("x" * 20)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it; run: chmod 600"):
        open_organizer_secret(tmp_path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="a secret has 16 to 256 letters"):
        open_organizer_secret(tmp_path)


PROXY = TlsSettings(proxy=ip_network("127.0.0.1"), proxy_forwards=True)


@pytest.mark.parametrize(
    ("settings", "forwarded", "waits"),
    [
        (TlsSettings(insecure=True), "192.0.2.{}", True),  # a header that anybody can write
        (TlsSettings(proxy=ip_network("127.0.0.1")), "192.0.2.{}", True),
        (TlsSettings(proxy=ip_network("10.0.0.0/8"), proxy_forwards=True), "192.0.2.{}", True),
        (PROXY, "192.0.2.{}", False),
        (PROXY, "192.0.2.{}:5000", False),
        (PROXY, "192.0.2.{}, 192.0.2.7", True),  # the client wrote the first one
        (PROXY, "192.0.2.7:500{}", True),
        (PROXY, "192.0.2.7:nonsense{}", True),
        (PROXY, "[2001:db8::{}]:500{}", True),  # one network of IPv6
        (PROXY, "[2001:db8::7]:nonsense{}", True),
        (PROXY, "192.0.2.7, nonsense{}", True),
    ],
)
async def test_attempts_count_for_the_address_that_a_named_proxy_passes_on(
    clock: Clock, tmp_path: Path, settings: TlsSettings, forwarded: str, waits: bool
) -> None:
    """No header must give each attempt an address of its own. The page reads it as the port for nodes does."""
    transport = Transport(settings, tmp_path, KEY, [])
    routes = Organizer(Logins(OrganizerSecret(SECRET)), clock, behind_proxy=True).routes
    server = WebServer("127.0.0.1:0", transport, Readiness(), routes, may_move=False)
    server.start()
    async with httpx.AsyncClient(base_url=server.address) as client:
        for number in range(ATTEMPTS_MAX):
            await log_in(client, "wrong", **{"x-forwarded-for": forwarded.format(number, number)})
        wrong, right = [
            await log_in(client, secret, **{"x-forwarded-for": forwarded.format(19, 19)})
            for secret in ("wrong", SECRET)
        ]
    await server.stop()
    assert wrong.status_code == (429 if waits else 403)
    assert "secure" in right.headers["set-cookie"].lower()


async def test_without_a_login_nothing_is_told_and_nothing_is_changed(site: httpx.AsyncClient) -> None:
    assert (await site.get("/organizer/state")).status_code == 401
    for name in ("invite", "revoke", "ban", "pardon", "unban"):
        assert (await site.post(f"/organizer/{name}", json={})).status_code == 401
    assert (await log_in(site, "something else")).status_code == 403
    assert COOKIE not in site.cookies
    for cookie in ("", "x", "x" * 1000, "\u00e9"):
        headers = {b"cookie": f"{COOKIE}={cookie}".encode()}
        assert (await site.get("/organizer/state", headers=headers)).status_code == 401


async def test_the_secret_logs_in_and_out_again(site: httpx.AsyncClient, clock: Clock) -> None:
    answer = await log_in(site)
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # this is http on loopback
    assert (await site.get("/organizer/state")).status_code == 503  # known, and the run is not open yet
    kept = {"cookie": f"{COOKIE}={site.cookies[COOKIE]}"}
    assert (await site.post("/organizer/logout", json={})).status_code == 200
    assert (await site.get("/organizer/state", headers=kept)).status_code == 401


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_proof_of_the_organizer_is_of_now_and_of_this_run(by: int) -> None:
    proof, now = organizer_proof(KEY, 1e6), 1e6 + by * STATUS_PROOF_S
    assert proves_organizer(proof, KEY.public, now)
    assert not proves_organizer(proof, KEY.public, now + (by or 2) * STATUS_PROOF_S)
    assert not proves_organizer(proof, SecretKey().public, now)
    assert not proves_organizer(proof.replace("1000000:", "1000001:"), KEY.public, now)


async def test_a_login_ends_by_itself(site: httpx.AsyncClient, clock: Clock) -> None:
    await log_in(site)
    clock.now = LOGIN_S - 1
    assert (await site.get("/organizer/state")).status_code == 503
    clock.now = LOGIN_S
    assert (await site.get("/organizer/state")).status_code == 401


async def test_wrong_secrets_are_told_to_wait_and_the_right_one_never_is(
    site: httpx.AsyncClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    codes = [(await log_in(site, "wrong")).status_code for _ in range(3 * ATTEMPTS_MAX)]
    assert codes == [403] * ATTEMPTS_MAX + [429] * 2 * ATTEMPTS_MAX
    assert len(caplog.records) == ATTEMPTS_MAX  # who goes on does not fill the log
    answer = await log_in(site, "wrong")
    assert 0 < int(answer.headers["retry-after"]) <= ATTEMPTS_WITHIN_S + 1
    assert (await log_in(site)).status_code == 200
    clock.now = ATTEMPTS_WITHIN_S
    assert (await log_in(site, "wrong")).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(site: httpx.AsyncClient, headers: dict[str, str]) -> None:
    await log_in(site)
    for name in ("login", "logout", "invite", "revoke", "ban", "unban"):
        answer = await site.post(f"/organizer/{name}", json={}, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "another site asked for this")
    assert (await site.get("/organizer/state")).status_code == 503  # still logged in


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""])
async def test_a_form_of_another_site_cannot_speak_json(site: httpx.AsyncClient, kind: str) -> None:
    body = json.dumps({"secret": SECRET})
    answer = await site.post("/organizer/login", content=body, headers={"content-type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"secret": 1}', 400),
        (b'{"secret": "x", "more": 1}', 400),
        (b'{"secret": "' + b"x" * 300 + b'"}', 400),
        (b"\xff\xfe", 400),
        (b"[" * 4000, 400),
        (b"x" * (BODY_BYTES_MAX + 1), 413),
    ],
)
async def test_other_bodies_are_refused(site: httpx.AsyncClient, body: bytes, code: int) -> None:
    answer = await site.post("/organizer/login", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == code


async def test_a_body_without_an_announced_length_is_bounded_too(site: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            yield b"x" * 1000
            sent += 1000
            await asyncio.sleep(0)

    kind = {"content-type": "application/json"}
    with contextlib.suppress(httpx.TransportError):  # the server may close the connection while the rest is sent
        assert (await site.post("/organizer/login", content=endless(), headers=kind)).status_code == 413
    assert sent < 1_000_000
