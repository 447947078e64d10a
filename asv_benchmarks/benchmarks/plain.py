"""The plain expression of every op, as a user of NumPy would write it; PyTorch has the same names.

They are peers, and no oracles: bits and corner cases (NaN, overflow) are not theirs to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import Case, Inputs

#: What of AdaRound's sigmoid is stretched beyond 0 and 1.
GAMMA, ZETA = -0.1, 1.1


class Plain:
    """The arrays of a case in shapes that broadcast, and the library that computes with them."""

    def __init__(self, case: Case, inputs: Inputs, xp: Any = np, own: Any = lambda v: v) -> None:
        layout, self.xp = inputs.layout, xp
        n = len(layout.shape)
        self.axes = tuple(range(n))  # those that a sum of one parameter runs over
        if layout.axis:
            self.axes = tuple(i for i in range(n) if i not in layout.axis)
        elif layout.scales:
            self.axes = (-1,)
        shape = [-1 if i in layout.axis else 1 for i in range(n)] if layout.axis else [-1]
        if layout.scales and not layout.axis:
            shape = [*layout.scales, 1] if layout.group else [*layout.scales]

        def data(name: str) -> Any:
            x = getattr(inputs, name)
            split = (*x.shape[:-1], -1, *layout.group) if layout.group else x.shape
            return own(x.reshape(split))

        def qparam(name: str) -> Any:
            p = getattr(inputs, name)
            if not layout.scales:
                return float(p[0])
            kept = p if layout.wide else p.astype(inputs.floating)
            return own(kept.reshape(shape))

        self._make = {"s": lambda: qparam("scales"), "z": lambda: qparam("zero_points")}
        for short in ("x", "grad", "mask", "codes", "V"):
            self._make[short] = lambda short=short: data(short)
        self.lo, self.hi = inputs.bounds
        self.floating, self.target = own(inputs.floating), own(inputs.target)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("_make", {}):
            raise AttributeError(name)
        value = self._make[name]()
        setattr(self, name, value)
        return value

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype) if self.xp is np else x.to(dtype)

    def clipped(self, q: Any) -> Any:
        return self.xp.clip(q, self.lo, self.hi)


def code(p: Plain) -> Any:
    return p.xp.round(p.x / p.s) + p.z


def quantize(p: Plain) -> Any:
    return p.cast(p.clipped(code(p)), p.target)


def dequantize(p: Plain) -> Any:
    return (p.cast(p.codes, p.floating) - p.z) * p.s


def convert(p: Plain) -> Any:
    return p.cast(p.x, p.target)


def fake(p: Plain) -> Any:
    return (p.clipped(code(p)) - p.z) * p.s


def fake_and_mask(p: Plain) -> Any:
    q = code(p)
    return (p.clipped(q) - p.z) * p.s, (q >= p.lo) & (q <= p.hi)


def masked(p: Plain) -> Any:
    return p.grad * p.mask


def learnable_backward(p: Plain) -> Any:
    r = p.x / p.s
    q = p.xp.round(r) + p.z
    clipped = p.clipped(q)
    inside = q == clipped
    terms = p.grad * (clipped - p.z - r * inside)
    shifts = p.grad * ~inside * -p.s
    return p.grad * inside, p.xp.sum(terms, axis=p.axes), p.xp.sum(shifts, axis=p.axes)


def sigmoid(p: Plain) -> Any:
    return 1 / (1 + p.xp.exp(-p.V))


def rectified(p: Plain) -> Any:
    return p.xp.clip(sigmoid(p) * (ZETA - GAMMA) + GAMMA, 0, 1)


def adaround_init(p: Plain) -> Any:
    r = p.x / p.s
    return -p.xp.log((ZETA - GAMMA) / (r - p.xp.floor(r) - GAMMA) - 1)


def adaround_soft(p: Plain) -> Any:
    return (p.clipped(p.xp.floor(p.x / p.s) + rectified(p) + p.z) - p.z) * p.s


def adaround_hard(p: Plain) -> Any:
    return (p.clipped(p.xp.floor(p.x / p.s) + (p.V >= 0) + p.z) - p.z) * p.s


def adaround_codes(p: Plain) -> Any:
    return p.cast(p.clipped(p.xp.floor(p.x / p.s) + (p.V >= 0) + p.z), p.target)


def slope(p: Plain) -> Any:
    """The derivative of the rectified sigmoid, and its value."""
    s = sigmoid(p)
    h = s * (ZETA - GAMMA) + GAMMA
    return (ZETA - GAMMA) * s * (1 - s) * ((h > 0) & (h < 1)), p.xp.clip(h, 0, 1)


def adaround_soft_backward(p: Plain) -> Any:
    d, h = slope(p)
    q = p.xp.floor(p.x / p.s) + h + p.z
    return p.grad * p.s * d * ((q >= p.lo) & (q <= p.hi))


def adaround_regularizer(p: Plain) -> Any:
    return p.xp.sum(1 - p.xp.abs(2 * rectified(p) - 1) ** 5.0)


def adaround_regularizer_backward(p: Plain) -> Any:
    d, h = slope(p)
    u = 2 * h - 1
    return -10.0 * p.xp.abs(u) ** 4.0 * p.xp.sign(u) * d


def _affine(p: Plain, least: Any, most: Any) -> Any:
    scale = (most - least) / (p.hi - p.lo)
    return scale, p.lo - p.xp.round(least / scale)


def choose(p: Plain) -> Any:
    return _affine(p, p.x.min().clip(None, 0), p.x.max().clip(0, None))


def choose_symmetric(p: Plain) -> Any:
    return p.xp.abs(p.x).max() * 2 / (p.hi - p.lo), 0


def choose_token(p: Plain) -> Any:
    return p.xp.amax(p.xp.abs(p.x), -1, keepdims=True) / p.hi


def choose_token_asymmetric(p: Plain) -> Any:
    least, most = p.xp.amin(p.x, -1, keepdims=True), p.xp.amax(p.x, -1, keepdims=True)
    return _affine(p, least.clip(None, 0), most.clip(0, None))


def dynamic(p: Plain) -> Any:
    p.s, p.z = choose_token_asymmetric(p)
    return quantize(p), p.s, p.z


def observe_and_fake(p: Plain) -> Any:
    """A step of the average from a range of nothing, which costs the same as any other."""
    if p.axes == tuple(range(p.x.ndim)):
        least, most = p.x.min(), p.x.max()
    else:
        least = p.xp.amin(p.x, p.axes, keepdims=True)
        most = p.xp.amax(p.x, p.axes, keepdims=True)
    s, z = _affine(p, 0.99 * -120 * p.s + 0.01 * least, 0.99 * 130 * p.s + 0.01 * most)
    return (p.clipped(p.xp.round(p.x / s) + z) - z) * s


def observe_and_fake_with_mask(p: Plain) -> Any:
    y = observe_and_fake(p)
    return y, p.xp.abs(p.x) <= 130 * p.s


_QUANTIZE = "per_tensor per_channel per_token per_channel_group"
_MASKED = "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
_GRAINS = ("tensor", "channel", "token", "channel_group")

#: By the name of the op.
EXPRESSIONS: dict[str, Callable[[Plain], Any]] = {
    **{f"quantize_{grain}": quantize for grain in _QUANTIZE.split()},
    **{f"dequantize_{grain}": dequantize for grain in _QUANTIZE.split()},
    "convert_element_type": convert,
    "fake_quantize_per_tensor_affine": fake,
    "fake_quantize_per_channel_affine": fake,
    "fake_quant_per_channel": fake,
    **dict.fromkeys(_MASKED.split(), fake_and_mask),
    "fake_quantize_per_tensor_affine_cachemask_tensor_qparams": fake_and_mask,
    "fake_quant_per_channel_cachemask": fake_and_mask,
    **{f"{name}_backward": masked for name in _MASKED.split()},
    "fake_quant_per_channel_backward": masked,
    **{f"fake_quantize_learnable_per_{g}_affine": fake for g in _GRAINS},
    **{f"fake_quantize_learnable_per_{g}_affine_backward": learnable_backward for g in _GRAINS},
    "adaround_init": adaround_init,
    "adaround_soft": adaround_soft,
    "adaround_hard": adaround_hard,
    "adaround_codes": adaround_codes,
    "adaround_soft_backward": adaround_soft_backward,
    "adaround_regularizer": adaround_regularizer,
    "adaround_regularizer_backward": adaround_regularizer_backward,
    "choose_qparams": choose,
    "choose_qparams_symmetric": choose_symmetric,
    "choose_qparams_per_token": choose_token,
    "choose_qparams_per_token_asymmetric": choose_token_asymmetric,
    "quantize_per_token_dynamic": dynamic,
    "fused_moving_avg_obs_fake_quant": observe_and_fake,
    "fused_moving_avg_obs_fake_quant_cachemask": observe_and_fake_with_mask,
}
