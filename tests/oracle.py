"""What every op must return: whole-array NumPy, slow and clear, independent of the library.

Each function carries the name, argument order and defaults of the npquant op it judges and
returns PyTorch 2.13's bits (x86, AVX2 or AVX-512), except in the documented departures D1..D15,
where it returns npquant's answer. Nothing here imports npquant; ``test_oracle.py`` asserts it.
Arguments are trusted: lengths match, axes exist, scales are positive and finite.

Where the written contract is silent, measured on PyTorch 2.13 or decided here:

* A NaN stored in a float8 array is the positive quiet NaN (0x7f). PyTorch keeps the NaN's sign
  (0xff), which for a computed NaN is the processor's choice: no NaN's sign or payload is promised.
* Quantized values are clamped in float64, whatever the compute dtype. PyTorch rounds the bounds
  to the compute dtype: -32768 for +inf into int16 through float16, 4096 for ``quant_max=4095``
  in bfloat16, 100000000 for ``quant_max=100000001`` in float32 (D2 in its widest sense).
* Division by a Python number in float16 and bfloat16 divides by its float32 value, rounds once.
* ``convert_element_type``: float to int8, int16, uint16 and int32 goes through int32, to uint8,
  uint32 and int64 through int64; out of range gives the lowest integer of that, with low bits 0.
* float16 with bfloat16 promotes to float32.
* Integer input of ``choose_qparams_per_token*`` is widened to float32 first; PyTorch takes
  ``abs`` and ``max - min`` in the integer type, where -128 wraps.
"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

FLOAT8 = {np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)}
TWO_BYTE = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
FLOAT = TWO_BYTE | FLOAT8 | {np.dtype(np.float32), np.dtype(np.float64)}

TILE, LANES, GROUP = 4096, 16, 256  # the promised summation tree
F32, F64 = np.float32, np.float64
F32_EPS = np.finfo(F32).eps

quiet = np.errstate(all="ignore")  # infinities and NaN are ordinary values here


# --- exact arithmetic ---------------------------------------------------------------------------


def compute_dtype(dtype):
    """Return the dtype an op computes in: float64 for float64, float32 for all others."""
    return np.dtype(F64 if np.dtype(dtype) == F64 else F32)


@quiet
def cast(values, dtype):
    """Convert to a float dtype as PyTorch does: to one and two bytes through float32."""
    values, dtype = np.asarray(values), np.dtype(dtype)
    if dtype in TWO_BYTE | FLOAT8 and values.dtype != dtype:
        values = values.astype(F32)
    result = values.astype(dtype)
    if dtype in FLOAT8:
        result = np.where(np.isnan(values), np.uint8(0x7F), result.view(np.uint8)).view(dtype)
    return result


def _to_odd(rounded, remainder):
    """Move an inexact even value to its odd neighbour, so that a narrower rounding stays exact."""
    bits = np.asarray(rounded).view(f"i{rounded.dtype.itemsize}")
    move = np.isfinite(rounded) & (remainder != 0) & (bits % 2 == 0)
    toward = np.copysign(rounded.dtype.type(np.inf), remainder.astype(rounded.dtype))
    return np.where(move, np.nextafter(rounded, toward), rounded)


def _fma_fraction(a, b, c):
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # the sign of an exact zero follows IEEE
    try:
        return float(exact)  # a ratio of integers: correctly rounded, subnormals too
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _two_sum(a, b):
    """Return ``a + b`` and what was rounded away (Knuth)."""
    total = np.asarray(a + b)
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def _two_product(a, b):
    """Return ``a * b`` and what was rounded away (Dekker, by halves of 26 bits)."""

    def halves(v):
        wide = v * (2.0**27 + 1)
        high = wide - (wide - v)
        return high, v - high

    product, (a, x), (b, y) = a * b, halves(a), halves(b)
    return product, ((a * b - product) + a * y + x * b) + x * y


def _fma64(a, b, c):
    """Of float64: a sum rounded to odd, and then once more (Boldo and Melquiond, 2008)."""
    product, low = _two_product(a, b)
    rest, lower = _two_sum(c, low)
    total, error = _two_sum(product, rest)
    result = total + _to_odd(*_two_sum(error, lower))
    result = np.where(result == 0, product + c, result)  # the sign of an exact zero follows IEEE
    # Where a part may overflow or lose bits to underflow, and of what is not finite, exactly.
    inside = [(abs(v) > 2.0**-900) & (abs(v) < 2.0**990) for v in (a, b, product, c)]
    rare = ~(inside[0] & inside[1] & inside[2] & (inside[3] | (c == 0)))
    exact = np.frompyfunc(_fma_fraction, 3, 1)(a[rare], b[rare], c[rare])
    result[rare] = exact.astype(F64)
    return result


@quiet
def fma(a, b, c):
    """Return ``a * b + c`` rounded once, in the common dtype (float32 or float64) of the three."""
    a, b, c = np.broadcast_arrays(a, b, c)
    wide = np.result_type(a, b, c) == F64
    a, b, c = a.astype(F64), b.astype(F64), c.astype(F64)
    if wide:
        return _fma64(a, b, c)
    return _to_odd(*_two_sum(a * b, c)).astype(F32)  # the product is exact: 24 + 24 bits


@quiet
def round_once(values, dtype):
    """Round float64 once to any float dtype (``astype`` to bfloat16 passes through float32)."""
    narrow = np.asarray(values).astype(F32)
    if np.dtype(dtype) in TWO_BYTE:
        return _to_odd(narrow, values - narrow.astype(F64)).astype(dtype)
    return np.asarray(values).astype(dtype)


def rows_of_tensor(shape):
    """How long the rows are that the sums of a tensor are made of (docs/numerics.md, "Sums")."""
    size = math.prod(shape)
    for axis in reversed(range(len(shape))):
        if size > TILE and math.prod(shape[axis:]) >= 256:
            return math.prod(shape[axis:])
    return size


def in_groups(sums):
    """Add the columns of ``sums``, 256 at a time, until one is left."""
    while sums.shape[1] > 1:
        groups = [sums[:, i : i + GROUP] for i in range(0, sums.shape[1], GROUP)]
        sums = np.stack([np.add.accumulate(group, axis=1)[:, -1] for group in groups], axis=1)
    return sums[:, 0]


@quiet
def tree_sum(terms, row=0):
    """Sum each row of ``terms`` (rows, n) in float64 along the tree that npquant promises.

    Where the terms are those of a tensor, ``row`` is the length of its rows.
    """
    terms = np.asarray(terms, F64)
    if row:
        return in_groups(tree_sum(terms.reshape(-1, row))[None])
    tiles = [np.zeros(len(terms))]
    for start in range(0, terms.shape[1] if len(terms) else 0, TILE):
        tile = terms[:, start : start + TILE]
        lanes = np.zeros((len(terms), LANES))
        for row in range(0, tile.shape[1], LANES):
            part = tile[:, row : row + LANES]
            lanes[:, : part.shape[1]] += part
        half = LANES
        while half > 1:
            half //= 2
            lanes = lanes[:, :half] + lanes[:, half:]
        tiles.append(lanes[:, 0])
    return in_groups(np.stack(tiles[1:] or tiles, axis=1))


def exact_sum(terms):
    """Sum each row of finite ``terms`` with one rounding, to bound the error of other sums."""
    return np.array([math.fsum(row) for row in np.asarray(terms, F64)])


# --- the disputed steps, each in one place, so that a test can put a wrong one there ------------

rint = np.rint  # to nearest, ties to even


@quiet
def reciprocal(scale):
    """Return 1 / scale, rounded once, in the dtype of the scale."""
    return scale.dtype.type(1) / scale


def round_then_add(x, inverse, zero_point):
    """Quantize as ATen's integer zero points do: two roundings."""
    return rint(x * inverse) + zero_point


