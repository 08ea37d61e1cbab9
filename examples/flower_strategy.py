"""The add-on inside Flower: a strategy whose aggregation is `rr.Server`. Needs flwr; its clients run in this process.

The strategy passes what clients send (update, choice, destination) to `finish`, and to nothing else.
"""

import numpy as np
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import Server as FlowerServer
from flwr.server.strategy import FedAvg

import rrcluster as rr

M, K, D, ROUNDS = 200, 2, 3, 15
WANTED = np.array([[1.0, 0.0, -1.0], [-1.0, 0.5, 1.0]])  # what the clients of two groups would like to learn


class PrivateClusters(FedAvg):
    """Asks the cohort of `rr.Server` and nobody else; who fails is absent."""

    def configure_fit(self, server_round, parameters, client_manager):  # noqa: ARG002
        clients, rules = client_manager.all(), {"rules": server.guidance.rules.to_json()}
        instructions = FitIns(ndarrays_to_parameters([server.guidance.vectors]), rules)
        return [(clients[str(number)], instructions) for number in server.cohort() if str(number) in clients]

    def aggregate_fit(self, server_round, results, failures):  # noqa: ARG002
        rows = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        updates, choices, destinations = zip(*rows, strict=True) if rows else ([], [], [])
        ids = [int(client.cid) for client, _ in results]
        server.finish(updates, np.ravel(choices), destinations=np.ravel(destinations), client_ids=ids)
        return ndarrays_to_parameters([server.models]), {}


class InProcessClient(ClientProxy):
    """Stands for a client on a device: its data is a point, its loss the squared distance to it."""

    def fit(self, ins, timeout, group_id):  # noqa: ARG002
        rng = np.random.default_rng()
        (vectors,), rules = parameters_to_ndarrays(ins.parameters), rr.ChoiceRules.from_json(ins.config["rules"])
        point = WANTED[int(self.cid) % 2] + 0.3 * rng.normal(size=D)
        choice, moved = rules.choose(((vectors - point) ** 2).sum(axis=1)[None], rng=rng)
        sent = ndarrays_to_parameters([0.5 * (point - vectors[moved[0]]), choice, moved])
        return FitRes(Status(Code.OK, ""), sent, 1, {})

    get_properties = get_parameters = evaluate = reconnect = None  # not asked for here


settings = {"num_clusters": K, "num_clients": M, "sample_rate": 0.5, "num_rounds": ROUNDS, "min_cluster_size": 20}
plan = rr.PrivacyPlan.build(coordinates=rr.Coordinates(0, D), epsilon=8, delta=1e-4, update_clip=1.0, **settings)
first, manager = np.random.default_rng(0).normal(size=(K, D)), SimpleClientManager()
_ = [manager.register(InProcessClient(str(number))) for number in range(M)]
with rr.Server(plan, first, folder="federation", seed=0) as server:
    strategy = PrivateClusters(initial_parameters=ndarrays_to_parameters([first]), fraction_evaluate=0.0)
    FlowerServer(client_manager=manager, strategy=strategy).fit(ROUNDS, timeout=None)
    apart = ((server.models[:, None] - WANTED) ** 2).sum(axis=2)
print(f"epsilon {server.epsilon:.2f}; squared distance of each group to the nearest model: {apart.min(axis=0)}")
assert apart.min(axis=0).max() < 0.2
