"""An HTTP server on loopback that serves files by name, and can be told to do it badly."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class BlobServer(ThreadingHTTPServer):
    """fault: what the server does wrong: "" (nothing), "stall" (it stops in the middle of a file), "truncate" (it ends
    there), "flip" (one byte differs), "longer", "missing", "no ranges", "redirect:URL". faults: the same for single
    files, by name. asked: the requests, as (name, first byte)."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.fault = ""
        self.faults: dict[str, str] = {}
        self.asked: list[tuple[str, int]] = []
        self.stalled = threading.Event()
        """Set once a request has stalled."""
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/blobs"


class _Handler(BaseHTTPRequestHandler):
    server: BlobServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server, name = self.server, self.path.rpartition("/")[2]
        begins = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fault = server.faults.get(name, server.fault)
        offset = int(begins[1]) if begins and fault != "no ranges" else 0
        server.asked.append((name, int(begins[1]) if begins else 0))
        path = server.folder / name
        if fault.startswith("redirect:"):
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("redirect:"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "missing" or not path.is_file():
            self.send_error(404)
            return
        self._send(path.read_bytes(), offset, fault)

    def _send(self, data: bytes, offset: int, fault: str) -> None:
        if fault == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "longer":
            data += b"x"
        self.send_response(206 if offset else 200)
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - offset))
        self.end_headers()
        half = offset + (len(data) - offset) // 2
        self.wfile.write(data[offset : half if fault in ("stall", "truncate") else None])
        if fault == "stall":
            self.wfile.flush()
            self.server.stalled.set()
            self.server.closing.wait()
        if fault in ("stall", "truncate"):
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def blob_server(folder: Path) -> Iterator[BlobServer]:
    server = BlobServer(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