def divide_then_round(x, scale, zero_point):
    """Quantize as ONNX does: the quotient is rounded, and the zero point added."""
    return rint(x / scale) + zero_point


def add_then_round(x, inverse, zero_point):
    """Quantize as the learnable backward does: one rounding before the last."""
    return rint(fma(x, inverse, zero_point))


# --- shared pieces ------------------------------------------------------------------------------


def _one(value):
    """Return a Python number from a number or a one-element array."""
    return np.asarray(value).item()


def per_tensor(x):
    """Return the layout (outer, channels, inner) of one channel."""
    return (1, 1, x.size)


def per_channel(x, axis):
    """Return the layout of one channel an index of ``axis``."""
    axis %= x.ndim
    return (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


def per_token(x):
    """Return the layout of one channel a row of the last axis."""
    return (1, math.prod(x.shape[:-1]), math.prod(x.shape[-1:]))


def per_group(x, scales, group_size):
    """Return the layout of one channel a group along the last axis."""
    if group_size > x.shape[-1] and np.shape(scales)[-1] == 1:
        group_size = x.shape[-1]  # one group a row, whatever the nominal size
    return (1, x.size // group_size, group_size)


def column(params):
    """Shape one number a channel to broadcast against (outer, channels, inner)."""
    return np.asarray(params).reshape(-1, 1)


def _promote(a, b):
    """Return PyTorch's common dtype of two arrays, of which one may be integer."""
    a, b = (np.dtype(F32) if d in FLOAT8 else d for d in (a.dtype, b.dtype))
    if a not in FLOAT or b not in FLOAT:
        return np.dtype(a if a in FLOAT else b if b in FLOAT else F32)
    return np.dtype(F32) if {np.dtype(a), np.dtype(b)} == TWO_BYTE else np.result_type(a, b)


def _step(operation, a, b):
    """Apply one PyTorch tensor op: promote, compute in float32 or float64, round to the result."""
    dtype = _promote(a, b)
    wide = compute_dtype(dtype)
    return cast(operation(cast(a, dtype).astype(wide), cast(b, dtype).astype(wide)), dtype)


def _clamp(values, low, high):
    """Clamp as ``torch.clamp``: NaN stays NaN, and -0.0 at a bound of 0 keeps its sign."""
    return np.where(values < low, low, np.where(values > high, high, values))


def _to_int(values, bits=64):
    """Truncate to a signed integer as x86 does: NaN and out of range give the lowest one."""
    values = np.asarray(values, F64)
    inside = (values > -(2.0 ** (bits - 1)) - 1) & (values < 2.0 ** (bits - 1))
    return np.where(inside, np.where(inside, values, 0).astype(np.int64), -(2 ** (bits - 1)))


def _whole(values):
    """Return Python's integers, which have no ends, for whole floats."""
    return np.array([int(v) for v in values.reshape(-1)], object)


def _store(values, quant_min, quant_max, dtype):
    """Clamp in float64 (D2), store; NaN becomes the integer nearest to 0, or a float8 NaN (D4)."""
    values = _clamp(values.astype(F64), float(quant_min), float(quant_max))
    if np.dtype(dtype) in FLOAT8:
        return cast(values, dtype)
    values = np.where(np.isnan(values), np.clip(0, quant_min, quant_max), values)
    return values.astype(np.int64).astype(dtype)


def _masked(grad, mask):
    """Pass ``grad`` where the mask is True, else a zero with the sign bit of ``grad`` (D5)."""
    grad = np.asarray(grad)
    zero = np.zeros_like(grad)
    return np.where(mask, grad, np.copysign(zero, grad) if grad.dtype in FLOAT else zero)


# --- quantize and dequantize --------------------------------------------------------------------


@quiet
def _quantize(x, layout, inverse, zero_point, quant_min, quant_max, dtype, *, zero_first):
    """Round ``x * inverse`` and add the zero point, or (``zero_first``) add it and then round."""
    steps = _step(np.multiply, x.reshape(layout), inverse)
    if zero_first:
        steps = rint(_step(np.add, steps, zero_point))
    else:
        steps = _step(np.add, rint(steps), zero_point)
    return _store(steps, quant_min, quant_max, dtype).reshape(x.shape)


@quiet
def _quantize_by_division(x, layout, scale, zero_point, quant_min, quant_max, dtype):
    """Round ``x / scale``, in the common dtype of both, and add the zero point (ONNX).

    Float8 codes are not rounded to integers; a zero to which nothing is added keeps its sign.
    """
    scale = scale if scale.dtype in FLOAT else scale.astype(F32)
    steps = _step(np.divide, x.reshape(layout), scale)
    steps = steps.astype(compute_dtype(steps.dtype))
    if np.dtype(dtype) in FLOAT8:
        steps = np.where(zero_point == 0, steps, _step(np.add, steps, zero_point))
    else:
        steps = _step(np.add, rint(steps), zero_point)
    return _store(steps, quant_min, quant_max, dtype).reshape(x.shape)


def _inverse(scales):
    """Return the inverses as a tensor op of the scales' own dtype does."""
    scales = column(scales)
    dtype = scales.dtype if scales.dtype in FLOAT else np.dtype(F32)
    return cast(reciprocal(scales.astype(compute_dtype(dtype))), dtype)


@quiet
def quantize_per_tensor(
    input, scale, zero_point, quant_min, quant_max, dtype, *, rounding="reciprocal"
):
    """Quantize with one scale, whose inverse is taken in float64."""
    x = np.asarray(input)
    x = x.astype(compute_dtype(x.dtype))
    inverse = reciprocal(F64(_one(scale))).astype(x.dtype)
    zero_point = np.asarray(_one(zero_point)).astype(x.dtype)
    bounds = int(_one(quant_min)), int(_one(quant_max))
    if rounding == "divide":
        scale = F64(_one(scale)).astype(x.dtype)
        return _quantize_by_division(x, x.shape, scale, zero_point, *bounds, dtype)
    return _quantize(x, x.shape, inverse, zero_point, *bounds, dtype, zero_first=False)


def quantize_per_channel(
    input, scales, zero_points, axis, quant_min, quant_max, dtype, *, rounding="reciprocal"
):
    """Quantize with one scale a channel; the inverse is taken in the dtype of the scales.

    float64 input, which PyTorch refuses, takes the inverse in float64.
    """
    x = np.asarray(input)
    if rounding == "divide":
        params = column(scales), column(zero_points), quant_min, quant_max, dtype
        return _quantize_by_division(x, per_channel(x, axis), *params)
    x = x.astype(compute_dtype(x.dtype))
    if x.dtype == F64:
        scales = np.asarray(scales, F64)
    layout = per_channel(x, axis)
    params = _inverse(scales), column(zero_points)
    return _quantize(x, layout, *params, quant_min, quant_max, dtype, zero_first=False)


def quantize_per_token(
    input, scales, zero_points, quant_min, quant_max, dtype, *, rounding="reciprocal"
):
    """Quantize with one scale a row of the last axis; the zero point is added before rounding."""
    x = np.asarray(input)
    if rounding == "divide":
        params = column(scales), column(zero_points), quant_min, quant_max, dtype
        return _quantize_by_division(x, per_token(x), *params)
    params = _inverse(scales), column(zero_points)
    return _quantize(x, per_token(x), *params, quant_min, quant_max, dtype, zero_first=True)


def quantize_per_channel_group(
    input,
    scales,
    zero_points,
    quant_min,
    quant_max,
    dtype,
    group_size=128,
    *,
    rounding="reciprocal",
):
    """Quantize with one scale a group along the last axis; the formula of per token."""
    x = np.asarray(input)
    layout = per_group(x, scales, group_size)
    if rounding == "divide":
        params = column(scales), column(zero_points), quant_min, quant_max, dtype
        return _quantize_by_division(x, layout, *params)
    params = _inverse(scales), column(zero_points)
    return _quantize(x, layout, *params, quant_min, quant_max, dtype, zero_first=True)


@quiet
def _dequantize(q, layout, scale, zero_point, out_dtype):
    """Convert first, then subtract and multiply; each step is rounded to ``out_dtype`` (D15)."""
    out_dtype = np.dtype(F32 if out_dtype is None else out_dtype)
    wide = compute_dtype(out_dtype)
    zero_point = cast(zero_point, out_dtype).astype(wide)
    steps = cast(cast(q.reshape(layout), out_dtype).astype(wide) - zero_point, out_dtype)
    return cast(steps.astype(wide) * scale.astype(wide), out_dtype).reshape(q.shape)


def dequantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype, *, out_dtype=None):
    """Dequantize with one scale."""
    scale, zero_point = F64(_one(scale)), np.asarray(_one(zero_point))
    return _dequantize(np.asarray(input), np.shape(input), scale, zero_point, out_dtype)


def dequantize_per_channel(
    input, scales, zero_points, axis, quant_min, quant_max, dtype, *, out_dtype=None
):
    """Dequantize with one scale a channel; no zero points means 0."""
    q, scales = np.asarray(input), column(scales)
    zero_points = np.zeros(1, np.int64) if zero_points is None else zero_points
    return _dequantize(q, per_channel(q, axis), scales, column(zero_points), out_dtype)


@quiet
def _dequantize_promoted(q, layout, scales, zero_points, output_dtype):
    """Subtract exactly (D3), multiply in the promoted dtype, and convert last."""
    scales, zero_points, steps = column(scales), column(zero_points), q.reshape(layout)
    if steps.dtype in FLOAT or zero_points.dtype in FLOAT:
        steps = _step(np.subtract, steps, zero_points)
    else:
        steps = steps.astype(np.int64) - zero_points.astype(np.int64)
    return cast(_step(np.multiply, steps, scales), output_dtype).reshape(q.shape)


def dequantize_per_token(
    input, scales, zero_points, quant_min, quant_max, dtype, output_dtype=np.float32
):
    """Dequantize with one scale a row of the last axis."""
    q = np.asarray(input)
    return _dequantize_promoted(q, per_token(q), scales, zero_points, output_dtype)


def dequantize_per_channel_group(
    input,
    scales,
    zero_points,
    quant_min,
    quant_max,
    dtype,
    group_size=128,
    output_dtype=np.float32,
):
    """Dequantize with one scale a group along the last axis; no zero points means 0."""
    q = np.asarray(input)
    zero_points = np.zeros(1, np.int64) if zero_points is None else zero_points
    layout = per_group(q, scales, group_size)
    return _dequantize_promoted(q, layout, scales, zero_points, output_dtype)


@quiet
def fake_quant_per_channel_cachemask(
    input, scales, zero_points, axis, quant_min, quant_max, *, rounding="reciprocal"
):
    """Quantize and dequantize per channel with a NaN-keeping clamp; return (output, mask)."""
    x, c = np.asarray(input), compute_dtype(np.asarray(input).dtype)
    s = column(scales).astype(c)
    z = _to_int(column(zero_points), 32).astype(c)
    low, high = c.type(quant_min), c.type(quant_max)
    rows = x.reshape(per_channel(x, axis)).astype(c)
    if rounding == "divide":
        steps = divide_then_round(rows, s, z)
    else:
        steps = round_then_add(rows, reciprocal(s), z)
    output = cast((_clamp(steps, low, high) - z) * s, x.dtype)
    mask = (low <= steps) & (steps <= high)
    return output.reshape(x.shape), mask.reshape(x.shape)


def fake_quant_per_channel(
    input, scales, zero_points, axis, quant_min, quant_max, *, rounding="reciprocal"
):
    """Return the output of :func:`fake_quant_per_channel_cachemask`."""
    args = input, scales, zero_points, axis, quant_min, quant_max
    return fake_quant_per_channel_cachemask(*args, rounding=rounding)[0]


def fake_quant_per_channel_backward(grad, mask):
    """Pass the gradient where the mask is True."""
    return _masked(grad, mask)


@quiet
def convert_element_type(input, dtype):
    """Convert; float to integer truncates, then wraps; NaN becomes 0 in every integer (D4)."""
    x, dtype = np.asarray(input), np.dtype(dtype)
    if dtype in FLOAT:
        if dtype == ml_dtypes.float8_e4m3fn:
            x = _clamp(cast(x, F32), F32(-448), F32(448))  # PyTorch saturates, ml_dtypes does not
        return cast(x, dtype)
    if x.dtype not in FLOAT or dtype == np.bool_:
        return x.astype(dtype)
    x = np.where(np.isnan(x), 0, x.astype(F64))
    return _to_int(x, 64 if dtype in (np.uint8, np.uint32, np.int64) else 32).astype(dtype)


# --- choosing qparams ---------------------------------------------------------------------------


#: Where a symmetric range is shifted to: PyTorch knows uint8 alone, the others follow it.
_UNSIGNED_BYTES = {
    np.dtype(t): 2 ** (bits - 1)
    for t, bits in ((np.uint8, 8), (ml_dtypes.uint4, 4), (ml_dtypes.uint2, 2))
}


def _divide(span, number):
    """Divide a vector by a Python number: not rounded to two bytes itself."""
    span = np.atleast_1d(span)
    wide = compute_dtype(span.dtype)
    return cast(span.astype(wide) / wide.type(number), span.dtype)


@quiet
def determine_qparams(
    min_val, max_val, quant_min, quant_max, dtype, eps, has_customized_qrange, qscheme
):
    """Return (scale float64, zero_point int64) for a range; ``eps`` counts as float32.

    A range that was never observed gives (1.0, 0), here in the dtypes of every other range (D11);
    PyTorch returns that scale in float32.
    """
    low, high = np.asarray(min_val), np.asarray(max_val)
    if low.size == 0 or (low.ndim == 0 and np.isposinf(low) and np.isneginf(high)):
        return np.ones(1), np.zeros(1, np.int64)  # nothing was observed
    eps = np.asarray(eps, F32).reshape(1)
    # A zero-dimensional float64 range does not promote the float32 eps; a vector does.
    kind = F64 if low.dtype == F64 and low.ndim else F32
    zero = np.zeros((), low.dtype)
    low_neg, high_pos = np.minimum(low, zero), np.maximum(high, zero)
    steps = quant_max - quant_min
    if qscheme in ("per_tensor_symmetric", "per_channel_symmetric"):
        scale = _divide(np.maximum(-low_neg, high_pos), steps / 2).astype(kind)
        scale = np.maximum(scale, eps.astype(kind))
        zero_point = np.zeros(scale.shape, np.int64)
        if np.dtype(dtype) in _UNSIGNED_BYTES:
            middle = (quant_min + quant_max) // 2 if has_customized_qrange else None
            zero_point[:] = _UNSIGNED_BYTES[np.dtype(dtype)] if middle is None else middle
    elif qscheme == "per_channel_affine_float_qparams":
        scale = _divide(high - low, steps)
        scale = np.where(scale.astype(kind) > eps, scale, scale.dtype.type(1))
        zero_point = _to_int(_step(np.divide, np.atleast_1d(-low), scale))
    else:
        scale = _divide(high_pos - low_neg, steps).astype(kind)
        scale = np.maximum(scale, eps.astype(kind))
        offset = _to_int(rint(np.atleast_1d(low_neg).astype(kind) / scale), 32)
        wrapped = (quant_min - offset).astype(np.int32)  # PyTorch's int32 arithmetic
        zero_point = np.clip(wrapped.astype(np.int64), quant_min, quant_max)
    return scale.astype(F64), zero_point


def choose_qparams(input, quant_min, quant_max, eps, dtype):
    """Return affine qparams for the range of a whole array."""
    x = np.asarray(input)
    args = x.min(), x.max(), quant_min, quant_max, dtype, eps, False
    return determine_qparams(*args, "per_tensor_affine")


def choose_qparams_symmetric(input, quant_min, quant_max, eps, dtype):
    """Return symmetric qparams for the range of a whole array."""
    x = np.asarray(input)
    args = x.min(), x.max(), quant_min, quant_max, dtype, eps, False
    return determine_qparams(*args, "per_tensor_symmetric")


@quiet
def choose_qparams_per_token(input, dtype):
    """Return symmetric int8 (scales, zero points), one a row, both in the dtype of the scales."""
    x = np.asarray(input)
    if x.dtype == np.float16 or x.dtype not in FLOAT:
        x = x.astype(F32)
    largest = np.abs(x).max(axis=-1, keepdims=True) if x.ndim else np.abs(x)
    wide = compute_dtype(x.dtype)
    scales = np.maximum(largest.astype(wide), cast(1e-5, x.dtype).astype(wide))
    scales = _divide(cast(scales, x.dtype), 127).reshape(np.shape(largest))
    return scales, np.zeros_like(scales)


@quiet
def choose_qparams_per_token_asymmetric(input, dtype):
    """Return affine (scales float64, zero points int64) for [-128, 127], whatever the dtype."""
    x = np.asarray(input)
    x = x if x.dtype in FLOAT else x.astype(F32)
    shape = (*x.shape[:-1], 1) if x.ndim else ()
    rows = np.atleast_1d(x)
    zero, bottom, top = (np.asarray(number, x.dtype) for number in (0, -128, 127))
    low = np.minimum(rows.min(axis=-1), zero)
    high = np.maximum(rows.max(axis=-1), zero)
    scales = np.maximum(_divide(_step(np.subtract, high, low), 255), cast(F32_EPS, x.dtype))
    low, high = _step(np.divide, low, scales), _step(np.divide, high, scales)
    error = _step(np.add, _step(np.add, bottom, low), _step(np.add, top, high))
    from_low, from_high = _step(np.subtract, bottom, low), _step(np.subtract, top, high)
    zero_points = rint(_clamp(np.where(error > zero, from_low, from_high), bottom, top))
    return scales.astype(F64).reshape(shape), _to_int(zero_points).reshape(shape)


def quantize_per_token_dynamic(input, dtype, *, symmetric=False):
    """Return (codes, scales, zero points): two ops, one after the other."""
    choose = choose_qparams_per_token if symmetric else choose_qparams_per_token_asymmetric
    scales, zero_points = choose(input, dtype)
    bounds = (-127, 127) if symmetric else (-128, 127)
    return quantize_per_token(input, scales, zero_points, *bounds, dtype), scales, zero_points


# --- fake quantize ------------------------------------------------------------------------------


@quiet
def fake_quantize_per_tensor_affine_cachemask(
    input, scale, zero_point, quant_min, quant_max, *, rounding="reciprocal"
):
    """Quantize and dequantize with one scale; return (output, mask).

    The inverse and the last product are float32 even for float64 input. Codes stay floats: nothing
    overflows at the ends of int64 (D1).
    """
    x, c = np.asarray(input), compute_dtype(np.asarray(input).dtype)
    s, z = F32(_one(scale)), int(_one(zero_point))
    if rounding == "divide":
        steps = divide_then_round(x.astype(c), s.astype(c), c.type(z))
    else:
        steps = round_then_add(x.astype(c), reciprocal(s).astype(c), c.type(z))
    bounded = np.fmin(np.fmax(steps.astype(F64), float(quant_min)), float(quant_max))
    output = cast((bounded - F64(z)).astype(F32) * s, x.dtype)
    return output, (c.type(quant_min) <= steps) & (steps <= c.type(quant_max))


def fake_quantize_per_tensor_affine(
    input, scale, zero_point, quant_min, quant_max, *, rounding="reciprocal"
):
    """Return the output of :func:`fake_quantize_per_tensor_affine_cachemask`."""
    args = input, scale, zero_point, quant_min, quant_max
    return fake_quantize_per_tensor_affine_cachemask(*args, rounding=rounding)[0]


def fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    input, scale, zero_point, fake_quant_enabled, quant_min, quant_max, *, rounding="reciprocal"
):
    """As the cachemask op, or a copy and a True mask where ``fake_quant_enabled`` is off."""
    if int(_one(fake_quant_enabled)) == 0:
        return np.array(input), np.ones(np.shape(input), bool)
    args = input, scale, zero_point, quant_min, quant_max
    return fake_quantize_per_tensor_affine_cachemask(*args, rounding=rounding)


