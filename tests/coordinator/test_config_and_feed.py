"""Tests the validation of run files and addresses, and the feed of updates to fast and slow followers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_common.options import host_and_port
from thinwire_coordinator.planning.problems import read_run
from thinwire_coordinator.star.feed import Feed, NotWanted
from thinwire_coordinator.star.messages import UpdateMessages, encode_update_parts
from thinwire_proto.contract import DecoderSpec
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.wire.parts import PART_BYTES_MAX, split_for_download
from thinwire_proto.wire.service_pb2 import UpdatePart

PATIENCE_S = 60.0


def run_file(folder: Path, text: str) -> Path:
    path = folder / "RUN.toml"
    path.write_text(text)
    return path


def test_a_wrong_codec_is_refused_with_the_choices_in_words(tmp_path: Path) -> None:
    path = run_file(tmp_path, '[exchange]\nkind = "gossip"\ncodec = "blah"\n[rule]\nkind = "adamw"\n')
    with pytest.raises(ConfigError, match=r"exchange\.codec.*'dense', 'bf16', 'int8' or 'sign'"):
        read_run(path)


def test_a_preset_sets_the_kind_too(tmp_path: Path) -> None:
    run = read_run(run_file(tmp_path, '[model]\npreset = "llama-1m"\nvocabulary = 4096\nweights = "first"\n'))
    assert isinstance(run.model, LlamaSpec)
    assert (run.model.vocabulary, run.model.kv_heads) == (4096, 1)
    assert run.model.first_weights == str(tmp_path / "first")


def test_a_run_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Windows' Notepad writes one."""
    text = '[model]\npreset = "byte-1m"\n'
    assert read_run(run_file(tmp_path, "\ufeff" + text)) == read_run(run_file(tmp_path, text))


def test_an_empty_run_file_is_the_byte_model(tmp_path: Path) -> None:
    run = read_run(run_file(tmp_path, ""))
    assert run.model == DecoderSpec(width=128)
    assert (run.demo.k, run.demo.update_topk, run.demo.beta) == (96, 320, 0.99)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[model\n", "is not TOML"),
        ('[model]\npreset = "huge"\n', "model.preset: there is no preset 'huge'; choose one of byte-1m, byte-10m"),
        (
            '[model]\npreset = "llama-1m"\nkind = "decoder"\n',
            "model.kind: the preset llama-1m is of kind 'llama', and this is 'decoder'; remove it",
        ),
        ("[data]\ncorpus_bytes = 5\n", "data.corpus_bytes: computed by the coordinator; remove it"),
        ("[rounds]\n", "rounds: there is no such section; did you mean [round]?"),
        ("[schedule]\nsteps = 10\nwarmup_steps = 10\n", "warmup_steps must be less than steps"),
        ("model = 5\n", "model: "),
    ],
)
def test_an_invalid_run_file_is_rejected_with_its_error(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RUN\.toml") as error:
        read_run(run_file(tmp_path, text))
    assert said in str(error.value)


@pytest.mark.parametrize("address", ["", "7700", "localhost", "localhost:", ":7700", "a:b", "a:70000"])
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        host_and_port(address)


def update(step: int) -> UpdateMessages:
    return encode_update_parts(step, b"row %d" % step, b"body %d" % step, b"signature")


@given(
    st.integers(0, 1 << 40),
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=3),
    st.sampled_from([0, 1, PART_BYTES_MAX, 2 * PART_BYTES_MAX + 1]),
)
@settings(max_examples=20, deadline=None)
def test_protobuf_reads_update_messages_with_each_followers_head(step: int, heads: list[int], size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sealed = encode_update_parts(step, b"row", body, b"by the coordinator")
    for head_step in heads:
        first, *rest = map(UpdatePart.FromString, sealed.parts(head_step))
        assert first == UpdatePart(
            row=b"row", data=body[:PART_BYTES_MAX], head_step=head_step, signature=b"by the coordinator"
        )
        assert rest == [UpdatePart(data=data) for data in list(split_for_download(body))[1:]]
        assert len(next(sealed.parts(head_step))) == first.ByteSize()


@pytest.mark.parametrize("head_step", [7, 9])
def test_followers_share_the_same_bytes_at_the_head_and_behind_it(head_step: int) -> None:
    sealed = encode_update_parts(6, b"row", b"x" * PART_BYTES_MAX + b"y", b"signature")
    for one, other in zip(sealed.parts(head_step), sealed.parts(head_step), strict=True):
        assert one is other


async def test_a_follower_that_waits_is_woken_by_an_update_and_by_the_end_of_its_session() -> None:
    async def read(step: int) -> UpdateMessages:
        raise AssertionError(f"step {step} is in the cache")

    feed, ended = Feed(read, 0), asyncio.Event()

    async def follow() -> list[UpdateMessages]:
        got: list[UpdateMessages] = []
        with suppress(NotWanted):
            while True:
                async with feed.lend(len(got), ended.is_set) as loan:
                    got.append(loan.update)
        return got

    followers = [asyncio.ensure_future(follow()) for _ in range(3)]
    for step in range(3):
        await asyncio.sleep(0)
        await feed.publish(update(step))
        feed.wake()  # without a reason: nobody ends
    await asyncio.sleep(0)
    followers[0].cancel()  # takes the wake-up of no other
    await asyncio.sleep(0)
    await feed.publish(update(3))
    await asyncio.sleep(0)
    ended.set()
    feed.wake()
    assert await asyncio.wait_for(asyncio.gather(*followers[1:]), PATIENCE_S) == 2 * [[update(n) for n in range(4)]]


async def test_a_fast_follower_reads_from_memory_and_a_slow_one_from_disk() -> None:
    read_from_disk: list[int] = []

    async def read(step: int) -> UpdateMessages:
        read_from_disk.append(step)
        return update(step)

    feed = Feed(read, 0, cache_bytes_max=12)  # two bodies

    async def follow() -> list[UpdateMessages]:
        got = []
        for step in range(5):
            async with feed.lend(step) as loan:
                got.append(loan.update)
        return got

    fast = asyncio.ensure_future(follow())
    for step in range(5):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await feed.publish(update(step))
    assert await fast == [update(step) for step in range(5)]
    assert read_from_disk == []
    assert await follow() == [update(step) for step in range(5)]
    assert read_from_disk == [0, 1, 2]
