"""Clients one after another, on one thread: for networks that cannot be stacked, or are too large for it."""

import copy
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from rrcluster.data.federated import TestSet
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.optimisers import step_seeds
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.engine.recording import Form
from rrcluster.engine.workers.torch_client import TorchClientTrainer
from rrcluster.engine.workers.worker import ClientCall, Steps
from rrcluster.models.client_state import own_generators
from rrcluster.models.model import Model
from rrcluster.types import Array


class InTurnEngine:
    """One module serves every client; its steps are recorded where they draw no random numbers."""

    def __init__(self, model: Model) -> None:
        """It works on a copy of the module: the model's own is never changed."""
        self.model = model

    @cached_property
    def _trainer(self) -> TorchClientTrainer:
        model = self.model
        trial = None if model.draws else model.trial
        return TorchClientTrainer(copy.deepcopy(model.module), model.task, model.samples_at_once, trial=trial)

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        with own_generators():
            return [self._train(call) for call in calls]

    @property
    def forms(self) -> list[Form]:
        """Of the steps that had no program, the most frequent first."""
        recorder = self._trainer.recorder
        return [] if recorder is None else [form for form, _ in recorder.seen.most_common()]

    def record(self, forms: Iterable[Form]) -> None:
        """Record steps of these forms; only in a process that has seen no client."""
        self._trainer.record(forms)

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question) for question in questions]

    def _train(self, call: TrainingCall) -> Array:
        cohort, steps, models = call.cohort, Steps.of(call.local), np.asarray(call.models, dtype=np.float32)
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=steps.epochs)
        count = steps.epochs * -(-orders.shape[2] // steps.batch_size)
        seeds = step_seeds(call.key, cohort.clients, count)
        result = np.empty((len(cohort.sizes), models.shape[1]), dtype=np.float32)
        for row, size in enumerate(cohort.sizes.tolist()):
            start = models[call.model_of[row]]
            anchor = start if call.anchor is None else np.asarray(call.anchor[row], dtype=np.float32)
            client = ClientCall(
                start,
                cohort.inputs[row, :size],
                cohort.targets[row, :size],
                orders[row, :, :size],
                steps,
                anchor,
                call.trainable,
                seeds[row],
            )
            trained = self._trainer.train(client) if size else start
            np.subtract(trained, 0 if call.whole_models else start, out=result[row])
        return result

    def _measure(self, question: Question) -> Measured:
        samples = question.samples
        measure = self._trainer.evaluator(np.asarray(question.models, dtype=np.float32))
        if isinstance(samples, TestSet):
            sums = measure(samples.inputs, samples.targets)[None]
            return Measured.of_sums(sums, np.array([len(samples.targets)]))
        sums = np.zeros((len(samples.sizes), len(question.models), 2))
        for row, size in enumerate(samples.sizes.tolist()):
            if size:
                sums[row] = measure(samples.inputs[row, :size], samples.targets[row, :size])
        return Measured.of_sums(sums, samples.sizes)
