"""AdaRound: the rounding of a weight, learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import clamp, formula, plain_nan
from npquant.formulas.elementary import log, log2, raised, sigmoid, stretched_logit
from npquant.primitives import by_precision, floor, fma, item, like, rounded_code, widen

#
# Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020. A weight is
# rounded down, and h(V) in [0, 1] is added: a sigmoid stretched over both ends. PyTorch has its
# constants in float32.

_ZETA, _GAMMA = np.float32(1.1), np.float32(-0.1)
_SPAN = np.float32(_ZETA - _GAMMA)


@formula
def rounding(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of AdaRound: everything in T."""
    lo, _, _ = constants
    return like(scale, lo), like(zero_point, lo)


@formula
def stretched(sigma: Any) -> Any:
    """The sigmoid over [gamma, zeta]."""
    return sigma * like(_SPAN, sigma) + like(_GAMMA, sigma)


@formula
def within_one(h: Any) -> Any:
    """`h` in [0, 1]; NaN stays NaN."""
    return clamp(h, like(np.float32(0), h), like(np.float32(1), h))


@formula
def rectified_sigmoid(v: Any) -> Any:
    """h(V): what is added to a weight that was rounded down."""
    return within_one(stretched(sigmoid(v)))


@formula
def slope_of_rectified_sigmoid(g: Any, sigma: Any) -> Any:
    """`g` times the derivative of h(V): none where h is cut off."""
    h, zero, one = stretched(sigma), like(np.float32(0), sigma), like(np.float32(1), sigma)
    g = g if (zero <= h) & (h <= one) else zero
    return ((g * like(_SPAN, sigma)) * (one - sigma)) * sigma


@formula
def floored(x: Any, p: Any) -> Any:
    """floor(x / scale) + zero_point."""
    scale, zero_point = p
    return floor(widen(x) / scale) + zero_point


# Where the steps of an op wait for each other, a kernel does one of them for many elements before
# the next (`cpu/steps.py`). A step takes the element, what the steps before have made of it, and
# what all elements share: the parameters and the constants.


@formula
def _itself(fraction: Any) -> Any:
    return fraction


@formula
def _odds_64(fraction: Any) -> Any:
    """exp(-V)."""
    odds = like(_SPAN, fraction) / (fraction - like(_GAMMA, fraction))
    return odds - like(np.float32(1), fraction)


@formula
def _undecided_64(odds: Any) -> Any:
    return -log(odds)


@formula
def init_fraction(x: Any, made: Any, shared: Any) -> Any:
    """What rounding down drops, in units of the scale; in float64 the odds against it."""
    (scale, _), _ = shared
    t = widen(x) / scale
    return by_precision(t - floor(t), _itself, _odds_64)


@formula
def init_undecided(x: Any, made: Any, shared: Any) -> Any:
    """The V whose h(V) is the fraction."""
    (found,) = made
    return by_precision(found, stretched_logit, _undecided_64)


