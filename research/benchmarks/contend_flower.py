"""Flower with Ray: one supernode per client, two actors with one core each, its FedAvg; channels last."""

import logging
import os
import sys
import time

import torch
from contenders import BATCH, EPOCHS, MODELS, RATE, load, network, put
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

PATH, ROUNDS = sys.argv[1], 1000
CLIENTS = len(load(PATH)[0])
KEPT = {}  # of one actor's process
client_app = ClientApp()


def kept():
    """This process's module and data, created once."""
    if not KEPT:
        torch.set_num_threads(1)
        inputs, targets, starts = load(PATH)
        module = network().to(memory_format=torch.channels_last)
        KEPT.update(inputs=inputs, targets=targets, starts=starts, module=module)
    return KEPT


@client_app.train()
def train(message: Message, context: Context):
    own, client = kept(), int(context.node_config["partition-id"])
    module = own["module"]
    samples = torch.from_numpy(own["inputs"][client]).contiguous(memory_format=torch.channels_last)
    targets, loss_of = torch.from_numpy(own["targets"][client]), torch.nn.CrossEntropyLoss()
    if message.content["config"]["ifca"]:
        with torch.no_grad():
            for start in own["starts"][:MODELS]:
                put(start, module)
                loss_of(module(samples), targets).item()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(targets)).split(BATCH):
            optimiser.zero_grad(set_to_none=True)
            batch = samples[chosen].contiguous(memory_format=torch.channels_last)
            loss_of(module(batch), targets[chosen]).backward()
            optimiser.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(targets)})}
    return Message(content=RecordDict(content), reply_to=message)


class Driven(FedAvg):
    """FedAvg that waits for a word before each round and prints the round's time."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 1:  # the first round starts the actors and is not measured
            word = "train"
        else:
            print("ready" if server_round == 2 else time.perf_counter() - self.began, flush=True)
            word = sys.stdin.readline().strip()
        if not word:
            os._exit(0)
        config["ifca"] = word == "ifca"
        self.began = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context):  # noqa: ARG001  # Flower passes both
    strategy = Driven(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=ROUNDS)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server_app, client_app, CLIENTS, backend_config={"client_resources": resources})
