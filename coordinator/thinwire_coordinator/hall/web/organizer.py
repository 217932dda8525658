"""The organizer's login and panel: invites, nodes and bans, which the commands list and change too.

Only whoever says the organizer's secret sees addresses of nodes, or changes anything. Another site's page can neither
read an answer nor have one changed on behalf of a browser that is logged in (cross-site request forgery): the cookie is
SameSite=Strict, a change must be JSON, and a request that says another origin is refused.

The access store is a file, so every call of it runs on a thread of its own, beside the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from thinwire_common.http import read_body
from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.addresses import network_of
from thinwire_coordinator.hall.access.organizer import LOGIN_S, Logins
from thinwire_coordinator.hall.access.store import ORGANIZER, AccessStore
from thinwire_coordinator.hall.invite_address import make_invite
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.web.page import SAFETY
from thinwire_proto.clean_text import clean_name, clean_text
from thinwire_proto.errors import ConfigError, ThinwireError

log = logging.getLogger("thinwire.coordinator")

COOKIE = "thinwire-organizer"
HEADERS = {**SAFETY, "cache-control": "no-store"}
Plain = dict[str, Any]


class Wish(BaseModel):
    """The body of a request: strict, and without other keys."""

    model_config = ConfigDict(strict=True, extra="forbid")


class SecretSaid(Wish):
    secret: str = Field(max_length=256)


class InviteWish(Wish):
    """hours: until it expires; None: never. uses: None for any number."""

    name: str = Field("", max_length=256)
    uses: int | None = Field(1, ge=1, le=1 << 20)
    hours: float | None = Field(24.0, gt=0, le=1 << 20)


class RevokeWish(Wish):
    number: int = Field(ge=1, lt=1 << 62)


class NodeWish(Wish):
    node: str = Field(pattern="^[0-9a-f]{32}$")
    reason: str = Field("", max_length=1000)


NODES_MAX = 200
"""Nodes in one answer: those that joined last."""


@dataclass(frozen=True)
class Standing:
    """The coordinator's trust in a node. trust: 0 to 1; a contribution weighs so much of its samples' weight."""

    active: bool
    trust: float | None = None
    suspicion: str = ""


AWAY = Standing(False)


class AccessPanel:
    """Lists and changes invites, nodes and bans of the access store.

    `standings` and `pardon` belong to the event loop. The other methods read and write a file, and may run on any
    thread. All raise ThinwireError."""

    def __init__(self, store: AccessStore, folder: Path, run: Run) -> None:
        self._store = store
        self._folder = folder
        self._run = run

    def standings(self) -> dict[str, Standing]:
        return {
            node: Standing(member.active, *(self._run.stands(node) or (None, "")))
            for node, member in self._run.view.members.items()
        }

    def pardon(self, wish: NodeWish) -> Plain:
        """Forget everything against a node."""
        if wish.node not in self._run.view.members:
            raise ConfigError(f"node {wish.node[:8]} has not joined since the coordinator started")
        self._run.pardon(wish.node)
        return {"ok": True}

    def state(self, standings: Mapping[str, Standing]) -> Plain:
        now = time.time()
        bans = self._store.bans.holding(now)
        nodes = self._store.nodes.all()
        invites = [
            {
                "number": one.number,
                "name": one.name,
                "uses": one.uses,
                "uses_max": one.uses_max,
                "expires": one.expires,
                "state": one.state(now),
            }
            for one in self._store.invites.all()
        ]
        rows = []
        for one in reversed(nodes[-NODES_MAX:]):
            standing, ban = standings.get(one.node, AWAY), bans.get(one.node)
            rows.append(
                {
                    "node": one.node,
                    "name": clean_name(one.name) or one.node[:8],
                    "address": clean_text(one.address),
                    "invite": one.invite,
                    "seen": one.seen,
                    "active": standing.active,
                    "trust": standing.trust,
                    "reason": clean_text(ban.reason if ban is not None else standing.suspicion),
                    "banned": ban is not None,
                    "banned_until": ban.until if ban is not None else None,
                }
            )
        standby = self._run.keeper.in_words() if self._run.keeper is not None else ""
        return {"invites": invites[::-1], "nodes": rows, "nodes_known": len(nodes), "standby": clean_text(standby)}

    def invite(self, wish: InviteWish) -> Plain:
        """Make an invite. Its string is shown once, because the store keeps only its hash."""
        now, name = time.time(), clean_name(wish.name)
        expires = None if wish.hours is None else now + 3600 * wish.hours
        record, invite = make_invite(self._store, self._folder, now, name=name, uses_max=wish.uses, expires=expires)
        return {"number": record.number, "invite": str(invite)}

    def revoke(self, wish: RevokeWish) -> Plain:
        if self._store.invites.of(wish.number) is None:
            raise ConfigError(f"there is no invite {wish.number}")
        self._store.revoke(wish.number, time.time())
        return {"ok": True}

    def ban(self, wish: NodeWish) -> Plain:
        """Ban a node until the organizer lifts it."""
        self._check(wish.node)
        self._store.bans.ban(wish.node, None, clean_text(wish.reason), ORGANIZER, time.time())
        return {"ok": True}

    def unban(self, wish: NodeWish) -> Plain:
        self._check(wish.node)
        if not self._store.bans.unban(wish.node, clean_text(wish.reason), ORGANIZER, time.time()):
            raise ConfigError(f"node {wish.node[:8]} is not banned")
        return {"ok": True}

    def _check(self, node: str) -> None:
        if self._store.nodes.of(node) is None:
            raise ConfigError(f"no node {node[:8]} has joined this run")


class Organizer:
    """The routes of the login and the panel. panel: lists and changes; None until the run is open.

    behind_proxy: a proxy in front encrypts, so the cookie is for HTTPS although requests come in plain text.
    """

    def __init__(
        self, logins: Logins, now: Callable[[], float] = time.monotonic, *, behind_proxy: bool = False
    ) -> None:
        self._logins = logins
        self._behind_proxy = behind_proxy
        self._now = now
        self.panel: AccessPanel | None = None
        self.routes: list[BaseRoute] = [
            Route("/organizer/login", self._login, methods=["POST"]),
            Route("/organizer/logout", self._logout, methods=["POST"]),
            Route("/organizer/state", self._state, methods=["GET"]),
            self._route("invite", InviteWish, AccessPanel.invite),
            self._route("revoke", RevokeWish, AccessPanel.revoke),
            self._route("ban", NodeWish, AccessPanel.ban),
            self._route("pardon", NodeWish, AccessPanel.pardon, on_loop=True),
            self._route("unban", NodeWish, AccessPanel.unban),
        ]

    def knows(self, request: Request) -> bool:
        return self._logins.holds(_token(request), self._now())

    async def _login(self, request: Request) -> Response:
        if refused := _refuse_origin(request):
            return refused
        said = await _said(request, SecretSaid)
        if isinstance(said, Response):
            return said
        address, now = network_of(request.client.host) if request.client else "", self._now()
        token = self._logins.begin(said.secret, now)
        if token is None:
            return self._refused(address, now)
        answer = JSONResponse({"ok": True}, headers=HEADERS)
        secure = self._behind_proxy or request.url.scheme == "https"
        answer.set_cookie(COOKIE, token, int(LOGIN_S), path="/", secure=secure, httponly=True, samesite="strict")
        return answer

    def _refused(self, address: str, now: float) -> Response:
        """The answer to a wrong secret. Attempts of an address that has to wait leave nothing in the log."""
        if (wait_s := self._logins.wait_s(address, now)) > 0:
            text = f"the secret is wrong, and this address has tried too often; wait {wait_s:.0f} s"
            return _error(429, text, {"retry-after": str(int(wait_s) + 1)})
        self._logins.failed(address, now)
        tell(log, logging.WARNING, "coordinator.login_refused", "a login to the organizer's panel was refused")
        return _error(403, "the secret is wrong; it is in organizer.secret in the coordinator's state directory")

    async def _logout(self, request: Request) -> Response:
        if refused := _refuse_origin(request):
            return refused
        self._logins.end(_token(request))
        answer = JSONResponse({"ok": True}, headers=HEADERS)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    async def _state(self, request: Request) -> Response:
        if refused := self._refuse_stranger(request):
            return refused
        standings = self.panel.standings() if self.panel is not None else {}
        return await self._answer(lambda panel: panel.state(standings))

    def _route(
        self, name: str, wish: type[Wish], change: Callable[[AccessPanel, Any], Plain], *, on_loop: bool = False
    ) -> Route:
        """A route for one change. on_loop: whether the change belongs to the event loop, and not to a thread."""

        async def answer(request: Request) -> Response:
            if refused := _refuse_origin(request) or self._refuse_stranger(request):
                return refused
            said = await _said(request, wish)
            if isinstance(said, Response):
                return said
            return await self._answer(lambda panel: change(panel, said), on_loop=on_loop)

        return Route(f"/organizer/{name}", answer, methods=["POST"])

    async def _answer(self, ask: Callable[[AccessPanel], Plain], *, on_loop: bool = False) -> Response:
        panel = self.panel
        if panel is None:
            return _error(503, "the coordinator is starting", {"retry-after": "2"})
        try:
            found = ask(panel) if on_loop else await asyncio.to_thread(ask, panel)
        except ThinwireError as error:
            return _error(409, str(error))
        return JSONResponse(found, headers=HEADERS)

    def _refuse_stranger(self, request: Request) -> Response | None:
        return None if self.knows(request) else _error(401, "log in with the organizer's secret")


def _token(request: Request) -> str:
    return request.cookies.get(COOKIE, "")


def _refuse_origin(request: Request) -> Response | None:
    """Refuse a request that a page of another site made. Programs that are no browsers send neither header."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    host = request.headers.get("host", "")
    is_ours = origin is None or (host != "" and origin.partition("://")[2] == host)
    return None if is_ours and site in ("same-origin", "none") else _error(403, "another site asked for this")


async def _said(request: Request, wish: type[Any]) -> Any:
    """The body as a wish, or the answer that refuses it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _error(415, "the body must be application/json")
    body = await read_body(request)
    try:
        return wish.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _error(400, f"{where or 'body'}: {first['msg']}")


def _error(code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, code, HEADERS | (headers or {}))
