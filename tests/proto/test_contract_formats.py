"""Contracts are named by their bytes, kinds register themselves, and what is too new is refused with what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, create_model

from support.small import small_contract
from thinwire_proto.contract import (
    EXCHANGES,
    Contract,
    DemoSpec,
    ExchangeSpec,
    RunSpec,
    StarSpec,
    TaggedUnion,
    canonical_json,
    contract_like,
    differences,
    parse_contract,
    parse_run,
    since,
    unions,
)
from thinwire_proto.contract import contract as contract_module
from thinwire_proto.contract.sections import Section
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.version import VERSION, is_newer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
OLD = (ROOT / "tests" / "golden" / "demo" / "coordinator" / "contract.json").read_bytes()


def changed(contract: Contract, **fields: Any) -> bytes:
    return canonical_json(json.loads(contract.written) | fields)


def test_pyproject_has_the_version() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_reading_a_contract_does_not_import_torch() -> None:
    code = "import sys, thinwire_proto.contract as c; list(c.MODELS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_old_contract_keeps_its_name_and_means_what_it_meant() -> None:
    contract = parse_contract(OLD)
    facts = json.loads((ROOT / "tests" / "golden" / "demo" / "facts.json").read_text())
    assert contract.hash.hex() == facts["contract"]
    assert contract.written == OLD
    assert (contract.version, contract.requires) == (1, "0.1.0")
    assert (contract.data.order, contract.demo.update_topk, contract.round.pace) == ("argsort", 64, "barrier")
    assert contract.exchange == StarSpec()


@pytest.mark.parametrize("change", ["missing", "added", "moved"])
def test_a_contract_of_version_1_has_the_keys_of_version_1(change: str) -> None:
    document = json.loads(OLD)
    if change == "missing":
        del document["demo"]["k_down"]
    elif change == "added":
        document["demo"]["update_topk"] = 64
    else:
        document["exchange"] = {"kind": "star"}
    with pytest.raises(ContractError, match="this is not a contract of version 1"):
        parse_contract(canonical_json(document))


def test_a_copy_with_a_change_has_a_name_of_its_own() -> None:
    for contract in (small_contract(), parse_contract(OLD)):
        assert contract.hash
        assert contract.model_copy().written == contract.written
        other = contract.model_copy(update={"demo": contract.demo.model_copy(update={"k": 31})})
        assert other.hash != contract.hash
        assert (other.version, parse_contract(other.written)) == (2, other)
        with pytest.raises(ValueError, match=r"data\.corpus_hash must name the corpus"):
            contract.model_copy(update={"data": contract.data.model_copy(update={"corpus_hash": ""})})


def test_a_new_field_with_a_default_orphans_no_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version adds `demo.sparkle`: contracts from before keep their names, and new ones say what they need."""
    before = [small_contract(), parse_contract(OLD)]
    sparkle = Annotated[int, Field(ge=0, json_schema_extra=since("9.0.0"))]
    later_demo = create_model("DemoSpec", __base__=DemoSpec, sparkle=(sparkle, 0))
    later = create_model("Contract", __base__=Contract, demo=(later_demo, later_demo()))
    monkeypatch.setattr("thinwire_proto.contract.reading.Contract", later)
    for contract in before:
        again = parse_contract(contract.written)
        assert isinstance(again, later)
        assert again.hash == contract.hash
        assert again.demo.model_dump()["sparkle"] == 0
        assert again.model_copy(update={"demo": later_demo.model_validate({"sparkle": 3})}).requires == "9.0.0"
    monkeypatch.undo()
    made_later = again.model_copy(update={"demo": later_demo.model_validate({"sparkle": 3})})
    with pytest.raises(ContractError, match=r"demo\.sparkle: there is no such key; it needs thinwire 9\.0\.0 or newer"):
        parse_contract(made_later.written)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": 3, "requires": "7.1.0"}, f"needs thinwire 7.1.0 or newer, and this is thinwire {VERSION}"),
        ({"version": 3}, f"it has version 3; it needs another thinwire, .*; this is thinwire {VERSION}"),
        ({"version": True}, "this is not a contract: it does not say which version"),
        ({"requires": "7.1.0"}, "it needs thinwire 7.1.0 or newer"),
        ({"requires": "x"}, "requires: string should match"),
        ({"topology": {}, "requires": "7.1.0"}, "topology: there is no such key; it needs thinwire 7.1.0"),
        ({"exchange": {"kind": "ring"}, "requires": "7.1.0"}, "exchange.kind: there is no such kind; .*star.* 7.1.0"),
        ({"exchange": {"kind": "ring"}}, "or a package that extends it"),
        ({"exchange": 5}, "exchange: input should be a table"),
    ],
)
def test_what_is_too_new_is_refused_with_what_it_needs(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        parse_contract(changed(small_contract(), **fields))


def test_a_run_file_may_have_old_names_and_is_told_the_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    old = {
        "model": {"family": "decoder", "width": 64},
        "rule": {"name": "demo", "micro_batch": 8},
        "demo": {"k_down": 4},
        "round": {"pace": "quorum"},
    }
    run = parse_run(old, "RUN.toml")
    assert run == parse_run({"model": {"width": 64}, "demo": {"update_topk": 4}}, "RUN.toml")
    assert sorted(record.getMessage() for record in caplog.records) == [
        "RUN.toml: demo.k_down is now called demo.update_topk",
        "RUN.toml: model.family is now called model.kind",
        'RUN.toml: round.pace = "quorum" is now called "barrier"',
        'RUN.toml: rule.micro_batch has no effect with rule.kind = "demo": remove it',
        "RUN.toml: rule.name is now called rule.kind",
    ]
    with pytest.raises(ConfigError, match=r"demo\.k_down: there is no such key"):
        parse_run({"demo": {"k_down": 4, "update_topk": 4}}, "RUN.toml")


def test_a_run_file_may_say_what_it_needs() -> None:
    assert parse_run({"requires": VERSION}, "RUN.toml") == parse_run({}, "RUN.toml")
    with pytest.raises(ConfigError, match=f"it needs thinwire 7.0 or newer, and this is thinwire {VERSION}"):
        parse_run({"requires": "7.0"}, "RUN.toml")
    with pytest.raises(ConfigError, match=f"demo.sparkle: there is no such key; this is thinwire {VERSION}"):
        parse_run({"demo": {"sparkle": 1}}, "RUN.toml")


def marks(section: type[Section]) -> Iterator[tuple[str, str]]:
    """Every field of a section and of those in it, by name, with the version in its `since`; of kinds, ours alone."""
    for name, field in section.model_fields.items():
        if isinstance(field.json_schema_extra, dict) and "since" in field.json_schema_extra:
            yield f"{section.__name__}.{name}", str(field.json_schema_extra["since"])
        union = next((union for union in field.metadata if isinstance(union, TaggedUnion)), None)
        if union is not None:
            for kind in union:
                if kind.spec.__module__.startswith("thinwire_proto."):
                    yield f"{union.section}.kind = {kind.name}", kind.since
                    yield from marks(kind.spec)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from marks(field.annotation)


def too_new(section: type[Section]) -> list[str]:
    return [name for name, version in marks(section) if is_newer(version, VERSION)]


def test_no_field_or_kind_is_newer_than_this_version() -> None:
    """Or this version would refuse the runs that it makes."""
    found = dict(marks(Contract))
    assert found["CorpusSpec.order"] == found["exchange.kind = star"] == "0.2.0"
    assert too_new(Contract) == []


def test_a_field_that_is_newer_than_this_version_is_found() -> None:
    sparkle = Annotated[int, Field(json_schema_extra=since("9.0.0"))]
    later_demo = create_model("DemoSpec", __base__=DemoSpec, sparkle=(sparkle, 0))
    later = create_model("Contract", __base__=Contract, demo=(later_demo, later_demo()))
    assert too_new(later) == ["DemoSpec.sparkle"]


def test_a_kind_is_one_registration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unions, "VERSION", "8.0.0")

    @EXCHANGES.register(since="8.0.0")
    class ToyExchangeSpec(ExchangeSpec):
        kind: Literal["toy"] = "toy"
        hops: int = Field(2, ge=1)

    contract = small_contract(exchange={"kind": "toy", "hops": 3})
    assert contract.exchange == ToyExchangeSpec(hops=3)
    assert contract.requires == "8.0.0"
    assert json.loads(contract.written)["exchange"] == {"hops": 3, "kind": "toy"}
    with pytest.raises(ConfigError, match=r"exchange\.hops: there is no such key; it is for exchange\.kind = toy"):
        parse_run({"exchange": {"hops": 3}}, "RUN.toml")
    with pytest.raises(TypeError, match=r"exchange\.kind 'toy' is .* and "):

        @EXCHANGES.register(since="8.0.0")
        class OtherSpec(ExchangeSpec):
            kind: Literal["toy"] = "toy"


