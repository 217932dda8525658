"""The routes of the page: static files of this package, JSON built on demand, and an event stream.

Answers are kept for KEPT_S seconds, because many browsers ask for the same ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from thinwire_coordinator.hall.access.addresses import group_of
from thinwire_coordinator.hall.ledger.results import NewestResults
from thinwire_coordinator.hall.observe.cpu_budget import KeptAnswers
from thinwire_coordinator.hall.observe.history import History, NodeNames, read_past
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.view import RunView, WholeRun
from thinwire_coordinator.hall.web import status
from thinwire_coordinator.hall.web.live import Live
from thinwire_coordinator.hall.web.status import MEDIA_TYPE, curves_csv
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.errors import LedgerError

log = logging.getLogger("thinwire.coordinator")

SAFETY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""The page loads nothing from other servers and runs no scripts except its own files."""
POINTS, POINTS_MIN, POINTS_MAX = 400, 16, 2000
"""Points of a series in one answer: default, minimum and maximum."""
ROWS = 15
"""Default number of nodes in one answer."""
KEPT_S = 0.5
CONTRACT_DIGITS = 16
"""Digits of the contract's hash in the name of a downloaded file."""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Page:
    """Serves the page. Its routes answer 503 with the current state until `open` is called with a swarm.

    sees_all: whether a request is the organizer's, who sees all that is known of each node; nobody, unless it is set.
    """

    def __init__(self, readiness: Readiness) -> None:
        self.sees_all: Callable[[Request], bool] = lambda request: False
        self._readiness = readiness
        self._swarm: RunView | None = None
        self._history: History | None = None
        self._results: NewestResults | None = None
        self._live: Live | None = None
        self._files = {entry.name: _File(entry.name, entry.read_bytes()) for entry in _static()}
        self._kept = KeptAnswers(KEPT_S)
        self._names: NodeNames | None = None
        self._remembering: asyncio.Task[None] | None = None
        self.routes: list[BaseRoute] = [
            Route("/", self._index),
            Route("/organizer", self._organizer),
            Route("/static/{name}", self._static),
            Route("/api/status", self._status),
            Route("/api/history", self._series),
            Route("/api/live", self._stream),
            Route("/history.csv", self._csv),
        ]

    def open(self, run: Run) -> None:
        """Start to watch the swarm. A background task reads the earlier history from the ledger."""
        self._swarm = view = run.view
        self._results = NewestResults(run.state.folder)
        names = [found.name for found in view.held_out_sets]
        self._history = History(view.counts, view.newest_step, view.now, names, rows=run.state.watch_ledger.step)
        events = run.events
        self._live = Live(self._message, events.failed)
        events.watchers += [self._history.watch, self._live.wake]
        self._names = NodeNames(run, self._history)
        self._remembering = events.keep("reading the history", self._remember(run, self._history))

    def whole_run(self, asked: str = "") -> WholeRun | None:
        """See `History.whole_run`."""
        return self._history.whole_run(asked) if self._history is not None else None

    def close(self) -> None:
        if self._remembering is not None:
            self._remembering.cancel()
        if self._names is not None:
            self._names.close()
        if self._live is not None:
            self._live.close()

    async def _remember(self, run: Run, history: History) -> None:
        view, submit = run.view, partial(run.workers.submit, Job.READ_HISTORY)
        try:
            past = await read_past(
                run.state.watch_ledger,
                view.term.number,
                history.rows_before,
                run.state.tokens_a_sample,
                list(history.held_out),
                submit,
                run.past_reader(),
            )
        except LedgerError as error:
            log.warning("the page cannot show the history before step %d: %s", history.since_step, error)
            return
        history.begin_with(past)
        if self._live is not None:
            self._live.wake()

    def _message(self) -> bytes:
        assert self._swarm is not None
        assert self._history is not None
        return _json(status.summary(self._swarm, self._history))

    # answers

    async def _index(self, request: Request) -> Response:
        if self._readiness.swarm is not None:
            return self._files["index.html"].answer(request)
        waiting = self._files["waiting.html"].data.replace(b"{state}", escape(self._readiness.state).encode())
        return Response(waiting, 503, {**SAFETY, "retry-after": "2", "cache-control": "no-store"}, KINDS[".html"])

    async def _organizer(self, request: Request) -> Response:
        return self._files["organizer.html"].answer(request)

    async def _static(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        return found.answer(request) if found else Response("file not found\n", 404, SAFETY)

    async def _status(self, request: Request) -> Response:
        """The current status.

        `nodes` and `offset` in the query select rows of the table of nodes. `sort` names its order; a leading minus
        reverses it.
        """
        try:
            count = _number(request, "nodes", ROWS, 0, status.NODES_MAX)
            offset = _number(request, "offset", 0, 0, 1 << 20)
            sort = request.query_params.get("sort", status.DEFAULT_SORT)
            if sort.removeprefix("-") not in status.SORTS:
                raise ValueError(f"sort must be one of {', '.join(status.SORTS)}, optionally with a leading minus")
        except ValueError as error:
            return _refused(str(error))

        in_full = self.sees_all(request)

        def make(swarm: RunView, history: History) -> Any:
            page = status.nodes(swarm, history, sort, offset, count, in_full=in_full)
            results = self._results.read() if self._results is not None else ()
            more = {"evaluated": status.evaluated(results), "node_list": page}
            return status.summary(swarm, history) | status.details(swarm, history) | more

        return self._answer(request, f"status {count} {offset} {sort} {in_full}", make)

    async def _series(self, request: Request) -> Response:
        try:
            points = _number(request, "points", POINTS, POINTS_MIN, POINTS_MAX)
        except ValueError as error:
            return _refused(str(error))
        name = request.query_params.get("set", "")
        if name and self._history is not None and name not in self._history.held_out:
            return _refused(f"set must be one of {', '.join(self._history.held_out)}")
        question = f"history {points} {name}"
        return self._answer(request, question, lambda _, history: status.series(history, points, name))

    async def _stream(self, request: Request) -> Any:
        return self._live or self._not_yet()

    async def _csv(self, request: Request) -> Response:
        name = self._swarm.contract.hash.hex()[:CONTRACT_DIGITS] if self._swarm else ""
        saved_as = f'attachment; filename="thinwire-{name}.csv"'
        headers = {"content-type": MEDIA_TYPE, "content-disposition": saved_as}
        return self._kept_answer(request, "csv", _curves, headers)

    def _answer(self, request: Request, question: str, make: Callable[[RunView, History], Any]) -> Response:
        kind = {"content-type": "application/json"}
        return self._kept_answer(request, question, lambda swarm, history: _json(make(swarm, history)), kind)

    def _kept_answer(
        self, request: Request, question: str, make: Callable[[RunView, History], bytes], headers: dict[str, str]
    ) -> Response:
        if self._swarm is None or self._history is None or self._readiness.swarm is None:
            return self._not_yet()
        network = group_of(request.client.host if request.client else "")
        found = self._kept.answer(question, time.monotonic(), partial(make, self._swarm, self._history), network)
        if found is None:
            return self._unavailable("asked too much")
        return Response(found, headers={**SAFETY, "cache-control": "no-store", **headers})

    def _not_yet(self) -> Response:
        return self._unavailable(self._readiness.state)

    def _unavailable(self, state: str) -> Response:
        return JSONResponse({"state": state}, 503, {**SAFETY, "retry-after": "2"})


class _File:
    """A static file in memory, so that a path from a request is never used on the disk."""

    def __init__(self, name: str, data: bytes) -> None:
        self.data = data
        kind = KINDS[name[name.rindex(".") :]]
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        self._headers = {**SAFETY, "content-type": kind, "etag": tag, "cache-control": "no-cache"}

    def answer(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self.data, headers=self._headers)


def _static() -> list[Any]:
    folder = files("thinwire_coordinator.hall.web").joinpath("static")
    return [entry for entry in folder.iterdir() if entry.is_file()]


def _curves(swarm: RunView, history: History) -> bytes:
    return curves_csv(history, swarm.contract.amendments)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}")
    return int(text)


def _refused(text: str) -> Response:
    return JSONResponse({"error": text}, 400, SAFETY)
