"""A run's specification: the contents of RUN.toml, which the organizer writes. Every field has a default."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import model_validator

from thinwire_proto.contract.data import DATA, DataSpec
from thinwire_proto.contract.data.corpus import CorpusSpec
from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.contract.exchanges.star import StarSpec
from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.models.decoder import DecoderSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RULES, RuleSpec
from thinwire_proto.contract.rules.demo import DemoRuleSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import Section

UNIONS = (MODELS, DATA, RULES, EXCHANGES)


class RunSpec(Section):
    """All sections of a run file."""

    model: Annotated[ModelSpec, MODELS] = DecoderSpec()
    data: Annotated[DataSpec, DATA] = CorpusSpec()
    demo: DemoSpec = DemoSpec()
    rule: Annotated[RuleSpec, RULES] = DemoRuleSpec()
    exchange: Annotated[ExchangeSpec, EXCHANGES] = StarSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    round: RoundSpec = RoundSpec()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_rule(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        rule, demo, rounds = RULES.spec_of(given.get("rule", {})), given.get("demo", {}), given.get("round", {})
        found = dict(given)
        if rule is not None and rule.DEMO_DEFAULTS and isinstance(demo, dict):
            found["demo"] = rule.with_defaults(demo)
        if rule is not None and rule.ROUND_DEFAULTS and isinstance(rounds, dict):
            found["round"] = rule.ROUND_DEFAULTS | rounds
        return found

    @model_validator(mode="after")
    def _relations(self) -> RunSpec:
        takes, gives = self.model.TAKES, self.data.GIVES
        if takes and gives and takes != gives:
            raise ValueError(
                f'data.kind must be of {takes} for model.kind = "{self.model.kind}"; "{self.data.kind}" is of {gives}'
            )
        self.rule.check(self.demo, self.schedule)
        self.data.check(self.model)
        self.exchange.check(self.demo, self.round, self.rule)
        return self
