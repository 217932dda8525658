"""The JSON document of a plan."""

from __future__ import annotations

from typing import Any

from thinwire_planner.choosing.choice import Predicted
from thinwire_planner.choosing.plan import Plan, change_in_words

FORMAT = 1


def document_of(plan: Plan) -> dict[str, Any]:
    setting = plan.setting
    return {
        "format": FORMAT,
        "setting": {
            "parameters": setting.parameters,
            "nodes": setting.nodes,
            "compute_mean_s": setting.mean_s,
            "compute_slowest_s": setting.slowest_s,
            "affordable_bytes_a_parameter": setting.affordable_bytes,
        },
        "take": _predicted(plan.taken),
        "gain": None if plan.gain is None else vars(plan.gain) | {"overlap_share": plan.gain.overlap_share},
        "reasons": list(plan.reasons),
        "changes": [vars(change) | {"text": change_in_words(change)} for change in plan.changes],
        "families": [one.name for one in plan.families],
        "predictions": [_predicted(one) for one in plan.by_time],
    }


def _predicted(one: Predicted) -> dict[str, Any]:
    return {
        "name": one.name,
        "family": one.variant.family,
        "seconds": one.seconds,
        "bytes_a_parameter": one.forecast.bytes_a_parameter,
        "parts": dict(one.forecast.parts),
        "order": list(one.forecast.order),
        "to_loss_s": one.to_loss_s,
        "arm": one.arm,
        "caution": one.variant.caution,
    }