def fake_quantize_per_tensor_affine_cachemask_backward(grad, mask):
    """Pass the gradient where the mask is True."""
    return _masked(grad, mask)


@quiet
def _fake_quantize_channels(
    x, layout, scale, zero_point, quant_min, quant_max, rounding="reciprocal"
):
    """Quantize and dequantize with one scale a channel; return (output, mask).

    An integer zero point is added after rounding, a float one before: in one fma, but for float16
    in two steps; where the scale divides, both after it. Values beyond int64 saturate (D1).
    """
    c = compute_dtype(x.dtype)
    s, z = column(scale).astype(F32), column(zero_point)
    rows, inverse = x.reshape(layout).astype(c), reciprocal(s).astype(c)
    if rounding == "divide":
        z = z if z.dtype not in FLOAT else z.astype(F32)
        steps = divide_then_round(rows, s.astype(c), z.astype(c))
    elif z.dtype not in FLOAT:
        steps = round_then_add(rows, inverse, z.astype(c))
    elif z.dtype == np.float16:
        steps = rint((rows * inverse + z.astype(c)).astype(F32))
    else:
        z = z.astype(F32)
        steps = rint(fma(rows, inverse, z.astype(c)).astype(F32))
    steps = steps.astype(F64) + 0.0  # an integer in PyTorch: no -0.0
    bounded = np.fmin(np.fmax(steps, float(quant_min)), float(quant_max))
    output = cast((bounded - z.astype(F64)) * s.astype(F64), x.dtype)
    mask = (quant_min <= steps) & (steps <= quant_max)
    return output.reshape(x.shape), mask.reshape(x.shape)