def test_a_kind_is_one_file_in_the_home_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "toy_home"
    home.mkdir()
    (home / "__init__.py").write_text(
        "from thinwire_proto.contract import KindSpec, TaggedUnion\n"
        "class Base(KindSpec): pass\n"
        "TOYS = TaggedUnion('toy', Base, default='a', home=__name__)\n"
    )
    (home / "b.py").write_text(
        "from typing import Literal\nfrom toy_home import TOYS, Base\n"
        "@TOYS.register(since='0.1.0')\nclass B(Base):\n    kind: Literal['b'] = 'b'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from toy_home import TOYS  # type: ignore[import-not-found]  # noqa: PLC0415

    assert [kind.name for kind in TOYS] == ["b"]
    assert TOYS.find("a") is None


@pytest.mark.parametrize("version", ["9.0.0", "soon"])
def test_a_kind_that_is_newer_than_this_version_is_not_registered(version: str) -> None:
    with pytest.raises(ValueError, match=f"exchange: since='{version}' must be a version up to this one, {VERSION}"):
        EXCHANGES.register(since=version)


def test_format_1_is_not_written_any_more() -> None:
    made = Contract.model_validate(small_contract().model_dump() | {"version": 1})
    with pytest.raises(ValueError, match="contracts of version 1 can be read, but no longer written"):
        _ = made.written
    assert contract_module.FORMAT == 2


@pytest.mark.parametrize("aggregation", [{"kind": "quorum"}, {"kind": "trimmed"}, {"sizes": "median"}])
def test_a_run_file_of_another_aggregation_differs_from_a_contract_of_version_1(aggregation: dict[str, str]) -> None:
    held = parse_contract(OLD)
    asked = contract_like(held, RunSpec.model_validate({"aggregation": aggregation}))
    key, value = next(iter(aggregation.items()))
    meant = {"kind": "vote", "sizes": "own"}[key]
    assert f"aggregation.{key}: {meant} here, {value} there" in differences(held, asked)


@pytest.mark.parametrize("topk", [0, 1280])
def test_a_contract_that_is_older_than_levels_has_none_whatever_its_rule_has_by_now(topk: int) -> None:
    made = small_contract(rule={"kind": "local_muon"}, demo={"update_levels": 0, "update_topk": topk})
    document = json.loads(made.written)
    del document["demo"]["update_levels"]
    read = parse_contract(canonical_json(document))
    assert (read.demo.update_levels, read.demo.update_topk) == (0, topk)
    assert read.written == canonical_json(document)  # and so it keeps its hash
    document["demo"]["update_levels"] = 0 if topk else 5
    assert parse_contract(canonical_json(document)).demo.update_levels == (0 if topk else 5)
