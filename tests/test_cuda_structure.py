"""What CUDA kernels are compiled to, for two generations of GPUs; there needs to be none here."""