def fake_quantize_per_channel_affine_cachemask(
    input, scale, zero_point, axis, quant_min, quant_max, *, rounding="reciprocal"
):
    """Quantize and dequantize with one scale a channel; return (output, mask)."""
    x = np.asarray(input)
    layout = per_channel(x, axis)
    args = scale, zero_point, quant_min, quant_max, rounding
    return _fake_quantize_channels(x, layout, *args)


def fake_quantize_per_channel_affine(
    input, scale, zero_point, axis, quant_min, quant_max, *, rounding="reciprocal"
):
    """Return the output of :func:`fake_quantize_per_channel_affine_cachemask`."""
    args = input, scale, zero_point, axis, quant_min, quant_max
    return fake_quantize_per_channel_affine_cachemask(*args, rounding=rounding)[0]


def fake_quantize_per_channel_affine_cachemask_backward(grad, mask):
    """Pass the gradient where the mask is True."""
    return _masked(grad, mask)


# --- learnable fake quantize --------------------------------------------------------------------


def _nearest(zero_point, quant_min, quant_max):
    """Return the zero point to the nearest even integer inside the bounds, in its own dtype."""
    number = zero_point.dtype.type
    return _clamp(rint(zero_point), number(quant_min), number(quant_max))


def fake_quantize_learnable_per_tensor_affine(
    input, scale, zero_point, quant_min, quant_max, grad_factor=1.0
):
    """Fake quantize per tensor with the float zero point rounded to nearest even, as float32."""
    z = _nearest(np.asarray(F32(_one(zero_point))), quant_min, quant_max)
    z = int(_inside(z, quant_min, quant_max))
    return fake_quantize_per_tensor_affine(input, scale, z, quant_min, quant_max)


