"""The command `thinwire-coordinator status`: the status of a swarm as a table or JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf.json_format import MessageToJson
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from thinwire_common.units import human_bytes
from thinwire_coordinator.cli.options import DEFAULT_ADDRESS
from thinwire_coordinator.cli.status_client import ask_status, ask_status_of
from thinwire_proto.clean_text import clean_name, clean_text
from thinwire_proto.wire.service_pb2 import GossipStatus, NodeStatus, StatusReply

BAR_WIDTH = 60
LOSS_MAX = 700.0
"""A larger loss has a perplexity that is no float."""
PERPLEXITY_IN_FULL = 1e6
EDGES_SHOWN = 4
WORDS = ("held-out set", "node", "replica", "peers")
"""Columns of tables that hold no numbers."""
NODES_SHOWN = 50
"""Number of nodes in the table: those with the most tokens."""


def equality(status: StatusReply) -> str:
    """Whether the replicas are equal, as text."""
    compared, different = status.fingerprints_compared, status.fingerprints_different
    if not compared:
        return f"not compared{_since(status) or ' yet'}"
    found = f"equal, {compared} comparisons" if not different else f"{different} of {compared} comparisons DIFFER"
    return found + _since(status)


def _since(status: StatusReply) -> str:
    """Where the process began, after a figure that is counted since then; nothing if the run began there."""
    return f" since {_unit(status)} {status.whole.since_step}" if status.whole.since_step else ""


def _unit(status: StatusReply) -> str:
    return "iteration" if status.HasField("gossip") else "step"


def table(status: StatusReply, tokens_per_second: float | None = None) -> Group:
    """All fields of a status. Names of nodes are shown literally, never parsed as markup."""
    unit = _unit(status)
    heading = Text(f"thinwire · {unit} {status.step} of {status.steps}", style="bold")
    progress = Table.grid()  # a bar without a grid does not end its line
    progress.add_row(ProgressBar(total=status.steps, completed=status.step, width=BAR_WIDTH))
    parts: list[RenderableType] = [heading, progress, Text(), _facts(status, tokens_per_second), Text()]
    if status.held_out:
        parts += [_held_out(status), Text()]
    nodes = _of_the_whole_run(status)
    parts.append(_nodes(status, nodes))
    if (hidden := max(len(nodes), status.whole.nodes_counted) - NODES_SHOWN) > 0:
        parts.append(Text(f"and {hidden} more", style="dim"))
    return Group(*parts)


def _facts(status: StatusReply, tokens_per_second: float | None) -> Table:
    facts = Table.grid(padding=(0, 2))
    for _ in range(4):
        facts.add_column(overflow="fold")
    state = ("state", Text(clean_text(status.state)))
    if status.HasField("gossip"):
        facts.add_row("topology", f"{status.gossip.topology} ({status.gossip.members} members)", *state)
        _add_gossip(facts, status.gossip)
    else:
        facts.add_row("round", f"{status.round} ({status.rounds_void} void)", *state)
    newest = (
        f"{status.loss_newest:.3f} at {_unit(status)} {status.loss_newest_step}"
        if status.HasField("loss_newest")
        else "–"
    )
    training = f"{status.loss_training:.3f}" if status.HasField("loss_training") else "–"
    facts.add_row("held-out loss", newest, "training loss", training)
    rate = ("tokens/s", f"{tokens_per_second:,.0f}") if tokens_per_second is not None else ()
    known = status.HasField("whole")  # the earlier terms are being read, or the coordinator is older
    facts.add_row("tokens", f"{status.whole.tokens:,}" if known else f"{status.tokens:,} since its start", *rate)
    up, down = human_bytes(status.bytes_up), human_bytes(status.bytes_down)
    facts.add_row("bytes up", up + _since(status), "bytes down", down + _since(status))
    style = "bold red" if status.fingerprints_different else "green"
    facts.add_row("nodes", _present(status))
    if not status.HasField("gossip"):
        facts.add_row("replicas", Text(equality(status), style=style))
    if status.standby:
        facts.add_row("standby", Text(clean_text(status.standby)))
    return facts


def _present(status: StatusReply) -> str:
    """How many nodes take part; in a gossip run, how many report, and how many more or fewer the topology has."""
    if not status.HasField("gossip"):
        return f"{status.nodes_active} take part"
    more = status.nodes_active - status.gossip.members
    if not more or status.step >= status.steps:
        return f"{status.nodes_active} report"
    others = f"{more} in no topology now" if more > 0 else f"{-more} more in the topology are silent"
    return f"{status.nodes_active} report, {others}"


def disagreement(gossip: GossipStatus) -> str:
    """The distance of the nodes from their mean, as text."""
    if not gossip.HasField("disagreement"):
        return "not measured yet"
    steps = f" ({gossip.disagreement_in_steps:.3g} steps)" if gossip.HasField("disagreement_in_steps") else ""
    return f"{gossip.disagreement:.4g}{steps}"


def _add_gossip(facts: Table, gossip: GossipStatus) -> None:
    spread = f"{gossip.iteration_least} to {gossip.iteration_most}, median {gossip.iteration_median}"
    distance = disagreement(gossip)
    facts.add_row("iterations", spread, "disagreement", distance)
    facts.add_row("beats", f"{gossip.beats}", "exchange", Text(clean_text(gossip.codec)))


def _table(titles: Sequence[str]) -> Table:
    found = Table(box=None, padding=(0, 2), collapse_padding=True, header_style="dim")
    for title in titles:
        found.add_column(title, justify="left" if title in WORDS else "right", overflow="fold")
    return found


def _held_out(status: StatusReply) -> Table:
    """The newest loss on each held-out set, as loss, perplexity and bits per byte; of pairs of preferences as loss."""
    of_pairs = any(found.unit == "pair" for found in status.held_out)  # then of all sets
    titles = ("held-out set", "nats a pair") if of_pairs else ("held-out set", "loss", "perplexity", "bits a byte")
    sets = _table(titles)
    for found in status.held_out:
        if of_pairs:
            sets.add_row(Text(clean_name(found.name)), f"{found.loss:.3f}")
            continue
        perplexity = math.exp(min(found.loss, LOSS_MAX))
        shown = f"{perplexity:,.2f}" if perplexity < PERPLEXITY_IN_FULL else f"{perplexity:.1e}"
        bits = f"{found.bits_per_byte:.3f}" if found.bits_per_byte else "–"
        sets.add_row(Text(clean_name(found.name)), f"{found.loss:.3f}", shown, bits)
    return sets


def _of_the_whole_run(status: StatusReply) -> list[NodeStatus]:
    """The nodes, with what they have given to the whole run; also those that gave and have not come since the start."""
    shares, nodes = {share.node_id: share for share in status.whole.nodes}, []
    for node in status.nodes:
        found = NodeStatus()
        found.CopyFrom(node)
        if share := shares.pop(node.node_id, None):
            found.counted, found.tokens = share.counted, share.tokens
        nodes.append(found)
    gone = shares.values()
    nodes += [NodeStatus(node_id=g.node_id, name=g.name, counted=g.counted, tokens=g.tokens) for g in gone]
    return nodes


def _nodes(status: StatusReply, all_nodes: Sequence[NodeStatus]) -> Table:
    if status.HasField("gossip"):
        return _nodes_without_centre(status, all_nodes)
    more = ("not counted", "up", "down", "replica") if status.nodes_in_full else ()
    nodes = _table(("node", "counted", "tokens", *more))
    for node in _shown(all_nodes):
        nodes.add_row(
            _name(node),
            str(node.counted),
            f"{node.tokens:,}",
            *(_in_full(node) if status.nodes_in_full else ()),
        )
    return nodes


def _name(node: NodeStatus) -> Text:
    return Text(clean_name(node.name) or _short(node.node_id))


def _short(node_id: str) -> str:
    """The first digits of an id, as a name. A reply may hold anything in its place."""
    return clean_name(node_id[:8])


def _shown(nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    most = sorted(nodes, key=lambda node: (-node.tokens, node.name))[:NODES_SHOWN]
    return sorted(most, key=lambda node: node.name or node.node_id)


def _nodes_without_centre(status: StatusReply, all_nodes: Sequence[NodeStatus]) -> Table:
    """Iterations and losses of single nodes; for the organizer also their bytes and edges."""
    more = ("direct", "relay", "an iteration", "peers") if status.nodes_in_full else ()
    nodes = _table(("node", "iteration", "loss", "tokens", *more))
    names = {node.node_id: clean_name(node.name) for node in status.nodes}
    for node in _shown(all_nodes):
        iteration = f"{node.iteration}" if node.iteration or node.active else "–"
        row = [iteration, f"{node.loss:.3f}" if node.HasField("loss") else "–", f"{node.tokens:,}"]
        if status.nodes_in_full:
            direct, relay = node.direct_up + node.direct_down, node.relay_up + node.relay_down
            each = human_bytes((direct + relay) / node.iteration) if node.iteration else "–"
            row += [human_bytes(direct), human_bytes(relay), each]
        nodes.add_row(_name(node), *row, *([_edges(node, names)] if more else []))
    return nodes


def _edges(node: NodeStatus, names: Mapping[str, str]) -> Text:
    """The peers of a node, each with its line and the iteration of its newest message."""
    if not node.active:
        return Text("away")
    shown = []
    for edge in node.edges[:EDGES_SHOWN]:
        newest = f" {edge.iteration}" if edge.HasField("iteration") else ""
        shown.append(f"{names.get(edge.node_id) or _short(edge.node_id)} {clean_text(edge.line)}{newest}")
    more = len(node.edges) - len(shown)
    return Text(", ".join([*shown, f"{more} more"] if more > 0 else shown))


def _in_full(node: NodeStatus) -> tuple[str, ...]:
    return str(node.not_counted), human_bytes(node.bytes_up), human_bytes(node.bytes_down), _replica(node)


def _replica(node: NodeStatus) -> str:
    words = ("equal" if node.replica_equal else "DIFFERS") if node.HasField("replica_equal") else "–"
    return words if node.active else f"{words} (away)"


def print_status(coordinator: str | None, state_dir: Path | None, *, as_json: bool = False) -> None:
    """Print the status of a swarm. Raises RemoteError if its coordinator does not answer.

    state_dir: of the organizer who asks. coordinator: None takes the one that runs on state_dir, or else the default.
    """
    status = ask_status(coordinator or DEFAULT_ADDRESS) if state_dir is None else ask_status_of(state_dir, coordinator)
    if as_json:
        print(json_of(status))
    else:
        Console().print(table(status))


def json_of(status: StatusReply) -> str:
    """All fields of a status, by their names on the wire. Numbers of 64 bits are strings, as protobuf writes them."""
    return MessageToJson(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
