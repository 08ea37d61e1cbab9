"""`rrcluster run --dry-run`: a run's cost in privacy, time and memory, without making it."""

import resource
import sys
import time
from typing import Any

import numpy as np

from rrcluster.cli.terminal import print_json, say
from rrcluster.mixed.questionnaire import Questionnaire
from rrcluster.mixed.questions import Form
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import describe_participation
from rrcluster.report.values import field_text
from rrcluster.runs.advise import noise_warnings, outlook
from rrcluster.runs.config import RunConfig
from rrcluster.runs.experiment import Experiment, make_experiment
from rrcluster.runs.run import MakeExperiment
from rrcluster.server.survey import make_schedule
from rrcluster.simulation.clients import ClientMemory


def show(config: RunConfig, *, as_json: bool, make: MakeExperiment = make_experiment) -> int:
    """Print the estimate."""
    answer = estimate(config, make=make)
    if as_json:
        print_json(answer)
        return 0
    width = max(map(len, answer))
    for name, value in answer.items():
        if name == "warnings":
            continue
        text = field_text(name, value) if isinstance(value, float) else str(value)
        sys.stdout.write(f"{name.replace('_', ' ').ljust(width)}  {text}\n")
    for warning in answer["warnings"]:
        say(warning)
    return 0


def estimate(config: RunConfig, *, make: MakeExperiment = make_experiment) -> dict[str, Any]:
    """Privacy by the plan; time and memory measured on one cohort's local training, whose result is discarded."""
    experiment = make(config)
    plan = experiment.plan
    seconds = _one_round(experiment)
    seeds = max(1, len(config.output.seeds))
    clip, last = config.privacy.update_clip, config.server.average_last
    learns = plan.private and experiment.method.form(experiment.model) is None
    seen = outlook(plan, update_clip=clip, average_last=last) if learns else None
    return {
        "run": config.label,
        "mechanism": plan.mechanism.name,
        "epsilon": plan.epsilon() if plan.private else None,
        "delta": plan.delta if plan.private else None,
        "accountant": plan.accountant if plan.private else None,
        "adjacency": plan.event.adjacency if plan.private else None,
        "sampling": plan.event.sampling if plan.private else None,
        **(_participation(plan) if plan.private else {}),
        "noise_multiplier": plan.noise_multiplier,
        "secure": plan.secure,
        "reserve_rounds": plan.reserve_rounds,
        "sum_noise_std": plan.mechanism.noise_std,
        "parameters": experiment.model.num_parameters,
        "init": experiment.server.init,
        "init_rounds": make_schedule(experiment.server, num_rounds=plan.num_rounds).survey_rounds,
        "expected_cohort": plan.sampler.expected_size,
        "signal_to_noise_per_round": None if seen is None else min(seen.per_round),
        "signal_to_noise_over_run": None if seen is None else min(seen.over_run),
        "seconds_per_round": round(seconds, 3),
        "expected_minutes": round(seconds * plan.num_rounds * seeds / 60, 2),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "warnings": list(noise_warnings(experiment)),
    }


def _participation(plan: PrivacyPlan) -> dict[str, Any]:
    """Participation, who may see it, and the gain of correlated noise."""
    described = describe_participation(plan)
    gain = described.get("noise_of_models_handed_out")
    relative = {} if gain is None else {"model_noise_against_independent": gain["chosen"] / gain["independent"]}
    return {
        "participation": described["name"],
        "slots": plan.mechanism.slots.count,
        "most_participations": described["most_participations"],
        "epsilon_cohorts_seen": described["towards"][1]["epsilon"],
        "kept_secret": described["secret"],
        **relative,
    }


def _one_round(experiment: Experiment) -> float:
    """Seconds for one cohort of the expected size, the second of two."""
    if (form := experiment.method.form(experiment.model)) is not None:
        return _one_question(experiment, form)
    clients = np.arange(_cohort_size(experiment))
    models = experiment.method.init(
        experiment.model, num_clusters=experiment.plan.mechanism.num_clusters, rng=experiment.streams("init")
    )
    tools, memory = experiment.hosts.host.side.tools, ClientMemory(experiment.method.memory_width(experiment.model))
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        cohort = memory.recall(experiment.data.cohort(clients))
        choices = experiment.method.scores(models, cohort, tools=tools).argmin(axis=1)
        experiment.method.local(models, cohort, choices, tools=tools)
    return time.perf_counter() - began


def _cohort_size(experiment: Experiment) -> int:
    return min(max(1, round(experiment.plan.sampler.expected_size)), experiment.data.num_clients)


def _one_question(experiment: Experiment, form: Form) -> float:
    """Seconds for the answers of one cohort in the second training, at facts made of zeros."""
    size = _cohort_size(experiment)
    first = experiment.first_state
    state, nothing = Questionnaire.of(form, {} if first is None else first.learnt), np.zeros(form.width)
    for t in range(form.ends[-3]):
        state = state.updated(t, nothing, size, noise=0.0, count_noise=0.0, expected=size)
    began = time.perf_counter()
    state.question(form.ends[-3]).answers(experiment.data.cohort(np.arange(size)), alone=experiment.plan.secure)
    return time.perf_counter() - began