def _inside(zero_point, quant_min, quant_max):
    """A float32 bound may lie outside of the range: the one next to it, where PyTorch has none."""
    z, far = zero_point.astype(F64), F32(np.inf)
    below, above = (np.nextafter(zero_point, to, dtype=F32) for to in (-far, far))
    return np.where(z > quant_max, below, np.where(z < quant_min, above, zero_point))


def _learnable_channels(x, layout, scale, zero_point, quant_min, quant_max):
    z = _nearest(np.asarray(zero_point).astype(F32), quant_min, quant_max)
    z = _whole(_inside(z, quant_min, quant_max))
    return _fake_quantize_channels(x, layout, scale, z, quant_min, quant_max)[0]


def fake_quantize_learnable_per_channel_affine(
    input, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0
):
    """Fake quantize per channel with the zero points rounded to nearest even."""
    x = np.asarray(input)
    return _learnable_channels(x, per_channel(x, axis), scale, zero_point, quant_min, quant_max)


def fake_quantize_learnable_per_token_affine(
    input, scale, zero_point, quant_min, quant_max, grad_factor=1.0
):
    """Fake quantize with one scale a row of the last axis; the formula of per channel."""
    x = np.asarray(input)
    return _learnable_channels(x, per_token(x), scale, zero_point, quant_min, quant_max)


