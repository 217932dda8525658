"""An HTTP server on loopback that serves files, and can be told to do it badly."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer(ThreadingHTTPServer):
    """files: by path, or the folder whose files are served under their names.

    fault: what the server does wrong: "" (nothing), "stall" (it stops in the middle of a file), "truncate" (it ends
    there), "flip" (one byte differs), "longer", "missing", "no ranges", "redirect:URL". faults: the same for single
    files, by name. stall_after: bytes of a file after which it sends nothing more; None: it sends all.
    content_encoding: a header that it sends with each file, whatever the client accepts. asked: the requests, as (name,
    first byte)."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes] | Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fault = ""
        self.faults: dict[str, str] = {}
        self.stall_after: int | None = None
        self.content_encoding: str | None = None
        self.asked: list[tuple[str, int]] = []
        self.goes_on = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def folder(self) -> Path:
        assert isinstance(self.files, Path)
        return self.files

    def data(self, path: str) -> bytes | None:
        if not isinstance(self.files, Path):
            return self.files.get(path)
        file = self.folder / path.rpartition("/")[2]
        return file.read_bytes() if file.is_file() else None


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_HEAD(self) -> None:
        self._begin()

    def do_GET(self) -> None:
        data, start, stop = self._begin()
        limit = self.server.stall_after
        if self._fault in ("stall", "truncate"):
            limit = start + (stop - start) // 2
        with suppress(ConnectionError):  # the other side may be killed
            self.wfile.write(data[start : stop if limit is None else min(stop, max(start, limit))])
            self.wfile.flush()
        if limit is not None and stop > limit and self._fault != "truncate":
            self.server.goes_on.wait()

    @property
    def _fault(self) -> str:
        return self.server.faults.get(self.path.rpartition("/")[2], self.server.fault)

    def _begin(self) -> tuple[bytes, int, int]:
        """Answer all but the contents. Returns the file, and what is asked of it: from a byte up to another."""
        fault, path = self._fault, self.path.partition("?")[0]
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        self.server.asked.append((path.rpartition("/")[2], int(first)))
        data = None if fault == "missing" else self.server.data(path)
        is_elsewhere = fault.startswith("redirect:")
        if data is None or is_elsewhere:
            self.send_response(302 if is_elsewhere else 404)
            self.send_header("Location", fault.removeprefix("redirect:"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return b"", 0, 0
        if fault == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "longer":
            data += b"x"
        in_part = "Range" in self.headers and fault != "no ranges"
        start, stop = (int(first), min(int(last) + 1, len(data)) if last else len(data)) if in_part else (0, len(data))
        self.send_response(206 if in_part else 200)
        if in_part:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        if self.server.content_encoding is not None:
            self.send_header("Content-Encoding", self.server.content_encoding)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", '"1"')
        self.end_headers()
        return data, start, stop

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def serving(files: Mapping[str, bytes] | Path) -> Iterator[FileServer]:
    server = FileServer(files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
