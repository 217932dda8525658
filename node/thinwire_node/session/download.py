"""Downloads a file from an address that a contract names: https, http, s3 or gs, and nothing else.

A contract is from a stranger. So the volunteer says which schemes and networks a node may read (`data_addresses`),
redirects are few and never lead to another scheme, and no more bytes are read than the file has. The caller checks the
hash.

Python's clients block, so each download has a thread of its own. It is a daemon thread: a source that does not answer
must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config

from thinwire_node.data_addresses import DataAddresses
from thinwire_node.limits.throttle import Throttle
from thinwire_node.session.guarded_http import AddressRefused, opener
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import RemoteError
from thinwire_proto.limits import FETCH_SILENT_S
from thinwire_proto.version import VERSION

CHUNK_BYTES = 1 << 18
BYTES_LEAST = 1 << 16
"""A source that sends fewer bytes than this in FETCH_SILENT_S is given up."""
RANGE_BYTES_MAX = 1 << 22
"""Most bytes of one request to an object store, whose answer comes as a whole."""
RANGE_GROWTH_MAX = 4
RANGES_SEEN = 10
"""Requests to an object store in FETCH_SILENT_S, if its line allows: nothing of a request is seen or kept before its
end, and one that is given up goes on in its thread."""
ANONYMOUS: dict[str, dict[str, Any]] = {"s3": {"anon": True}, "gs": {"token": "anon"}}
"""Settings for a public bucket. Settings of fsspec for this scheme, from a file or FSSPEC_… variables, go first."""
EXTRAS = {"s3": "s3", "gs": "gcs"}
PARTIAL_CONTENT = 206


class SourceFailed(RemoteError):
    """A source did not give a file. The text says why."""


class SourceSilent(SourceFailed):
    """A source does not answer, or stopped sending. It will hardly do better at the next file."""


class SourceRefused(SourceFailed):
    """The volunteer does not allow this source."""


class DiskFailed(Exception):
    """A part of a file could not be written to this disk."""


async def download(
    address: str, size: int, path: Path, allowed: DataAddresses, throttle: Throttle | None = None
) -> None:
    """Fetch a file of `size` bytes, or the rest of it if `path` has its beginning. Raises SourceFailed or DiskFailed.

    throttle: paces it, if the owner limits the traffic; requests to an object store pass as a whole. After a
    cancellation nothing more is written."""
    sink = _Sink(path, size)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def work() -> None:
        error: Exception | None = None
        try:
            _read(address, sink, allowed, throttle)
        except Exception as raised:  # noqa: BLE001 - the awaiting task gets the error
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=work, name="download", daemon=True).start()
    try:
        await done
    finally:
        sink.close()


class _Sink:
    """The file that a download goes to. It takes nothing after `close`, and never more than `size` bytes."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._path = path
        self._lock = threading.Lock()
        self._closed = False
        self.offset = path.stat().st_size if path.exists() else 0
        if self.offset > size:
            self.restart()

    def restart(self) -> None:
        self._path.unlink(missing_ok=True)
        self.offset = 0

    def write(self, data: bytes) -> None:
        if self.offset + len(data) > self.size:
            raise SourceFailed(f"it sends more than the {self.size:,} bytes that the file has")
        with self._lock:
            if self._closed:
                raise SourceFailed("the download was stopped")
            try:
                with self._path.open("ab", buffering=0) as file:
                    file.write(data)
            except OSError as error:
                raise DiskFailed(error.strerror or str(error)) from None
        self.offset += len(data)

    def close(self) -> None:
        with self._lock:
            self._closed = True


def _read(address: str, sink: _Sink, allowed: DataAddresses, throttle: Throttle | None) -> None:
    scheme = address.partition("://")[0]
    if refusal := allowed.scheme_refusal(scheme):
        raise SourceRefused(refusal)
    if scheme in EXTRAS:
        _read_object(address, sink, throttle)
    else:
        _read_http(address, sink, allowed, throttle)


def _read_http(address: str, sink: _Sink, allowed: DataAddresses, throttle: Throttle | None) -> None:
    headers = {"User-Agent": f"thinwire/{VERSION}", "Accept-Encoding": "identity"}
    if sink.offset:
        headers["Range"] = f"bytes={sink.offset}-"
    try:
        request = urllib.request.Request(address, headers=headers)
        with opener(allowed, throttle).open(request, timeout=FETCH_SILENT_S) as response:
            _copy(response, sink)
    except AddressRefused as error:
        raise SourceRefused(str(error)) from None
    except urllib.error.HTTPError as error:
        error.close()
        if sink.offset and error.code == 416:  # the partial file is no beginning of it
            sink.restart()
        raise SourceFailed(f"HTTP {error.code} {clean_text(str(error.reason))}") from None
    except TimeoutError:
        raise SourceSilent(f"nothing came for {FETCH_SILENT_S:g} s") from None
    except urllib.error.URLError as error:
        raise SourceSilent(f"no connection: {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise SourceFailed(f"the connection failed: {error!r}") from None


def _copy(response: HTTPResponse, sink: _Sink) -> None:
    if sink.offset and not _continues(response, sink.offset):
        sink.restart()
    length = response.headers.get("Content-Length")
    if length is not None and (total := sink.offset + int(length)) != sink.size:
        raise SourceFailed(f"the file there has {total:,} bytes, and must have {sink.size:,}")
    while data := response.read1(CHUNK_BYTES):
        sink.write(data)
    if sink.offset < sink.size:
        raise SourceFailed(f"the file broke off after {sink.offset:,} of {sink.size:,} bytes")


def _continues(response: HTTPResponse, offset: int) -> bool:
    begins = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    return response.status == PARTIAL_CONTENT and begins


def _read_object(address: str, sink: _Sink, throttle: Throttle | None) -> None:
    scheme, _, key = address.partition("://")
    try:
        given = fsspec.config.conf.get(scheme)
        system: Any = fsspec.filesystem(scheme, **({} if given else ANONYMOUS[scheme]))
        if (total := system.info(key)["size"]) != sink.size:
            raise SourceFailed(f"the object has {total:,} bytes, and must have {sink.size:,}")
        size = BYTES_LEAST
        while sink.offset < sink.size:
            end = min(sink.offset + size, sink.size)
            if throttle is not None:
                throttle.pass_blocking(end - sink.offset)
            began = time.monotonic()
            sink.write(system.cat_file(key, start=sink.offset, end=end))
            size = next_range_bytes(size, time.monotonic() - began)
    except (SourceFailed, DiskFailed):
        raise
    except ImportError:
        extra = EXTRAS[scheme]
        raise SourceFailed(f"{scheme}:// needs an extra: pip install 'thinwire[{extra}]'") from None
    except Exception as error:  # noqa: BLE001 - the clients of object stores share no base of their errors
        raise SourceFailed(f"{type(error).__name__}: {error}") from None


def next_range_bytes(size: int, took_s: float) -> int:
    """Bytes of the next request to an object store, after one of `size` bytes took so long."""
    in_time = min(size * FETCH_SILENT_S / RANGES_SEEN / max(took_s, 1e-9), RANGE_GROWTH_MAX * size)
    return min(max(int(in_time), BYTES_LEAST), RANGE_BYTES_MAX)