def fake_quantize_learnable_per_channel_group_affine(
    input, scale, zero_point, quant_min, quant_max, group_size=128, grad_factor=1.0
):
    """Fake quantize with one scale a group along the last axis; the formula of per channel."""
    x = np.asarray(input)
    layout = per_group(x, scale, group_size)
    return _learnable_channels(x, layout, scale, zero_point, quant_min, quant_max)


@quiet
def learnable_terms(
    grad,
    input,
    layout,
    scale,
    zero_point,
    quant_min,
    quant_max,
    grad_factor=1.0,
    zero_point_rounding="pytorch",
    tensor_op=False,
):
    """Return grad_input, and the terms of grad_scale and grad_zero_point as (channels, n) rows.

    ``layout`` comes from :func:`per_tensor`, :func:`per_channel`, :func:`per_token` or
    :func:`per_group`. ``tensor_op`` selects PyTorch's per-tensor op: its zero
    point is trunc(z + 1/2) (D12), its bounds stay integers until z is subtracted. NaN counts as
    below the range, +inf as above it (D1).
    """
    x = np.asarray(input)
    c = compute_dtype(x.dtype)
    g, rows = (np.asarray(v).reshape(layout).astype(c) for v in (grad, x))
    # The forward uses both in float32, for float64 input too.
    s, z = column(scale).astype(F32), column(zero_point).astype(F32)
    inverse = reciprocal(s).astype(c)
    s = s.astype(c)
    low, high, factor = c.type(quant_min), c.type(quant_max), c.type(grad_factor)
    if tensor_op and zero_point_rounding == "pytorch":
        z = np.trunc(_clamp(z + F32(0.5), F32(quant_min), F32(quant_max)))
    else:
        z = _nearest(z, quant_min, quant_max)
    z = _inside(z, quant_min, quant_max).astype(c)
    if zero_point_rounding == "pytorch":
        q = add_then_round(rows, inverse, z)
    else:
        q = round_then_add(rows, inverse, z)
    above = q.astype(F64) > quant_max
    inside = (q.astype(F64) >= quant_min) & ~above
    residual = fma(np.where(inside, q, z) - z, s, -rows)
    if tensor_op:
        bound = (np.where(above, quant_max, quant_min) - z.astype(F64)).astype(c)
    else:
        bound = np.where(above, high, low) - z
    scale_terms = np.where(inside, ((g * residual) * inverse) * factor, (g * bound) * factor)
    zero_point_terms = np.where(inside, c.type(0), ((g * c.type(-1)) * s) * factor)
    grad_input = cast(_masked(grad, inside.reshape(x.shape)), x.dtype)

    def by_channel(terms):
        return np.swapaxes(terms, 0, 1).reshape(layout[1], layout[0] * layout[2])

    return grad_input, by_channel(scale_terms), by_channel(zero_point_terms)


def _learnable_backward(grad, input, layout, scale, zero_point, *args, row=0):
    """Sum the terms along the promised tree, into the shapes and dtypes of the parameters."""
    grad_input, *sums = learnable_terms(grad, input, layout, scale, zero_point, *args)
    params = np.asarray(scale), np.asarray(zero_point)
    return grad_input, *(
        round_once(tree_sum(terms, row), param.dtype).reshape(param.shape)
        for terms, param in zip(sums, params, strict=True)
    )


