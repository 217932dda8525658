"""A branch begins with the parameters of its parent, on its data, and says so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.sealed_run import make_run
from support.small import random_replica, small_contract
from thinwire_coordinator.cli.branch import branch
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger import branching
from thinwire_coordinator.hall.ledger.branching import branched, goes_on_with_samples
from thinwire_coordinator.hall.ledger.identity import open_identity
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.verify import verify
from thinwire_proto.contract import RunSpec, parse_contract
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.errors import ConfigError, LedgerError
from thinwire_proto.exact.amendments import amended
from thinwire_proto.exact.schedule import learning_rate


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    make_run(folder, 3)
    return folder


@pytest.mark.parametrize("step", [0, 2, 3])
def test_it_has_the_parameters_the_samples_and_the_rate_of_its_parent(run: Path, tmp_path: Path, step: int) -> None:
    branch(run, step, tmp_path / "aside", {}, apart=False)
    parent, aside = open_state(run), open_state(tmp_path / "aside")
    lineage, contract = aside.contract.lineage, aside.contract
    assert lineage is not None
    assert (lineage.contract, lineage.step) == (parent.contract.hash.hex(), step)
    assert aside.load_snapshot(0).model_fingerprint() == int(lineage.fingerprint, 16)
    assert contract.hash != parent.contract.hash
    assert aside.key.public == parent.key.public
    assert contract.schedule.steps == parent.contract.schedule.steps - step
    for later in (0, 1, 20, contract.schedule.steps - 1):
        rate = learning_rate(parent.contract.schedule, step + later)
        assert learning_rate(contract.schedule, later) == pytest.approx(rate)
    leases = aside.ledger.leases()
    assert (leases.cursor, leases.holders) == (parent.ledger.leases().cursor, set())
    said: list[str] = []
    verify(tmp_path / "aside", said.append)
    assert any(f"goes on from step {step} of the run" in line for line in said)


def test_a_branch_of_a_branch_knows_all_that_went_before(run: Path, tmp_path: Path) -> None:
    branch(run, 2, tmp_path / "one", {}, apart=False)
    branch(tmp_path / "one", 0, tmp_path / "two", {"round.samples": 3}, apart=True)
    first, one, two = (open_state(folder) for folder in (run, tmp_path / "one", tmp_path / "two"))
    assert two.contract.lineage is not None
    assert two.contract.lineage.contracts == (one.contract.hash.hex(), first.contract.hash.hex())
    assert two.contract.round.samples == 3
    assert two.key.public != one.key.public
    assert parse_contract(two.contract.written).lineage == two.contract.lineage
    for step in (0, 1, 20):
        assert learning_rate(two.contract.schedule, step) == learning_rate(one.contract.schedule, step)


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("step", [20, 50, 125, 199])
def test_it_stays_on_the_course_of_its_parent_and_so_does_its_own_branch(shape: str, step: int) -> None:
    parent = small_contract(schedule={"shape": shape})
    aside = branched(parent, random_replica(parent), step, {})
    again = branched(aside, random_replica(aside), 0, {"schedule.learning_rate": 1e-3})
    for later in range(parent.schedule.steps - step):
        rate = learning_rate(parent.schedule, step + later)
        assert learning_rate(aside.schedule, later) == rate
        assert learning_rate(again.schedule, later) == pytest.approx(rate / 2)


def test_a_branch_with_another_end_goes_on_from_where_its_parent_stands() -> None:
    parent = small_contract()
    aside = branched(parent, random_replica(parent), 125, {"schedule.steps": 1000})
    assert learning_rate(aside.schedule, 0) == pytest.approx(learning_rate(parent.schedule, 125))
    assert learning_rate(aside.schedule, 999) == pytest.approx(
        parent.schedule.learning_rate * parent.schedule.floor, rel=0.01
    )
    assert aside.schedule.begun == 0
    before = branched(parent, random_replica(parent), 125, {})
    again = branched(before, random_replica(before), 0, {"schedule.steps": 1000})
    assert again.schedule == aside.schedule


def test_a_branch_of_a_complete_run_has_a_whole_schedule_whatever_the_parent_went_through() -> None:
    first = small_contract()
    whole = branched(first, random_replica(first), first.schedule.steps, {}).schedule
    assert whole == first.schedule
    shorter = amended(first, Amendment(100, {"schedule.steps": 150}))
    went_back = amended(first, Amendment(150, {"rewind": 100}))
    aside = branched(first, random_replica(first), 60, {})
    for parent in (shorter, went_back, aside):
        found = branched(parent, random_replica(parent), parent.schedule.steps, {}).schedule
        assert found.steps == {shorter: 150, went_back: 200, aside: 140}[parent]
        assert [learning_rate(found, step) for step in (0, 20)] == [learning_rate(whole, step) for step in (0, 20)]


def test_a_branch_of_a_run_whose_rate_has_fallen_to_zero_asks_for_a_warm_up() -> None:
    parent = amended(small_contract(schedule={"floor": 0.0}), Amendment(200, {"schedule.steps": 400}))
    with pytest.raises(ConfigError, match=r"the rate is 0 from step 250 on; give schedule\.warmup_steps"):
        branched(parent, random_replica(parent), 250, {})
    aside = branched(parent, random_replica(parent), 250, {"schedule.warmup_steps": 9})
    peak = aside.schedule.learning_rate
    assert learning_rate(aside.schedule, 0) < peak / 5
    assert learning_rate(aside.schedule, 9) == pytest.approx(peak, rel=0.01)


def test_a_held_out_set_of_the_parent_is_no_other_order_of_samples() -> None:
    data = TokensSpec(manifest_hash="0" * 64, manifest_bytes=1, vocabulary=256)
    measured = data.model_copy(update={"held_out": {"more": Shard(hash="1" * 64, size=1, tokens=1, text_bytes=1)}})
    parent, branch_of = (small_contract().model_copy(update={"data": one}) for one in (measured, data))
    assert goes_on_with_samples(parent, branch_of)
    assert not goes_on_with_samples(parent, branch_of.model_copy(update={"data": data.model_copy(update={"seed": 7})}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model.width": 128}, "other parameters"),
        ({"schedule.learning_rate": "fast"}, "learning_rate"),
        ({"nothing.here": 1}, "there is no such key"),
        ({"schedule": 1}, "there is no such key"),
        ({"rule.kind": "local_muon", "demo.magnitude": "sign"}, "magnitude"),
    ],
)
def test_what_a_branch_cannot_have_is_said(run: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        branch(run, 2, tmp_path / "aside", changes, apart=True)
    assert not (tmp_path / "aside" / "contract.json").exists()


def test_what_the_parent_was_amended_by_is_in_the_contract_and_not_ordered_again(run: Path, tmp_path: Path) -> None:
    with closing(AccessStore(run)) as store:
        store.amendments.add(Order("id", {"schedule.steps": 5000}), ())
    branch(run, 2, tmp_path / "aside", {}, apart=False)
    with closing(AccessStore(tmp_path / "aside")) as store:
        assert store.amendments.all() == []
    with closing(AccessStore(run)) as store:
        assert len(store.amendments.all()) == 1


def test_it_says_that_what_waits_in_the_parent_does_not_come_along(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, waits in enumerate((False, True)):
        branch(run, 2, tmp_path / str(number), {}, apart=True)
        said = f"it does not have what {run} was amended by later, or will be: schedule.steps = 5000: more"
        assert (said in capsys.readouterr().out) == waits
        with closing(AccessStore(run)) as store:
            store.amendments.add(Order("id", {"schedule.steps": 5000}, "more", at=1000), ())


def test_it_does_not_have_the_orders_of_a_run_whose_creation_failed(run: Path, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    open_identity(aside)
    with closing(AccessStore(aside)) as store:
        store.amendments.plan([Order("id", {"schedule.steps": 5000}, at=1000)])
    branch(run, 2, aside, {}, apart=True)
    with closing(AccessStore(aside)) as store:
        assert (store.amendments.all(), store.amendments.planned()) == ([], [])


def test_a_branch_that_broke_off_can_be_made_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as during:
        during.setattr(branching, "_take_over", breaks)
        with pytest.raises(OSError, match="full"):
            branch(run, 2, tmp_path / "aside", {}, apart=False)
    assert not (tmp_path / "aside" / "identity.key").exists()
    branch(run, 2, tmp_path / "aside", {}, apart=False)
    verify(tmp_path / "aside", lambda line: None)


def test_a_folder_with_a_run_and_a_step_that_is_not_there_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no step 9"):
        branch(run, 9, tmp_path / "aside", {}, apart=True)
    branch(run, None, tmp_path / "aside", {}, apart=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        branch(run, None, tmp_path / "aside", {}, apart=True)


def test_verify_sees_that_the_first_state_is_not_the_parents(run: Path, tmp_path: Path) -> None:
    branch(run, 2, tmp_path / "aside", {}, apart=True)
    contract = tmp_path / "aside" / "contract.json"
    state = open_state(tmp_path / "aside")
    assert state.contract.lineage is not None
    contract.write_bytes(contract.read_bytes().replace(state.contract.lineage.fingerprint.encode(), b"0" * 16))
    with pytest.raises(LedgerError):
        verify(tmp_path / "aside", lambda line: None)


@pytest.mark.parametrize("kind", ["local_muon", "local_adamw", "merged_muon"])
def test_a_branch_with_another_rule_has_the_defaults_of_that_rule(run: Path, tmp_path: Path, kind: str) -> None:
    branch(run, 3, tmp_path / "there", {"rule.kind": kind}, apart=True)
    open_identity(tmp_path / "there")
    open_state(tmp_path / "there").close()
    branch(tmp_path / "there", 0, tmp_path / "back", {"rule.kind": "demo"}, apart=True)
    there, back = (parse_contract((tmp_path / name / "contract.json").read_bytes()) for name in ("there", "back"))
    assert there.rule == RunSpec.model_validate({"rule": {"kind": kind}}).rule
    assert there.demo == RunSpec.model_validate({"rule": {"kind": kind}}).demo
    assert (back.rule.kind, back.demo) == ("demo", RunSpec().demo)
