"""An HTTP server on loopback that serves files, and can stop in the middle of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """files: by path. stall_after: bytes of a file after which the server sends nothing more; None: it sends all.
    content_encoding: a header that it sends with each file, whatever the client accepts."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.stall_after: int | None = None
        self.content_encoding: str | None = None
        self.goes_on = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_HEAD(self) -> None:
        self._head()

    def do_GET(self) -> None:
        data = self._head()
        if data is None:
            return
        limit = self.server.stall_after
        start, stop = self._range(data)
        with suppress(ConnectionError):  # the other side may be killed
            self.wfile.write(data[start : stop if limit is None else min(stop, max(start, limit))])
            self.wfile.flush()
        if limit is not None and stop > limit:
            self.server.goes_on.wait()

    def _range(self, data: bytes) -> tuple[int, int]:
        """The bytes that are asked for: all, or those of a header `Range: bytes=START-LAST`."""
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(first), min(int(last) + 1, len(data)) if last else len(data)

    def _head(self) -> bytes | None:
        data = self.server.files.get(self.path.partition("?")[0])
        start, stop = self._range(data or b"")
        self.send_response(404 if data is None else 206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data or b'')}")
        self.send_header("Accept-Ranges", "bytes")
        if self.server.content_encoding is not None:
            self.send_header("Content-Encoding", self.server.content_encoding)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", '"1"')
        self.end_headers()
        return data

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[FileServer]:
    server = FileServer(files)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
