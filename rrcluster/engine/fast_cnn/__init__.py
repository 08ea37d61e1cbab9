"""Faster code for the `cnn`: one parameter layout, Triton kernels, and C. Engines find it by `Model.accelerated`."""
