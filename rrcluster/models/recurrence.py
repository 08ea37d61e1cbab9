"""The recurrent half of an LSTM layer over many clients, with its gradient written out.

Autograd would add up the gradient of the recurrent weights once per time step, (G, hidden, 4 hidden) numbers each time;
here all steps' gates are saved and one product makes it. On CUDA each time step is a product and one fused kernel.
"""

from typing import Any

import torch
from torch import Tensor

Cell = tuple[Tensor, Tensor, Tensor]  # state, memory, what the backward pass needs of the gates


class Recurrence(torch.autograd.Function):
    """(T, G, s, 4 h) projected inputs, (G, h, 4 h) recurrent weights -> (T, G, s, h) states, from a zero state.

    Gates are in PyTorch's order: input, forget, cell, output.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, projected: Tensor, recurrent: Tensor) -> Tensor:
        """Step through time."""
        steps, groups, samples, _ = projected.shape
        memory = projected.new_zeros(groups, samples, recurrent.shape[1])
        states, memories, kept = projected.new_empty(steps, *memory.shape), [memory], []
        state = memory
        for step in range(steps):
            state, memory, gates = _cell(projected[step], torch.bmm(state, recurrent), memory)
            states[step] = state
            memories.append(memory)
            kept.append(gates)
        ctx.save_for_backward(recurrent, states, *memories, *kept)
        return states

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Step back through time, then one product for the weights."""
        recurrent, states, *saved = ctx.saved_tensors
        steps = len(states)
        memories, kept = saved[: steps + 1], saved[steps + 1 :]
        backwards = recurrent.transpose(1, 2)
        gates = slope.new_empty(*states.shape[:-1], recurrent.shape[2])
        of_memory, of_state = torch.zeros_like(memories[0]), torch.zeros_like(memories[0])
        for step in reversed(range(steps)):
            gates[step], of_memory = _cell_backward(
                slope[step] + of_state, of_memory, kept[step], memories[step], memories[step + 1]
            )
            of_state = torch.bmm(gates[step], backwards)
        before = states[:-1].permute(1, 3, 0, 2).flatten(2)  # (G, h, (T - 1) s)
        return gates, torch.bmm(before, gates[1:].transpose(0, 1).flatten(1, 2))


def _cell(arriving: Tensor, returning: Tensor, memory: Tensor) -> Cell:
    if arriving.is_cuda:
        flat = (value.reshape(-1, value.shape[-1]) for value in (arriving, returning, memory))
        state, later, kept = torch.ops.aten._thnn_fused_lstm_cell(*flat)
        return state.reshape(memory.shape), later.reshape(memory.shape), kept
    admit, keep, fresh, show = (arriving + returning).chunk(4, dim=-1)
    admit, keep, fresh, show = admit.sigmoid(), keep.sigmoid(), fresh.tanh(), show.sigmoid()
    memory = keep * memory + admit * fresh
    return show * memory.tanh(), memory, torch.cat([admit, keep, fresh, show], dim=-1)


def _cell_backward(
    slope: Tensor, of_memory: Tensor, kept: Tensor, before: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The slopes of the gates before their nonlinearities, and of the memory before this step."""
    if slope.is_cuda:
        flat = (value.reshape(-1, value.shape[-1]) for value in (slope, of_memory, before, after))
        gates, earlier, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*flat, kept, False)
        return gates.reshape(*slope.shape[:-1], -1), earlier.reshape(slope.shape)
    admit, keep, fresh, show = kept.chunk(4, dim=-1)
    shown = after.tanh()
    of_memory = of_memory + slope * show * (1 - shown**2)
    gates = [
        of_memory * fresh * admit * (1 - admit),
        of_memory * before * keep * (1 - keep),
        of_memory * admit * (1 - fresh**2),
        slope * shown * show * (1 - show),
    ]
    return torch.cat(gates, dim=-1), of_memory * keep
