"""The `cnn` by code of its own: Triton kernels and C. Imported only where there is a use for them."""
