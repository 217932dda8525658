"""The disagreement of a gossip run: what is compared, what a row seals, and how it is checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thinwire_coordinator.gossip.measurements import Measurement, NodeSketch, SketchCheck, Sketches, measure
from thinwire_coordinator.gossip.participants import Participant
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import ERROR, MEASURE_EVERY, pack_sketch
from thinwire_proto.gossip.reports import Report, sketch_hash

PARAMETERS = 20_000
AT = 32


def nodes_at(*iterations: int) -> list[Participant]:
    return [Participant(f"node {place}", place, iteration=iteration) for place, iteration in enumerate(iterations)]


def sketched(count: int = 4, seed: int = 0) -> tuple[list[NodeSketch], float, float]:
    """Sketches of nodes, their true distance from their mean, and the root mean square of their steps."""
    random = torch.Generator().manual_seed(seed)
    base = 10 * torch.randn(PARAMETERS, generator=random)
    x = [base + 0.01 * torch.randn(PARAMETERS, generator=random) for _ in range(count)]
    mean = torch.stack(x).double().mean(0)
    distance = math.sqrt(sum(float(((one.double() - mean) ** 2).sum()) for one in x) / count)
    steps = [0.5 + place / 4 for place in range(count)]
    found = [NodeSketch(f"node {place}", pack_sketch(one, AT), steps[place]) for place, one in enumerate(x)]
    return found, distance, math.sqrt(sum(step**2 for step in steps) / count)


def test_the_estimate_is_within_its_error_although_parameters_are_a_thousand_times_larger() -> None:
    """A sketch in bytes would lose the distance in the rounding."""
    sketches, distance, step = sketched()
    found = measure(AT, sketches)
    assert found.distance == pytest.approx(distance, rel=2 * ERROR)
    assert found.in_steps == pytest.approx(found.distance / step)


def test_an_iteration_is_asked_for_once_and_compared_when_all_are_past_it() -> None:
    sketches = Sketches(lambda: 1000)
    sketches.ask(33)
    assert sketches.measure_at == 2 * MEASURE_EVERY
    sketches.ask(200)  # another is asked for only after this one
    for one in sketched(3)[0]:
        sketches.put(one.node, 2 * MEASURE_EVERY, one.sketch, one.step_norm)
        sketches.put(one.node, MEASURE_EVERY, b"older", 1.0)
    assert sketches.measured(nodes_at(64, 63, 80)) is None
    found = sketches.measured(nodes_at(64, 64, 80))
    assert found is not None
    assert (found.iteration, len(found.sketches)) == (64, 3)
    assert sketches.measure_at == 0
    assert sketches.measured(nodes_at(64, 64, 80)) is None
    sketches.ask(990)
    assert sketches.measure_at == 992
    assert sketches.measured(nodes_at(992, 992)) is None  # nobody has sent one, and nobody is waited for
    assert sketches.measure_at == 0
    sketches.ask(999)
    assert sketches.measure_at == 1000


def test_a_node_that_has_yet_to_begin_or_has_left_is_not_waited_for() -> None:
    sketches = Sketches(lambda: 1000)
    sketches.ask(1)
    for one in sketched(3)[0]:
        sketches.put(one.node, 32, one.sketch, one.step_norm)
    sketches.drop("node 2")
    newcomer = Participant("node 7", 7, iteration=0, enters_at=40)
    found = sketches.measured([*nodes_at(32, 33), newcomer])
    assert found is not None
    assert [one.node for one in found.sketches] == ["node 0", "node 1"]


def checked(found: Measurement, change: Callable[[dict[str, Any], list[NodeSketch]], None]) -> SketchCheck:
    """Check a row with a measurement, after a change of its figures or of the sketches that its body has."""
    check, sketches = SketchCheck(), list(found.sketches)
    for one in sketches:
        named = Report(1, AT, bytes(32), sketch_hash=sketch_hash(one.sketch), sketch_iteration=AT)
        check.report(one.node, replace(named, step_norm=one.step_norm))
    plain = found.plain(bytes(32), 1)
    change(plain, sketches)
    check.check(plain, replace(found, sketches=tuple(sketches)).body)
    return check


def test_a_sealed_measurement_is_repeated_from_its_sketches() -> None:
    found = measure(AT, sketched()[0])
    assert checked(found, lambda plain, sketches: None).repeated == 1


def falsified(sketches: list[NodeSketch]) -> None:
    numbers = np.frombuffer(sketches[0].sketch, "<f4").copy()
    numbers[3] += 1
    sketches[0] = replace(sketches[0], sketch=numbers.tobytes())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plain, _: plain.update(distance=plain["distance"] * 1.001), "the sketches give"),
        (lambda plain, _: plain.update(in_steps=plain["in_steps"] * 0.999), "the sketches give"),
        (lambda plain, _: plain.update(in_steps=None), "the sketches give"),
        (lambda plain, _: plain.update(nodes=5), "the sketches give"),
        (lambda plain, _: plain.update(iteration=64), "no report names"),
        (lambda _, sketches: falsified(sketches), "no report names"),
        (lambda _, sketches: sketches.append(replace(sketches[0], node="stranger")), "no report names"),
        (lambda _, sketches: sketches.pop(), "the sketches give"),
        (lambda _, sketches: sketches.clear(), "no sketches"),
    ],
)
def test_a_falsified_measurement_is_found(change: Callable[[Any, Any], None], says: str) -> None:
    found = measure(AT, sketched()[0])
    with pytest.raises(PayloadError, match=says):
        checked(found, change)


@pytest.mark.parametrize(
    ("moved", "fits"), [(0.0, True), (0.02, True), (3.0, False)], ids=["as it was", "ten steps later", "3.0 everywhere"]
)
def test_parameters_at_the_end_must_fit_the_nodes_own_last_sketch(moved: float, fits: bool) -> None:
    sketches, random = Sketches(lambda: AT + 10), torch.Generator().manual_seed(0)
    sketches.ask(AT)
    base = torch.randn(PARAMETERS, generator=random)
    nodes = [base + 0.01 * torch.randn(PARAMETERS, generator=random) for _ in range(4)]
    for place, x in enumerate(nodes):
        sketches.put(f"node {place}", AT, pack_sketch(x, AT), 0.5)
    handed_in = torch.full((PARAMETERS,), 3.0) if not fits else nodes[0] + moved
    found = sketches.misfit("node 0", handed_in, lambda iteration: 1e-3)
    assert bool(found) != fits
    assert fits or f"sketch of iteration {AT}" in found
    assert sketches.misfit("newcomer", handed_in, lambda iteration: 1e-3) == ""  # it has sent none


def test_a_run_that_ends_earlier_is_measured_at_its_end() -> None:
    steps = 1000
    sketches = Sketches(lambda: steps)
    sketches.ask(90)
    assert sketches.measure_at > 90
    steps = 91
    sketches.amend()
    assert sketches.measure_at == 91