@formula
def adaround_init(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """The V whose h(V) is the fraction that rounding down drops."""
    shared = p, constants
    return init_undecided(x, (init_fraction(x, (), shared),), shared), True


@formula
def soft_up(values: Any, made: Any, shared: Any) -> Any:
    _, v = values
    return plain_nan(rectified_sigmoid(v))


@formula
def soft_value(values: Any, made: Any, shared: Any) -> Any:
    x, _ = values
    (h,), (p, (lo, hi, _)) = made, shared
    scale, zero_point = p
    return (clamp(floored(x, p) + h, lo, hi) - zero_point) * scale


@formula
def adaround_soft(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The weight as it is while V is learned: h(V) above the code below it."""
    shared = p, constants
    return soft_value(values, (soft_up(values, (), shared),), shared), True


@formula
def soft_sigmoid(values: Any, made: Any, shared: Any) -> Any:
    _, _, v = values
    return sigmoid(v)


@formula
def soft_slope(values: Any, made: Any, shared: Any) -> Any:
    g, x, _ = values
    (sigma,), (p, (lo, hi, _)) = made, shared
    scale, _ = p
    q = floored(x, p) + within_one(stretched(sigma))
    g = widen(g) * scale if (lo <= q) & (q <= hi) else like(np.float32(0), sigma)
    return slope_of_rectified_sigmoid(g, sigma)


@formula
def adaround_soft_backward(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The gradient of V; none where the code was clamped."""
    shared = p, constants
    return soft_slope(values, (soft_sigmoid(values, (), shared),), shared), True


@formula
def rounded_up(x: Any, v: Any, p: Any) -> Any:
    """The code that V has decided for: the one above where V >= 0, and so h >= 1/2."""
    up = like(np.float32(1) if v >= like(np.float32(0), v) else np.float32(0), v)
    return floored(x, p) + up


@formula
def adaround_hard(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The weight as it is in the end, on the grid."""
    x, v = values
    scale, zero_point = p
    lo, hi, _ = constants
    return (clamp(rounded_up(x, v, p), lo, hi) - zero_point) * scale, True


@formula
def adaround_codes(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The code in the end; a NaN becomes `nan`."""
    x, v = values
    lo, hi, nan = constants
    return rounded_code(rounded_up(x, v, p), None, lo, hi, nan, item(y)), True


@formula
def leaning(sigma: Any) -> Any:
    """2h - 1 without a cut: -1 and 1 where h has decided, 0 in the middle."""
    h = stretched(sigma)
    return fma(like(np.float32(2), h), h, -like(np.float32(1), h))


@formula
def decided(leaning: Any) -> Any:
    """|2h - 1|, at most 1; NaN stays NaN."""
    d, one = abs(leaning), like(np.float32(1), leaning)
    return one if d > one else d


@formula
def regularizer_decided(values: Any, made: Any, beta: Any) -> Any:
    (v,) = values
    return decided(leaning(sigmoid(v)))


@formula
def regularizer_log2(values: Any, made: Any, beta: Any) -> Any:
    (d,) = made
    return beta * log2(d)


@formula
def regularizer_term(values: Any, made: Any, beta: Any) -> Any:
    d, t = made
    return like(np.float32(1), d) - raised(d, t)


@formula
def adaround_regularizer(values: Any, beta: Any) -> Any:
    """1 - |2h - 1|**beta: 1 in the middle, 0 where h has decided."""
    d = regularizer_decided(values, (), beta)
    return regularizer_term(values, (d, regularizer_log2(values, (d,), beta)), beta)


@formula
def regularizing(v: Any, beta: Any, weight: Any, constants: Any, y: Any) -> Any:
    """Parameters of `adaround_regularizer_backward`, which has these in place of qparams."""
    return beta, weight


@formula
def slope_sigmoid(v: Any, made: Any, shared: Any) -> Any:
    return sigmoid(v)


@formula
def slope_leaning(v: Any, made: Any, shared: Any) -> Any:
    (sigma,) = made
    return leaning(sigma)


@formula
def slope_log2(v: Any, made: Any, shared: Any) -> Any:
    (_, d), ((beta, _), _) = made, shared
    return (beta - like(np.float32(1), d)) * log2(decided(d))


@formula
def slope(v: Any, made: Any, shared: Any) -> Any:
    (sigma, d, t), ((beta, weight), _) = made, shared
    g = -weight * (beta * raised(decided(d), t))
    g = -g if d < like(np.float32(0), d) else g
    return slope_of_rectified_sigmoid(g * like(np.float32(2), d), sigma)


@formula
def adaround_regularizer_backward(v: Any, p: Any, constants: Any, y: Any) -> Any:
    """The gradient of weight * (1 - |2h - 1|**beta)."""
    shared, sigma = (p, constants), sigmoid(v)
    d = leaning(sigma)
    t = slope_log2(v, (sigma, d), shared)
    return slope(v, (sigma, d, t), shared), True
