"""The joint mechanism with public slots: a client takes part once in b rounds, and noise is correlated over rounds."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rrcluster.errors import PrivacyError
from rrcluster.privacy.discrete import grid_sigma
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.mechanism import Description
from rrcluster.privacy.reports import MessageSum, NoisySum, Reports, only_from_slot
from rrcluster.privacy.sampling import PoissonSampler
from rrcluster.privacy.slots import FINER, INDEPENDENT, ONE_SLOT, Correlation, PastNoise, Slots, after
from rrcluster.privacy.sums import grid_noise
from rrcluster.rng import Rng
from rrcluster.types import Array, Release


@dataclass(frozen=True)
class SlottedMechanism(JointMechanism):
    """Messages and releases are those of the joint mechanism; the noise of a round builds on that of earlier ones.

    Guarantee (add-remove): T rounds are dominated by ceil(T
    b) Gaussians of multiplier `noise_multiplier`, one for each block of b rounds that contains a client's message
    (Theorem 5 of docs/privacy.md). A report from outside of the round's slot is the zero message. A round cannot be
    released by itself: PrivacyError.
    """

    slots: Slots = field(default=ONE_SLOT)  # type: ignore[misc]  # who may take part when: a constant in joint
    correlation: Correlation = INDEPENDENT  # of the noise over rounds

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sampler  # refuses another sample rate than 1
        self._check_sums_fit(self.num_clients, as_float=self._finer > 1)
        self.slots.check_filled(self.num_clients)
        self.correlation.check_applies(slots=self.slots.count, width=self.message_width)

    def check_fits(self) -> None:
        """Refuse exact noise that overflows 64 bits; checked for a plan, not during calibration."""
        if self._finer > 1:
            self.correlation.check_fits(grid_sigma(self.fresh_noise_std, self.step / FINER))

    @cached_property
    def sampler(self) -> PoissonSampler:
        """Everybody of the round's slot."""
        return PoissonSampler(self.sample_rate, self.num_clients, secure=self.exact_noise, slots=self.slots)

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate in the last round, which has most."""
        return super().noise_std * self.correlation.spread

    @property
    def fresh_noise_std(self) -> float:
        """Std of the independent noise that is drawn in a round."""
        return super().noise_std * self.correlation.lengthening

    def sum_messages(self, reports: Reports, *, round_index: int | None = None) -> Array:
        """As in joint, for clients of the round's slot only; PrivacyError without a round."""
        if round_index is None:
            raise self._needs_its_round()
        return super().sum_messages(only_from_slot(reports, self.slots, round_index))

    def release_total(self, exact: MessageSum, *, rng: Rng) -> Release:  # noqa: ARG002
        """Raise PrivacyError: the mechanism needs the noise of earlier rounds (`noisy_sum`)."""
        raise self._needs_its_round()

    def _needs_its_round(self) -> PrivacyError:
        return PrivacyError(
            f"a round of a plan with {self.slots.count} slots cannot be released by itself: it needs the round's "
            "number and the noise of the rounds before. Let rrcluster run the rounds, or use participation = poisson "
            "or everybody."
        )

    def first_past(self) -> PastNoise:
        """The past noise before the first round."""
        return self.correlation.first_past(self.message_width, exact=self.exact_noise)

    def check_past(self, past: PastNoise | None, round_index: int) -> PastNoise:
        """The noise that a round builds on; PrivacyError where it is lost, or from another round."""
        return self.correlation.check_past(past, round_index, width=self.message_width, exact=self.exact_noise)

    def noisy_sum(self, exact: MessageSum, past: PastNoise, *, rng: Rng) -> tuple[NoisySum, PastNoise]:
        """(noisy sum of round `past.round_index`, the past noise for the next): the only look at the exact sum."""
        step = self.step / self._finer
        fresh = grid_noise(
            self.message_width, noise_std=self.fresh_noise_std, step=step, exact=self.exact_noise, rng=rng
        )
        noise = self.correlation.next_noise(fresh, past)
        total = np.asarray(exact.total) + (noise / self._finer if self._finer > 1 else noise)  # exact, and a new array
        return NoisySum(total), after(past, noise)

    def describe(self) -> Description:
        """As in joint, with the correlation."""
        described = super().describe()
        return Description(described.released, described.noise, described.noise_per_part, self.correlation.describe())

    @property
    def _finer(self) -> int:
        """Steps of the noise's grid in one step of the messages' grid."""
        return FINER if self.exact_noise and len(self.correlation.parts) > 1 else 1
