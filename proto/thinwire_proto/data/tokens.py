"""The data kind `tokens`: the data of a new run are checked and become blobs, and nodes open them as token shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import Contract, ModelSpec, RunSpec
from thinwire_proto.contract.data.tokens import HELD_OUT, TokensSpec
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, read_manifest
from thinwire_proto.data.sharded import paths_of, read_folder
from thinwire_proto.data.token_shards import TokenShards, check_enough, tokens_of, wrong_size
from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.task import DATA_KINDS, DataKind, LearnsConversations, LearnsPreferences, Made, task_of

PREPARE = "make it with `thinwire-coordinator prepare`"


class TokensKind(DataKind):
    """A `DataKind`. A new run uses a folder that `thinwire-coordinator prepare` wrote."""

    def check(self, run: RunSpec) -> None:
        spec = tokens_of(run.data)
        _, manifest = read_folder(Manifest, spec.folder, PREPARE)
        _check_conversations(manifest, run.model)
        check_enough(manifest, spec.weights, run.model.context)
        _check_tokenizer(manifest, Path(spec.folder))

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        self.check(run)
        spec = tokens_of(run.data)
        file, manifest = read_folder(Manifest, spec.folder, PREPARE)
        name = hashlib.sha256(file).hexdigest()
        if spec.held_out:
            raise ConfigError(
                f"{HELD_OUT} is for a run that goes on: `thinwire-coordinator amend --held-out` adds a set"
            )
        if spec.manifest_hash not in ("", name):
            raise ConfigError(f"data.manifest_hash: {spec.folder} has other data; remove the key to use them")
        derived = {"manifest_hash": name, "manifest_bytes": len(file), "vocabulary": manifest.vocabulary}
        _check_sizes(manifest, Path(spec.folder))
        blobs = paths_of(manifest.blobs(), spec.folder, go_on)
        return Made(spec.model_copy(update={**derived, "folder": ""}), file, blobs)

    def file_bytes_max(self, spec: TokensSpec) -> int:
        return spec.manifest_bytes

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> TokenShards:
        spec, context = tokens_of(contract.first.data), contract.model.context
        manifest = read_manifest(Manifest, file, spec.manifest_hash)
        if manifest.vocabulary != spec.vocabulary:
            raise PayloadError(
                f"the manifest has {manifest.vocabulary} tokens in its vocabulary; the contract says {spec.vocabulary}"
            )
        try:
            check_enough(manifest, spec.weights, context)
            _check_conversations(manifest, contract.model)
        except ConfigError as error:
            raise PayloadError(str(error)) from None
        found = TokenShards(manifest, spec, context, blobs)
        found.amend(contract)
        return found


def _check_conversations(manifest: Manifest, spec: ModelSpec) -> None:
    """Raise ConfigError if a model cannot learn from the conversations of a manifest."""
    if manifest.conversations is None:
        return
    form, model = manifest.conversations, task_of(spec).model("meta")
    if form.preferences and not isinstance(model, LearnsPreferences):
        raise ConfigError(
            f"data.folder: holds preferences, which need a frozen base to be compared with; model.kind = {spec.kind!r} "
            "has none; choose 'lora'"
        )
    if not isinstance(model, LearnsConversations):
        raise ConfigError(
            f"data.folder: holds conversations, and the loss of model.kind = {spec.kind!r} does not take their marks; "
            "prepare text for it, or choose another kind of model"
        )
    if (form.packed or form.preferences) and not model.packs:
        other = "run `thinwire-coordinator prepare` with --conversations-apart, which gives each a row of its own"
        raise ConfigError(
            "data.folder: several conversations share a row, and this model cannot keep them apart; "
            + ("choose a base without a state that runs through a row" if form.preferences else other)
        )


def _check_tokenizer(manifest: Manifest, folder: Path) -> None:
    """Raise ConfigError if the tokenizer has tokens that the manifest does not count, so that it made other shards."""
    if manifest.end is not None and manifest.end >= manifest.vocabulary:
        raise ConfigError(
            f"data.folder: {folder / MANIFEST_FILE}: the token {manifest.end} ends a document, but the vocabulary has "
            f"{manifest.vocabulary} tokens; {PREPARE}"
        )
    if manifest.tokenizer is None or find_spec("tokenizers") is None:  # an extra, which only `sample` needs
        return
    path = folder / BLOBS_FOLDER / manifest.tokenizer.hash
    if path.is_file() and (found := JsonTokenizer(path, manifest.end).vocabulary) > manifest.vocabulary:
        raise ConfigError(
            f"data.folder: the tokenizer {path} has {found} tokens, but the manifest says {manifest.vocabulary}, so it "
            "is not the one that made the shards; run `thinwire-coordinator prepare` again"
        )


def _check_sizes(manifest: Manifest, folder: Path) -> None:
    """Raise ConfigError if the bytes of a shard cannot be its tokens."""
    for source in manifest.sources:
        for shard in (*source.train, *source.held_out):
            if wrong := wrong_size(shard, np.dtype(manifest.token)):
                raise ConfigError(f"data.folder: {folder / MANIFEST_FILE}: shard {wrong}; {PREPARE}")


DATA_KINDS.register("tokens")(TokensKind())
