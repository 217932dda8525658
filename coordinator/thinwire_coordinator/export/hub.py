"""Uploads an exported folder to the Hugging Face Hub."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra

TOKEN = "HF_TOKEN"
LIBRARY, EXTRA = "huggingface_hub", "hub"


def check_push(repository: str) -> None:
    """Raise ConfigError if an upload cannot work: without the library, a token, or a name of a repository."""
    import_extra(LIBRARY, EXTRA)
    _token()
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise ConfigError(f"--push: {repository!r} is not OWNER/NAME, as in ada/tiny-model")


def push(folder: Path, repository: str, message: str) -> str:
    """Upload the files of a folder as one commit to a model repository, which is created if it does not exist. Returns
    the commit's address. Raises ConfigError.

    The Hub takes a commit as a whole, so nobody downloads half of a model.
    """
    hub = import_extra(LIBRARY, EXTRA)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    api = hub.HfApi(token=_token(), library_name="thinwire")
    files = [hub.CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path) for path in sorted(folder.iterdir())]
    try:
        api.create_repo(repository, exist_ok=True)
        return str(api.create_commit(repository, files, commit_message=message).commit_url)
    except (OSError, ValueError, RuntimeError) as error:  # the library raises a RuntimeError from what went wrong
        reason = error.__cause__ or error
        raise ConfigError(f"--push {repository}: {reason}; the export is complete in {folder}") from None


def _token() -> str:
    if token := os.environ.get(TOKEN, "").strip():
        return token
    raise ConfigError(f"--push needs a token in the variable {TOKEN}: create one that may write at huggingface.co")
