"""Records what a function of tensors computes: a program of the same operations, without the code around them.

A program holds nothing of any client. It is recorded on fake tensors, which have shapes and no values, so whatever
would need a value (`labels.numpy()`, `.item()`, a branch on data) raises, and then nothing is recorded. Its constants
are Python numbers and the tensors that were there before, such as the frozen weights of a network.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Program = Callable[..., Sequence[Tensor]]
_NUMBERS_WORTH_REUSING = 2**14  # of a tensor: a smaller one stays in the fastest cache anyway


def recorded(function: Program, arguments: Sequence[Tensor], expected: Sequence[Tensor]) -> Program | None:
    """The operations of `function(*arguments)`; None where they cannot be recorded, or do not give `expected`, bit for
    bit. The program fits arguments of these shapes and strides, and changes none of them.
    """
    from torch._functorch import config  # these take a second, and most runs need none of them
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with (
            config.patch(fake_tensor_allow_unsafe_data_ptr_access=False),  # an address of 0, else
            FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True) as fake,
        ):
            program = make_fx(function)(*(fake.from_tensor(value) for value in arguments))
        _drop_aliases(program.graph)
        _reuse_memory(program.graph)
        program.graph.set_codegen(torch.fx.graph.CodeGen())  # plain tuples in and out
        program.recompile()
        with torch.no_grad():
            pairs = zip(program(*arguments), expected, strict=True)
            same = all(torch.allclose(*pair, rtol=0.0, atol=0.0, equal_nan=True) for pair in pairs)
    except Exception:  # whatever a network or its recording may raise
        return None
    return program if same else None


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
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if node.target is torch.ops.aten._unsafe_view.default:  # a view that does not say so
        return node.args[0]
    if not _names_memory(node.target):
        return None
    named = zip(node.target._schema.arguments, node.args, strict=False)
    return next(value for argument, value in named if argument.alias_info is not None)


def _names_memory(target: Any) -> bool:
    """Whether an operation's results may lie in the memory of an operand; where it does not say, they may."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return any(returned.alias_info is not None for returned in target._schema.returns)


def _may_overwrite(node: Any, operand: Any) -> bool:
    """Whether the result has the form of its first operand, and the operation a variant that writes it there."""
    if not isinstance(operand, torch.fx.Node) or _aliased(node) is not None:
        return False
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
