"""Scales and zero points from a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import INFINITY, INT32_END, INT64_END, clamp, formula, plain_nan
from npquant.primitives import floating, like, rint, widen

#
# (least, greatest, lo, hi, eps, middle, s) -> (scale, zero_point): the range of a channel, the
# integer bounds of its codes, the least scale, the zero point of symmetric schemes, and a value of
# the type of the scale to be made.


@formula
def larger(a: Any, b: Any) -> Any:
    """The larger of two; NaN if either is."""
    return a if widen(a) > widen(b) or widen(a) != widen(a) else b


@formula
def smaller(a: Any, b: Any) -> Any:
    """The smaller of two; NaN if either is."""
    return a if widen(a) < widen(b) or widen(a) != widen(a) else b


@formula
def divided(v: Any, by: Any) -> Any:
    """v / by as PyTorch divides: in float32 at least, rounded to the type of `v`."""
    return like(widen(v) / like(by, widen(v)), v)


@formula
def truncated(v: Any, limit: Any) -> Any:
    """`v` as an integer; what is not within +-limit, and NaN, becomes -limit, as on x86."""
    return np.int64(v) if abs(v) < limit else np.int64(-limit)


@formula
def affine_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """PyTorch's determine_qparams, affine: in the type of the range, then in that of eps."""
    zero = like(np.float32(0), least)
    low, high = smaller(least, zero), larger(greatest, zero)
    scale = larger(like(divided(high - low, np.float64(hi - lo)), eps), eps)
    offset = truncated(rint(like(low, eps) / scale), INT32_END)
    z = np.int64(np.int32(lo - offset))  # int32 wraps there
    return like(scale, s), min(max(z, lo), hi)


@formula
def symmetric_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """PyTorch's determine_qparams, symmetric."""
    zero = like(np.float32(0), least)
    reach = larger(zero - smaller(least, zero), larger(greatest, zero))
    half = np.float64(hi - lo) / np.float64(2)
    return like(larger(like(divided(reach, half), eps), eps), s), middle


@formula
def float_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """PyTorch's determine_qparams with float zero points, which it truncates."""
    scale, z = kept_float_qparams(least, greatest, lo, hi, eps, middle, s)
    return scale, truncated(widen(z), INT64_END)


@formula
def kept_float_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """The same of PyTorch's observers, which keep the zero point a float."""
    scale = divided(greatest - least, np.float64(hi - lo))
    scale = scale if like(scale, eps) > eps else like(np.float32(1), scale)
    z = divided(least * like(-np.float32(1), least), widen(scale))
    return like(scale, s), z


@formula
def token_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """choose_qparams_per_token: the largest magnitude, in the type of the scale, over hi."""
    least, greatest = widen(floating(least)), widen(floating(greatest))
    largest = like(larger(abs(least), abs(greatest)), s)
    return divided(larger(largest, like(eps, s)), hi), like(middle, s)


@formula
def token_asymmetric_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """choose_qparams_per_token_asymmetric: every step rounded to the type of the range."""
    zero, bottom, top = (
        like(np.float32(0), least), like(np.float32(lo), least), like(np.float32(hi), least),
    )  # fmt: skip
    low, high = smaller(least, zero), larger(greatest, zero)
    scale = larger(divided(high - low, hi - lo), like(eps, least))
    low, high = divided(low, widen(scale)), divided(high, widen(scale))
    below = widen((bottom + low) + (top + high)) > np.float32(0)
    z = rint(clamp(widen(bottom - low if below else top - high), widen(bottom), widen(top)))
    return like(scale, s), truncated(z, INT64_END)


@formula
def moving_average(running: Any, seen: Any, constant: Any) -> Any:
    """One step of a running bound; an infinite one starts from `seen`."""
    return seen if abs(running) == INFINITY else step_towards(running, seen, constant)


@formula
def step_towards(running: Any, seen: Any, constant: Any) -> Any:
    """One step of a moving average, each operation rounded."""
    return running + constant * (seen - running)


@formula
def fbgemm_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """FBGEMM's ChooseQuantizationParams: float32 ranges, float64 quotients.

    The zero point follows from the rounded scale. `eps` is the least scale.
    """
    return _fbgemm(least, greatest, lo, hi, eps, False)


@formula
def fbgemm_symmetric_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """The same for a symmetric scheme, which a range on one side of zero is exempt from."""
    if not (least < np.float32(0) and greatest > np.float32(0)):
        return _fbgemm(least, greatest, lo, hi, eps, False)
    half = (hi - lo) // np.int64(2)
    below, above = np.float32(-half - np.int64(1)), np.float32(half)
    unit = larger(abs(least / below), abs(greatest / above))
    low, high = unit * below, unit * above  # of subnormal numbers this can be 0
    return _fbgemm(low, high, lo, hi, eps, low < np.float32(0) and high > np.float32(0))


@formula
def _fbgemm(least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, centred: Any) -> Any:
    zero, span = np.float32(0), hi - lo
    low, high = smaller(least, zero), larger(greatest, zero)
    scale = np.float32((np.float64(high) - np.float64(low)) / np.float64(span))
    if scale == zero or abs(np.float32(1) / scale) == INFINITY:
        scale = np.float32(0.1)
    if scale < eps:
        grown = eps / scale
        if low == zero:
            high = eps * np.float32(span)
        elif high == zero:
            low = -(eps * np.float32(span))
        else:
            low, high = low * grown, high * grown
        scale = eps
    below, above = np.float64(low) / np.float64(scale), np.float64(high) / np.float64(scale)
    if centred:
        z = np.float64(lo + hi) / np.float64(2)
    elif np.float64(abs(lo)) + abs(below) < np.float64(abs(hi)) + abs(above):
        z = np.float64(lo) - below
    else:
        z = np.float64(hi) - above
    z = clamp(z, np.float64(lo), np.float64(hi))
    return plain_nan(scale), truncated(rint(z), INT32_END)
