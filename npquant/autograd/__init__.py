"""Gradients by a tape, for training with quantization: ``import npquant.autograd``.

A `Tape` applies steps and remembers them; `Tape.gradient` goes back. Steps are the fake-quantize
ops of npquant and `convert_element_type`, the functions here, and whatever consists of these.
"""

from npquant.autograd.functional import (
    add,
    conv2d,
    flatten,
    linear,
    matmul,
    max_pool2d,
    mse_loss,
    mul,
    relu,
    reshape,
    sigmoid,
    softmax_cross_entropy,
)
from npquant.autograd.tape import Parameter, Tape, call

__all__ = [
    "Parameter",
    "Tape",
    "add",
    "call",
    "conv2d",
    "flatten",
    "linear",
    "matmul",
    "max_pool2d",
    "mse_loss",
    "mul",
    "relu",
    "reshape",
    "sigmoid",
    "softmax_cross_entropy",
]
