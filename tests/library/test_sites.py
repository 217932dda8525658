"""DeMo between sites whose ranks share the parameters by FSDP2, on real ranks: two sites of one, two or three."""

from __future__ import annotations

from typing import Any

import pytest

from support.gossip_ranks import run_scenes
from support.site_scenes import Network
from thinwire_proto.contract import TILE_EDGE

Found = list[dict[str, Any]]
RANKS = 4
FOUR_BYTES = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("sites"), "support.site_scenes", RANKS)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Found]:
    """By number of ranks; those after the first resume from its checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def run(count: int) -> Found:
        (folder / str(count)).mkdir()
        return run_scenes(folder / str(count), "support.site_checkpoint_scenes", count)

    return {count: run(count) for count in (RANKS, 2, 6)}


def test_sites_step_as_whole_ranks_bit_for_bit_whatever_the_shapes(ranks: Found) -> None:
    """The learned state may differ by rounding: a product of few rows rounds otherwise than one of many."""
    for found in ranks:
        for shapes, settings, equal, difference in found["drawn"]:
            assert all(equal), (shapes, settings, equal)
            assert difference < 1e-7, (shapes, settings, difference)


def test_a_model_of_fsdp2_trains_as_on_whole_ranks(ranks: Found) -> None:
    """With a convolution, tied and frozen weights; and with accumulation and clipping, whose norm adds up in another
    order."""
    for found in ranks:
        plain, clipped = found["trained"].values()
        assert plain["farthest"] == 0
        assert plain["state"] < 1e-7
        assert clipped["equal"] > 0.999
        assert clipped["state"] < 1e-6
    for name in ("plain", "clipped, of two micro-batches"):
        assert len({found["trained"][name]["of its site"] for found in ranks}) == 1


def test_a_rank_holds_its_part_of_the_momentum_and_sends_its_part_of_the_bytes(ranks: Found) -> None:
    """At most its share and a row of tiles of each parameter."""
    rows = sum(TILE_EDGE * -(-shape[1:].numel() // TILE_EDGE) * TILE_EDGE for shape in _shapes())
    for found in ranks:
        (whole, shards), (sent_whole, sent) = (found["trained"]["plain"][what] for what in ("bytes", "sent"))
        assert 0 < shards <= whole / 2 + 2 * FOUR_BYTES * rows  # coefficients and second moment
        assert sent < 0.85 * sent_whole
    halves = [found["trained"]["plain"]["bytes"][1] for found in ranks[: RANKS // 2]]
    assert sum(halves) == pytest.approx(ranks[0]["trained"]["plain"]["bytes"][0], rel=1e-3)


def _shapes() -> list[Any]:
    return [parameter.shape for parameter in Network().parameters() if parameter.requires_grad]


def test_meta_device_compile_and_mixed_precision(ranks: Found) -> None:
    for name in ranks[0]["variants"]:
        ends = [found["variants"][name] for found in ranks]
        assert len({fingerprint for fingerprint, _, _ in ends}) == 1
        assert all(last < first / 10 for _, first, last in ends)
    plain, on_meta, compiled, narrow = (end[0] for end in ranks[0]["variants"].values())
    assert plain == on_meta == compiled != narrow


def test_one_site_alone_steps_as_one_rank_and_sends_nothing(ranks: Found) -> None:
    assert [found["alone"] for found in ranks] == [(True, True, 0)] * RANKS


def test_a_checkpoint_resumes_with_other_numbers_of_ranks_as_if_never_stopped(checkpoints: dict[int, Found]) -> None:
    ((at_save, end),) = {found["saved"] for found in checkpoints[RANKS]}
    assert at_save != end
    assert {found["saved"] for count in (2, 6) for found in checkpoints[count]} == {
        None
    }  # they found that of the first
    for count, of_ranks in checkpoints.items():
        assert {found["resumed"] for found in of_ranks} == {(at_save, end)}, count


def test_states_of_whole_ranks_and_of_sites_are_one_format(checkpoints: dict[int, Found]) -> None:
    _, end = checkpoints[RANKS][0]["saved"]
    for of_ranks in checkpoints.values():
        for found in of_ranks:
            assert found["from_whole"] == [end] * 3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "a setting of one rank",
            "site, problem: none on rank 0, the ranks of a site have different settings on rank 1",
        ),
        ("a setting of one site", "param group 0, compression_topk: 5 on rank 0, 6 on rank 1"),
        ("a number of one rank", "do not start from the same parameters.*p.detach().to_local(), group=process_group"),
        ("groups of different shards", "the ranks' optimizers differ: site, number of this rank: "),
        ("the rate of one rank", "the lr of param group 0 is 0.01 on one rank of a site, and 0.02 on another"),
    ],
)
def test_all_ranks_of_all_sites_hear_what_differs(ranks: Found, what: str, words: str) -> None:
    first, last = words.split(".*") if ".*" in words else (words, words)
    for found in ranks:
        errors, _ = found["at_odds"]
        assert first in errors[what]
        assert last in errors[what]


def test_ranks_that_agree_again_go_on(ranks: Found) -> None:
    assert {found["at_odds"][0]["no rate"] for found in ranks} == {""}
    assert len({found["at_odds"][1] for found in ranks}) == 1


def test_sites_gossip_shard_by_shard(ranks: Found) -> None:
    """The parameters themselves mix as whole ones. A codec has other tiles in a shard."""
    for rank, found in enumerate(ranks):
        dense, sign = found["gossiped"]["dense"], found["gossiped"]["sign"]
        assert dense["farthest"] == 0
        assert 0 < sign["farthest"] < 0.01
        for one in (dense, sign):
            assert one["apart"] > one["averaged"] == 0
            assert one["shard"] == f"{rank % 2} of 2"
        assert found["gossiped"]["alone"].endswith("so there is no other site to gossip with")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("FSDP1", "parameter 0 is a shard of FullyShardedDataParallel"),
        ("FSDP1 with use_orig_params", "parameter 0 is a shard of FullyShardedDataParallel"),
        ("tensor parallel", "does not work with FSDP1, tensor parallelism or ZeRO-3: parameter 2 is whole"),
        ("HSDP", 'use fully_shard(model, mesh=mesh["rank"]), and DeMo(…, process_group=mesh.get_group("site"))'),
        ("columns", "parameter 0 is a DTensor with the placements (Shard(dim=1),)"),
        ("one of two", "parameter 1 is whole, and parameter 0 is sharded over"),
        ("no group", "sharded over 2 of 4 ranks.*give it process_group=mesh.get_group(…)"),
        ("a group with this site's ranks", "process_group has the ranks [0, 1, 2, 3]"),
        ("floats", "values='float' takes whole parameters alone"),
        ("sharded later", "the model was sharded after DeMo was created; create DeMo after fully_shard"),
        ("not in the group", "DeMo: this process is not in the process group that it was given"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(ranks: Found, what: str, words: str) -> None:
    for found in ranks:
        assert all(part in found["refused"][what] for part in words.split(".*")), found["refused"][what]
        assert ". " not in found["refused"][what]


def test_a_sharded_model_beside_the_one_that_steps_is_no_error(ranks: Found) -> None:
    assert [found["refused"]["another model sharded"] for found in ranks] == [""] * len(ranks)
