"""The `cnn` of models/networks.py, and no other network, in C on a CPU and in Triton on a GPU."""

from rrcluster.engine.fast_cnn.gpu import CnnKernels, kernels_here
from rrcluster.engine.fast_cnn.native import NativeEngine, native_library
from rrcluster.models.model import Model


def cpu_engine(model: Model) -> NativeEngine | None:
    """The engine over the compiled library; None where there is no compiler."""
    library = native_library()
    return None if library is None else NativeEngine(model, library)


def gpu_kernels(model: Model, precision: str) -> CnnKernels | None:
    """The Triton kernels; None without Triton."""
    return CnnKernels(model.layers[-1].shape[0], precision) if kernels_here() else None
