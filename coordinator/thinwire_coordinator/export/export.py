"""Exports the model of a step: as one file of parameters, or as a folder that transformers or peft opens."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from thinwire_coordinator.export.folder import check_free, whole_folder
from thinwire_coordinator.export.model_card import model_card
from thinwire_coordinator.export.model_files import AUTO, class_to_open, write_model
from thinwire_coordinator.export.run_facts import facts_of
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.models.extras import import_extra
from thinwire_proto.task import Task, task_of
from thinwire_proto.version import VERSION

FILE_SUFFIX = ".safetensors"
KEEPS_CLASS = ("llama",)
"""Families of our own models, of which `AutoTokenizer` takes the class that we name; importing it takes seconds."""


def export(state_dir: Path, step: int | None, out: Path, merge: bool, push_to: str | None) -> None:
    """Write the model of a step to a file or a folder, and upload the folder. Raises ThinwireError."""
    if _is_file(out) and (merge or push_to is not None):
        raise UsageError(f"--merge and --push need a folder, and {out} is one file; give --out FOLDER")
    if push_to is not None:
        check_push(push_to)
    if not _is_file(out):
        check_free(out)
    state = open_state(state_dir, read_only=True)
    if merge and type(task_of(state.contract.model)).merged is Task.merged:
        print("--merge has no effect: this run trains no adapter", file=sys.stderr)
    kind = kind_of(state.contract)
    replica = kind.model_at(state, step)
    if _is_file(out):
        export_file(replica, out)
    else:
        opener = export_folder(state, replica, out, merge=merge)
        if opener != AUTO:
            print(
                f"open the tokenizer with transformers.{opener}, as README.md there shows: {AUTO} takes another class "
                "for this family of models, which would give other tokens",
                file=sys.stderr,
            )
    at = f"{kind.unit} {kind.trained(state.contract, replica)}"
    print(f"{at}: {replica.layout.parameters:,} parameters written to {out}")
    if push_to is not None:
        print(f"uploaded: {push(out, push_to, f'{at}, exported by thinwire {VERSION}')}")


def _is_file(out: Path) -> bool:
    """Whether this name asks for one file, and not for a folder."""
    return out.suffix == FILE_SUFFIX


def export_file(replica: Replica, out: Path) -> None:
    """Write the parameters under the names of the contract, as a snapshot. Raises ConfigError."""
    passing = out.with_name(out.name + ".part")
    try:
        replica.save(passing)
        passing.replace(out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        passing.unlink(missing_ok=True)


def export_folder(state: RunState, replica: Replica, out: Path, *, merge: bool = False) -> str:
    """Write a folder with the model, its tokenizer and its model card. It appears whole or not at all.

    merge: write an adapter together with its base, as one model. Returns the class of transformers that opens the
    tokenizer (see `class_to_open`). Raises ConfigError if the model has no form that
    transformers opens, or `out` may not be replaced.
    """
    task = task_of(state.contract.model)
    model = (task.merged if merge else task.hugging_face)(replica.tensors, state.blobs)
    tokenizer, facts = state.data.tokenizer, facts_of(state, replica)
    about = {"thinwire": VERSION, "contract": facts.contract.hash.hex(), "step": facts.step, "head": facts.head}
    if (lineage := facts.contract.lineage) is not None:
        about["parent"] = lineage.model_dump(mode="json")
    with whole_folder(out, about | {"fingerprint": facts.fingerprint}) as folder:
        write_model(model, tokenizer, folder)
        family = model.config.get("model_type")
        opener = class_to_open(folder, tokenizer) if tokenizer and family not in KEEPS_CLASS else AUTO
        card = model_card(facts, model, text=tokenizer is not None, opener=opener)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return opener


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
