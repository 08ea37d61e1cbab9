"""Records what a function of tensors computes: a program of the same operations, without the code around them.

A program holds nothing of any client, and whether there is one depends on no client:

- It is recorded on fake tensors, which have shapes and no values, so whatever would need a value (`labels.numpy()`,
  `.item()`, a branch on data) raises, and then nothing is recorded.
- A user's network or loss may keep what it computed (a buffer, a mask), and read it while it is recorded. So it is
  called on made-up samples before: what it keeps is then of those.
- The program has to give the bits of the function on other made-up samples; where it does not, it is not used.
"""

import operator
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

Arguments = Sequence[Tensor]
Program = Callable[..., Sequence[Tensor]]
_NUMBERS_WORTH_REUSING = 2**14  # of a tensor: a smaller one stays in the fastest cache anyway
_SECONDS_BEFORE = 2.0  # on calls of one form: recording the first program takes about one
_MOST_RECORDED = 32
_COMPARED = 3  # draws of made-up arguments


class RecordedFunction:
    """A function of tensors that is recorded, once calls of some form have taken seconds.

    A form is the shapes, strides and types of the arguments. Programs give the same bits as the function, so that it
    does not matter when they are recorded.
    """

    def __init__(
        self,
        function: Program,
        make_copy: Callable[[], Program],
        make_up: Callable[[Arguments, torch.Generator], Arguments],
        *,
        alike: int = 0,
    ) -> None:
        """`make_copy` makes the function that is recorded, from copies of what it keeps; `make_up` draws arguments of
        the form of others, and reads none of their values. The first `alike` arguments have one form always.
        """
        self._function, self._make_copy, self._make_up, self._alike = function, make_copy, make_up, alike
        self._spent: defaultdict[Hashable, float] = defaultdict(float)  # seconds on calls of each form
        self.programs: dict[Hashable, Program | None] = {}  # None: it cannot be recorded

    def __call__(self, *arguments: Tensor) -> Sequence[Tensor]:
        """As the function."""
        form = tuple((value.shape, value.stride(), value.dtype) for value in arguments[self._alike :])
        program = self.programs.get(form)
        if program is not None:
            with torch.no_grad():
                return program(*arguments)
        began = time.perf_counter()
        results = self._function(*arguments)
        self._spent[form] += time.perf_counter() - began
        if self._spent[form] > _SECONDS_BEFORE and form not in self.programs and len(self.programs) < _MOST_RECORDED:
            self.programs[form] = self._recorded(arguments)
        return results

    def _recorded(self, arguments: Arguments) -> Program | None:
        generator = torch.Generator().manual_seed(0)
        try:
            function = self._make_copy()
            draws = [self._make_up(arguments, generator) for _ in range(_COMPARED)]
        except Exception:  # whatever a network may raise
            return None
        return recorded(function, draws)


def recorded(function: Program, draws: Sequence[Arguments]) -> Program | None:
    """The operations of `function` on arguments of the form of these, at least two draws of made-up ones.

    None where they cannot be recorded, do not give the bits of the function on all draws, or have nothing to compare:
    results that are not finite, or all zero. The program changes an argument only where the function does.
    """
    from torch._functorch import config  # these take a second, and most runs need none of them
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        function(*_copies(draws[0]))
        with (
            config.patch(fake_tensor_allow_unsafe_data_ptr_access=False),  # an address of 0, else
            FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True) as fake,
        ):
            try:
                program = make_fx(function)(*(fake.from_tensor(value) for value in draws[0]))
            finally:
                fake.allow_non_fake_inputs = False  # a fake tensor that was kept raises from here on
        _drop_aliases(program.graph)
        _reuse_memory(program.graph)
        program.graph.set_codegen(torch.fx.graph.CodeGen())  # plain tuples in and out
        program.recompile()
        same = all(_agree(program, function, arguments) for arguments in reversed(draws))
    except Exception:  # whatever a network or its recording may raise
        for arguments in draws:
            with suppress(Exception):
                function(*_copies(arguments))  # so that it keeps no fake tensor
        return None
    return program if same else None


