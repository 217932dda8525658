"""Readers of what sinks write: a folder of wandb, and pushes of OTLP over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32_768
FILE_HEAD_BYTES = 7
HEAD_BYTES = 7
"""Checksum (4), length (2) and kind (1) of a fragment."""
WHOLE, LAST = 1, 4


def wandb_runs(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """The run id and the logged rows of each offline run in `folder`/wandb, oldest first."""
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415 - slow

    messages: Any = wandb_internal_pb2
    found = []
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        rows: list[dict[str, Any]] = []
        run_id = ""
        for data in _records(path.read_bytes()):
            record = messages.Record.FromString(data)
            run_id = record.run.run_id or run_id
            if record.HasField("history"):
                rows.append(_row(record.history))
        found.append((run_id, rows))
    return found


def _row(history: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, whose fragments never cross the end of a block."""
    at, record = FILE_HEAD_BYTES, b""
    while at + HEAD_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD_BYTES:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + HEAD_BYTES + size > len(data):
            return  # still being written
        record += data[at + HEAD_BYTES : at + HEAD_BYTES + size]
        at += HEAD_BYTES + size
        if kind in (WHOLE, LAST):
            yield record
            record = b""


class OtlpReceiver:
    """A receiver of OTLP over HTTP on loopback. pushes: the decoded requests. status: of its answers."""

    def __init__(self) -> None:
        self.pushes: list[Any] = []
        self.paths: list[str] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415

                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.paths.append(self.path)
                receiver.pushes.append(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def metrics(self) -> dict[str, Any]:
        """The metrics of the newest push, by name."""
        return {metric.name: metric for metric in self.pushes[-1].resource_metrics[0].scope_metrics[0].metrics}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
