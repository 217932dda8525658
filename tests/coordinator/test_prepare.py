"""`prepare`: from documents to shards and their manifest."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.disks import small_disk
from support.prepared import all_texts, prepared, texts_of, tokens_of
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.prepare.sources import CLAIM_FILE, NamedSource, parse_sources
from thinwire_coordinator.prepare.summary import summary
from thinwire_coordinator.prepare.tokenizer_training import END_WORD, train_tokenizer
from thinwire_coordinator.prepare.tokenizing import key_of
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, read_manifest
from thinwire_proto.errors import ConfigError, UsageError

TEXTS = [
    f"Document {number}. " + "The rain in Spain stays mainly in the plain.\n" * (number % 7) for number in range(400)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(TEXTS, 400, path)
    return path


def write_lines(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_every_document_is_in_the_shards_once(tmp_path: Path, tokenizer: Path) -> None:
    source, out = write_lines(tmp_path / "texts.jsonl", TEXTS), tmp_path / "out"
    made = prepared(out, source, tokenizer=str(tokenizer), shard_bytes=2048)
    assert all_texts(out, made.manifest) == sorted(TEXTS)
    (found,) = made.manifest.sources
    assert found.name == "texts"
    assert len(found.train) > 3
    for shard in (*found.train, *found.held_out):
        assert shard.size == 2 * shard.tokens == (out / BLOBS_FOLDER / shard.hash).stat().st_size <= 2048
    sizes = [shard.tokens for shard in found.train]
    assert max(sizes) - min(sizes) <= 1
    text_bytes = sum(shard.text_bytes for shard in (*found.train, *found.held_out))
    assert text_bytes == sum(len(text) for text in TEXTS)


def test_the_folder_holds_what_the_manifest_names_and_no_more(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    (out / BLOBS_FOLDER).mkdir(parents=True)
    (out / CLAIM_FILE).touch()  # as an interrupted run leaves it
    (out / BLOBS_FOLDER / ("0" * 64)).write_text("left over")
    made = prepared(out, write_lines(tmp_path / "a.jsonl", TEXTS), tokenizer=str(tokenizer))
    assert {path.name for path in out.iterdir()} == {MANIFEST_FILE, BLOBS_FOLDER}
    written = read_manifest(Manifest, (out / MANIFEST_FILE).read_bytes(), made.manifest_hash)
    assert written == made.manifest
    assert {path.name for path in (out / BLOBS_FOLDER).iterdir()} == {blob.hash for blob in written.blobs()}


def test_order_names_and_formats_of_files_change_nothing(tmp_path: Path, tokenizer: Path) -> None:
    write_lines(tmp_path / "one/all.jsonl", TEXTS)
    write_lines(tmp_path / "two/b/rest.jsonl", TEXTS[250:])
    (tmp_path / "two/a.jsonl.gz").write_bytes(
        gzip.compress(write_lines(tmp_path / "x", TEXTS[249:100:-1]).read_bytes())
    )
    for number, text in enumerate(TEXTS[:101]):
        (tmp_path / "two" / f"{number}.txt").write_text(text)
    hashes = {
        prepared(tmp_path / f"out-{name}", f"same={tmp_path / name}", tokenizer=str(tokenizer)).manifest_hash
        for name in ("one", "two")
    }
    assert len(hashes) == 1


def test_the_split_is_by_document_and_copies_stay_together(tmp_path: Path, tokenizer: Path) -> None:
    source, out = write_lines(tmp_path / "a.jsonl", TEXTS + TEXTS), tmp_path / "out"
    made = prepared(out, source, tokenizer=str(tokenizer), held_out=0.2)
    (found,) = made.manifest.sources
    train, held_out = (texts_of(out, made.manifest, side) for side in (found.train, found.held_out))
    assert not set(train) & set(held_out)
    assert sorted(train + held_out) == sorted(TEXTS + TEXTS)
    assert 0.1 < len(held_out) / len(train + held_out) < 0.3
    kept = prepared(
        tmp_path / "fewer", write_lines(tmp_path / "b.jsonl", TEXTS[:300]), tokenizer=str(tokenizer), held_out=0.2
    )
    (fewer,) = kept.manifest.sources
    still = set(texts_of(tmp_path / "fewer", kept.manifest, fewer.held_out))
    assert still == set(held_out) & set(TEXTS[:300])  # a document's side does not depend on the others


def test_what_one_source_holds_out_no_other_trains_on(tmp_path: Path, tokenizer: Path) -> None:
    """A small source holds out more than its share, and a large one has its documents too, twice."""
    small = f"small={write_lines(tmp_path / 'small.jsonl', TEXTS[:60])}"
    texts = TEXTS + [f"{number} of many. " + TEXTS[6] * 10 for number in range(600)]
    large = f"large={write_lines(tmp_path / 'large.jsonl', texts * 2)}"
    for number, sources in enumerate(([small, large], [large, small])):
        out = tmp_path / f"out-{number}"
        made = prepared(out, *sources, tokenizer=str(tokenizer))
        trained, held_out = (
            {source.name: texts_of(out, made.manifest, getattr(source, side)) for source in made.manifest.sources}
            for side in ("train", "held_out")
        )
        left_out = set(held_out["small"]) - set(held_out["large"])
        assert left_out  # otherwise this shows nothing
        assert not {*trained["small"], *trained["large"]} & {*held_out["small"], *held_out["large"]}
        assert sorted(trained["large"] + held_out["large"]) == sorted([*set(texts) - left_out] * 2)
        assert sorted(trained["small"] + held_out["small"]) == sorted(TEXTS[:60])
        assert {one.source.name: one.left_out for one in made.sources} == {"small": 0, "large": 2 * len(left_out)}
        assert f"in large, because another source holds them out: {2 * len(left_out)} documents" in summary(out, made)


def test_bytes_need_no_tokenizer(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = prepared(out, write_lines(tmp_path / "a.jsonl", TEXTS))
    manifest = made.manifest
    assert (manifest.token, manifest.vocabulary, manifest.end, manifest.tokenizer) == ("uint8", 256, None, None)
    (found,) = manifest.sources
    joined = bytes(tokens_of(out, manifest, found.held_out) + tokens_of(out, manifest, found.train)).decode()
    assert joined == "".join(sorted(TEXTS, key=lambda text: key_of(text.encode())))


def test_sources_are_apart_and_files_of_one_folder_together(tmp_path: Path) -> None:
    for name in ("b/x.txt", "b/y.txt", "c.jsonl", "d/z.txt", "e-2024.01/z.txt", "e-2024.02/z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    texts = [f"{tmp_path}/{name}" for name in ("b/x.txt", "b/y.txt", "c.jsonl")]
    assert parse_sources(
        [
            *(*texts, f"{tmp_path}/d", f"c={texts[0]}", "hf://datasets/me/stories:train", "s3://x/y/*.txt"),
            *(f"{tmp_path}/e-2024.01", f"{tmp_path}/e-2024.02"),
        ]
    ) == (
        NamedSource("b", (texts[0], texts[1])),
        NamedSource("c", (texts[2], texts[0])),
        NamedSource("d", (f"{tmp_path}/d",)),
        NamedSource("stories", ("hf://datasets/me/stories:train",)),
        NamedSource("y", ("s3://x/y/*.txt",)),
        NamedSource("e-2024.01", (f"{tmp_path}/e-2024.01",)),
        NamedSource("e-2024.02", (f"{tmp_path}/e-2024.02",)),
    )


def test_text_cannot_spell_the_end_of_a_document(tmp_path: Path, tokenizer: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [f"one{END_WORD}two", "three"])
    made = prepared(tmp_path / "out", source, tokenizer=str(tokenizer))
    assert all_texts(tmp_path / "out", made.manifest) == sorted([f"one{END_WORD}two", "three"])
    made = prepared(tmp_path / "special", source, tokenizer=str(tokenizer), read_special=True)
    assert all_texts(tmp_path / "special", made.manifest) == sorted(["one", "two", "three"])


def test_a_tokenizer_folder_is_handed_on_whole(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": END_WORD}}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    out = tmp_path / "out"
    manifest = prepared(out, write_lines(tmp_path / "a.jsonl", TEXTS), tokenizer=str(folder)).manifest
    assert manifest.end == 0
    kept = {name: (out / BLOBS_FOLDER / file.hash).read_bytes() for name, file in manifest.files.items()}
    assert kept == {name: (folder / name).read_bytes() for name in ("tokenizer_config.json", "chat_template.jinja")}


def test_a_tokenizer_that_does_not_name_its_end_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    document = json.loads(tokenizer.read_text().replace(END_WORD, "<stop>"))
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(document))
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(ConfigError, match="does not say which token ends a document; name it with --end-token"):
        prepared(tmp_path / "out", source, tokenizer=str(other))
    with pytest.raises(ConfigError, match=r"has no token '<halt>'"):
        prepared(tmp_path / "out", source, tokenizer=str(other), end_token="<halt>")
    assert prepared(tmp_path / "out", source, tokenizer=str(other), end_token="<stop>").manifest.end == 0
    assert prepared(tmp_path / "none", source, tokenizer=str(other), end_token="none").manifest.end is None


@pytest.mark.parametrize("tokenizer_options", [[], ["--tokenizer", "bytes"], ["--train-tokenizer", "300"]])
def test_an_end_token_that_would_not_be_used_is_wrong_usage(tmp_path: Path, tokenizer_options: list[str]) -> None:
    """Bytes have no token that ends a document, and a trained tokenizer has its own."""
    write_lines(tmp_path / "a.jsonl", TEXTS)
    out = ["--out", str(tmp_path / "out"), "--end-token", "<eos>"]
    given = parser().parse_args(["prepare", str(tmp_path / "a.jsonl"), *out, *tokenizer_options])
    with pytest.raises(UsageError, match="--end-token names a token of the tokenizer that --tokenizer PATH gives"):
        given.command(given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wanted", ["file", "file/out", "below/file/out"])
def test_a_folder_that_cannot_be_written_to_is_named_before_anything_is_read(tmp_path: Path, wanted: str) -> None:
    for name in ("file", "below/file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("not a folder")
    with pytest.raises(ConfigError, match=r"(out|file): is not a folder to write to: .*; give another --out"):
        prepared(tmp_path / wanted, tmp_path / "missing")


def test_a_full_disk_is_said_and_leaves_no_manifest(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [f"{number} " + "x" * 2000 for number in range(2000)])
    with small_disk(tmp_path / "disk", 2) as disk:
        with pytest.raises(ConfigError, match="the disk is full; prepared data need about twice"):
            prepared(disk / "out", source)
        assert not (disk / "out" / MANIFEST_FILE).exists()


def test_two_processes_make_the_same_manifest_and_print_the_lines(tmp_path: Path) -> None:
    """With a tokenizer that each trains for itself, on one thread and on two."""
    write_lines(tmp_path / "text/a.jsonl", TEXTS)
    (tmp_path / "text/b.txt").write_text("A text file.")
    settings = ["--train-tokenizer", "300", "--held-out", "5%", "--shard-bytes", "4KiB"]
    command = [sys.executable, "-m", "thinwire_coordinator", "prepare", f"text={tmp_path / 'text'}", *settings]
    printed = [
        subprocess.run(
            [*command, "--threads", threads, "--out", str(tmp_path / f"out-{threads}")],
            env={**os.environ, "PYTHONHASHSEED": threads},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "2")
    ]
    manifest, other = ((tmp_path / f"out-{threads}" / MANIFEST_FILE).read_bytes() for threads in ("1", "2"))
    assert manifest == other
    found = Manifest.model_validate_json(manifest)
    assert found.vocabulary == 300
    assert found.tokenizer is not None
    assert JsonTokenizer(tmp_path / "out-1" / BLOBS_FOLDER / found.tokenizer.hash, 0).files()["tokenizer.json"]
    assert f'[data]\nkind = "tokens"\nfolder = "{tmp_path}/out-1"\n' in printed[0]
    assert "manifest: " in printed[0]
