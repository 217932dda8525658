"""Tests `export --push` against a small server that speaks the Hub's calls: names and formats are the Hub's."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from support.coordinator_command import Command

REPOSITORY = "ada/tiny"


class Hub(ThreadingHTTPServer):
    """Takes one commit. Large files travel by git-lfs, the others in the commit. token: the only one that may write."""

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.token = token
        self.calls: list[str] = []
        self.large: dict[str, bytes] = {}
        self.committed: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Call(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self.server.large[self.path.rpartition("/")[2]] = self._body()
        self._answer(200, {})

    def do_GET(self) -> None:
        self._answer(401, {"error": "Invalid username or password."})

    def do_POST(self) -> None:
        body = self._body()
        self.server.calls.append(self.path)
        if self.headers["Authorization"] != f"Bearer {self.server.token}" and not self.path.endswith("validate-yaml"):
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self._answer(200, {"url": f"{self.server.url}/{REPOSITORY}", "name": REPOSITORY})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif self.path == f"/api/models/{REPOSITORY}/preupload/main":
            self._answer(200, {"files": [_mode(file["path"]) for file in json.loads(body)["files"]]})
        elif self.path == f"/{REPOSITORY}.git/info/lfs/objects/batch":
            objects = [self._place(one) for one in json.loads(body)["objects"]]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif self.path == f"/api/models/{REPOSITORY}/commit/main":
            for line in body.splitlines():
                self._take(json.loads(line))
            url = f"{self.server.url}/{REPOSITORY}/commit/{'a' * 40}"
            self._answer(200, {"commitUrl": url, "commitOid": "a" * 40, "success": True})
        else:
            self._answer(404, {"error": f"no call {self.path}"})

    def _place(self, one: dict[str, Any]) -> dict[str, Any]:
        return one | {"actions": {"upload": {"href": f"{self.server.url}/up/{one['oid']}"}}}

    def _take(self, operation: dict[str, Any]) -> None:
        value = operation["value"]
        if operation["key"] == "file":
            self.server.committed[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            self.server.committed[value["path"]] = self.server.large[value["oid"]]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _mode(path: str) -> dict[str, Any]:
    large = path.endswith(".safetensors")
    return {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub("hf_secret")
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own use of httpx
def test_the_folder_arrives_as_one_commit(
    run: Path, hub: Hub, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    told = command("export", "--state-dir", run, "--out", tmp_path / "out", "--push", REPOSITORY)
    assert hub.committed == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert list(hub.large) == [hashlib.sha256(hub.committed["model.safetensors"]).hexdigest()]
    assert sum("/commit/" in call for call in hub.calls) == 1
    assert f"{hub.url}/{REPOSITORY}/commit/" in told


def test_a_wrong_token_is_an_error_and_the_export_stays(
    run: Path, hub: Hub, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = command.refused("export", "--state-dir", run, "--out", tmp_path / "out", "--push", REPOSITORY)
    assert "401" in error
    assert "the export is complete in" in error
    assert "hf_wrong" not in error
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert hub.committed == {}
