"""The contract: all settings that must be equal on the coordinator and on every node, and no others.

`sections` and `unions` define its building blocks, `run` the part that an organizer writes, and `contract` the whole
that both ends compare, read and check. Settings of one process (paths, addresses, device) are not part
of the contract.
"""

from thinwire_proto.contract.contract import Contract, differences, parse_contract, run_differences
from thinwire_proto.contract.data import DATA, DataSpec
from thinwire_proto.contract.data.corpus import CorpusSpec
from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.contract.exchanges.star import StarSpec
from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.models.decoder import DecoderSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import ADAM_BETAS, RULES, RuleSpec, VotingRuleSpec
from thinwire_proto.contract.rules.demo import DemoRuleSpec
from thinwire_proto.contract.rules.local_adamw import LocalAdamWSpec
from thinwire_proto.contract.rules.local_muon import LocalMuonSpec
from thinwire_proto.contract.rules.local_steps import LocalStepsSpec
from thinwire_proto.contract.rules.merged_muon import MergedMuonSpec
from thinwire_proto.contract.run import RunSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import (
    CONTRACT_BYTES_MAX,
    TENSOR_ELEMENTS_MAX,
    TILE_EDGE,
    WEIGHT_SUM_MAX,
    Magnitude,
    Parameter,
    Section,
    canonical_json,
    unit,
)
from thinwire_proto.contract.unions import KindSpec, TaggedUnion

__all__ = [
    "ADAM_BETAS",
    "CONTRACT_BYTES_MAX",
    "DATA",
    "EXCHANGES",
    "MODELS",
    "RULES",
    "TENSOR_ELEMENTS_MAX",
    "TILE_EDGE",
    "WEIGHT_SUM_MAX",
    "Contract",
    "CorpusSpec",
    "DataSpec",
    "DecoderSpec",
    "DemoRuleSpec",
    "DemoSpec",
    "ExchangeSpec",
    "KindSpec",
    "LocalAdamWSpec",
    "LocalMuonSpec",
    "LocalStepsSpec",
    "Magnitude",
    "MergedMuonSpec",
    "ModelSpec",
    "Parameter",
    "RoundSpec",
    "RuleSpec",
    "RunSpec",
    "ScheduleSpec",
    "Section",
    "StarSpec",
    "TaggedUnion",
    "VotingRuleSpec",
    "canonical_json",
    "differences",
    "parse_contract",
    "run_differences",
    "unit",
]
