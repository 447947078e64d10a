"""The table of cases: every public op, in the dtypes, layouts and sizes that are measured.

`compare.py` measures them beside the peers, the asv suite measures them from commit to commit.
A new cell of the matrix is a layout, a dtype or a line in the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

import npquant as nq

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")

#: The least and the greatest code of each quantized dtype.
BOUNDS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(2**31), 2**31 - 1),
    "int4": (-8, 7),
    "float8_e4m3fn": (-448, 448),
}


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype, NumPy's own or one of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


# --- layouts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The shape of the data, and which elements share a scale."""

    shape: tuple[int, ...]
    #: The shape of the scales; none of them is one number.
    scales: tuple[int, ...] = ()
    #: The arguments that say so: the axis of a channel, the size of a group.
    axis: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    #: Whether scales are float64 and zero points int64, as choose_qparams returns them.
    wide: bool = False

    def __str__(self) -> str:
        text = "x".join(map(str, self.shape))
        text += "".join(f" axis {a}" for a in self.axis)
        text += "".join(f" groups of {g}" for g in self.group)
        return text + " float64 scales" * self.wide


def per_tensor(*shape: int) -> Layout:
    return Layout(shape)


def per_channel(*shape: int, axis: int) -> Layout:
    return Layout(shape, (shape[axis],), axis=(axis,))


def per_token(*shape: int, wide: bool = False) -> Layout:
    return Layout(shape, (*shape[:-1], 1), wide=wide)


