"""The matrix: every public op, in every layout, dtype and size that is measured.

`compare.py` measures its cells beside the peers, the asv suite from commit to commit. The table at
the end says of each op which layouts and dtypes it has; `Spec.star` says which cells of the product
are taken by themselves, `Spec.product` gives any other. A new cell is a layout, a dtype or a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isqrt, prod
from typing import Any

import ml_dtypes
import numpy as np

import npquant as nq
from npquant.dtypes import BOUNDS, int8

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]

FLOATS = ("float32", "float16", "bfloat16", "float64")
#: Of optimizers and of AdaRound's V.
PRECISIONS = ("float32", "float64")


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype, NumPy's own or one of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


# --- layouts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The shape of the data, how it lies in memory, and which elements share a scale."""

    shape: tuple[int, ...]
    #: The shape of the scales; none of them is one number.
    scales: tuple[int, ...] = ()
    #: The arguments that say so: the axis of a channel, the size of a group.
    axis: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    #: Whether scales are float64 and zero points int64, as choose_qparams returns them.
    wide: bool = False
    #: Whether scales have the dtype of the data, and zero points are zeros.
    own: bool = False
    #: A name in ORDERS; without one the data lie in C order.
    order: str = ""

    def __str__(self) -> str:
        text = "x".join(map(str, self.shape))
        text += "".join(f" axis {a}" for a in self.axis)
        text += "".join(f" groups of {g}" for g in self.group)
        text += " float64 scales" * self.wide + " own scales" * self.own
        return text + f" {self.order}" * bool(self.order)

    @property
    def grain(self) -> str:
        """What has a scale of its own."""
        if self.axis:
            return "channel"
        return "group" if self.group else "token" if self.scales else "tensor"


def per_tensor(*shape: int, order: str = "") -> Layout:
    return Layout(shape, order=order)


def per_channel(*shape: int, axis: int, order: str = "") -> Layout:
    return Layout(shape, (shape[axis],), axis=(axis,), order=order)


def per_token(*shape: int, wide: bool = False, order: str = "") -> Layout:
    return Layout(shape, (*shape[:-1], 1), wide=wide, order=order)


def per_group(*shape: int, size: int, order: str = "") -> Layout:
    groups = max(1, shape[-1] // size)  # a group that is larger than a row is the row
    return Layout(shape, (*shape[:-1], groups), group=(size,), order=order)


def _swapped(x: Array, axis: int, to: int) -> Array:
    """The same values, in memory as if these axes were the other way round."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, axis, to)), to, axis)


def _every_other(x: Array) -> Array:
    return np.repeat(x, 2, axis=-1)[..., ::2]


def _with_gaps(x: Array) -> Array:
    """The same values as the middle of rows three times as long."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(x.shape[-1],) * 2])[
        ..., x.shape[-1] : -x.shape[-1]
    ]


#: How data can lie, beside C order.
ORDERS: dict[str, Callable[[Array], Array]] = {
    "Fortran": np.asfortranarray,
    "channels last": lambda x: _swapped(x, 1, -1),
    "transposed": lambda x: _swapped(x, 0, 1),
    "strided": _every_other,
    "gaps": _with_gaps,
}

#: A layout of about so many elements.
Make = Callable[[int], Layout]


def _cut(n: int, *most: int) -> tuple[int, ...]:
    """A shape of about n elements: powers of two, at most so long, and last what is left."""
    shape: list[int] = []
    for length in most:
        shape.append(1 << min(length, isqrt(n)).bit_length() - 1)
        n //= shape[-1]
    return *shape, n


