"""One element of an optimizer's step."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import formula
from npquant.primitives import fma, like, sqrt

#
# PyTorch's single-tensor rules: what each of its kernels rounds, and where it fuses a product with
# a sum.
#
# A step is told numbers, and updates arrays, of which the first is the parameter:
#
# sgd           lr, weight_decay; without a decay, its product would turn an infinite value into NaN
# sgd_momentum  the same and momentum; its buffer, -0.0 to begin with
# adam          1 - beta1, beta2, 1 - beta2, -lr / (1 - beta1**t), sqrt(1 - beta2**t), eps, and 0,
#               the decay, or what is kept; the means of its gradients and of their squares, 0 to
#               begin with


@formula
def decayed(g: Any, value: Any, weight_decay: Any) -> Any:
    """The gradient with that of weight_decay / 2 * value**2."""
    return fma(weight_decay, value, g)


@formula
def undecayed(g: Any, value: Any, weight_decay: Any) -> Any:
    """The gradient as it is."""
    return g


@formula
def sgd(value: Any, g: Any, lr: Any) -> Any:
    """value - lr * g, rounded once."""
    return fma(-lr, g, value)


@formula
def sgd_momentum(value: Any, buffer: Any, g: Any, lr: Any, momentum: Any) -> Any:
    """`sgd` with momentum * buffer + g, each step of which is rounded; and that."""
    b = buffer * momentum + g
    return sgd(value, b, lr), b


@formula
def adam_mean(mean: Any, g: Any, rate: Any) -> Any:
    """The mean of the gradients, moved toward `g`: PyTorch's lerp, from its nearer end."""
    d = g - mean
    one, half = like(np.float32(1), g), like(np.float32(0.5), g)
    return fma(rate, d, mean) if rate < half else fma(rate - one, d, g)


@formula
def adam_square(square: Any, g: Any, beta2: Any, rate: Any) -> Any:
    """The mean of their squares."""
    return fma(rate * g, g, square * beta2)


@formula
def adam(value: Any, mean: Any, square: Any, g: Any, numbers: Any) -> Any:
    """value + step * mean / (sqrt(square) / root + eps), of new means; and these."""
    rate1, beta2, rate2, step, root, eps, _ = numbers
    m, v = adam_mean(mean, g, rate1), adam_square(square, g, beta2, rate2)
    return value + step * m / (sqrt(v) / root + eps), m, v


@formula
def adam_decayed(value: Any, mean: Any, square: Any, g: Any, numbers: Any) -> Any:
    """`adam` with the gradient `decayed`."""
    _, _, _, _, _, _, weight_decay = numbers
    return adam(value, mean, square, decayed(g, value, weight_decay), numbers)


@formula
def adamw(value: Any, mean: Any, square: Any, g: Any, numbers: Any) -> Any:
    """`adam` of the part of a value that is kept."""
    _, _, _, _, _, _, kept = numbers
    return adam(value * kept, mean, square, g, numbers)
