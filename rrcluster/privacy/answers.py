"""What accountants have answered, by question: kept for this process, and handed over to others that ask the same."""

from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple

Question = TypeVarTuple("Question")
Answer = TypeVar("Answer")
Answers = Mapping[str, Mapping[tuple[Hashable, ...], Any]]  # function -> its arguments -> its value

_MOST = 4096  # answers of a function
_KNOWN: dict[str, dict[tuple[Hashable, ...], Any]] = {}


def answered_once(function: Callable[[*Question], Answer]) -> Callable[[*Question], Answer]:
    """A function of hashable arguments alone that computes each of its values once; errors are raised again."""
    known = _KNOWN.setdefault(f"{function.__module__}.{function.__qualname__}", {})

    @wraps(function)
    def ask(*question: *Question) -> Answer:
        if question in known:
            answer: Answer = known[question]
            return answer
        answer = function(*question)
        if len(known) >= _MOST:
            known.clear()
        known[question] = answer
        return answer

    return ask


def known_answers() -> Answers:
    """All that this process has computed, or was given."""
    return {function: dict(known) for function, known in _KNOWN.items()}


def add_answers(answers: Answers) -> None:
    """Take over what another process of this program has computed."""
    for function, known in answers.items():
        _KNOWN.setdefault(function, {}).update(known)
