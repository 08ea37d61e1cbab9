"""Noise of a seeded round, drawn by a thread from the round's beginning on: it depends on no report.

The numbers are those of the run's own streams, in the same order. A device computes the clients meanwhile, and the main
thread launches its work; numpy draws normal numbers without holding Python's lock.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

from rrcluster.entropy import StreamSource
from rrcluster.rng import Rng
from rrcluster.types import Array


class EarlyNoise:
    """The streams of a run. That of a round's release begins to be drawn when it is asked for.

    How many normal numbers a round draws is known from the round before: the first round draws when it needs them.
    """

    def __init__(self, streams: StreamSource) -> None:
        """Nothing is drawn yet."""
        self._streams, self._pool = streams, ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._key: tuple[int, ...] | None = None
        self._rng: _EarlyRng | None = None

    def __call__(self, name: str, *key: int) -> Rng:
        """The stream called `name` at position `key`."""
        if name != "release":
            return self._streams(name, *key)
        if self._rng is None or key != self._key or self._rng.used:
            count = None if self._rng is None else self._rng.first
            self._key, self._rng = key, _EarlyRng(lambda: self._streams(name, *key), count, self._pool)
        return cast(Rng, self._rng)

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:
        """The key under which every client of this round draws for the purpose `name`."""
        return self._streams.client_key(name, round_index)


class _EarlyRng:
    """A generator whose first draw, of `count` normal numbers, is made ahead; any other first draw starts anew."""

    def __init__(self, make: Callable[[], Rng], count: int | None, pool: ThreadPoolExecutor) -> None:
        self._make, self._count, self.first = make, count, count
        self._rng: Rng | None = None
        self._ahead: Future[tuple[Rng, Array]] | None = None if count is None else pool.submit(self._draw, count)

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        return self._rng is not None

    def standard_normal(self, size: Any = None) -> Any:
        """As of the generator itself."""
        if self._rng is None and self._ahead is not None and size == self._count:
            self._rng, values = self._ahead.result()
            return values
        if self._rng is None and isinstance(size, int):
            self.first = size
        return self._generator.standard_normal(size)

    def __getattr__(self, name: str) -> Any:
        """Every other method, from where the generator stands."""
        return getattr(self._generator, name)

    @property
    def _generator(self) -> Rng:
        if self._rng is None:
            self._rng = self._make()
        return self._rng

    def _draw(self, count: int) -> tuple[Rng, Array]:
        rng = self._make()
        return rng, rng.standard_normal(count)
