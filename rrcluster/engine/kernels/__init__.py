"""Kernels written for one network. Imported only where the device has a use for them."""
