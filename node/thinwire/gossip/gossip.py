"""`Gossip`: training by gossip beside any optimizer of torch. `from thinwire import Gossip`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from thinwire.gossip import checks
from thinwire.gossip.compressed import DENSE, CompressedCodec, codec_of
from thinwire.gossip.consensus_control import ConsensusControl
from thinwire.gossip.exchange import Exchange
from thinwire.gossip.flat import FlatLayout, overwrite
from thinwire.gossip.pending import PendingTurns
from thinwire.gossip.pulled import pulled_of
from thinwire.gossip.pushed import PushedTurns
from thinwire.gossip.ranks import Averaged, Ranks, ranks_per_host
from thinwire.gossip.turns import Turns
from thinwire.placement import local
from thinwire.script import only_asks_for_state, warn_script
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.consensus import Level
from thinwire_proto.gossip.topology import AUTO, Layout, make_topology
from thinwire_proto.limits import GOSSIP_PATIENCE_S

OF_RANKS = ("ranks", "rank")
"""Settings that belong to a group of ranks, not to a choice of the script."""
WITHOUT_STATE = "to go on with other ranks, load model and optimizer alone"
RUN_BITS = 63
"""Of the random number that names the states of one Gossip."""
_in_use = WeakTensorKeyDictionary()
"""The parameters that a Gossip of this process mixes: two that mix the same ones would undo each other."""


class Gossip:
    """Averages parameters with a few other ranks while this one computes (arXiv 2410.11998).

    Each rank steps by its own optimizer, on gradients that stay local. After a step, the parameters are sent to the
    peers of this iteration. Before the next step, what came is mixed in: x ← Σ w·x − u(g(x)). So an exchange has the
    time of a whole iteration. The optimizer's hooks do both; the script calls nothing.

        model            all parameters and buffers are those of rank 0 in the beginning, frozen ones too
        optimizer        the only one for this model. Its parameters with `requires_grad` are mixed, whether or not they
                         get a gradient; all others are not exchanged any more
        topology         who mixes with whom; "auto" chooses. See `thinwire_proto.gossip.topology`. One-way edges take
                         float32 parameters, codecs "dense", "bf16" and "int8", gamma 1 and no consensus_target
        codec            what an edge carries: "dense", the parameters themselves; or of the difference from a public
                         copy "bf16", "int8" or "sign". See `thinwire_proto.gossip.codecs`
        gamma            the fraction of the way to the peers' copies that mixing goes
        gradient_pull    part of the way from this rank's parameters to the mean of them and of its copies of its peers.
                         Gradients are computed there, so between two steps the model has those parameters. Costs no
                         byte, and needs a codec of differences. See docs/decentralized.md
        every            steps from one exchange to the next
        slack            iterations that a message may be late before the step waits for it, at most 4. Both ends mix
                         the same difference later, so the mean of all ranks does not move
        patience_s       a step waits so long at most. Then the peer is left out until it is heard of. The ranks also
                         wait so long for each other here
        process_group    the ranks that take part; by default all. Without torch.distributed, this process is alone.
                         If `fully_shard` has sharded the model inside a site, those that hold the same shards
        per_host         ranks that share a host; by default those that torchrun has started on each, or with shards 1
        seed             for topologies that are drawn at random
        consensus_target how far apart the ranks may be, in steps of the optimizer: root mean square distance from their
                         mean over that of a step. The ranks measure it, and choose codec and `every`, the same on all,
                         beginning with those above; never gamma. For float32 parameters

    If a `GradScaler` skips a step, this rank is one iteration behind its peers, and they wait for it within the slack.

    Raises ConfigError on all ranks if their settings or parameters differ, and for settings that cannot be; RemoteError
    if the others do not come."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        topology: str = AUTO,
        codec: str = DENSE,
        gamma: float = 1.0,
        gradient_pull: float = 0.0,
        every: int = 1,
        slack: int = 0,
        patience_s: float = GOSSIP_PATIENCE_S,
        process_group: dist.ProcessGroup | None = None,
        per_host: int | None = None,
        seed: int = 0,
        consensus_target: float | None = None,
    ) -> None:
        checks.check_unwrapped(model, optimizer)
        given = {
            "topology": topology,
            "codec": codec,
            "gamma": gamma,
            "gradient_pull": gradient_pull,
            "every": every,
            "slack": slack,
            "per_host": per_host,
            "seed": seed,
            "consensus_target": consensus_target,
        }
        checks.check_settings(given | {"patience_s": patience_s})
        self._model = model
        self._optimizer = optimizer
        self._parameters = checks.trained(model, optimizer)
        if any(parameter in _in_use for parameter in self._trained()):
            raise ConfigError("this optimizer, or another one of its parameters, has a Gossip; call its finish() first")
        shard = checks.shard_of(self._parameters, process_group)
        self._ranks = Ranks(process_group, patience_s)
        self._layout = FlatLayout([parameter for _, parameter in self._parameters])
        per_host = per_host or (1 if shard else ranks_per_host(self._ranks.count))
        self.topology = make_topology(topology, Layout(self._ranks.count, per_host, seed))
        if self.topology.is_directed:
            checks.check_one_way(self.topology.name, codec=codec, gamma=gamma, consensus_target=consensus_target)
        self._settings: dict[str, Any] = given | {
            "topology": self.topology.name,
            "ranks": self._ranks.count,
            "per_host": per_host,
            "gamma": float(gamma),  # of any real type, and JSON knows few
            "gradient_pull": float(gradient_pull),
            "consensus_target": None if consensus_target is None else float(consensus_target),
            **shard,
        }
        self._ranks.check_equal(self._settings | checks.described(model, self._parameters))
        run = torch.tensor(secrets.randbits(RUN_BITS))
        self._ranks.broadcast([*map(local, model.parameters()), *model.buffers(), run])
        self._run = int(run)
        self._control = None if consensus_target is None else self._controlled(consensus_target, codec, every)
        self._codec = None if self.topology.is_directed else codec_of(codec, self._layout, self._control)
        turns: Turns
        if self._codec is None:
            turns = PushedTurns(self.topology, self._ranks.rank, codec, self._layout)
        else:
            turns = PendingTurns(self._layout, self._codec)
        self._pulled = pulled_of(float(gradient_pull), self._codec, self._layout)
        self._level = Level(codec, every)
        self._since = 0  # steps since the last exchange
        self._before: Tensor | None = None  # the parameters before a step that is measured
        lines = self._ranks.lines
        self._exchange = Exchange(self._layout, turns, self.topology, lines, slack=slack, patience_s=patience_s)
        self.steps = 0
        self.factor = float(gamma)
        """The fraction of the way to its peers that mixing goes; one-way edges know none. If ranks differ in it, their
        mean moves."""
        self._averaging = self._is_step = self._has_stepped = self._has_told_unmet = self._has_told_useless = False
        self._groups = [len(group["params"]) for group in optimizer.param_groups]
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]
        _in_use.update(dict.fromkeys(self._trained(), True))

    def _controlled(self, target: float, codec: str, every: int) -> ConsensusControl:
        ranks, name = self._ranks, f"thinwire.gossip.{self._run:016x}"
        return ConsensusControl(target, codec, every, ranks.store, name, ranks.rank, ranks.count)

    @contextmanager
    def averaged(self, *, buffers: bool = True) -> Iterator[list[int]]:
        """Inside the block, the model is the mean of all ranks: trained parameters, and buffers of floats unless
        `buffers` is false. Then all are as before. All ranks must enter. Yields those that took part."""
        self._leave_averaged("averaged")
        held = [*self._layout.held, *self._model.buffers()]
        backup = [tensor.detach().clone() for tensor in held]
        self._averaging = True
        try:
            with torch.no_grad():
                self._pulled.show_own()
            yield self._average(buffers).present
        finally:
            self._averaging = False
            with torch.no_grad():
                for tensor, before in zip(held, backup, strict=True):
                    overwrite(tensor, before)

    def average(self, *, buffers: bool = True) -> list[int]:
        """Replace the model by the mean of all ranks, for good. All ranks call it. What is pending is dropped, and a
        rank that was behind is no longer. Returns the ranks that took part. Raises RemoteError if one dies meanwhile;
        some tensors may then be the mean already, so go back to a checkpoint."""
        self._leave_averaged("average")
        with torch.no_grad():
            self._pulled.end()
        present, newest = self._average(buffers)
        with torch.inference_mode(False):  # what is made here takes part in later steps
            self._exchange.drop(newest)
        return present

    def stats(self) -> dict[str, Any]:
        """Figures of this rank since the beginning.

        iteration: exchanges begun, less one. mixed: messages mixed; late: those of an earlier iteration. pending:
        messages that are awaited. waited_s: time that steps have waited. left_out: peers, and why. codec, every: those
        in use. With a consensus_target also what `ConsensusControl.stats` says."""
        return {
            "rank": self._ranks.rank,
            "ranks": self._ranks.count,
            "topology": self.topology.name,
            "contraction": self.topology.contraction,
            "steps": self.steps,
            "iteration": self._exchange.peers.iteration,
            **asdict(self._exchange.traffic),
            "pending": self._exchange.peers.pending,
            "left_out": self._exchange.peers.left_out,
            **(self._control.stats() if self._control else {"codec": self._level.codec, "every": self._level.every}),
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the exchange between this rank and its peers, to be saved beside those of model and optimizer.

        All ranks call it equally often; it waits until this rank's peers have called it too. The states of one call fit
        together whatever the ranks do afterwards. Raises RemoteError if a rank is left out or does not call it within
        the patience. Then there is no such state; training may go on. Raises ConfigError after `finish`."""
        self._leave_averaged("state_dict")
        if not self._hooks:
            raise ConfigError(
                "Gossip has finished, so nothing is under way: save model and optimizer alone, and resume with a new "
                "Gossip; or call state_dict before finish"
            )
        exchange = self._exchange.state_dict()
        if exchange["without"] and not self._has_told_useless:
            self._has_told_useless = True
            warn_script(f"rank {exchange['without'][0]} is gone, so no run can load this state; {WITHOUT_STATE}")
        state = {
            "version": checks.STATE_VERSION,
            "settings": dict(self._settings),
            "rank": self._ranks.rank,
            "save": f"{self._run:016x}.{exchange['number']}",
            "steps": self.steps,
            "factor": self.factor,
            "since": self._since,
            "consensus": self._control.state_dict() if self._control else None,
            "parameters": checks.checksum(self._layout.held),
            "own": None if self._pulled.own is None else self._pulled.own.clone(),
            "exchange": exchange,
        }
        return checks.with_form(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. All ranks do so, each with its own, after the states of model and optimizer were
        loaded and before the first step. Raises ConfigError on all ranks if a state does not fit."""
        self._leave_averaged("load_state_dict")
        problem = self._misfit(state)
        control_before = self._control.state_dict() if self._control else {}
        if self._control is not None and problem is None:  # before all ranks meet, so that no sketch is missing later
            self._control.load_state_dict(state["consensus"])
            self._use(self._control)
        try:
            self._ranks.check_equal({"save": None if problem else state["save"], "state": problem or "fits"})
        except ConfigError:
            if problem is None:
                if self._control is not None:
                    self._control.load_state_dict(control_before)
                    self._use(self._control)
                raise
        if problem is not None:
            raise ConfigError(problem)
        self._exchange.load_state_dict(state["exchange"])
        self.steps = state["steps"]
        self.factor = state["factor"]
        self._since = state["since"]
        self._pulled.load(state["own"])

    @torch.no_grad()
    def finish(self) -> None:
        """Mix what is pending, wait until all peers have finished or are left out, and let the optimizer alone.

        Ranks may have made different numbers of steps. They still differ afterwards; `averaged` gives the mean."""
        self._leave_averaged("finish")
        self._pulled.end()
        self._exchange.finish(self.factor)
        self._tell_news()
        if self._hooks:
            for parameter in self._trained():
                del _in_use[parameter]
        while self._hooks:
            self._hooks.pop().remove()

    def _leave_averaged(self, name: str) -> None:
        """Raises ConfigError inside `averaged`, where the parameters are not this rank's."""
        if self._averaging:
            raise ConfigError(f"the model is averaged, and cannot take `{name}`; leave the block before")

    def _misfit(self, state: dict[str, Any]) -> str | None:
        if unreadable := checks.why_unreadable(state):
            return unreadable
        if self.steps or self._exchange.peers.iteration >= 0:
            return "load the state before the first step; create a new Gossip to go back"
        if lost := state["exchange"]["without"]:
            return (
                f"the state was saved when rank {lost[0]} was gone, so it fits no state of that rank; {WITHOUT_STATE}"
            )
        settings = self._settings | {"rank": self._ranks.rank}
        for name, here in sorted(settings.items(), key=lambda setting: setting[0] not in OF_RANKS):  # others may follow
            there = state["rank"] if name == "rank" else state["settings"].get(name)
            if there != here:
                mend = f"; {WITHOUT_STATE}" if name in OF_RANKS else ""
                return f"{name} was {there!r} when the state was saved, and is {here!r}{mend}"
        if state["parameters"] != checks.checksum(self._layout.held):
            return (
                "the parameters are not those with which the state was saved; create Gossip, which starts all ranks "
                "from rank 0's, then load the model's state of this rank, then this one"
            )
        return None

    def _trained(self) -> list[Tensor]:
        return [parameter for _, parameter in self._parameters]

    @torch.no_grad()
    def _average(self, buffers: bool) -> Averaged:
        self._exchange.peers.enter_averaging()
        floats = [buffer for buffer in self._model.buffers() if buffer.is_floating_point()] if buffers else []
        tensors, exchange = [*self._layout.held, *floats], self._exchange
        return self._ranks.average(tensors, lambda: exchange.peers.gone, exchange.weight, exchange.peers.iteration)

    @torch.no_grad()
    def _before_step(self) -> None:
        self._is_step = not only_asks_for_state(self._optimizer)
        if not self._is_step:
            return
        if self._averaging:
            raise ConfigError("a step inside `averaged` would be lost; leave the block before")
        if [len(group["params"]) for group in self._optimizer.param_groups] != self._groups:
            raise ConfigError(
                "the optimizer's parameters have changed since Gossip was created; call `finish` on all ranks, and "
                "create a new Gossip after `add_param_group`"
            )
        if not self._has_stepped:
            checks.check_unwrapped(self._model, self._optimizer, self._trained())
        checks.check_mixed(self._optimizer, self._trained())
        self._pulled.end()
        self._exchange.collect(self.factor)
        self._tell_news()
        control, peers = self._control, self._exchange.peers
        if control and self._is_last_before_exchange and control.measures(peers.next_iteration):
            self._before = self._flat()

    @property
    def _is_last_before_exchange(self) -> bool:
        return self._since + 1 >= self._level.every

    @torch.no_grad()
    def _after_step(self) -> None:
        if not self._is_step:
            return
        self._has_stepped = True
        self.steps += 1
        self._begin_exchange()
        self._pulled.begin([*self._exchange.peers.left_out])

    def _begin_exchange(self) -> None:
        if not self._is_last_before_exchange:
            self._since += 1
            return
        self._since = 0
        iteration = self._exchange.peers.next_iteration
        if self._control is not None:
            after, before, self._before = self._flat(), self._before, None
            step = None if before is None else float((after - before).double().norm())
            self._control.begin(iteration, after, step)
            self._use(self._control)
            self._tell_unmet(self._control)
        self._exchange.launch(iteration)

    def _tell_unmet(self, control: ConsensusControl) -> None:
        if control.is_unmet and not self._has_told_unmet:
            warn_script(f"consensus_target cannot be reached: {control.reason}; take a smaller learning rate")
        self._has_told_unmet = control.is_unmet

    def _use(self, control: ConsensusControl) -> None:
        """Take the codec and `every` that all ranks have agreed on."""
        self._level = control.level
        assert isinstance(self._codec, CompressedCodec), "a target is for codecs of differences"
        self._codec.used = self._level.codec

    def _flat(self) -> Tensor:
        """A copy of the parameters, float32 [parameters]."""
        buffer = self._layout.empty()
        self._layout.read(buffer)
        return self._layout.values(buffer)[0]

    def _tell_news(self) -> None:
        for sentence in self._exchange.peers.news():
            warn_script(sentence)
