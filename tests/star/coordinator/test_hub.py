"""Tests `export --push`, with the Hub's own library and an object in the place of its calls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from support.coordinator_command import Command

REPOSITORY = "ada/tiny"


class Api:
    """Takes one commit. WRITES: the only token that may write."""

    WRITES = "hf_secret"
    made: list[str]
    commits: list[dict[str, bytes]]

    def __init__(self, token: str, library_name: str) -> None:
        self._token = token

    def create_repo(self, repository: str, *, exist_ok: bool) -> None:
        if self._token != self.WRITES:
            raise OSError("401 Client Error: Invalid username or password.")
        self.made.append(repository)

    def create_commit(self, repository: str, operations: list[Any], *, commit_message: str) -> Any:
        assert self.made == [repository]
        self.commits.append({one.path_in_repo: Path(one.path_or_fileobj).read_bytes() for one in operations})
        return SimpleNamespace(commit_url=f"https://huggingface.co/{repository}/commit/{'a' * 40}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Api]:
    Api.made, Api.commits = [], []
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return Api


def test_the_folder_arrives_as_one_commit(
    run: Path, hub: type[Api], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.WRITES)
    told = command("export", "--state-dir", run, "--out", tmp_path / "out", "--push", REPOSITORY)
    assert hub.commits == [{path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}]
    assert f"https://huggingface.co/{REPOSITORY}/commit/" in told


def test_a_wrong_token_is_an_error_and_the_export_stays(
    run: Path, hub: type[Api], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = command.refused("export", "--state-dir", run, "--out", tmp_path / "out", "--push", REPOSITORY)
    assert "401" in error
    assert "the export is complete in" in error
    assert "hf_wrong" not in error
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert hub.commits == []
