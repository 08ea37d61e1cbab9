"""How operands of matrix products are rounded on a CUDA device. On the CPU everything is float32.

| name | operand | relative error of a product |
| --- | --- | --- |
| `float32` | 24 bits | 6e-8 |
| `tf32` (the default on CUDA) | 11 bits | 5e-4 |
| `bfloat16` | 8 bits | 4e-3 |

Sums are float32 in all three. What it does to accuracy is in docs/tuning.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("auto", "float32", "tf32", "bfloat16")


def pick_precision(name: str, device: torch.device) -> str:
    """`auto`: tf32 on CUDA. The CPU always uses float32."""
    if device.type != "cuda":
        return "float32"
    return "tf32" if name == "auto" else name


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run torch's own matrix products and convolutions at this precision; torch's switches are restored afterwards."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
