"""How many rounds does a survey of a CNN need? First updates are computed once, and surveys of them drawn many times.

    survey_length.py [--data emnist|fashion] [--seeds 0 1 2 3 4] [--rounds 18 24 27] [--draws 30]

The clients, network and noise of `frontier.py cnn` at epsilon 2; `emnist` has ten classes that are easily confused, in
four rotations. Groups are found where each has a cluster of its own with 95% of the clients in it. Only the noise
differs between draws; in a run the order of a client's batches differs from round to round, too.
"""

import argparse

import numpy as np
from frontier import DEFAULT, cnn_settings, on_confused
from scipy.optimize import linear_sum_assignment

from rrcluster.engine import protocol as calls
from rrcluster.runs.experiment import build_experiment
from rrcluster.server.survey import WIDTH, Survey, place_of, sketch

ARM, EPSILON = "edges-cnn, clip x 0.7, 1.5 of the rounds", 2.0
FOUND = 0.95  # of the clients in the cluster of their own group


def first_updates(data, seed):
    """The experiment, and the updates of all clients from its first model."""
    settings = cnn_settings(ARM, EPSILON) | DEFAULT | {"init": "survey", "seed": seed}
    experiment = build_experiment(**settings, **(on_confused() if data == "emnist" else {"data": "fashion-mnist"}))
    everybody = np.arange(experiment.data.num_clients)
    start, same = experiment.model.init(rng=experiment.streams("init")), np.zeros_like(everybody)
    cohort, key = experiment.data.cohort(everybody), experiment.streams.client_key("batches", 0)
    return experiment, calls.changes(experiment.engine, start[None], same, cohort, local=experiment.local, key=key)


def in_own_cluster(sketches, groups, *, plan, rounds, rng):
    """The share of clients in the cluster of their own group after one survey; a sketch is its own sketch."""
    width, k = plan.mechanism.coordinates.clustered, plan.mechanism.num_clusters
    survey, noise = Survey.begin(np.zeros(width), k), plan.mechanism.noise_std / plan.mechanism.update_clip
    for round_index in range(rounds):
        place = place_of(round_index, rounds)
        choices, answers = survey.question(place.stage, 1.0).answer(sketches)
        if answers is None:
            break
        total = np.zeros(width)
        total[: answers.shape[1]] = answers.sum(axis=0) + noise * rng.normal(size=answers.shape[1])
        survey = survey.updated(place, total, noise=noise, num_clusters=k)
        if not survey.num_groups and place.stage == "centres" and place.last:
            return 0.0
    shared = np.array([np.bincount(choices[groups == group], minlength=k) for group in np.unique(groups)])
    return shared[linear_sum_assignment(-shared)].sum() / len(groups)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["emnist", "fashion"], default="emnist")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, nargs="+", default=[18, 24, 27])
    parser.add_argument("--draws", type=int, default=30)
    given = parser.parse_args()
    for seed in given.seeds:
        experiment, updates = first_updates(given.data, seed)
        sketches = sketch(updates, WIDTH)
        for rounds in given.rounds:
            rng = np.random.default_rng([seed, rounds])
            settings = {"plan": experiment.plan, "rounds": rounds, "rng": rng}
            shares = [in_own_cluster(sketches, experiment.data.groups, **settings) for _ in range(given.draws)]
            found = sum(share >= FOUND for share in shares)
            print(f"seed {seed}, {rounds} rounds: groups found in {found} of {given.draws} surveys", flush=True)


if __name__ == "__main__":
    main()