def _channels(place: str, count: int, n: int) -> Layout:
    count = max(1, min(count, n // 4))
    rest = n // count
    if place == "first":
        return per_channel(count, rest, axis=0)
    if place == "last":
        return per_channel(rest, count, axis=1)
    outer, inner = _cut(rest, 64)
    return per_channel(outer, count, inner, axis=1)


def _rows(n: int) -> tuple[int, int]:
    """Tokens of 4,096 elements, of a small array fewer."""
    length = 4096 if n >= 1 << 16 else isqrt(n)
    return n // length, length


def _grouped(size: int, n: int, order: str = "") -> Layout:
    rows, length = _rows(n)
    return per_group(rows, length, size=max(2, min(size, length)), order=order)


def _split(rows: int, length: int, order: str) -> tuple[int, ...]:
    """The shape of as many rows, with the axes that an order in memory is about."""
    if order == "channels last":
        return (*_cut(rows, 4, 64), length)
    return (*_cut(rows, 16), length) if order == "transposed" else (rows, length)


#: By name; what an op has of them says the table.
LAYOUTS: dict[str, Make] = {
    "tensor": per_tensor,
    "tensor, Fortran": lambda n: per_tensor(*_cut(n, 1024), order="Fortran"),
    "tensor, channels last": lambda n: per_tensor(*_cut(n, 8, 64, 32), order="channels last"),
    "tensor, transposed": lambda n: per_tensor(*_cut(n, 64, 64), order="transposed"),
    "tensor, strided": lambda n: per_tensor(*_cut(n, 1024), order="strided"),
    "tensor, gaps": lambda n: per_tensor(*_cut(n, 1024), order="gaps"),
    **{
        f"{count} channels, {place} axis": partial(_channels, place, count)
        for count in (64, 3, 4096)
        for place in ("first", "middle", "last")
    },
    "64 channels, Fortran": lambda n: replace(_channels("first", 64, n), order="Fortran"),
    "64 channels, channels last": lambda n: per_channel(
        *_cut(n, 8, 64, 32), axis=1, order="channels last"
    ),
    "64 channels, transposed": lambda n: replace(_channels("middle", 64, n), order="transposed"),
    "64 channels, strided": lambda n: replace(_channels("first", 64, n), order="strided"),
    "64 channels, gaps": lambda n: replace(_channels("first", 64, n), order="gaps"),
    "token": lambda n: per_token(*_rows(n)),
    "token, float64 scales": lambda n: per_token(*_rows(n), wide=True),
    "tokens of 32": lambda n: per_token(max(1, n // 32), min(n, 32)),
    "tokens of 100": lambda n: per_token(max(1, n // 100), min(n, 100)),
    **{
        f"token, {order}": lambda n, order=order: per_token(*_split(*_rows(n), order), order=order)
        for order in ORDERS
    },
    "groups of 32": partial(_grouped, 32),
    "groups of 128": partial(_grouped, 128),
    **{
        f"groups of {size}, own scales": lambda n, size=size: replace(_grouped(size, n), own=True)
        for size in (128, 32)
    },
    # Two axes, as the ops want them.
    "groups of 128, Fortran": partial(_grouped, 128, order="Fortran"),
    "groups of 128, strided": partial(_grouped, 128, order="strided"),
    "groups of 128, gaps": partial(_grouped, 128, order="gaps"),
}


def _named(*prefixes: str) -> tuple[str, ...]:
    return tuple(name for name in LAYOUTS if any(p in name for p in prefixes))


TENSORS, CHANNELS, TOKENS, GROUPS_AND_OWN_SCALES = map(
    _named, ("tensor", "channels, ", "token", "groups")
)
#: Learnable ops and AdaRound have no scales of the data's dtype.
GROUPS = tuple(name for name in GROUPS_AND_OWN_SCALES if "own scales" not in name)
NARROW_TOKENS = tuple(name for name in TOKENS if "float64" not in name)

#: Those that a usual run takes; the others are for the whole matrix.
USUAL = (
    "tensor",
    *_named(
        "64 channels, first", "64 channels, middle", "64 channels, last", "4096 channels, last"
    ),
    "token",
    "token, float64 scales",
    "groups of 32",
    "groups of 128",
)


# --- inputs -----------------------------------------------------------------------------------


class Inputs:
    """What calls take: seeded data of one layout and dtype, made when it is asked for."""

    BLOCK = 1 << 20

    def __init__(self, layout: Layout, floating: str, codes: str) -> None:
        self.layout = layout
        self.floating, self.target = dtype_named(floating), dtype_named(codes)
        self.bounds = BOUNDS.get(self.target, BOUNDS[int8])

    def _laid(self, draw: Callable[[int], Array], dtype: Any) -> Array:
        """So many values as the layout has; large arrays repeat a block of them."""
        n = prod(self.layout.shape)
        values = draw(min(n, self.BLOCK)).astype(dtype)
        lie = ORDERS.get(self.layout.order, np.ascontiguousarray)
        return lie(np.resize(values, self.layout.shape))

    @cached_property
    def x(self) -> Array:
        return self._laid(np.random.default_rng(1).standard_normal, self.floating)

    @cached_property
    def grad(self) -> Array:
        return self._laid(np.random.default_rng(2).standard_normal, self.floating)

    @cached_property
    def mask(self) -> Array:
        return self._laid(lambda n: np.random.default_rng(3).random(n) < 0.9, np.bool_)

    @cached_property
    def codes(self) -> Array:
        draw = np.random.default_rng(4).integers
        return self._laid(lambda n: draw(*self.bounds, n, endpoint=True), self.target)

    @cached_property
    def scales(self) -> Array:
        """Scales with which the range of the codes covers some six standard deviations."""
        lo, hi = self.bounds
        unit = 6 / (hi - lo)
        scales = np.random.default_rng(5).uniform(0.9 * unit, 1.1 * unit, self.layout.scales or 1)
        kind = self.floating if self.layout.own else np.float32
        return scales.astype(np.float64 if self.layout.wide else kind)

    @cached_property
    def zero_points(self) -> Array:
        """Zero points near the middle of the range; of float8, where nobody has others, zeros."""
        middle, few = sum(self.bounds) // 2, 0 if self.target.name.startswith("float8") else 2
        if self.layout.own:
            middle = few = 0
        shape = self.layout.scales or 1
        zero_points = np.random.default_rng(6).integers(middle - few, middle + few + 1, shape)
        return zero_points.astype(np.int64 if self.layout.wide else np.int32)

    @cached_property
    def V(self) -> Array:
        """Rounding, in the precision that ops compute in."""
        compute = np.float64 if self.floating == np.float64 else np.float32
        return self._laid(lambda n: np.random.default_rng(7).normal(0, 2, n), compute)

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
    return i.x, i.V, *i.qparams[:2], *i.bounds


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
    """One cell of the matrix: an op, called in one way, in one layout, dtype and size."""

    op: str
    dtype: str
    layout: Layout
    arguments: Arguments
    #: Names in `peers.PEERS`.
    peers: tuple[str, ...]
    #: The name of the layout in LAYOUTS.
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.layout}"

    @property
    def size(self) -> int:
        return prod(self.layout.shape)

    def inputs(self) -> Inputs:
        names = self.dtype.split(" -> ")
        floating = next(name for name in names if name in FLOATS)
        names.remove(floating)
        return Inputs(self.layout, floating, *(names or ["int8"]))

    def keywords(self, inputs: Inputs) -> dict[str, Any]:
        """What ops take by name alone."""
        if self.op.startswith("dequantize") and inputs.floating != np.float32:
            short = "tensor" in self.op or self.op.endswith("channel")
            return {"out_dtype" if short else "output_dtype": inputs.floating}
        if self.op in GRAINED:
            axis, group = self.layout.axis, self.layout.group
            return {"axis": axis[0]} if axis else {"group_size": group[0]} if group else {}
        return {}

    def call(self, inputs: Inputs) -> Call:
        """npquant's call; a partial costs the least to call."""
        return partial(getattr(nq, self.op), *self.arguments(inputs), **self.keywords(inputs))

    def moved(self, inputs: Inputs, result: Any) -> int:
        """Bytes that must move: every array argument read once, every result written once."""
        return sum(a.nbytes for a in filter(is_array, self.arguments(inputs))) + self.written(
            inputs, result
        )

    def written(self, inputs: Inputs, result: Any) -> int:
        """Bytes of the results that are new: an observer gives back what it was given."""
        given = self.arguments(inputs)
        return sum(a.nbytes for a in arrays(result) if not any(a is g for g in given))


def is_array(value: Any) -> bool:
    return hasattr(value, "nbytes")


def arrays(result: Any) -> tuple[Any, ...]:
    """The arrays of a result, be it one or several."""
    found = result if isinstance(result, tuple) else (result,)
    return tuple(a for a in found if is_array(a))


CENTRE = 1 << 20
SIZES = (1, 16, 1 << 10, 1 << 16, 1 << 20, 1 << 26)
USUAL_SIZES = (16, 1 << 20)


@dataclass(frozen=True)
class Spec:
    """An op, and the axes of its part of the matrix; the first of each is in its centre."""

    op: str
    arguments: Arguments
    layouts: Sequence[str]
    dtypes: Sequence[str] = FLOATS
    peers: Sequence[str] = ("torch",)
    #: Whether it is measured in full at 64 Mi elements, and in every dtype in a usual run.
    main: bool = False
    sizes: Sequence[int] = SIZES
    case: type[Case] = Case

    def cell(self, dtype: str, layout: str, size: int) -> Case:
        made = LAYOUTS[layout](size)
        return self.case(self.op, dtype, made, self.arguments, tuple(self.peers), layout)

    def star(self, whole: bool) -> Iterator[Case]:
        """From the centre along each axis; in a usual run not as far."""
        dtype, layout, centre = self.dtypes[0], self.layouts[0], self.centre
        for other in self.layouts:
            if whole or other in USUAL:
                yield self.cell(dtype, other, centre)
        for other in self.dtypes:
            if whole or self.main:
                yield self.cell(other, layout, centre)
        for size in self.sizes:
            if whole or size in USUAL_SIZES or (self.main and layout == "tensor"):
                yield self.cell(dtype, layout, size)
        if whole and self.main:
            largest = max(self.sizes)
            for other in self.layouts:
                yield self.cell(dtype, other, largest)
            for other in self.dtypes:
                if "float16" in other:
                    yield self.cell(other, layout, largest)

    @property
    def centre(self) -> int:
        return CENTRE if CENTRE in self.sizes else self.sizes[0]

    def product(self, dtype: str, layout: str, sizes: Sequence[int]) -> Iterator[Case]:
        """Every cell whose dtype and layout match; without a pattern it is the centre."""
        dtypes = [d for d in self.dtypes if re.search(dtype, d)] if dtype else self.dtypes[:1]
        layouts = [k for k in self.layouts if re.search(layout, k)] if layout else self.layouts[:1]
        for d in dtypes:
            for k in layouts:
                for size in sizes or (self.centre,):
                    yield self.cell(d, k, size)


def by_name(found: Iterable[Case]) -> dict[str, Case]:
    """Each case once, the largest first."""
    return {str(case): case for case in sorted(found, key=lambda case: -case.size)}


def specs(ops: str, *line: Any, **more: Any) -> Iterator[Spec]:
    """Every op (names between spaces) with the same line."""
    return (Spec(op, *line, **more) for op in ops.split())


OTHERS = ("uint8", "int16", "int32", "float8_e4m3fn", "int4")
TO_CODES = (
    *(f"float32 -> {codes}" for codes in ("int8", *OTHERS)),
    *(f"{floating} -> int8" for floating in ("float16", "bfloat16", "float64")),
)
FROM_CODES = (
    *(" -> ".join(reversed(dtype.split(" -> "))) for dtype in TO_CODES),
    "float8_e4m3fn -> bfloat16",
)
TO_INT8 = ("float32 -> int8", "float16 -> int8", "bfloat16 -> int8", "float64 -> int8")
#: AdaRound's codes are added to in float32.
TO_SMALL_INTEGERS = tuple(d for d in TO_CODES if not d.endswith(("int32", "float8_e4m3fn")))
CASTS = ("float32 -> bfloat16", "float32 -> float16", *TO_CODES[:5])  # but int4

LINEAR = ("torch decomposed", "torch quantized", "onnxruntime", "numpy", "torch.compile")
DECOMPOSED = ("torch decomposed", "numpy", "torch.compile")
SAME = ("torch", "numpy", "torch.compile")
#: PyTorch has no such op: its plain expression stands for it.
OURS = ("torch expression", "numpy", "torch.compile")

GRAINED = (
    "adaround_init", "adaround_soft", "adaround_hard", "adaround_codes", "adaround_soft_backward",
)  # fmt: skip
EVERY_GRAIN = (*TENSORS, *CHANNELS, *GROUPS)

# fmt: off
SPECS = (
    *specs("quantize_per_tensor", quantize, TENSORS, TO_CODES, LINEAR, main=True),
    *specs("quantize_per_channel", quantize, CHANNELS, TO_CODES, LINEAR, main=True),
    *specs("quantize_per_token", quantize, TOKENS, TO_CODES, LINEAR, main=True),
    *specs("quantize_per_channel_group", quantize, GROUPS_AND_OWN_SCALES, TO_CODES, LINEAR,
           main=True),

    *specs("dequantize_per_tensor", dequantize, TENSORS, FROM_CODES, LINEAR, main=True),
    *specs("dequantize_per_channel", dequantize, CHANNELS, FROM_CODES, LINEAR, main=True),
    *specs("dequantize_per_token", dequantize, TOKENS, FROM_CODES, LINEAR, main=True),
    *specs("dequantize_per_channel_group", dequantize, GROUPS_AND_OWN_SCALES, FROM_CODES, LINEAR,
           main=True),
    *specs("convert_element_type", to_dtype, TENSORS, CASTS, DECOMPOSED),

    *specs("fake_quantize_per_tensor_affine", fake_quantize, TENSORS, FLOATS, SAME, main=True),
    *specs("fake_quantize_per_channel_affine", fake_quantize, CHANNELS, FLOATS, SAME, main=True),
    *specs("fake_quantize_per_tensor_affine_cachemask", fake_quantize, TENSORS, FLOATS, SAME),
    *specs("fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
           tensor_qparams, TENSORS, FLOATS, SAME),
    *specs("fake_quantize_per_channel_affine_cachemask", fake_quantize, CHANNELS, FLOATS, SAME),
    *specs("fake_quantize_per_tensor_affine_cachemask_backward"
           " fake_quantize_per_channel_affine_cachemask_backward", masked, TENSORS, FLOATS, SAME),
    *specs("fake_quant_per_channel", fake_quantize, CHANNELS, FLOATS, DECOMPOSED),
    *specs("fake_quant_per_channel_cachemask", fake_quantize, CHANNELS, FLOATS, OURS),
    *specs("fake_quant_per_channel_backward", masked, TENSORS, FLOATS, OURS),

    *specs("fake_quantize_learnable_per_tensor_affine", learnable, TENSORS, FLOATS, SAME),
    *specs("fake_quantize_learnable_per_channel_affine", learnable, CHANNELS, FLOATS, SAME),
    *specs("fake_quantize_learnable_per_token_affine", learnable, NARROW_TOKENS, FLOATS, OURS),
    *specs("fake_quantize_learnable_per_channel_group_affine", learnable, GROUPS, FLOATS, OURS),
    *specs("fake_quantize_learnable_per_tensor_affine_backward",
           learnable_backward, TENSORS, FLOATS, SAME, main=True),
    *specs("fake_quantize_learnable_per_channel_affine_backward",
           learnable_backward, CHANNELS, FLOATS, SAME, main=True),
    *specs("fake_quantize_learnable_per_token_affine_backward",
           learnable_backward, NARROW_TOKENS, FLOATS, OURS),
    *specs("fake_quantize_learnable_per_channel_group_affine_backward",
           learnable_backward, GROUPS, FLOATS, OURS),

    *specs("adaround_init", start_rounding, EVERY_GRAIN, FLOATS, OURS),
    *specs("adaround_soft adaround_hard", rounding, EVERY_GRAIN, FLOATS, OURS),
    *specs("adaround_codes", rounding_to_codes, EVERY_GRAIN, TO_SMALL_INTEGERS, OURS),
    *specs("adaround_soft_backward", rounding_backward, EVERY_GRAIN, FLOATS, OURS),
    *specs("adaround_regularizer adaround_regularizer_backward",
           regularize, TENSORS, PRECISIONS, OURS),

    *specs("choose_qparams", choose, TENSORS, TO_INT8, DECOMPOSED),
    *specs("choose_qparams_symmetric", choose, TENSORS, TO_INT8, DECOMPOSED),
    *specs("choose_qparams_per_token choose_qparams_per_token_asymmetric",
           to_dtype, NARROW_TOKENS, TO_INT8, DECOMPOSED),
    *specs("quantize_per_token_dynamic", to_dtype, NARROW_TOKENS, TO_INT8, DECOMPOSED),
    *specs("determine_qparams", determine, ["64 channels, first axis"], ["float32 -> int8"],
           ["torch"], sizes=(16, 1 << 12)),
    *specs("fused_moving_avg_obs_fake_quant", fused,
           (*TENSORS, "64 channels, first axis"), FLOATS, SAME),
    *specs("fused_moving_avg_obs_fake_quant_cachemask", fused,
           (*TENSORS, "64 channels, first axis"), FLOATS, SAME),
)
# fmt: on


def star(table: Sequence[Spec], whole: bool) -> dict[str, Case]:
    """The cells of a usual run, or of the whole matrix."""
    return by_name(case for spec in table for case in spec.star(whole))


#: The cells of a usual run.
CASES = star(SPECS, whole=False)

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
