"""The place of the CUDA backend: the names and signatures of `npquant.cpu`, for device arrays."""