def fake_quantize_learnable_per_tensor_affine_backward(
    grad,
    input,
    scale,
    zero_point,
    quant_min,
    quant_max,
    grad_factor=1.0,
    *,
    zero_point_rounding="pytorch",
):
    """Return (grad_input, grad_scale, grad_zero_point) per tensor."""
    layout = per_tensor(np.asarray(input))
    args = quant_min, quant_max, grad_factor, zero_point_rounding, True
    row = rows_of_tensor(np.shape(input))
    return _learnable_backward(grad, input, layout, scale, zero_point, *args, row=row)


def fake_quantize_learnable_per_channel_affine_backward(
    grad,
    input,
    scale,
    zero_point,
    axis,
    quant_min,
    quant_max,
    grad_factor=1.0,
    *,
    zero_point_rounding="pytorch",
):
    """Return (grad_input, grad_scale, grad_zero_point) per channel."""
    layout = per_channel(np.asarray(input), axis)
    args = quant_min, quant_max, grad_factor, zero_point_rounding
    return _learnable_backward(grad, input, layout, scale, zero_point, *args)


def fake_quantize_learnable_per_token_affine_backward(
    grad,
    input,
    scale,
    zero_point,
    quant_min,
    quant_max,
    grad_factor=1.0,
    *,
    zero_point_rounding="pytorch",
):
    """Return (grad_input, grad_scale, grad_zero_point) per token."""
    layout = per_token(np.asarray(input))
    args = quant_min, quant_max, grad_factor, zero_point_rounding
    return _learnable_backward(grad, input, layout, scale, zero_point, *args)


def fake_quantize_learnable_per_channel_group_affine_backward(
    grad,
    input,
    scale,
    zero_point,
    quant_min,
    quant_max,
    group_size=128,
    grad_factor=1.0,
    *,
    zero_point_rounding="pytorch",
):
    """Return (grad_input, grad_scale, grad_zero_point) per channel group."""
    layout = per_group(np.asarray(input), scale, group_size)
    args = quant_min, quant_max, grad_factor, zero_point_rounding
    return _learnable_backward(grad, input, layout, scale, zero_point, *args)


# --- fused observer and fake quantize -----------------------------------------------------------


@quiet
def _fused_qparams(low, high, quant_min, quant_max, symmetric):
    """Return (scale float32, zero point) for one float32 range, as FBGEMM chooses them."""
    floor = F32(6.1e-5)  # the smallest scale chosen
    span = F32(quant_max - quant_min)
    centred = symmetric and low < 0 < high
    if centred:
        half = (quant_max - quant_min) // 2
        bottom, top = F32(-(half + 1)), F32(half)
        widest = np.maximum(np.abs(low / bottom), np.abs(high / top))
        low, high = widest * bottom, widest * top
        centred = low < 0 < high  # of subnormal numbers the range may have become 0
    low, high = np.minimum(low, F32(0)), np.maximum(high, F32(0))
    scale = F32(np.divide(F64(high) - F64(low), F64(quant_max - quant_min)))
    if scale == 0 or np.isinf(F32(1) / scale):
        scale = F32(0.1)
    if scale < floor:
        if low == 0:
            high = floor * span
        elif high == 0:
            low = -floor * span
        else:
            low, high = low * (floor / scale), high * (floor / scale)
        scale = floor
    below, above = F64(low) / F64(scale), F64(high) / F64(scale)
    if centred:
        zero_point = (quant_min + quant_max) / 2
    elif abs(quant_min) + abs(below) < abs(quant_max) + abs(above):
        zero_point = quant_min - below
    else:
        zero_point = quant_max - above
    return scale, _to_int(rint(_clamp(zero_point, F64(quant_min), F64(quant_max))), 32)


@quiet
def fused_moving_avg_obs_fake_quant_cachemask(
    input,
    observer_on,
    fake_quant_on,
    running_min,
    running_max,
    scale,
    zero_point,
    averaging_const,
    quant_min,
    quant_max,
    ch_axis,
    per_row_fake_quant=False,
    symmetric_quant=False,
):
    """Observe, choose qparams and fake quantize; return (output, mask).

    ``running_min``, ``running_max``, ``scale`` and ``zero_point`` are updated in place.
    """
    x = np.asarray(input)
    if x.size == 0:
        return x.copy(), np.ones(x.shape, bool)
    if int(_one(observer_on)):
        rows = x.reshape(x.shape[0], -1) if per_row_fake_quant else x.reshape(1, -1)
        # -0.0 is less than 0.0 here; NumPy gives the one it meets.
        at_zero = np.where(rows == 0, np.copysign(1, rows.astype(F64)), 0)
        low, high = rows.min(axis=1).astype(F32), rows.max(axis=1).astype(F32)
        low = np.where((low == 0) & (at_zero < 0).any(axis=1), F32(-0.0), low)
        high = np.where((high == 0) & (at_zero > 0).any(axis=1), F32(0.0), high)
        for running, seen in ((running_min, low), (running_max, high)):
            seen = seen.reshape(running.shape)
            moved = running + F32(averaging_const) * (seen - running)
            running[...] = np.where(np.isinf(running), seen, moved)
    if not int(_one(fake_quant_on)):
        return x.copy(), np.ones(x.shape, bool)
    ranges = zip(running_min.reshape(-1), running_max.reshape(-1), strict=True)
    for row, (low, high) in enumerate(ranges):
        chosen = _fused_qparams(low, high, quant_min, quant_max, symmetric_quant)
        scale.reshape(-1)[row], zero_point.reshape(-1)[row] = chosen
    bounds = quant_min, quant_max
    if per_row_fake_quant:
        args = x, scale, zero_point, ch_axis, *bounds
        return fake_quantize_per_channel_affine_cachemask(*args)
    args = x, scale.reshape(-1)[0], zero_point.reshape(-1)[0], *bounds
    return fake_quantize_per_tensor_affine_cachemask(*args)