def _agree(program: Program, function: Program, arguments: Arguments) -> bool:
    """Whether both give the same bits, some of them, and leave the same in their arguments."""
    ours, theirs = _copies(arguments), _copies(arguments)
    with torch.no_grad():
        found = program(*ours)
    expected = function(*theirs)
    telling = all(value.isfinite().all() for value in expected) and any(value.any() for value in expected)
    pairs = [*zip(found, expected, strict=True), *zip(ours, theirs, strict=True)]
    return telling and all(type(one) is Tensor and _bits(one) == _bits(other) for one, other in pairs)


def _bits(value: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    flat = value.detach().contiguous().reshape(-1)
    return value.dtype, value.shape, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _copies(arguments: Arguments) -> list[Tensor]:
    return [in_form_of(value, value) for value in arguments]


def in_form_of(other: Tensor, value: Tensor) -> Tensor:
    """The value with the shape, strides and type of another tensor."""
    return torch.empty_strided(other.shape, other.stride(), dtype=other.dtype).copy_(value)


def made_up_parameters(given: Tensor, generator: torch.Generator) -> Tensor:
    """Around given weights."""
    noise = torch.randn(2, *given.shape, generator=generator)
    return given * (1 + 0.2 * noise[0]) + 0.05 * noise[1]


def _drop_aliases(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()


def _reuse_memory(graph: torch.fx.Graph) -> None:
    """Write results over an operand that nothing reads afterwards: less memory stays in a core's cache."""
    nodes = list(graph.nodes)
    order = {node: place for place, node in enumerate(nodes)}
    owner: dict[Any, Any] = {}  # the node that made the memory a node's result lies in
    for node in nodes:
        source = _aliased(node)
        owner[node] = node if source is None else owner[source]
    last_read: dict[Any, int] = {}
    for node in nodes:
        last_read[owner[node]] = max([last_read.get(owner[node], -1), *(order[user] for user in node.users)])
    for node in nodes:
        operand = node.args[0] if node.args else None
        if not _may_overwrite(node, operand):
            continue
        memory = owner[operand]
        shares = [value for value in node.all_input_nodes if value is not operand and owner[value] is memory]
        if memory.op != "call_function" or last_read[memory] > order[node] or shares:
            continue
        if node.target is torch.ops.aten.threshold_backward.default:
            node.target, node.kwargs = torch.ops.aten.threshold_backward.grad_input, {"grad_input": operand}
        else:
            node.target = _in_place(node.target)
        last_read[memory] = last_read[node]
        owner |= {value: memory for value, of in owner.items() if of is node}


def _aliased(node: Any) -> Any:
    """The operand whose memory the result lies in: of a view, or of an operation in place; else None."""
    if node.target is operator.getitem:  # an item of several results
        return node.args[0] if _names_memory(node.args[0].target) else None
    if not isinstance(node.target, torch._ops.OpOverload) or not _names_memory(node.target):
        return None
    named = [argument.alias_info is not None for argument in node.target._schema.arguments]
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return next((given[name] for name, shared in zip(names, named, strict=True) if shared), node.args[0])


def _names_memory(target: Any) -> bool:
    """Whether an operation's results may lie in the memory of an operand; where it does not say, they may."""
    if not isinstance(target, torch._ops.OpOverload) or "unsafe" in target._schema.name:  # views that do not say so
        return True
    return any(returned.alias_info is not None for returned in target._schema.returns)


def _may_overwrite(node: Any, operand: Any) -> bool:
    """Whether the result has the form of its first operand, and the operation a variant that writes it there."""
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(operand, torch.fx.Node):
        return False
    if torch.Tag.pointwise not in node.target.tags or _aliased(node) is not None:
        return False  # an operation on more than single numbers may read an operand after it has written
    if node.target is not torch.ops.aten.threshold_backward.default and _in_place(node.target) is None:
        return False
    old, new = operand.meta.get("val"), node.meta.get("val")
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or new.numel() < _NUMBERS_WORTH_REUSING:
        return False
    return (old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype) and 0 not in old.stride()


def _in_place(target: Any) -> Any:
    """`aten.relu_.default` for `aten.relu.default`; None where there is no such variant."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    packet = getattr(torch.ops.aten, f"{target._schema.name.removeprefix('aten::')}_", None)
    return getattr(packet, target._overloadname, None)
