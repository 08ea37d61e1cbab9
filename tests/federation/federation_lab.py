"""Small federations for the tests: an agreement, a daemon per member on its part of a dataset, and rounds over them."""

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.federation.agreed_run import AgreedRun, close, samples_of
from rrcluster.federation.agreement import Agreement, Member
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.deployment import Deployment
from rrcluster.federation.secagg.secure_client import SecureClient
from rrcluster.privacy.ledger import Ledger
from rrcluster.runs.experiment import build_experiment
from rrcluster.simulation.simulate import Checkpoint

ROUNDS, COUNTS = 3, (20, 25, 15)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 10)]
SETTINGS = {
    "data": "fashion-mini",
    "samples_per_client": 8,
    "num_clusters": 2,
    "num_rounds": ROUNDS,
    "noise_multiplier": 1.0,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "delta": 1e-3,
}
SECURE = {"secure": True, "participation": "everybody", "num_rounds": 2}


def experiment_of(**changes):
    """The same in the simulator."""
    return build_experiment(**{**SETTINGS, "num_clients": sum(COUNTS), "engine": "reference", **changes})


def members(counts=COUNTS):
    return tuple(
        Member(f"member-{place}", KEYS[place].public_key().public_bytes_raw(), count)
        for place, count in enumerate(counts)
    )


def agree(counts=COUNTS, *, mode="plain", least_honest=2, most_colluders=0, **changes):
    """An agreement whose guarantee is stated."""
    settings = {**SETTINGS, **(SECURE if mode == "secure" else {}), **changes}
    honest = {"least_honest": least_honest, "most_colluders": most_colluders} if mode == "secure" else {}
    samples = samples_of(build_experiment(data="fashion-mini", num_clients=4, num_rounds=1, epsilon=None,
                                          noise_multiplier=1.0, delta=0.1, num_clusters=1).config)  # fmt: skip
    return close(Agreement("lab", settings, samples, members(counts), mode, **honest))


def hosted(data, first, count):
    """The clients of one member as a population of its own."""

    class Part:
        def client(self, client):
            return data.store.client(first + client)

    rows = slice(first, first + count)
    return replace(data, sizes=data.sizes[rows], groups=data.groups[rows], test_of=data.test_of[rows], store=Part())


def daemons_of(agreement, data, folder, *, engine="reference"):
    agreed = AgreedRun.build(agreement, engine=engine)
    return agreed, {
        place: Daemon(
            place,
            agreed,
            KEYS[place],
            hosted(data, agreement.first_client(place), member.num_clients),
            ClientLedger(folder / f"{member.name}.jsonl"),
            agreed.first_memory(),
        )
        for place, member in enumerate(agreement.members)
    }


def deployed_rounds(agreed, transport, *, next_attempt=None, ledger=None, state=None, patience=0.0):
    """The server's rounds over a transport, without a run folder."""
    plan = agreed.plan
    numbers = iter(range(10**6))
    deployment = Deployment(agreed, transport, next_attempt or (lambda: next(numbers)), patience)
    ledger = ledger or Ledger(secure=plan.secure, limit=plan.num_releases, stored=plan.stores_rounds)
    experiment = deployment.experiment()
    return experiment.rounds(checkpoint=Checkpoint(state), ledger=ledger)


def deal_falsely(monkeypatch, place):
    """This member deals shares of another seed than it has committed to."""
    share = SecureClient.share

    def false_share(self, keys):
        if self.place == place:
            self._seed = bytes(32)
        return share(self, keys)

    monkeypatch.setattr(SecureClient, "share", false_share)