def per_group(*shape: int, size: int) -> Layout:
    return Layout(shape, (*shape[:-1], shape[-1] // size), group=(size,))


LARGE = per_tensor(1 << 20)
TENSORS = (LARGE, per_tensor(16))
CHANNELS = (
    per_channel(64, 16384, axis=0),
    per_channel(64, 64, 256, axis=1),
    per_channel(16384, 64, axis=1),
    per_channel(256, 4096, axis=1),
    per_channel(4, 4, axis=0),
    per_channel(4, 4, axis=1),
)
TOKENS = (per_token(256, 4096), per_token(4, 4))
WIDE_TOKENS = (per_token(256, 4096, wide=True), per_token(4, 4, wide=True))
GROUPS = (per_group(256, 4096, size=32), per_group(256, 4096, size=128), per_group(2, 8, size=4))


# --- inputs -----------------------------------------------------------------------------------


class Inputs:
    """What calls take: seeded data of one layout and dtype, made when it is asked for."""

    def __init__(self, layout: Layout, floating: str, codes: str) -> None:
        self.layout = layout
        self.floating, self.target = dtype_named(floating), dtype_named(codes)
        self.bounds = BOUNDS.get(codes, BOUNDS["int8"])

    @cached_property
    def x(self) -> Array:
        return np.random.default_rng(1).standard_normal(self.layout.shape).astype(self.floating)

    @cached_property
    def grad(self) -> Array:
        return np.random.default_rng(2).standard_normal(self.layout.shape).astype(self.floating)

    @cached_property
    def mask(self) -> Array:
        return np.random.default_rng(3).random(self.layout.shape) < 0.9

    @cached_property
    def codes(self) -> Array:
        codes = np.random.default_rng(4).integers(*self.bounds, self.layout.shape, endpoint=True)
        return codes.astype(self.target)

    @cached_property
    def scales(self) -> Array:
        """Scales with which the range of the codes covers some six standard deviations."""
        lo, hi = self.bounds
        unit = 6 / (hi - lo)
        scales = np.random.default_rng(5).uniform(0.9 * unit, 1.1 * unit, self.layout.scales or 1)
        return scales.astype(np.float64 if self.layout.wide else np.float32)

    @cached_property
    def zero_points(self) -> Array:
        """Zero points near the middle of the range."""
        middle = sum(self.bounds) // 2
        shape = self.layout.scales or 1
        zero_points = np.random.default_rng(6).integers(middle - 2, middle + 3, shape)
        return zero_points.astype(np.int64 if self.layout.wide else np.int32)

    @cached_property
    def V(self) -> Array:
        return np.random.default_rng(7).normal(0, 2, self.layout.shape).astype(self.floating)

    @property
    def qparams(self) -> tuple[Any, ...]:
        """Scale, zero point and axis; per tensor they are numbers."""
        if not self.layout.scales:
            return float(self.scales[0]), int(self.zero_points[0])
        return self.scales, self.zero_points, *self.layout.axis

    @property
    def learned(self) -> tuple[Any, ...]:
        """Scale, zero point and axis as learnable ops take them: arrays of floats."""
        return self.scales, self.zero_points.astype(np.float32), *self.layout.axis

    @property
    def range(self) -> tuple[Array, Array]:
        """Minima and maxima, one for each scale."""
        return -120 * self.scales, 130 * self.scales

    @property
    def state(self) -> tuple[Array, ...]:
        """What the fused op updates in place."""
        return *self.range, self.scales.copy(), self.zero_points.copy()


#: How an op is called: its arguments, in order, from the inputs.
Arguments = Callable[[Inputs], tuple[Any, ...]]

ON = np.ones(1, np.int64)
EPS = 2.0**-23


def quantize(i: Inputs) -> tuple[Any, ...]:
    return i.x, *i.qparams, *i.bounds, i.target, *i.layout.group


def dequantize(i: Inputs) -> tuple[Any, ...]:
    return i.codes, *i.qparams, *i.bounds, i.target, *i.layout.group


def fake_quantize(i: Inputs) -> tuple[Any, ...]:
    return i.x, *i.qparams, *i.bounds


def tensor_qparams(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.scales, i.zero_points, ON, *i.bounds


def masked(i: Inputs) -> tuple[Any, ...]:
    return i.grad, i.mask


def learnable(i: Inputs) -> tuple[Any, ...]:
    return i.x, *i.learned, *i.bounds, *i.layout.group


def learnable_backward(i: Inputs) -> tuple[Any, ...]:
    return i.grad, i.x, *i.learned, *i.bounds, *i.layout.group


def start_rounding(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.qparams[0]


def rounding(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.V, *i.qparams, *i.bounds


def rounding_to_codes(i: Inputs) -> tuple[Any, ...]:
    return *rounding(i), i.target


def rounding_backward(i: Inputs) -> tuple[Any, ...]:
    return i.grad, *rounding(i)


def regularize(i: Inputs) -> tuple[Any, ...]:
    return i.V, 5.0


def choose(i: Inputs) -> tuple[Any, ...]:
    return i.x, *i.bounds, EPS, i.target


def to_dtype(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.target


def determine(i: Inputs) -> tuple[Any, ...]:
    return *i.range, *i.bounds, i.target, np.array([EPS], np.float32), False, "per_tensor_affine"


def fused(i: Inputs) -> tuple[Any, ...]:
    per_row = bool(i.layout.axis)
    return i.x, ON, ON, *i.state, 0.01, *i.bounds, *(i.layout.axis or (0,)), per_row, False


# --- cases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One cell of the matrix: an op, called in one way, in one layout and dtype."""

    op: str
    dtype: str
    layout: Layout
    arguments: Arguments
    #: Names in `peers.PEERS`.
    peers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.layout}"

    @property
    def size(self) -> int:
        return prod(self.layout.shape)

    @property
    def goal(self) -> float | None:
        """How many times the copy floor it may take; None where no copy compares."""
        sums = self.op.endswith("_affine_backward")
        no_copy = "adaround", "choose", "determine", "fused"
        if sums or self.size < 4096 or self.op.startswith(no_copy):
            return None
        last_axis = self.layout.axis == (len(self.layout.shape) - 1,)
        two_bytes = "float16" in self.dtype  # bfloat16 too
        return 2.5 if last_axis or two_bytes or self.layout.group == (32,) else 1.5

    def inputs(self) -> Inputs:
        names = self.dtype.split(" -> ")
        floating = next(name for name in names if name in FLOATS)
        names.remove(floating)
        return Inputs(self.layout, floating, *(names or ["int8"]))

    def call(self, inputs: Inputs) -> Call:
        """npquant's call; a partial costs the least to call."""
        return partial(getattr(nq, self.op), *self.arguments(inputs))

    def moved(self, inputs: Inputs, result: Any) -> int:
        """Bytes that must move: every array argument read once, every result written once."""
        results = result if isinstance(result, tuple) else (result,)
        return sum(a.nbytes for a in (*self.arguments(inputs), *results) if hasattr(a, "nbytes"))


def cases(
    ops: str,
    arguments: Arguments,
    layouts: Sequence[Layout],
    dtypes: Sequence[str] = ("float32",),
    peers: Sequence[str] = ("torch",),
) -> Iterator[Case]:
    """Every op (names between spaces) in every layout and dtype."""
    for op in ops.split():
        for layout in layouts:
            for dtype in dtypes:
                yield Case(op, dtype, layout, arguments, tuple(peers))


TO_INT8 = ("float32 -> int8",)
FROM_INT8 = ("int8 -> float32",)
OTHERS = ("uint8", "int16", "int32", "float8_e4m3fn", "int4")
TO_OTHERS = tuple(f"float32 -> {codes}" for codes in OTHERS)
FROM_OTHERS = tuple(f"{codes} -> float32" for codes in OTHERS)
WIDTHS = ("float16", "bfloat16", "float64")

LINEAR = ("torch decomposed", "torch quantized", "onnxruntime")
DECOMPOSED = ("torch decomposed",)
NONE = ()

# fmt: off
_TABLE = (
    *cases("quantize_per_tensor", quantize, TENSORS, TO_INT8, LINEAR),
    *cases("quantize_per_tensor", quantize, [LARGE], TO_OTHERS, LINEAR),
    *cases("quantize_per_channel", quantize, CHANNELS, TO_INT8, LINEAR),
    *cases("quantize_per_token", quantize, TOKENS + WIDE_TOKENS, TO_INT8, LINEAR),
    *cases("quantize_per_channel_group", quantize, GROUPS, TO_INT8, LINEAR),

    *cases("dequantize_per_tensor", dequantize, TENSORS, FROM_INT8, LINEAR),
    *cases("dequantize_per_tensor", dequantize, [LARGE], FROM_OTHERS, LINEAR),
    *cases("dequantize_per_channel", dequantize, CHANNELS, FROM_INT8, LINEAR),
    *cases("dequantize_per_token", dequantize, TOKENS + WIDE_TOKENS, FROM_INT8, LINEAR),
    *cases("dequantize_per_channel_group", dequantize, GROUPS, FROM_INT8, LINEAR),
    *cases("convert_element_type", to_dtype, TENSORS, ["float32 -> bfloat16"], DECOMPOSED),

    *cases("fake_quantize_per_tensor_affine", fake_quantize, TENSORS),
    *cases("fake_quantize_per_tensor_affine", fake_quantize, [LARGE], WIDTHS),
    *cases("fake_quantize_per_channel_affine", fake_quantize, CHANNELS),
    *cases("fake_quantize_per_channel_affine", fake_quantize, CHANNELS[:1], WIDTHS),
    *cases("fake_quantize_per_tensor_affine_cachemask", fake_quantize, TENSORS),
    *cases("fake_quantize_per_tensor_affine_cachemask_tensor_qparams", tensor_qparams, TENSORS),
    *cases("fake_quantize_per_tensor_affine_cachemask_backward", masked, TENSORS),
    *cases("fake_quantize_per_channel_affine_cachemask", fake_quantize, CHANNELS),
    *cases("fake_quantize_per_channel_affine_cachemask_backward", masked, TENSORS),
    *cases("fake_quant_per_channel", fake_quantize, CHANNELS, peers=DECOMPOSED),
    *cases("fake_quant_per_channel_cachemask", fake_quantize, CHANNELS, peers=NONE),
    *cases("fake_quant_per_channel_backward", masked, TENSORS, peers=NONE),

    *cases("fake_quantize_learnable_per_tensor_affine", learnable, TENSORS),
    *cases("fake_quantize_learnable_per_tensor_affine_backward", learnable_backward, TENSORS),
    *cases("fake_quantize_learnable_per_channel_affine", learnable, CHANNELS),
    *cases("fake_quantize_learnable_per_channel_affine_backward", learnable_backward, CHANNELS),
    *cases("fake_quantize_learnable_per_token_affine", learnable, TOKENS, peers=NONE),
    *cases("fake_quantize_learnable_per_token_affine_backward",
           learnable_backward, TOKENS, peers=NONE),
    *cases("fake_quantize_learnable_per_channel_group_affine", learnable, GROUPS, peers=NONE),
    *cases("fake_quantize_learnable_per_channel_group_affine_backward",
           learnable_backward, GROUPS, peers=NONE),

    *cases("adaround_init", start_rounding, TENSORS, peers=NONE),
    *cases("adaround_soft adaround_hard", rounding, TENSORS, peers=NONE),
    *cases("adaround_codes", rounding_to_codes, TENSORS, TO_INT8, NONE),
    *cases("adaround_soft_backward", rounding_backward, TENSORS, peers=NONE),
    *cases("adaround_regularizer adaround_regularizer_backward", regularize, TENSORS, peers=NONE),

    *cases("choose_qparams", choose, TENSORS, TO_INT8, DECOMPOSED),
    *cases("choose_qparams_symmetric", choose, TENSORS, TO_INT8, DECOMPOSED),
    *cases("choose_qparams_per_token", to_dtype, TOKENS, TO_INT8, DECOMPOSED),
    *cases("choose_qparams_per_token_asymmetric", to_dtype, TOKENS, TO_INT8, DECOMPOSED),
    *cases("determine_qparams", determine, [per_channel(4, 4, axis=0)], TO_INT8),
    *cases("fused_moving_avg_obs_fake_quant", fused, (LARGE, CHANNELS[0], *TENSORS[1:])),
    *cases("fused_moving_avg_obs_fake_quant_cachemask", fused, TENSORS),
)
# fmt: on

#: By name, the largest first.
CASES = {str(case): case for case in sorted(_TABLE, key=lambda case: -case.size)}

#: The ops that a quick look takes, each in its first case of a size.
QUICK = (
    "quantize_per_tensor",
    "quantize_per_channel_group",
    "dequantize_per_token",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quantize_learnable_per_channel_affine_backward",
    "choose_qparams",
)
