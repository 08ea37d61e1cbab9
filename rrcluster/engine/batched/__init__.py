"""Many clients at once: stacked tensors on a CPU, CUDA graphs over uploaded samples on a GPU."""
