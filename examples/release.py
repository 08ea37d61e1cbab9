"""The smallest part: one private release of a round of a federated system that you already have.

Your system samples clients, trains them, and ends up with `updates` (n, d) and `choices` (n,), the cluster each client
says it belongs to. One call turns them into noisy means that may be published. What else your system must then do is
in docs/own-code.md; `rr.Server` (examples/own_loop.py) does it for you.
"""

import numpy as np

import rrcluster as rr

rng = np.random.default_rng(0)  # for research; use operating-system entropy for anything real

# Four clusters of models with 100 coordinates; 5000 clients, one in ten per round, 50 rounds, epsilon 4 in all.
plan = rr.PrivacyPlan.build(
    coordinates=rr.Coordinates(shared=0, clustered=100),
    num_clusters=4,
    num_clients=5000,
    sample_rate=0.1,
    num_rounds=50,
    epsilon=4.0,
    delta=1e-5,
    update_clip=1.0,
)

cohort = plan.sampler.draw(5000, rng=rng)  # Poisson: the guarantee is for this way of sampling
updates = rng.normal(size=(len(cohort), 100)) * 0.05  # stand-ins for what your clients send
updates[0] = np.nan  # one of them is broken; it counts as absent
choices = rng.choice(4, size=len(cohort), p=[0.5, 0.3, 0.15, 0.05])

out = rr.release(updates, choices, plan=plan, rng=rng, client_ids=cohort)

print(f"epsilon after 50 such rounds: {plan.epsilon():.3f} at delta {plan.delta:g}")
print("noisy sizes:", out.sizes.round(1))
print("noise std of each cluster mean:", out.noise_std.round(4))
assert out.cluster_means.shape == (4, 100)
assert np.isfinite(out.cluster_means).all()
