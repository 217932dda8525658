"""Contracts are named by their bytes, kinds register themselves, and what is unknown is refused by its name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from support.small import small_contract
from thinwire_proto.contract import EXCHANGES, Contract, ExchangeSpec, canonical_json, parse_contract
from thinwire_proto.contract.contract import FORMAT
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.version import VERSION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def changed(contract: Contract, **fields: Any) -> bytes:
    return canonical_json(json.loads(contract.written) | fields)


def test_pyproject_has_the_version() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_reading_a_contract_does_not_import_torch() -> None:
    code = "import sys, thinwire_proto.contract as c; list(c.MODELS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_copy_with_a_change_has_a_name_of_its_own() -> None:
    contract = small_contract()
    assert contract.hash
    assert contract.model_copy().written == contract.written
    other = contract.model_copy(update={"demo": contract.demo.model_copy(update={"k": 31})})
    assert other.hash != contract.hash
    assert parse_contract(other.written) == other
    with pytest.raises(ValueError, match=r"data\.corpus_hash must name the corpus"):
        contract.model_copy(update={"data": contract.data.model_copy(update={"corpus_hash": ""})})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": 2}, f"thinwire {VERSION} cannot read this contract: it has version 2, not {FORMAT}"),
        ({"version": True}, "this is not a contract: it does not say which version"),
        ({"topology": {}}, "topology: there is no such key; it needs another thinwire"),
        ({"exchange": {"kind": "ring"}}, "exchange.kind: there is no such kind; .*star.*or a package that extends it"),
        ({"exchange": 5}, "exchange: input should be a table"),
    ],
)
def test_what_is_unknown_is_refused_with_what_it_needs(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        parse_contract(changed(small_contract(), **fields))


def test_a_kind_is_one_registration_from_outside() -> None:
    @EXCHANGES.register
    class ToyExchangeSpec(ExchangeSpec):
        kind: Literal["toy"] = "toy"
        hops: int = Field(2, ge=1)

    contract = small_contract(exchange={"kind": "toy", "hops": 3})
    assert contract.exchange == ToyExchangeSpec(hops=3)
    assert json.loads(contract.written)["exchange"] == {"hops": 3, "kind": "toy"}
    with pytest.raises(ConfigError, match=r"exchange\.kind: the name 'toy' is taken"):

        @EXCHANGES.register
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
        "@TOYS.register\nclass B(Base):\n    kind: Literal['b'] = 'b'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from toy_home import TOYS  # type: ignore[import-not-found]  # noqa: PLC0415

    assert [kind.name for kind in TOYS] == ["b"]
    assert TOYS.find("a") is None