def fused_moving_avg_obs_fake_quant(
    input,
    observer_on,
    fake_quant_on,
    running_min,
    running_max,
    scale,
    zero_point,
    averaging_const,
    quant_min,
    quant_max,
    ch_axis,
    per_row_fake_quant=False,
    symmetric_quant=False,
):
    """Return the output of :func:`fused_moving_avg_obs_fake_quant_cachemask`."""
    rest = averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant
    args = input, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, *rest
    return fused_moving_avg_obs_fake_quant_cachemask(*args)[0]


# --- AdaRound -----------------------------------------------------------------------------------
#
# The sigmoid, the logarithm and the power are taken in long double and rounded once; npquant's are
# a few ulp from that. All else is rounded step by step, as PyTorch does.

LONG = np.longdouble
ZETA, GAMMA = F32(1.1), F32(-0.1)


def _spread(p, x, axis, group_size, dtype):
    """One number for every element of ``x``, in ``dtype``."""
    p = np.asarray(p).astype(dtype)
    if group_size is not None:
        if not x.size:
            return x.astype(dtype)
        rows = p.reshape(*x.shape[:-1], -1)
        return np.repeat(rows, x.shape[-1] // rows.shape[-1], axis=-1)
    if axis is None:
        return np.broadcast_to(p.reshape(()), x.shape)
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.broadcast_to(p.reshape(shape), x.shape)


@quiet
def sigmoid(values):
    """Return the sigmoid, correctly rounded but for ties in long double."""
    v = np.asarray(values)
    return (1 / (1 + np.exp(-v.astype(LONG)))).astype(v.dtype)


@quiet
def _stretched(values):
    sigma = sigmoid(values)
    return sigma, sigma * sigma.dtype.type(F32(ZETA - GAMMA)) + sigma.dtype.type(GAMMA)


@quiet
def adaround_init(input, scale, *, axis=None, group_size=None):
    """Return V = -log(1.2 / (r + 0.1) - 1), r the fraction that rounding down drops.

    Of float64 with the float32 constants that `_stretched` has, step by step.
    """
    dtype = compute_dtype(input.dtype)
    t = input.astype(dtype) / _spread(scale, input, axis, group_size, dtype)
    r = t - np.floor(t)
    if dtype == F32:
        r = r.astype(LONG)
        return np.log((10 * r + 1) / (11 - 10 * r))
    span, gamma = dtype.type(F32(ZETA - GAMMA)), dtype.type(GAMMA)
    return -np.log((span / (r - gamma) - dtype.type(1)).astype(LONG))


@quiet
def _floored(input, scale, zero_point, axis, group_size):
    """Return floor(x / scale) + zero_point, and scale and zero point of every element."""
    dtype = compute_dtype(input.dtype)
    s = _spread(scale, input, axis, group_size, dtype)
    z = _spread(np.trunc(zero_point), input, axis, group_size, dtype)
    return np.floor(input.astype(dtype) / s) + z, s, z


@quiet
def adaround_soft(input, V, scale, zero_point, quant_min, quant_max, *, axis=None, group_size=None):
    """Return (clamp(floor(x / scale) + zero_point + h(V)) - zero_point) * scale."""
    t, s, z = _floored(input, scale, zero_point, axis, group_size)
    h = np.clip(_stretched(V)[1], 0, 1)
    return cast((np.clip(t + h, quant_min, quant_max) - z) * s, input.dtype)


@quiet
def adaround_soft_backward(
    grad, input, V, scale, zero_point, quant_min, quant_max, *, axis=None, group_size=None
):
    """Return the gradient of V; there is none where the code or h was cut off."""
    t, s, _ = _floored(input, scale, zero_point, axis, group_size)
    sigma, h = _stretched(V)
    q = t + np.clip(h, 0, 1)
    g = np.where((quant_min <= q) & (q <= quant_max), grad.astype(t.dtype) * s, t.dtype.type(0))
    g = np.where((h >= 0) & (h <= 1), g, t.dtype.type(0)) * t.dtype.type(F32(ZETA - GAMMA))
    return g * (1 - sigma) * sigma


@quiet
def adaround_hard(input, V, scale, zero_point, quant_min, quant_max, *, axis=None, group_size=None):
    """Return the values that V has decided for."""
    t, s, z = _floored(input, scale, zero_point, axis, group_size)
    return cast((np.clip(t + (V >= 0), quant_min, quant_max) - z) * s, input.dtype)


@quiet
def adaround_codes(
    input, V, scale, zero_point, quant_min, quant_max, dtype, *, axis=None, group_size=None
):
    """Return the codes that V has decided for; a NaN becomes 0 or the bound next to it."""
    t, _, _ = _floored(input, scale, zero_point, axis, group_size)
    q = np.clip(t + (V >= 0), quant_min, quant_max)
    return np.where(np.isnan(q), np.clip(0, quant_min, quant_max), q).astype(np.int32).astype(dtype)


@quiet
def adaround_regularizer(V, beta):
    """Return the sum of 1 - |2h - 1|**beta, in long double but for h."""
    h = np.clip(_stretched(V)[1], 0, 1).astype(LONG)
    return np.array((1 - np.abs(2 * h - 1) ** LONG(beta)).sum(), F64)


@quiet
def adaround_regularizer_backward(V, beta, weight=1.0):
    """Return the gradient of weight * adaround_regularizer, in long double but for the sigmoid."""
    sigma, h = _stretched(V)
    inside, sigma = (h >= 0) & (h <= 1), sigma.astype(LONG)
    d = 2 * np.clip(h, 0, 1).astype(LONG) - 1
    g = -LONG(weight) * LONG(beta) * np.abs(d) ** LONG(beta - 1) * np.sign(d)
    g = g * 2 * LONG(F32(ZETA - GAMMA)) * (1 - sigma) * sigma
    return np.where(inside, g, 0).astype(V.dtype)
