"""Reading the pickles that CIFAR is published in without running them.

A pickle is a program: its opcodes may name any importable function and call it. This reader uses `pickletools` only
to cut the bytes into opcodes, and interprets the few that plain data and one kind of numpy array need. It imports
nothing, calls nothing that the file names and has no `Unpickler`: a global is a pair of strings here, and only five
such pairs mean anything. Every other opcode, name or call raises `Unexpected`.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.content import Unexpected, expect

_RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
_NDARRAY, _DTYPE, _ENCODE = ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")
_KNOWN = {*_RECONSTRUCT, _NDARRAY, _DTYPE, _ENCODE}
_BYTE = "u1"


@dataclass(frozen=True)
class _Global:
    """A name that the pickle mentions: two strings, never looked up."""

    name: tuple[str, str]


@dataclass
class _Array:
    """An array of bytes; its values come with a BUILD."""

    values: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _ByteType:
    """The dtype uint8, the only one."""


class _Mark:
    """What MARK puts on the stack."""


def read_pickle(content: bytes) -> dict[str, Any]:
    """The dictionary in a pickle: strings to strings, bytes, numbers, lists, tuples or uint8 arrays.

    Guarantees: nothing that the file names is imported or called; keys are strings (bytes are decoded); `Unexpected`
    for anything but such a dictionary. Values are as the file has them: check them before use.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.run(opcode.name, argument)
    except Unexpected:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise Unexpected(f"expected a pickle of plain data, found: {type(problem).__name__}") from None
    found = machine.result
    expect(isinstance(found, dict), "a pickled dictionary", type(found).__name__)
    return {_text(key): value.values if isinstance(value, _Array) else value for key, value in found.items()}


class _Machine:
    """The pickle machine, cut down: a stack and a memo of plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def run(self, name: str, argument: Any) -> None:
        """One opcode."""
        if name in _IGNORED:
            return
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _MADE:
            self.stack.append(_MADE[name]())
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        else:
            raise Unexpected(f"expected a pickle of plain data, found the opcode {name}")

    def marked(self) -> list[Any]:
        """The values above the last mark, which are taken off."""
        values = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def taken(self, count: int) -> tuple[Any, ...]:
        """The last `count` values, which are taken off."""
        values = [self.stack.pop() for _ in range(count)]
        return tuple(reversed(values))


def _stop(machine: _Machine, argument: Any) -> None:  # noqa: ARG001  # every action is called alike
    machine.result = machine.stack.pop()


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else argument] = machine.stack[-1]


def _get(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[argument])


def _global(machine: _Machine, argument: Any) -> None:
    """A name: in one string (GLOBAL), or in the two on the stack (STACK_GLOBAL)."""
    module, name = machine.taken(2) if argument is None else argument.split(" ", 1)
    if (module, name) not in _KNOWN:
        raise Unexpected(f"expected a pickle of plain data, found the name {str(module)[:40]}.{str(name)[:40]}")
    machine.stack.append(_Global((module, name)))


def _append(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    (value,) = machine.taken(1)
    _of(list, machine.stack[-1]).append(value)


def _appends(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    values = machine.marked()
    _of(list, machine.stack[-1]).extend(values)


def _set_item(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    key, value = machine.taken(2)
    _of(dict, machine.stack[-1])[_text(key)] = value


def _set_items(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    values = machine.marked()
    target = _of(dict, machine.stack[-1])
    target.update(zip((_text(key) for key in values[::2]), values[1::2], strict=True))


def _tuple(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    machine.stack.append(tuple(machine.marked()))


def _short_tuple(count: int) -> "Callable[[_Machine, Any], None]":
    def action(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
        machine.stack.append(machine.taken(count))

    return action


def _reduce(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    """A call in the pickle's eyes; here a look-up of the three calls that make an array of bytes."""
    function, arguments = machine.taken(2)
    name, given = _of(_Global, function).name, _of(tuple, arguments)
    if name in _RECONSTRUCT and given[0] == _Global(_NDARRAY):
        machine.stack.append(_Array())
    elif name == _DTYPE and given[0] in (_BYTE, _BYTE.encode()):
        machine.stack.append(_ByteType())
    elif name == _ENCODE and given[1] == "latin1":
        machine.stack.append(_of(str, given[0]).encode("latin-1"))
    else:
        raise Unexpected("expected arrays of bytes, found another object")


def _build(machine: _Machine, argument: Any) -> None:  # noqa: ARG001
    """The state of an array: (version, shape, dtype, in Fortran order, bytes); a dtype's is of no interest."""
    (state,) = machine.taken(1)
    target = machine.stack[-1]
    if isinstance(target, _ByteType):
        return
    _, shape, kind, fortran, raw = _of(tuple, state)
    expect(isinstance(kind, _ByteType), "an array of bytes", "another type")
    values = raw.encode("latin-1") if isinstance(raw, str) else bytes(_of(bytes, raw))
    sides = tuple(_of(int, side) for side in _of(tuple, shape))
    fits = all(side >= 0 for side in sides) and prod(sides) == len(values)
    expect(fits, f"an array {sides}", f"{len(values)} bytes")
    _of(_Array, target).values = np.frombuffer(values, np.uint8).reshape(sides, order="F" if fortran else "C")


def _of(kind: type, value: Any) -> Any:
    """`value`, which must be of exactly this type."""
    if type(value) is not kind:
        raise Unexpected(f"expected a pickle of plain data, found a {type(value).__name__} in the wrong place")
    return value


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(_of(str, key))


_IGNORED = {"PROTO", "FRAME"}
_PUSHED = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"),
}
_MADE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "STOP": _stop,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _get),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _global),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "TUPLE": _tuple,
    **{f"TUPLE{count}": _short_tuple(count) for count in (1, 2, 3)},
    "REDUCE": _reduce,
    "BUILD": _build,
}
