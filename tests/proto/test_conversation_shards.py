"""Shards of conversations: what a batch reads of them beside text, and which shards and models are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from support.small import MODEL
from support.token_folder import write_tokens
from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.conversations import BEGINS, COUNTS, counted
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Conversations, Manifest, Source
from thinwire_proto.data.token_shards import TokenShards, row_type
from thinwire_proto.data.tokens import TokensKind
from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import task_of

CONTEXT, VOCABULARY, ROWS = 9, 300, 8
CHATS, TEXT = "chats", "text"
Rows = npt.NDArray[Any]


def rows(seed: int) -> Rows:
    """Rows of two conversations of five tokens, of which the last one or more count."""
    found = np.zeros(ROWS, row_type(CONTEXT, np.dtype("<u2")))
    random = np.random.default_rng(seed)
    found["tokens"] = random.integers(0, VOCABULARY, found["tokens"].shape)
    for row in found:
        for at in (0, 5):
            row["marks"][at] = BEGINS
            row["marks"][at + random.integers(1, 5) : at + 5] = COUNTS
    return found


def folder_of(
    folder: Path, change: Callable[[Rows], None] = lambda rows: None, *, packed: bool = True, context: int = CONTEXT
) -> Manifest:
    """A folder with a source of text and one of conversations. change: of those to train on."""
    texts = write_tokens(folder, {TEXT: [100]}).sources

    def shard(found: Rows, counts: int) -> tuple[Shard, ...]:
        name = hashlib.sha256(data := found.tobytes()).hexdigest()
        (folder / BLOBS_FOLDER / name).write_bytes(data)
        return (Shard(hash=name, size=len(data), tokens=ROWS * (CONTEXT + 1), text_bytes=2 * counts, counted=counts),)

    train, held_out = rows(1), rows(2)
    counts = [int((found["marks"] & COUNTS).sum()) for found in (train, held_out)]
    change(train)
    chats = Source(name=CHATS, train=shard(train, counts[0]), held_out=shard(held_out, counts[1]))
    form = Conversations(context=context, packed=packed)
    manifest = Manifest(vocabulary=VOCABULARY, sources=(*texts, chats), conversations=form)
    (folder / MANIFEST_FILE).write_bytes(manifest.written())
    return manifest


def run_of(folder: Path, model: Any = MODEL, **data: Any) -> RunSpec:
    sizes = {"context": CONTEXT, "vocabulary": VOCABULARY}
    return RunSpec.model_validate({"model": model | sizes, "data": {"kind": "tokens", "folder": str(folder)} | data})


def opened(folder: Path, **data: Any) -> TokenShards:
    run = run_of(folder, **data)
    made = TokensKind().make(run, lambda: None)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made.spec}
    contract = Contract(**sections, parameters=task_of(run.model).manifest())
    return TokensKind().open(made.file, contract, BlobFolder(folder / BLOBS_FOLDER))


def test_a_pass_has_every_row_and_every_window_once(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path)
    data = opened(tmp_path)
    of_text, of_chats = (source.train[0] for source in manifest.sources)
    tokens = np.fromfile(tmp_path / BLOBS_FOLDER / of_text.hash, "<u2")
    windows = [tuple(tokens[at : at + CONTEXT + 1]) for at in range(0, len(tokens) - CONTEXT, CONTEXT)]
    chats = np.fromfile(tmp_path / BLOBS_FOLDER / of_chats.hash, row_type(CONTEXT, np.dtype("<u2")))
    found, marks = data.batch(range(len(windows) + ROWS))
    due = {(*map(int, each), *[COUNTS | BEGINS], *[COUNTS] * CONTEXT) for each in windows}
    due |= {(*map(int, row["tokens"]), *map(int, row["marks"])) for row in chats}
    assert {(*each, *mark) for each, mark in zip(found.tolist(), marks.tolist(), strict=True)} == due
    whole = len(windows) * CONTEXT + of_chats.counted
    assert counted(marks) == whole
    assert data.tokens_a_sample(CONTEXT) == round(whole / len(found))
    assert opened(tmp_path, weights={CHATS: 1.0}).tokens_a_sample(CONTEXT) == round(of_chats.counted / ROWS)
    sets = {each.name: each for each in data.held_out_sets()}
    assert sets[CHATS].counted == data.held_out_weight(CHATS, range(ROWS)) == manifest.sources[1].held_out[0].counted
    assert sets[CHATS].samples == ROWS
    assert sets[CHATS].bits_per_nat(CONTEXT) == pytest.approx(1 / (2 * np.log(2)))
    assert (sets[TEXT].counted, data.held_out_weight(TEXT, range(4))) == (0, 4)
    for blob in data.blobs():
        data.check(blob)


def test_the_loss_of_a_mixture_is_the_mean_over_what_counts(tmp_path: Path) -> None:
    folder_of(tmp_path)
    data, task = opened(tmp_path), task_of(run_of(tmp_path).model)
    model, parameters = Stateless(task.model("cpu")), task.initial_state(1)
    with torch.no_grad():
        tokens, marks = batch = data.batch(range(12))
        one_by_one = [(each[None], mark[None]) for each, mark in zip(tokens, marks, strict=True)]
        weights = [model.weight(each) for each in one_by_one]
        assert len(set(weights)) > 2
        losses = [float(model.loss(parameters, each)) for each in one_by_one]
        mean = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)
        assert float(model.loss(parameters, batch)) == pytest.approx(mean, rel=1e-5)


def _no_beginning(found: Rows) -> None:
    found["marks"][3][0] = 0


def _counts_first(found: Rows) -> None:
    found["marks"][3][5] = BEGINS | COUNTS


def _nothing_counts(found: Rows) -> None:
    found["marks"][3][1:5] = found["marks"][3][6:] = 0


def _unknown_mark(found: Rows) -> None:
    found["marks"][3][2] = 8


def _one_more(found: Rows) -> None:
    found["marks"][found["marks"] == 0] = COUNTS


def _unknown_token(found: Rows) -> None:
    found["tokens"][7][9] = VOCABULARY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_no_beginning, "marks that are not of conversations"),
        (_counts_first, "marks that are not of conversations"),
        (_nothing_counts, "marks that are not of conversations"),
        (_unknown_mark, "marks that are not of conversations"),
        (_one_more, "tokens that count, and the manifest says"),
        (_unknown_token, f"has the token {VOCABULARY}"),
    ],
)
def test_a_shard_with_other_contents_is_refused(tmp_path: Path, change: Callable[[Rows], None], said: str) -> None:
    manifest = folder_of(tmp_path, change)
    with pytest.raises(PayloadError, match=said):
        opened(tmp_path).check(manifest.sources[1].train[0].blob)


def test_a_shard_that_packs_where_the_manifest_says_that_none_does_is_refused(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, packed=False)
    with pytest.raises(PayloadError, match="several conversations in a row"):
        opened(tmp_path).check(manifest.sources[1].train[0].blob)


def test_conversations_packed_for_another_context_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, context=CONTEXT)
    run = RunSpec.model_validate(
        {
            "model": MODEL | {"context": 2 * CONTEXT, "vocabulary": VOCABULARY},
            "data": {"kind": "tokens", "folder": str(tmp_path)},
        }
    )
    with pytest.raises(ConfigError, match=f"packed for model.context = {CONTEXT}, and it is {2 * CONTEXT}"):
        TokensKind().make(run, lambda: None)


def test_a_manifest_whose_rows_are_not_whole_is_refused() -> None:
    shard = Shard(hash="0" * 64, size=30 * 15, tokens=15, counted=3)
    with pytest.raises(ValueError, match="not whole rows"):
        Manifest(
            vocabulary=9,
            sources=(Source(name="a", train=(shard,)),),
            conversations=Conversations(context=CONTEXT, packed=True),
        )


def test_a_model_that_cannot_keep_conversations_apart_needs_a_row_for_each(tmp_path: Path) -> None:
    from thinwire_proto.contract.models.hf import HuggingFaceSpec  # noqa: PLC0415 - the kind of this test alone
    from thinwire_proto.task import complete_model  # noqa: PLC0415

    folder_of(tmp_path)
    config = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": VOCABULARY}
    spec, _ = complete_model(HuggingFaceSpec.model_validate({"config": config, "context": CONTEXT}), lambda: None)
    run = run_of(tmp_path).model_copy(update={"model": spec})
    with pytest.raises(ConfigError, match=r"this model cannot keep them apart; .* --conversations-apart"):
        TokensKind().make(run, lambda: None)
    other = tmp_path / "apart"
    folder_of(other, packed=False)
    assert TokensKind().make(run_of(other).model_copy(update={"model": spec}), lambda: None).file
