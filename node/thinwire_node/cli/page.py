"""The owner's page of a node: what it does and gave, its limits, and buttons that pause and stop it.

A process of its own serves it, on loopback: it reads the files of the node's state directory and writes those of its
owner's orders. So the node opens no port, and the page works for one that runs as a service, or does not run.

Any program of this machine can connect to loopback. So each answer needs a key, which is new each time and stands in
the fragment of the page's address.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from thinwire_common.http import SAFETY, HttpServer, bind, read_body
from thinwire_common.units import human_count
from thinwire_node import runtime
from thinwire_node.cli import owner
from thinwire_node.cli.certificate import fetch_certificate, share_of
from thinwire_node.observe import status
from thinwire_proto.clean_text import clean_text, shown_as_written
from thinwire_proto.errors import ConfigError, ThinwireError
from thinwire_proto.limits import SAMPLE_S

CONNECTIONS_MAX = 16
SHARE_EVERY_S = 60.0
ADVICE = "give another port with --port"
CONTENT_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript"}
POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
Ask = Callable[[], Awaitable[str]]


class OwnerPage:
    """The page of the node in a state directory. limits: the file of its limits; None: the one in the directory. ask:
    for this node's share of the run, in words; raises ThinwireError. Raises ConfigError if the port cannot be used."""

    def __init__(self, state_dir: Path, limits: Path | None, port: int, ask: Ask) -> None:
        self._state_dir = state_dir
        self._limits = limits
        self._ask = ask
        self._share = ""
        self._writing = threading.Lock()
        self._key = secrets.token_urlsafe(24)
        static = files("thinwire_node.cli").joinpath("static")
        routes: list[BaseRoute] = [
            self._file("/", static.joinpath("page.html").read_bytes(), ".html"),
            self._file("/page.css", static.joinpath("page.css").read_bytes(), ".css"),
            self._file("/page.js", static.joinpath("page.js").read_bytes(), ".js"),
            Route("/api/node", self._answering(self._node)),
            Route("/api/order", self._answering(self._order), methods=["POST"]),
            Route("/api/sample", self._answering(self._sample), methods=["POST"]),
            Route(
                "/api/limits",
                self._answering(
                    lambda body: {"said": owner.set_limits(state_dir, limits, list(map(str, body["entries"])))}
                ),
                methods=["POST"],
            ),
        ]
        self._server = HttpServer(bind("127.0.0.1", port, ADVICE), routes, CONNECTIONS_MAX)
        self.address = f"http://127.0.0.1:{self._server.port}/#{self._key}"

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve the page until `stop` is set."""
        self._server.start()
        asking = asyncio.ensure_future(self._ask_on())
        try:
            await stop.wait()
        finally:
            asking.cancel()
            await self._server.stop()

    async def _ask_on(self) -> None:
        while True:
            try:
                self._share = await self._ask()
            except ThinwireError as error:
                self._share = self._share or str(error)
            await asyncio.sleep(SHARE_EVERY_S)

    def _file(self, path: str, data: bytes, suffix: str) -> Route:
        async def answer(request: Request) -> Response:
            return Response(data, headers={**SAFETY, **POLICY}, media_type=CONTENT_TYPES[suffix])

        return Route(path, answer)

    def _answering(self, answer: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Answers with JSON, if the request has the key. answer: takes the body, or None without one."""

        async def answered(request: Request) -> Response:
            said = request.headers.get("authorization", "")
            if not hmac.compare_digest(said.encode(), f"Bearer {self._key}".encode()):
                text = "open the whole address that `thinwire-node page` has printed: its end is the key"
                return JSONResponse({"error": text}, 403, SAFETY)
            try:
                body = json.loads(await read_body(request)) if request.method == "POST" else None
                return JSONResponse(await asyncio.to_thread(answer, body), headers=SAFETY)
            except ThinwireError as error:
                return JSONResponse({"error": str(error)}, 400, SAFETY)
            except OSError as error:
                return JSONResponse({"error": f"{error.filename or self._state_dir}: {error.strerror}"}, 400, SAFETY)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
                return JSONResponse({"error": "this is not what the page sends"}, 400, SAFETY)

        return answered

    def _node(self, body: None) -> dict[str, Any]:
        folder, now_s = self._state_dir, time.time()
        report = status.read(folder)
        running = status.runs(folder)
        try:
            found = owner.limits_file(folder, self._limits).read()
            limits = [f"{name.replace('_', '-')} = {text}" for name, text in sorted(found.items())]
        except ConfigError as error:
            limits = [str(error)]
        return {
            "report": asdict(status.since(report, now_s)),
            "runs": running is not False,
            "condition": status.condition(report, running, now_s),
            "share": self._share,
            "limits": limits or ["no limits"],
        }

    def _order(self, body: dict[str, Any]) -> dict[str, str]:
        words = [str(word) for word in body["words"]]
        orders: dict[str, Callable[[], str]] = {
            "pause": lambda: owner.pause(self._state_dir, words),
            "resume": lambda: owner.resume(self._state_dir),
            "stop": lambda: owner.stop(self._state_dir, after_round=True),
        }
        return {"said": orders[body["order"]]()}

    def _sample(self, body: dict[str, Any]) -> dict[str, str]:
        """A text of the model. A process of its own draws it: it needs torch, and memory for the model once more."""
        if not self._writing.acquire(blocking=False):
            raise ConfigError("the model is writing already")
        try:
            seed = secrets.randbelow(1 << 31)
            folder = self._state_dir.absolute()
            command = [sys.executable, "-m", "thinwire_node", "sample", "--state-dir", str(folder)]
            done = subprocess.run(
                [*command, "--seed", str(seed)],
                cwd=folder,  # Python takes modules from the working directory before its own
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                env=os.environ | {"PYTHONIOENCODING": "utf-8"},  # a pipe has the system's encoding otherwise
                encoding="utf-8",
                errors="replace",
                timeout=SAMPLE_S,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"the model has written nothing within {SAMPLE_S:.0f} s") from None
        finally:
            self._writing.release()
        if done.returncode:
            raise ConfigError(clean_text(done.stderr.strip().rpartition("\n")[2]) or "the model wrote nothing")
        return {"said": shown_as_written(done.stdout.rstrip("\n"))}


def serve(state_dir: Path, limits: Path | None, port: int) -> None:
    """Serve the page of a node until a signal comes. Raises ConfigError."""

    async def ask() -> str:
        found = await asyncio.to_thread(fetch_certificate, state_dir)
        return (
            f"{share_of(found):.1%} of the {human_count(found.run_tokens)} tokens that the run has counted so far; "
            "thinwire-node certificate proves it"
        )

    async def until_stopped(stop: asyncio.Event) -> None:
        page = OwnerPage(state_dir, limits, port, ask)
        print(f"{page.address}  (Ctrl-C ends the page; the node goes on)", flush=True)
        await page.serve(stop)

    status.read(state_dir)
    runtime.run(until_stopped)
