"""Many clients at once: stacked on a CPU, and as recorded steps over uploaded tables on a CUDA device."""
