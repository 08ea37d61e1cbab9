"""Records what a function of tensors computes: a program of the same operations, without the code around them.

A program holds nothing of any client. Only networks that can be stacked are recorded, whose tensors have no values to
take out of torch while they train (vmap), with a loss that is ours or torch's own (models/probe.py): neither can keep
anything of a call. And a process records before it has seen a client (spread.py), on fake tensors, which have shapes
and no values; a program has to give the bits of the function on made-up samples.
"""

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Arguments = Sequence[Tensor]
TensorForm = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # shape, strides and type
Form = tuple[TensorForm, ...]  # of all arguments
Program = Callable[..., Sequence[Tensor]]
_NUMBERS_WORTH_REUSING = 2**14  # of a tensor: a smaller one stays in the fastest cache anyway
_COMPARED = 64  # made-up samples, and three draws of them at least


class RecordedFunction:
    """A function of tensors, replaced by a program for arguments of the forms that were recorded.

    Programs give the same bits as the function, so that it does not matter which of the two is used.
    """

    def __init__(self, function: Program, make_copy: Callable[[], Program]) -> None:
        """`make_copy` makes the function that is recorded, from copies of what it keeps."""
        self._function, self._make_copy = function, make_copy
        self.programs: dict[Form, Program | None] = {}  # None: it cannot be recorded
        self.seen: Counter[Form] = Counter()  # calls without a program

    def __call__(self, *arguments: Tensor) -> Sequence[Tensor]:
        """As the function."""
        form = tuple((tuple(value.shape), value.stride(), value.dtype) for value in arguments)
        program = self.programs.get(form)
        if program is not None:
            with torch.no_grad():
                return program(*arguments)
        self.seen[form] += 1
        return self._function(*arguments)

    def record(self, form: Form, make_up: Callable[[Form, torch.Generator], Arguments], samples: int) -> None:
        """Record a program; only in a process that has seen no client.

        `make_up` draws arguments of a form, with so many samples. Afterwards the function has to work as before;
        whatever it raises is raised here.
        """
        generator = torch.Generator().manual_seed(0)
        draws = [make_up(form, generator) for _ in range(3 + _COMPARED // max(samples, 1))]
        try:
            self.programs[form] = recorded(self._make_copy(), self._function, draws)
        except Exception:  # whatever a network may raise
            self.programs[form] = None
        for arguments in draws:
            self._function(*_copies(arguments))


def recorded(function: Program, reference: Program, draws: Sequence[Arguments]) -> Program | None:
    """The operations of `function` on arguments of the form of these: two draws or more of made-up ones.

    None where they do not give the bits of `reference` on all draws, or have nothing to compare: results that are not
    finite, or all zero. Raises what recording raises. The program changes an argument only where `reference` does.
    """
    from torch._functorch import config  # these take a second, and most runs need none of them
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

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
    return program if all(_agree(program, reference, arguments) for arguments in reversed(draws)) else None


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
    return [in_form((tuple(value.shape), value.stride(), value.dtype), value) for value in arguments]


def in_form(form: TensorForm, value: Tensor) -> Tensor:
    """The value with this shape, strides and type."""
    shape, strides, dtype = form
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(value)


def resized(form: Form, clients: int) -> Form:
    """The same for another number of clients, which all arguments have along their first axis."""
    return tuple(_dense((clients, *shape[1:]), strides, dtype) for shape, strides, dtype in form)


def _dense(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> TensorForm:
    """Without gaps, its axes in memory in the order of these strides."""
    new, step = list(strides), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis)):
        new[axis], step = step, step * shape[axis]
    return shape, tuple(new), dtype


def made_up_parameters(given: Tensor, generator: torch.Generator) -> Tensor:
    """Around given weights."""
    noise = torch.randn(2, *given.shape, generator=generator)
    return given * (1 + 0.2 * noise[0]) + 0.05 * noise[1]


def _drop_aliases(graph: torch.fx.Graph) -> None:
    """Remove operations that return their operand."""
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
    unclear = {owner[value] for node in nodes if _is_unclear(node) for value in (node, *node.all_input_nodes)}
    last_read: dict[Any, int] = {}
    for node in nodes:
        last_read[owner[node]] = max([last_read.get(owner[node], -1), *(order[user] for user in node.users)])
    for node in nodes:
        operand = node.args[0] if node.args else None
        if not _may_overwrite(node, operand):
            continue
        memory = owner[operand]
        shares = [value for value in node.all_input_nodes if value is not operand and owner[value] is memory]
        if memory.op != "call_function" or memory in unclear or last_read[memory] > order[node] or shares:
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
    arguments = node.target._schema.arguments
    given = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | node.kwargs
    return next((given[argument.name] for argument in arguments if argument.alias_info is not None), node.args[0])


def _is_unclear(node: Any) -> bool:
    """Whether results may lie in the memory of several operands, or it is an operation that may not say where."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "call_function" and node.target is not operator.getitem
    named = sum(argument.alias_info is not None for argument in node.target._schema.arguments)
    return named > 1 or node.target.namespace != "aten"


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
