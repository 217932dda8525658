"""Flower: each round, nodes train from the server's parameters for some steps, and the server averages the results."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from bench.peers.scripts.trainee import Trainee
from bench.wide_area.loss_module import LossModule

STEPS = 8
"""Steps of a node in a round."""
client = ClientApp()
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    number = int(message.content["config"]["server-round"])
    node = Trainee(str(context.node_config["options"]).split(), batch=(number - 1) * STEPS)
    node.loss.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node.hold(number)
    optimizer = node.adamw()
    schedule = node.warmup(optimizer)
    for _ in range(STEPS):
        node.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        node.done()
    content = {"arrays": ArrayRecord(node.loss.state_dict()), "metrics": MetricRecord({"num-examples": STEPS})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid, ArrayRecord(LossModule().state_dict()), num_rounds=10_000, timeout=60)
