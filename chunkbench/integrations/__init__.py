"""Our kernels inside other people's engines."""
