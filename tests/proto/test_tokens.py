"""The data of a run: shards of tokens, what a batch reads of them and what is refused; and a corpus by its content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from support.small import MODEL, small_contract, small_corpus
from support.token_folder import VOCABULARY, write_tokens
from thinwire_proto.blobs import BlobFolder, BlobMissing
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.corpus import Corpus, CorpusFile, corpus_of, unpack_corpus, windows
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest
from thinwire_proto.data.token_shards import TokenShards
from thinwire_proto.data.tokens import TokensKind
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.exact.amendments import amended
from thinwire_proto.task import HeldOutSet, Made, task_of

CONTEXT = 9


def run_of(prepared: Path, context: int = CONTEXT, vocabulary: int = VOCABULARY, **data: Any) -> RunSpec:
    model = MODEL | {"context": context, "vocabulary": vocabulary}
    return RunSpec.model_validate({"model": model, "data": {"kind": "tokens", "folder": str(prepared)} | data})


def made(run: RunSpec) -> Made:
    return TokensKind().make(run, lambda: None)


def contract_of(folder: Path, **data: Any) -> Contract:
    run = run_of(folder, **data)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made(run).spec}
    return Contract(**sections, parameters=task_of(run.model).manifest())


def opened(folder: Path, **data: Any) -> TokenShards:
    file = made(run_of(folder, **data)).file
    return TokensKind().open(file, contract_of(folder, **data), BlobFolder(folder / BLOBS_FOLDER))


def test_a_pass_reads_every_sample_once(tmp_path: Path) -> None:
    manifest = write_tokens(tmp_path, {"wiki": [100, 50, 10, 9], "code": [77]})
    data = opened(tmp_path)
    due = []
    for source in manifest.sources:
        for shard in source.train:
            tokens = np.fromfile(tmp_path / BLOBS_FOLDER / shard.hash, "<u2")
            due += [tuple(tokens[at : at + CONTEXT + 1]) for at in range(0, len(tokens) - CONTEXT, CONTEXT)]
    assert len(due) == 11 + 5 + 1 + 0 + 8
    for number in (0, 3):
        (batch,) = data.batch(range(number * len(due), (number + 1) * len(due)))
        assert sorted(map(tuple, batch.tolist())) == sorted(due)


def test_needs_are_the_shards_that_a_batch_reads(tmp_path: Path) -> None:
    write_tokens(tmp_path, {"wiki": [100] * 5, "code": [77] * 3})
    data = opened(tmp_path, weights={"wiki": 0.7, "code": 0.3})
    lease = (range(3, 20), range(40, 55))
    needed = data.needs(lease)
    assert 1 < len(needed) < 8
    one_by_one = [blob for run in lease for position in run for blob in data.needs([range(position, position + 1)])]
    assert needed == tuple(dict.fromkeys(one_by_one))
    for blob in needed:
        path = tmp_path / BLOBS_FOLDER / blob.hash
        path.rename(path.with_suffix(".away"))
        with pytest.raises(BlobMissing):
            data.batch([position for run in lease for position in run])
        path.with_suffix(".away").rename(path)
    for path in (tmp_path / BLOBS_FOLDER).iterdir():
        if path.name not in [blob.hash for blob in needed]:
            path.unlink()
    data.batch([position for run in lease for position in run])


def test_held_out_sets_are_named_by_source(tmp_path: Path) -> None:
    manifest = write_tokens(
        tmp_path, {"wiki": [100], "code": [100], "rest": [100]}, {"wiki": [30, 5, 29], "code": [60]}
    )
    data = opened(tmp_path)
    assert [tuple(vars(found).values()) for found in data.held_out_sets()] == [
        ("wiki", 6, 4 * 6 * CONTEXT, 0, "token"),
        ("code", 6, 4 * 6 * CONTEXT, 0, "token"),
    ]
    first, _, last = manifest.sources[0].held_out
    assert data.held_out_needs("wiki", [0, 2, 3]) == (first.blob, last.blob)
    (batch,) = data.held_out("wiki", [2, 3])
    tokens = [np.fromfile(tmp_path / BLOBS_FOLDER / shard.hash, "<u2") for shard in (first, last)]
    assert batch.tolist() == [tokens[0][18:28].tolist(), tokens[1][:10].tolist()]


def test_an_amendment_adds_a_held_out_set(tmp_path: Path) -> None:
    write_tokens(tmp_path, {"wiki": [100]})
    contract = contract_of(tmp_path)
    data = TokensKind().open(made(run_of(tmp_path)).file, contract, BlobFolder(tmp_path / BLOBS_FOLDER))
    before = data.held_out_sets()
    tokens = np.arange(2 * CONTEXT + 1, dtype="<u2") % VOCABULARY

    def added(name: str, some: np.ndarray, **changes: int) -> Contract:
        content = some.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        (tmp_path / BLOBS_FOLDER / digest).write_bytes(content)
        shard = {"hash": digest, "size": len(content), "tokens": len(some), "text_bytes": 38} | changes
        return amended(contract, Amendment(3, {"data.held_out": {name: shard}}))

    then = added("news", tokens)
    data.amend(then)
    assert data.held_out_sets() == (*before, HeldOutSet("news", 2, 2 * 38 * CONTEXT // len(tokens)))
    (batch,) = data.held_out("news", [1])
    assert batch.tolist() == [tokens[CONTEXT:].tolist()]
    (blob,) = data.held_out_needs("news", [0])
    assert blob in data.blobs()
    data.check(blob)
    for name, found, changes, says in (
        ("wiki", tokens, {}, "have a source 'wiki' already"),
        ("short", tokens[:CONTEXT], {}, "a sample needs 10"),
        ("wrong", tokens, {"tokens": 7}, "are not 7 tokens"),
    ):
        with pytest.raises(ContractError, match=says):
            data.amend(added(name, found, **changes))
    with pytest.raises(ContractError, match="has at most"):
        added("long", tokens, size=1 << 23, tokens=1 << 22)
    assert len(data.held_out_sets()) == len(before) + 1


def test_a_source_without_weight_is_measured_and_not_trained_on(tmp_path: Path) -> None:
    """And a weight of 0 is refused with the advice to write it so."""
    write_tokens(tmp_path, {"wiki": [100], "code": [100]}, {"wiki": [30], "code": [60]})
    with pytest.raises(ValueError, match=r"code: .* leave it out of data\.weights: its held-out documents are"):
        run_of(tmp_path, weights={"wiki": 1.0, "code": 0.0})
    with pytest.raises(ValueError, match="must be at most 1,000,000,000 times the smallest"):
        run_of(tmp_path, weights={"wiki": 1.0, "code": 1e-300})
    data = opened(tmp_path, weights={"wiki": 1.0})
    assert [found.name for found in data.held_out_sets()] == ["wiki", "code"]
    (code,) = data.held_out_needs("code", range(6))
    assert data.held_out("code", range(6))[0].shape == (6, CONTEXT + 1)
    drawn = data.needs([range(100)])
    assert len(drawn) == 1
    assert code not in drawn


def _without(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_FILE).unlink()


def _shard_gone(folder: Path, manifest: Manifest) -> None:
    (folder / BLOBS_FOLDER / manifest.sources[0].train[0].hash).unlink()


def _shard_short(folder: Path, manifest: Manifest) -> None:
    (folder / BLOBS_FOLDER / manifest.sources[0].held_out[0].hash).write_bytes(b"ab")


def _not_json(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_FILE).write_bytes(b"{")


def _other_tokens(folder: Path, manifest: Manifest) -> None:
    document = json.loads(manifest.written())
    document["sources"][0]["train"][0]["tokens"] += 1
    (folder / MANIFEST_FILE).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "data", "says"),
    [
        (None, {"folder": ""}, "data.folder must name a folder of prepared data.*prepare"),
        (_without, {}, "has no manifest.json; make it with `thinwire-coordinator prepare`"),
        (_not_json, {}, "the manifest cannot be read"),
        (_shard_gone, {}, "is missing; run `thinwire-coordinator prepare` again"),
        (_shard_short, {}, "has 2 bytes, and must have 200"),
        (_other_tokens, {}, "has 200 bytes, which are not 101 tokens of uint16"),
        (None, {"weights": {"books": 1.0}}, "there is no source 'books' in the data; there are wiki, tiny"),
        (None, {"weights": {"tiny": 1.0, "wiki": 2.0}}, "tiny has no shard of more than model.context = 9 tokens"),
        (None, {"context": 200}, "wiki, tiny has no shard of more than model.context = 200"),
        (None, {"context": 60}, "no held-out shard has more than model.context = 60"),
        (None, {"manifest_hash": "0" * 64}, "data.manifest_hash: .* has other data"),
    ],
)
def test_bad_folders_are_refused_in_words(tmp_path: Path, damage: Any, data: dict[str, Any], says: str) -> None:
    held_out = {"wiki": [50]} if data.get("context") == 60 else {"wiki": [100]}
    manifest = write_tokens(tmp_path, {"wiki": [100], "tiny": [5]}, held_out)
    if damage is not None:
        damage(tmp_path, manifest)
    context = data.pop("context", CONTEXT)
    with pytest.raises(ConfigError, match=says):
        made(run_of(tmp_path, context, **data))


def test_a_manifest_that_the_contract_does_not_name_is_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path / "one", {"wiki": [100]})
    write_tokens(tmp_path / "other", {"wiki": [101]})
    run = run_of(tmp_path / "one")
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made(run).spec}
    contract = Contract(**sections, parameters=task_of(run.model).manifest())
    with pytest.raises(PayloadError, match="the contract names"):
        TokensKind().open((tmp_path / "other" / MANIFEST_FILE).read_bytes(), contract, BlobFolder(tmp_path))


def test_another_tokenizer_than_that_of_the_shards_is_refused(tmp_path: Path) -> None:
    manifest = write_tokens(tmp_path, {"wiki": [100]})
    words = {f"word{number}": number for number in range(VOCABULARY + 1)}
    written = Tokenizer(WordLevel(words, unk_token="word0")).to_str().encode()
    name = hashlib.sha256(written).hexdigest()
    (tmp_path / BLOBS_FOLDER / name).write_bytes(written)
    tokenizer = Shard(hash=name, size=len(written), tokens=1)
    for changes, says in (
        ({"tokenizer": tokenizer}, f"has {VOCABULARY + 1} tokens, but the manifest says {VOCABULARY}"),
        ({"end": VOCABULARY}, f"the token {VOCABULARY} ends a document, but the vocabulary has {VOCABULARY} tokens"),
    ):
        (tmp_path / MANIFEST_FILE).write_bytes(manifest.model_copy(update=changes).written())
        with pytest.raises(ConfigError, match=says):
            made(run_of(tmp_path))
    larger = {"tokenizer": tokenizer, "vocabulary": VOCABULARY + 1}
    (tmp_path / MANIFEST_FILE).write_bytes(manifest.model_copy(update=larger).written())
    assert tokenizer.blob in made(run_of(tmp_path)).blobs


def test_packed_corpus_round_trips_and_matches_the_contract() -> None:
    corpus, data = small_corpus(), corpus_of(small_contract().data)
    again = unpack_corpus(corpus.pack(), data)
    assert again.files == corpus.files
    assert again.hash == corpus.hash
    assert again.held_out.tobytes() == corpus.files[1].content


def test_other_corpus_or_invalid_bytes_are_refused() -> None:
    data = corpus_of(small_contract().data)
    other = Corpus([CorpusFile("a.py", b"other text" * 1000, False)])
    with pytest.raises(PayloadError, match="the contract names"):
        unpack_corpus(other.pack(), data)
    for packed in (b"", b"junk", small_corpus().pack()[:-9]):
        with pytest.raises(PayloadError):
            unpack_corpus(packed, data)


def test_windows_cover_the_text_and_share_one_byte() -> None:
    text = np.arange(100, dtype=np.uint8)
    found = windows(text, 33)
    assert found.shape == (3, 34)
    assert found[:, 0].tolist() == [0, 33, 66]
    assert found[:, -1].tolist() == [33, 66, 99]
    assert windows(text[:33], 33).shape == (0, 34)
