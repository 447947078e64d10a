"""Every op against the oracle, bit for bit, on inputs made to break it.

Sums are compared bit for bit too: the oracle adds in the order that docs/numerics.md promises.
"""

import itertools
import math
from contextlib import nullcontext
from functools import lru_cache

import ml_dtypes
import numba
import numpy as np
import pytest

import cases
import npquant as nq
import oracle
from calls import CALLS, PARAMETERS, arguments, everywhere, long_way
from cases import BOUNDS, FLOATS, RANGES, SCALES, assert_same
from npquant import cpu
from npquant.cpu import dynamic, learnable_gradients_per_channel, minmax_finite
from npquant.cpu.extremes import ONE_CALL_OF_RUNS, of_any_size
from npquant.cpu.folded import LONGEST, MANY, folds
from npquant.cpu.qparams import ON_STACK
from npquant.cpu.target import GRAIN
from npquant.cpu.vectors import AT_ONCE, VECTORS
from npquant.formulas import guesses
from npquant.formulas import quantize as formulas
from npquant.layout import LANES, per_channel, per_token

F16, BF16, F32, F64 = FLOATS
#: Those first that a default run pairs with everything.
INPUTS = (F32, F16, BF16, F64)
TARGETS = list(BOUNDS)
#: Channels along every axis: 3 of them, an odd number, and enough for a period of the last axis.
AXES = ((3, 0), (3, 1), (3, 2), (7, 1), (70, 2), (70, 0))


def named(dtypes):
    dtypes = [np.dtype(d) for d in dtypes]
    return {"argvalues": dtypes, "ids": [d.name for d in dtypes]}


def pairs(first, second, usual=1):
    """All pairs; those where neither is among its first `usual` ones run under `full` alone.

    Every pair compiles kernels of its own, and a default run has no hour.
    """
    first, second = (tuple(map(np.dtype, d)) for d in (first, second))
    return [
        pytest.param(a, b, id=f"{a.name}-{b.name}",
                     marks=() if a in first[:usual] or b in second[:usual] else pytest.mark.full)
        for a in first
        for b in second
    ]  # fmt: skip


def agree(op, *args, note="", **kwargs):
    """The op and its oracle, on the same arguments."""
    actual = getattr(nq, op)(*args, **kwargs)
    with np.errstate(all="ignore"):
        expected = getattr(oracle, op)(*args, **kwargs)
    assert_same(actual, expected, f"{op} {note}")
    return actual


def grid(quant_min, quant_max):
    """Scales and zero points of one tensor."""
    zero_points = cases.zero_points(quant_min, quant_max)
    yield from ((s, zero_points[i % len(zero_points)]) for i, s in enumerate(SCALES))
    yield from ((0.1, z) for z in zero_points)


# --- quantize and dequantize ------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "target"), pairs(INPUTS, TARGETS))
def test_quantize_per_tensor(dtype, target):
    lo, hi = BOUNDS[target]
    for bounds in ((lo, hi), (max(lo, -5), min(hi, 100))):
        for scale, z in grid(*bounds):
            x = cases.inputs(dtype, scale, *bounds, z)
            agree("quantize_per_tensor", x, scale, z, *bounds, target, note=(scale, z, bounds))


@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_a_nan_is_the_bound_next_to_zero(dtype):
    """Where 0 is no code; of whole vectors, and of what is left."""
    x = np.array([[np.nan] * 21, [*range(-10, 10), np.nan]]).astype(dtype)
    s, z = np.array([1, 0.5]).astype(dtype), np.zeros(2, np.int32)
    for lo, hi, expected in ((3, 10, 3), (-10, -3, -3), (-5, 5, 0)):
        for name, *args in (
            ("quantize_per_tensor", 0.5, 0), ("quantize_per_channel", s, z, 0),
            ("quantize_per_token", s, z),
        ):  # fmt: skip
            q = agree(name, x, *args, lo, hi, np.int8)
            assert q[0].tolist() == [expected] * 21


@pytest.mark.interpreted
def test_quantize_per_tensor_takes_qparams_in_arrays():
    x = cases.inputs(F32, 0.1, -128, 127)
    for z in (np.array([1.7], np.float32), np.array(-3), np.array([[0.25]])):
        scale, lo, hi = np.array([0.1]), np.array([-100.0]), np.array([5.5], np.float32)
        agree("quantize_per_tensor", x, scale, z, -100, 5, np.int8)
        codes = nq.quantize_per_tensor(x, scale, z, lo, hi, np.int8)
        assert_same(codes, oracle.quantize_per_tensor(x, scale, z, -100, 5, np.int8))
        agree("dequantize_per_tensor", codes, scale, z, -128, 127, np.int8)


def every_code(target):
    """All codes of a narrow target, and the awkward ones of int32."""
    lo, hi = BOUNDS[target]
    if target == np.int32:
        near = [2**k + d for k in (7, 15, 24, 25, 30) for d in (-1, 0, 1)]
        return np.array([lo, lo + 1, hi, hi - 1, 0, *near, *(-n for n in near)], target)
    if target in cases.FLOAT8:
        return np.arange(256, dtype=np.uint8).view(target)
    return np.arange(lo, hi + 1).astype(target)


@pytest.mark.parametrize(("out_dtype", "target"), pairs(INPUTS, TARGETS))
def test_dequantize_per_tensor(out_dtype, target):
    bounds = BOUNDS[target]
    q = every_code(target)
    for scale, z in grid(*bounds):
        agree("dequantize_per_tensor", q, scale, z, *bounds, target, out_dtype=out_dtype,
              note=(scale, z))  # fmt: skip


@pytest.mark.parametrize("out_dtype", **named((F16, BF16)))
def test_dequantize_rounds_each_step_to_two_bytes(out_dtype):
    """Codes and zero points that two bytes do not hold."""
    q = np.array([2049, -2051, 257, 4097, 30_001], np.int16)
    bounds = BOUNDS[q.dtype]
    for z in (259, -2053):
        agree("dequantize_per_tensor", q, 0.1, z, *bounds, np.int16, out_dtype=out_dtype)


@pytest.mark.parametrize(("out_dtype", "target"), pairs((F16, BF16), (np.int8, np.uint8)))
def test_dequantize_to_two_bytes_with_zero_points_that_are_no_codes(out_dtype, target):
    """Of one-byte codes the last step alone is rounded, but for zero points like these."""
    lo, hi = BOUNDS[target]
    q = every_code(target)
    beyond = np.array([lo - 2, hi + 2, lo - 131, hi + 131, 2 * hi + 3, 5003, 70001, 0])
    for z in (lo, hi, 0.5, *beyond):
        z = np.array([z]) if z == 0.5 else int(z)
        agree("dequantize_per_tensor", q, 0.1, z, lo, hi, target, out_dtype=out_dtype)
    for z in (beyond, beyond[:1].repeat(8), np.resize([lo, hi], 8), np.linspace(lo, hi, 8)):
        agree("dequantize_per_channel", np.stack([q] * 8), np.full(8, 0.1, np.float32), z, 0, lo,
              hi, target, out_dtype=out_dtype)  # fmt: skip


SOME_TARGETS = (np.int8, np.int32, ml_dtypes.float8_e4m3fn, ml_dtypes.uint4, np.uint16)


@pytest.mark.parametrize(("dtype", "target"), pairs(INPUTS, SOME_TARGETS))
def test_quantize_per_channel(dtype, target):
    bounds = BOUNDS[target]
    for channels, axis in AXES:
        s, z = cases.qparams(channels, *bounds)
        x = cases.channels(dtype, s, z, *bounds, axis)
        agree("quantize_per_channel", x, s, z, axis, *bounds, target)


ZEROS = (np.int64, np.int8, np.float32, np.float64)


@pytest.mark.parametrize(("scale_dtype", "zero_dtype"), pairs(INPUTS, ZEROS))
def test_quantize_per_channel_promotes(scale_dtype, zero_dtype):
    s, z = (0.1 * np.arange(1, 6)).astype(scale_dtype), np.arange(-2, 3).astype(zero_dtype)
    z = z + zero_dtype.type(0.3) if z.dtype.kind == "f" else z
    x = cases.channels(F32, s.astype(F32), np.zeros(5), -128, 127, 1)
    agree("quantize_per_channel", x, s, z, 1, -128, 127, np.int8)


def test_zero_points_of_uint32():
    """Those from 2**31 on are no int32."""
    s, z = np.ones(2, F32), np.array([2**31, 2**32 - 1], np.uint32)
    q = agree("quantize_per_channel", np.zeros((2, 3), F32), s, z, 0, -128, 127, np.int8)
    agree("dequantize_per_channel", q, s, z, 0, -128, 127, np.int8)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_zero_point_that_no_float64_holds(dtype):
    """Next to a tie of float32: it is rounded once, and by way of float64 it would go down."""
    s, z = 0.125, 2**60 + 2**36 + 1
    x = -np.array([2.0**60, 2.0**60 + 2.0**37, 0]).astype(dtype) * dtype.type(s)
    for zero_point in (z, -z, np.array([z])):
        for rounding in ("reciprocal", "divide"):
            args = x, s, zero_point, -128, 127, np.int8
            agree("quantize_per_tensor", *args, rounding=rounding)
        q = np.array([-128, 127], np.int8)
        agree("dequantize_per_tensor", q, s, zero_point, -128, 127, np.int8, out_dtype=dtype)
    assert nq.quantize_per_tensor(x, s, z, -128, 127, np.int8)[1] == (0 if dtype == F32 else -128)


def test_integer_scales_have_float32_inverses():
    """At ties, which that of float64 rounds to the other side."""
    s, z = np.array([7, 13, 49]), np.zeros(3, int)
    x = ((np.arange(-128, 127) + 0.5) * s[:, None]).astype(F32)
    q = agree("quantize_per_channel", x, s, z, 0, -128, 127, np.int8)
    assert (q != nq.quantize_per_channel(x, s.astype(F64), z, 0, -128, 127, np.int8)).any()


@pytest.mark.parametrize(("out_dtype", "target"), pairs(INPUTS, SOME_TARGETS))
def test_dequantize_per_channel(out_dtype, target):
    bounds = BOUNDS[target]
    for channels, axis in AXES:
        s, z = cases.qparams(channels, *bounds)
        q = np.resize(every_code(target), (channels, 8, 32))
        q = np.ascontiguousarray(np.moveaxis(q, 0, axis))
        for zero_points in (z, None, z.astype(np.float32) + np.float32(0.25)):
            agree("dequantize_per_channel", q, s, zero_points, axis, *bounds, target,
                  out_dtype=out_dtype)  # fmt: skip


@pytest.mark.parametrize(("dtype", "scale_dtype"), pairs(INPUTS, INPUTS))
def test_quantize_per_token_and_group(dtype, scale_dtype):
    zero_points_too = scale_dtype in (F32, dtype)
    for target in (np.int8, np.int32, ml_dtypes.float8_e4m3fn):
        bounds = BOUNDS[np.dtype(target)]
        s, z = cases.qparams(6, -100, 100)
        with np.errstate(over="ignore"):
            s = s.astype(scale_dtype)
        s[~(np.isfinite(s) & (s > 0))] = 0.5
        others = z.astype(np.int64), (z + 0.3).astype(scale_dtype), z + 0.3
        for zero_points in (z, *(others if target == np.int8 and zero_points_too else ())):
            x = cases.rows(dtype, s.astype(F64), z, -100, 100)
            column = s[:, None], zero_points[:, None]
            agree("quantize_per_token", x.reshape(2, 3, -1), s, zero_points, *bounds, target)
            agree("quantize_per_token", x, *column, *bounds, target)
            wide = x.reshape(2, -1)
            grouped = s.reshape(2, 3), zero_points.reshape(2, 3)
            agree("quantize_per_channel_group", wide, *grouped, *bounds, target, 256)


@pytest.mark.parametrize("scale_dtype", **named((F16, BF16)))
def test_zero_points_of_tokens_are_of_the_type_of_what_they_are_added_to(scale_dtype):
    """Two bytes do not hold 2049; the product of a float32 and a scale of two bytes does."""
    x = np.random.default_rng(0).normal(size=(3, 40)).astype(F32)
    scales = np.array([0.25, 0.5, 0.125], scale_dtype)
    zero_points = np.array([2049, -2051, 4097])
    agree("quantize_per_token", x, scales, zero_points, -32768, 32767, np.int16)


def beside_ties(scale, least, most, n, rng):
    """Values a few float32 beside ties, so many codes from 0."""
    k = rng.integers(least, max(most, least + 1), n) * rng.choice([-1, 1], n)
    steps = rng.integers(1, 5, n) * rng.choice([-1, 1], n)
    return (((k + 0.5) * scale).astype(F32).view(np.int32) + steps.astype(np.int32)).view(F32)


@pytest.mark.parametrize(("dtype", "target"), pairs((F32, F16, BF16), (
    np.int8, np.uint8, np.int16, ml_dtypes.int4)))  # fmt: skip
def test_float64_scales_are_guessed_in_float32(dtype, target):
    """Runs in which no value is too near to a tie to be sure of, and runs in which one is.

    Scales that float32 does not hold, and zero points that are too large or no integers.
    """
    rng = np.random.default_rng(0)
    lo, hi = BOUNDS[target]
    some = *rng.uniform(1e-3, 2, 5), 1e-30, 1e30, 1e-42, 1e-300, 1e300
    scales = np.array([0.1, 1 / 3, 0.5, *some])
    zeros = 0, 3, lo, hi, 2**18, -(2**20) - 7, 2**31 - 1, 0.5, 1e-9, -7.25
    for inner, z in itertools.product((128, 512, 1300), zeros):
        with np.errstate(over="ignore"):
            normal = rng.normal(0, (hi - lo) / 4, (len(scales), inner)) * scales[:, None]
            kinds = [
                normal.astype(F32),
                np.stack([beside_ties(s, 16, hi - lo, inner, rng) for s in scales]),
                np.stack([beside_ties(s, 0, 16, inner, rng) for s in scales]),
                np.stack([np.resize(cases.inputs(F32, s, lo, hi), inner) for s in scales]),
            ]
        zero_points = np.full(len(scales), z, np.int64 if z == int(z) else np.float64)
        for x in kinds:
            with np.errstate(over="ignore", invalid="ignore"):
                x = x.astype(dtype)
            agree("quantize_per_token", x, scales, zero_points, lo, hi, target, note=(inner, z))
            args = scales, zero_points, 0, lo, hi, target
            agree("quantize_per_channel", x, *args, note=(inner, z))


def test_no_guess_is_sure_of_what_is_next_to_a_tie():
    """Of 20,000 scales, the float32 nearest to ties: 1e-8 of a code above or below, or less.

    In rows of 17, as short blocks go by the rule.
    """
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.01, 2, 20_000)
    x = ((rng.integers(-4, 4, (20_000, 1)) + 0.5) * scales[:, None]).astype(F32).repeat(17, axis=1)
    qparams = scales, np.zeros(20_000, np.int64)
    agree("quantize_per_token", x, *qparams, -128, 127, np.int8)
    agree("quantize_per_channel", x, *qparams, 0, -128, 127, np.int8)


@pytest.mark.parametrize("dtype", **named((F32, F16, BF16)))
def test_no_guess_is_sure_of_what_is_a_tie_but_for_float64(dtype):
    """Every value is k + 1/2 times its scale, give or take some 2**-52 of it."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 50, (20_000, 1)).astype(dtype)
    codes = rng.integers(0, 100, x.shape) + 0.5
    scales = x.astype(F64) / codes * (1 + rng.integers(-3, 4, x.shape) * 2.0**-52)
    x = x.repeat(17, axis=1)
    x[:, 1::2] *= dtype.type(-1)
    zero_points = rng.integers(-3, 4, scales.shape)
    agree("quantize_per_token", x, scales, zero_points, -128, 127, np.int8)
    qparams = scales.ravel(), zero_points.ravel()
    agree("quantize_per_channel", x, *qparams, 0, -128, 127, np.int8)


def test_a_guess_is_sure_of_nearly_all():
    """Else the test above says nothing of it."""
    rng = np.random.default_rng(0)
    bounds = np.float32(-128), np.float32(127), np.float32(0)
    x, y = rng.normal(0, 50, 2000).astype(np.float32), np.empty(1, np.int8)
    p = guesses.split_inverse(x, np.float64(0.3), np.int64(3), bounds, y)
    sure = [guesses.guess(v, p, bounds, y)[1] < guesses.SURE for v in x]
    assert np.mean(sure) > 0.99
    assert guesses.guess(np.float32(-1.2), p, bounds, y)[0] == -1
    for v in (np.float32(np.nan), np.float32(0.45)):  # 1.5 codes but for a rounding
        assert guesses.guess(v, p, bounds, y)[1] >= guesses.SURE


@pytest.mark.parametrize("dtype", **named((F16, BF16)))
def test_quantize_per_token_rounds_each_step_to_two_bytes(dtype):
    """Input and scales of one two-byte dtype: the product and the sum are rounded to it."""
    s, z = np.linspace(0.1, 0.9, 6).astype(dtype), np.arange(-3, 3)
    x = cases.rows(dtype, s.astype(F64), z, -100, 100)
    agree("quantize_per_token", x, s, z, -128, 127, np.int8)
    agree("quantize_per_token", x, s, (z + 0.3).astype(dtype), -128, 127, np.int8)


@pytest.mark.parametrize("target", **named([np.int8, np.int32, ml_dtypes.uint4, *cases.FLOAT8]))
@pytest.mark.parametrize("dtype", **named((F16, BF16)))
def test_zero_points_of_zero_in_two_bytes(dtype, target):
    """Beside others, and of both signs: the sum of two zeros has a sign, which float8 shows."""
    s = np.linspace(0.1, 0.9, 6).astype(dtype)
    bounds = BOUNDS[np.dtype(target)]
    x = cases.rows(dtype, s.astype(F64), np.zeros(6, int), -100, 100)
    few = np.array([-0.0, 0.0, -1e-7, 1e-7, np.nan, np.inf, -np.inf], dtype)
    x[:, : few.size] = few
    for z in (0, -0.0, [0, 1, 0, -2, -0.0, 3]):
        for kind in (np.int64, dtype):
            zeros = np.resize(z, 6).astype(kind)
            agree("quantize_per_token", x, s, zeros, *bounds, target, note=(z, kind))
            args = x.reshape(2, -1), s.reshape(2, 3), zeros.reshape(2, 3)
            agree("quantize_per_channel_group", *args, *bounds, target, 256, note=(z, kind))


def test_bfloat16_of_every_length():
    """Two are done at a time: of an odd number, from any place on, in rows and in groups."""
    x = np.random.default_rng(3).normal(0, 9, (2, 200)).astype(BF16)
    x[:, ::7] = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38, -3e38, 0.25, 0.75], BF16)[
        np.arange(29) % 9
    ]
    s, z = np.array([0.25, 3.0], F32), np.array([5, -7], np.int32)
    for length in range(1, 70):
        for first in (0, 1):
            part = x[0, first : first + length]
            agree("fake_quantize_per_tensor_affine_cachemask", part, 0.25, 5, -8, 7, note=length)
            rows = np.ascontiguousarray(x[:, first : first + length])
            for op in ("fake_quantize_per_channel_affine_cachemask", "fake_quant_per_channel"):
                agree(op, rows, s, z, 0, -8, 7, note=length)
    groups = np.resize(x, (6, 96))
    scale = np.random.default_rng(4).uniform(0.2, 2, (6, 6)).astype(F32)
    agree("fake_quantize_learnable_per_channel_group_affine", groups, scale, scale, -8, 7, 16, 1.0)
    out = groups.copy()
    nq.fake_quantize_per_tensor_affine(out, 0.25, 5, -8, 7, out=out)
    assert_same(out, nq.fake_quantize_per_tensor_affine(groups, 0.25, 5, -8, 7))


#: Codes of a byte, of which many are made together.
OF_A_BYTE = (*cases.FLOAT8, np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.uint2)


@pytest.mark.parametrize("target", **named(OF_A_BYTE))
def test_codes_of_every_length(target):
    """They are made so many at a time; of the rest no more is written than there is."""
    lo, hi = BOUNDS[target]
    s, z = np.array([0.1, 2, 0.7], F32), np.array([0, 3, -2])
    # Zeros of both signs, NaNs of both, infinities, and what is cut off.
    some = np.array([-0.01, 0, 3, math.nan, -math.inf, -3, 1e9, -math.nan, 20.3], F32)
    x = np.resize(some, 3000)
    x[1::2] *= np.linspace(-1, 1, 1500, dtype=F32) * np.float32(hi / 4)
    x = x.reshape(3, -1)
    for n in (*range(1, 140), *range(500, 600), 1000):
        rows = np.ascontiguousarray(x[:, :n])
        expected = oracle.quantize_per_token(rows, s, z, lo, hi, target)
        memory = np.full(3 * n + 128, 0x5A, np.uint8)
        out = memory[64:-64].view(target).reshape(3, n)
        nq.quantize_per_token(rows, s, z, lo, hi, target, out=out)
        assert_same(out, expected, n)
        assert (memory[:64] == 0x5A).all(), n
        assert (memory[-64:] == 0x5A).all(), n


@pytest.mark.parametrize("target", **named(OF_A_BYTE))
def test_codes_of_many_groups_and_columns(target):
    """Those of several groups, and of several channels, are made together."""
    lo, hi = BOUNDS[target]
    rng = np.random.default_rng(12)
    for group in (16, 32, 48, 112, 512, 528):
        x = rng.normal(size=(3, 7 * group)).astype(F32) * np.float32(hi)
        s, z = rng.uniform(0.5, 2, (3, 7)).astype(F32), rng.integers(-1, 3, (3, 7))
        agree("quantize_per_channel_group", x, s, z, lo, hi, target, group, note=group)
    for channels in (5, 33, 300, 1100):
        x = rng.normal(size=(9, channels)).astype(F32) * np.float32(hi)
        s, z = rng.uniform(0.5, 2, channels).astype(F32), rng.integers(-1, 3, channels)
        agree("quantize_per_channel", x, s, z, 1, lo, hi, target, note=channels)


@pytest.mark.parametrize("scale_dtype", **named(FLOATS))
def test_quantize_per_token_takes_integers(scale_dtype):
    s, z = np.array([10, 0.7]).astype(scale_dtype), np.array([0, -2])
    for dtype in (np.int8, np.uint8, np.int32, np.int64):
        x = np.arange(256).astype(dtype).reshape(2, 128)
        agree("quantize_per_token", x, s, z, -128, 127, np.int8)
        agree("quantize_per_channel_group", x, s[:, None], z[:, None], -128, 127, np.int8, 999)


@pytest.mark.parametrize(("scale_dtype", "output_dtype"), pairs(INPUTS, INPUTS))
def test_dequantize_per_token_and_group(scale_dtype, output_dtype):
    s = (0.1 * np.arange(1, 7)).astype(scale_dtype)
    z = np.array([0, 1, -3, 127, 60_000, -128])
    for target in (np.int8, np.int32, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn):
        bounds = BOUNDS[np.dtype(target)]
        q = np.resize(every_code(np.dtype(target)), (6, 64))
        others = z.astype(np.int32), (z + 0.3).astype(scale_dtype), z + 0.3
        for zero_points in (z, *(others if output_dtype in (F32, scale_dtype) else ())):
            agree("dequantize_per_token", q, s, zero_points, *bounds, target, output_dtype)
            grouped = s.reshape(2, 3), zero_points.reshape(2, 3)
            agree("dequantize_per_channel_group", q.reshape(2, -1), *grouped, *bounds, target, 64,
                  output_dtype)  # fmt: skip
        agree("dequantize_per_channel_group", q.reshape(2, -1), s.reshape(2, 3), None, *bounds,
              target, 64, output_dtype)  # fmt: skip


@pytest.mark.parametrize(("target", "zero_dtype"), pairs(cases.FLOAT8, (F16, BF16)))
def test_float8_codes_beside_zero_points_of_two_bytes_are_float32(target, zero_dtype):
    """Their difference has more bits than a zero point of two bytes, whatever the scale."""
    q = np.resize(every_code(target), (4, 64))
    z = np.array([100.3, -0.017, 3.0, 60_000]).astype(zero_dtype)
    exact = q.astype(F64) - z.astype(F64)[:, None]
    for scale_dtype in (zero_dtype, F32, F64):
        s = np.array([0.37, 1.0, 3e-5, 11.1]).astype(scale_dtype)
        kind = F64 if scale_dtype == F64 else F32
        expected = exact.astype(F32).astype(kind) * s.astype(kind)[:, None]
        args = s, z, *BOUNDS[target], target
        y = agree("dequantize_per_token", q, *args, F64)
        assert_same(y, expected.astype(F64))
        y = agree("dequantize_per_channel_group", q, *args, 64, F64)
        assert_same(y, expected.astype(F64))


@pytest.mark.parametrize(("target", "result"), pairs(
    ("int8", "uint8", ml_dtypes.int4, *cases.FLOAT8), (F16, BF16)))  # fmt: skip
def test_differences_that_two_bytes_hold_and_others(target, result):
    """With zero points of which no difference is rounded, nor are scales, and with others."""
    lo, hi = BOUNDS[target]
    q = np.resize(every_code(target), (6, 256))
    s = (np.random.default_rng(12).random(6) + 0.1).astype(F32)
    for z in (0, 1, *((-3,) if target in cases.FLOAT8 else (lo, hi, lo - 1, hi + 1)), 999):
        agree("dequantize_per_tensor", q, 0.3, z, lo, hi, target, out_dtype=result, note=z)
        zero_points = np.array([0, 0, 0, z, z, z])
        agree("dequantize_per_channel", q, s, zero_points, 0, lo, hi, target, out_dtype=result,
              note=z)  # fmt: skip
        for kind in FLOATS:
            args = q, s.astype(kind), zero_points, lo, hi, target, result
            agree("dequantize_per_token", *args, note=(z, kind))


def halfway(rng, n):
    """Scales of which some code times the scale lies halfway between two float32, or next to it."""
    ties = rng.integers(2**24, 2**25, n) * 2 + 1.0
    return ties / (2 * rng.integers(1, 64, n) + 1) * 2.0 ** rng.integers(-40, 40, n)


@pytest.mark.parametrize("target", **named((np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.uint2)))
def test_float64_scales_are_tried_in_float32(target):
    """Scales that float32 gets right for all codes, those that it does not, and what it overflows.

    Rows that are worth trying and others; bounds say nothing of the codes.
    """
    rng = np.random.default_rng(0)
    codes = every_code(np.dtype(target))
    some = 0.1, 0.5, 1e-30, 1e30, 1e-38, 1e-42, 3e38, 1e300, 1e-300, *rng.uniform(1e-3, 2, 9)
    scales = np.array([*some, *halfway(rng, 100)])
    for inner, z in itertools.product((96, 512, 700, 1300), (0, 3, -128, 255, 2**23, 2**40, 0.5)):
        zero_points = np.full(len(scales), z, np.int64 if z == int(z) else np.float64)
        q = np.resize(codes, (len(scales), inner))
        agree("dequantize_per_token", q, scales, zero_points, 0, 1, target, note=(inner, z))
    grouped = scales[:, None], zero_points[:, None]
    agree("dequantize_per_channel_group", q, *grouped, 0, 1, target, inner)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_float64_scales_beside_zero_points_of_two_bytes(dtype):
    """Rows that are worth guessing and trying, and others."""
    s, z = np.array([0.1, 1 / 3, 0.5]), np.array([0, 3, -7.25]).astype(dtype)
    for n in (16, 600):
        for data in (F32, np.float16):
            x = np.random.default_rng(0).normal(0, 9, (3, n)).astype(data)
            agree("quantize_per_token", x, s, z, -8, 7, np.int8)
            agree("quantize_per_channel_group", x, s[:, None], z[:, None], -8, 7, np.int8, n)
        for target in (np.int8, np.int32, ml_dtypes.float8_e5m2):
            q = np.resize(every_code(np.dtype(target)), (3, n))
            bounds = BOUNDS[np.dtype(target)]
            agree("dequantize_per_token", q, s, z, *bounds, target)


@pytest.mark.parametrize("scale_dtype", [np.float16, F32, F64])
@pytest.mark.parametrize("target", [np.int8, ml_dtypes.float8_e5m2])
def test_no_row_asks_for_the_zero_points_of_others(target, scale_dtype):
    """However large these are."""
    q = np.resize(every_code(np.dtype(target)), (2, 300))
    s, bounds = np.full(2, 0.3, scale_dtype), BOUNDS[np.dtype(target)]
    for z in (0, 1000):
        expected = nq.dequantize_per_token(q[:1], s[:1], np.array([z]), *bounds, target, F64)
        for other in (2**23, 2**23 + 1, 2**30, 2**40, 2**62 + 1):
            zero_points = np.array([z, other])
            got = nq.dequantize_per_token(q, s, zero_points, *bounds, target, F64)
            assert_same(got[:1], expected)
            agree("dequantize_per_token", q, s, zero_points, *bounds, target, F64)


@pytest.mark.parametrize("scale_dtype", [np.float16, F32, F64])
@pytest.mark.parametrize("target", [np.int8, np.uint16, np.int32, ml_dtypes.int4])
def test_differences_that_no_float64_holds(target, scale_dtype):
    """They are those of integers of 64 bits, as in PyTorch, which wrap."""
    largest = np.array([2**53 + 1, -(2**53) - 1, 2**62 + 257, -(2**62) - 1, 2**63 - 1, -(2**63)])
    q = np.resize(every_code(np.dtype(target)), (6, 300))
    s, bounds = np.linspace(0.3, 0.9, 6).astype(scale_dtype), BOUNDS[np.dtype(target)]
    for result in (F32, F64, ml_dtypes.bfloat16):
        agree("dequantize_per_token", q, s, largest, *bounds, target, result)
        groups = np.repeat(largest, 3).reshape(6, 3)
        scales = np.repeat(s, 3).reshape(6, 3)
        agree("dequantize_per_channel_group", q, scales, groups, *bounds, target, 100, result)


def test_most_scales_are_right_in_float32_and_some_are_not():
    """Else the test above says nothing of it."""
    rng = np.random.default_rng(0)
    codes, y, z = every_code(np.dtype(np.int8)), np.empty(1, F32), np.int64(3)

    def right(scale):
        rule, p = (split(codes, scale, z, None, y) for split in
                   (formulas.in_floats, formulas.split_scale))  # fmt: skip
        return all(
            np.float32(formulas.dequantize_promoted(q, rule, None, y)[0])
            == formulas.dequantize_in_float32(q, p, None, y)[0]
            for q in codes
        )

    assert all(map(right, rng.uniform(0.01, 2, 30)))
    assert 0 < np.mean([right(s) for s in halfway(rng, 60)]) < 1


DIVIDING = [name for name in CALLS if "rounding" in PARAMETERS[name]]


@pytest.mark.interpreted
@pytest.mark.parametrize("name", DIVIDING)
def test_division(name):
    """Ties and their neighbours, at which the quotient and the product round apart."""
    kwargs = arguments(name, (6, 64))
    scale = np.asarray(kwargs.get("scale", kwargs.get("scales")), F32)
    scale = np.repeat(scale.reshape(-1, 1), 384 // scale.size, axis=1).reshape(6, 64)
    ties = (np.arange(384, dtype=F32).reshape(6, 64) % 41 - 20.5) * scale
    ties = (ties.view(np.int32) + np.arange(64, dtype=np.int32) % 5 - 2).view(F32)
    kwargs |= {"input": ties, "rounding": "divide"}
    if "dtype" not in kwargs:
        kwargs |= {"quant_min": -128, "quant_max": 127}
    divided = agree(name, **kwargs)
    multiplied = getattr(oracle, name)(**kwargs | {"rounding": "reciprocal"})
    with pytest.raises(AssertionError):
        assert_same(divided, multiplied)


@pytest.mark.parametrize(
    ("dtype", "target"), pairs(INPUTS, (np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.uint4))
)
def test_quantize_per_tensor_by_division(dtype, target):
    lo, hi = BOUNDS[target]
    for bounds in ((lo, hi), (max(lo, -5), min(hi, 100))):
        for scale, z in grid(*bounds):
            x = cases.inputs(dtype, scale, *bounds, z)
            note = (scale, z, bounds)
            agree("quantize_per_tensor", x, scale, z, *bounds, target, rounding="divide", note=note)


#: Input and scales of one dtype, and of two.
SHARED = [pytest.param(d, d, id=d.name) for d in INPUTS]
SHARED += [pytest.param(F16, F32, id="float16-float32")]
SHARED += [
    pytest.param(a, b, id=f"{a.name}-{b.name}", marks=pytest.mark.full)
    for a in INPUTS
    for b in INPUTS
    if a != b and (a, b) != (F16, F32)
]


@pytest.mark.parametrize(("dtype", "scale_dtype"), SHARED)
def test_quantize_by_division(dtype, scale_dtype):
    """All granularities. The quotient of two numbers of one two-byte dtype is rounded to it."""
    usual = dtype == scale_dtype == F32
    for target in (np.int8, np.int32, ml_dtypes.float8_e4m3fn) if usual else (np.int8,):
        bounds = BOUNDS[np.dtype(target)]
        s, z = cases.qparams(6, -100, 100)
        with np.errstate(over="ignore"):
            s = s.astype(scale_dtype)
        s[~(np.isfinite(s) & (s > 0))] = 0.5
        x = cases.rows(dtype, s.astype(F64), z, -100, 100)
        for zero_points in (z, z + 0.3) if usual and target == np.int8 else (z,):
            args = *bounds, target
            agree("quantize_per_token", x, s, zero_points, *args, rounding="divide")
            agree("quantize_per_channel", x, s, zero_points, 0, *args, rounding="divide")
            grouped = s.reshape(2, 3), zero_points.reshape(2, 3)
            name = "quantize_per_channel_group"
            agree(name, x.reshape(2, -1), *grouped, *args, 256, rounding="divide")
        if target == np.int8 and usual:
            agree("quantize_per_channel", x.T.copy(), s, z, 1, *args, rounding="divide")


def test_quotients_of_two_byte_numbers_have_two_bytes():
    """As in ONNX, where the type of the scale is that of the quotient: here, of both."""
    x, s = np.array([[0.25, -1.25, 0.85]], F16), np.array([0.1], F16)
    args = [0], 0, -128, 127, np.int8
    narrow = nq.quantize_per_channel(x, s, *args, rounding="divide")
    wide = nq.quantize_per_channel(x, s.astype(F32), *args, rounding="divide")
    assert (narrow.tolist(), wide.tolist()) == ([[2, -12, 8]], [[3, -13, 9]])


def test_division_of_integers():
    """They take the dtype of the scales."""
    s, z = np.array([10, 0.7], F32), np.array([0, -2])
    x = np.arange(256).reshape(2, 128)
    agree("quantize_per_token", x, s, z, -128, 127, np.int8, rounding="divide")


def test_float8_by_division_is_no_integer():
    x, e4m3fn = np.array([0.3, -0.0, 1e9, -np.inf, np.nan], F32), ml_dtypes.float8_e4m3fn
    q = nq.quantize_per_tensor(x, 1.0, 0, -448, 448, e4m3fn, rounding="divide")
    assert_same(q, np.array([0.3125, -0.0, 448, -448, np.nan], F32).astype(e4m3fn))


def test_division_adds_the_zero_point_last():
    """Whatever the granularity: ties go to even before it is added."""
    x, s = np.array([[0.25, 0.75, -0.25, 0.5]], F32), np.array([0.5], F32)
    codes = [
        nq.quantize_per_tensor(x, 0.5, 1, -8, 7, np.int8, rounding="divide"),
        nq.quantize_per_channel(x, s, [1], 0, -8, 7, np.int8, rounding="divide"),
        nq.quantize_per_token(x, s, [1], -8, 7, np.int8, rounding="divide"),
        nq.quantize_per_channel_group(x, s, [1], -8, 7, np.int8, 4, rounding="divide"),
    ]
    assert [q.tolist() for q in codes] == 4 * [[[1, 3, 1, 2]]]


@pytest.mark.parametrize("rounding", ["reciprocal", "divide"])
def test_large_zero_points_have_the_precision_of_the_scales(rounding):
    """2**25 + 1 is a float64, and no float32."""
    x, one, z = np.array([[2 - 2.0**25]], F32), np.ones(1), np.array([2**25 + 1])
    q = agree("quantize_per_channel", x, one, z, 0, -128, 127, np.int8, rounding=rounding)
    assert q.item() == 3
    for scale, zero_point, code in ((one, z, 3), (one.astype(F32), z + 3, 6)):
        args = x, scale, zero_point, -128, 127, np.int8
        assert agree("quantize_per_token", *args, rounding=rounding).item() == code


# --- fake quantize ----------------------------------------------------------------------------

WIDE = ((-(2**31), 2**31 - 1), (-(2**24) - 1, 2**25 + 3), (2**24 + 1, 2**24 + 9))


@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_fake_quantize_per_tensor(dtype):
    for bounds in RANGES + WIDE:
        for scale, z in grid(*bounds):
            x = cases.inputs(dtype, scale, *bounds, z)
            note = (scale, z, bounds)
            name = "fake_quantize_per_tensor_affine"
            y = agree(name, x, scale, z, *bounds, note=note)
            z_and_on = np.array([z], np.int32), np.array([1])
            result = agree(f"{name}_cachemask", x, scale, z, *bounds, note=note)
            assert_same(result[0], y)
            agree(f"{name}_cachemask_tensor_qparams", x, np.array([scale]), *z_and_on, *bounds)


@pytest.mark.interpreted
def test_fake_quantize_tensor_qparams():
    x = cases.inputs(F32, 0.1, -128, 127)
    name = "fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    for z in (np.array(300), np.array([2.7], np.float32), np.array([[-2.7]])):
        for enabled in (np.array([0]), np.array(0.5), np.array([2]), np.array(True)):
            agree(name, x, np.array([0.1], np.float64), z, enabled, -128, 127, note=(z, enabled))


@pytest.mark.parametrize("dtype", **named(FLOATS))
@pytest.mark.parametrize("zero_dtype", **named((np.int32, np.float32, np.float16)))
@pytest.mark.parametrize(("channels", "axis"), AXES)
def test_fake_quantize_per_channel(dtype, channels, axis, zero_dtype):
    for bounds in (*RANGES, *(WIDE[1:2] if zero_dtype != F16 else ())):
        s, z = cases.qparams(channels, *bounds)
        x = cases.channels(dtype, s, z, *bounds, axis)
        with np.errstate(over="ignore"):
            z = z.astype(zero_dtype)
        z = np.where(z == 0, z, z + zero_dtype.type(0.25)) if z.dtype.kind == "f" else z
        name = "fake_quantize_per_channel_affine"
        agree(f"{name}_cachemask", x, s, z, axis, *bounds, note=bounds)
        if dtype == F32:
            agree(name, x, s, z, axis, *bounds, note=bounds)


@pytest.mark.parametrize("rounding", ["reciprocal", "divide"])
@pytest.mark.parametrize("zero_dtype", **named((F64, BF16)))
def test_fractional_zero_points_are_float32(zero_dtype, rounding):
    """Others, which PyTorch refuses, are rounded to that first: float64 results show it."""
    s, z = np.array([0.1, 0.3, 2], F32), np.array([0.3, -0.7, 1 / 3]).astype(zero_dtype)
    x = cases.channels(F64, s, np.zeros(3), -8, 7, 1)
    name = "fake_quantize_per_channel_affine_cachemask"
    agree(name, x, s, z, 1, -8, 7, rounding=rounding)


def test_zero_points_of_32_bits_are_compared_exactly():
    """2**24 + 9 is no float32, and here the bound itself."""
    bounds, x = WIDE[2], np.linspace(-9, 9, 12, dtype=F32).reshape(3, 4)
    for dtype in (np.uint32, np.int64):
        z = np.array([bounds[0], bounds[1], 2**24 + 2], dtype)
        agree("fake_quantize_per_channel_affine", x, np.ones(3, F32), z, 0, *bounds)
        with pytest.raises(ValueError, match="zero_point must lie within"):
            nq.fake_quantize_per_channel_affine(x, np.ones(3, F32), z + 1, 0, *bounds)


@pytest.mark.interpreted
@pytest.mark.parametrize(("channels", "axis"), AXES)
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_fake_quant_per_channel(dtype, channels, axis):
    for bounds in RANGES:
        s, z = cases.qparams(channels, *bounds)
        x = cases.channels(dtype, s, z, *bounds, axis)
        for zero_points in (z, z + 0.9):  # which are truncated
            agree("fake_quant_per_channel_cachemask", x, s, zero_points, axis, *bounds, note=bounds)
        if dtype == F32:
            agree("fake_quant_per_channel", x, s, z, axis, *bounds, note=bounds)


@pytest.mark.interpreted
@pytest.mark.parametrize("rounding", ["reciprocal", "divide"])
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_fake_quant_per_channel_of_codes_that_float32_rounds(dtype, rounding):
    """With z a code, or less than one, is lost: it does not cancel, and neither may a bound."""
    zero_points = 2**23, 2**23 + 1, -(2**24) - 1, 2**24 + 1, 2**31 - 1, -(2**31)
    s, z = np.full(len(zero_points), 0.5, F32), np.array(zero_points, np.int32)
    for bounds in (*WIDE, (2**24 - 1, 2**24 + 1), (2**23 - 8, 2**23 + 7), (-128, 127)):
        codes = np.add.outer(bounds, np.arange(-300.0, 300)).ravel()
        with np.errstate(over="ignore"):
            x = ((codes - z[:, None]) / 2).astype(dtype)
        agree("fake_quant_per_channel_cachemask", x, s, z, 0, *bounds, rounding=rounding)


@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_fake_quantize_per_tensor_by_division(dtype):
    name = "fake_quantize_per_tensor_affine_cachemask"
    for bounds in RANGES + (WIDE if dtype in (F32, F64) else ()):
        for scale, z in grid(*bounds):
            x = cases.inputs(dtype, scale, *bounds, z)
            agree(name, x, scale, z, *bounds, rounding="divide", note=(scale, z, bounds))
    for on in (0, 1):
        args = np.array([0.1]), np.array([2.7]), np.array([on]), -128, 127
        agree(f"{name}_tensor_qparams", x, *args, rounding="divide")


@pytest.mark.parametrize(("zero_dtype", "dtype"), pairs((np.int32, np.float32, F16), INPUTS))
def test_fake_quantize_per_channel_by_division(dtype, zero_dtype):
    for bounds in (*RANGES, *(WIDE[1:2] if zero_dtype != F16 and dtype == F32 else ())):
        s, z = cases.qparams(3, *bounds)
        x = cases.channels(dtype, s, z, *bounds, 0)
        with np.errstate(over="ignore"):
            z = z.astype(zero_dtype)
        z = np.where(z == 0, z, z + zero_dtype.type(0.25)) if z.dtype.kind == "f" else z
        name = "fake_quantize_per_channel_affine_cachemask"
        agree(name, x, s, z, 0, *bounds, rounding="divide", note=bounds)
        if zero_dtype == np.int32:
            name = "fake_quant_per_channel_cachemask"
            agree(name, x, s, z, 0, *bounds, rounding="divide", note=bounds)


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", **named((*FLOATS, np.int8, np.int64)))
@pytest.mark.parametrize(
    "op",
    [
        "fake_quantize_per_tensor_affine_cachemask_backward",
        "fake_quantize_per_channel_affine_cachemask_backward",
        "fake_quant_per_channel_backward",
    ],
)
def test_masked_backward(op, dtype):
    grad = cases.inputs(F32, 0.1, -128, 127)
    with np.errstate(invalid="ignore", over="ignore"):
        grad = grad.astype(dtype) if dtype.kind != "i" else np.arange(-128, 128, dtype=dtype)
    mask = np.arange(grad.size) % 3 > 0
    result = agree(op, grad, mask)
    if grad.dtype.kind != "i":
        # np.copysign knows no bfloat16: look at the sign bits themselves.
        zeros = result[~mask].astype(F64)
        assert (zeros == 0).all()
        assert (np.signbit(zeros) == np.signbit(grad[~mask].astype(F64))).all()


# --- learnable --------------------------------------------------------------------------------

#: Wide bounds with zero between; float32 rounds their ends inward, outward, and both.
SPANNING = (WIDE[0], (-(2**24) - 1, 7), (-8, 2**24 + 3))
#: And on one side of zero alone, where the ends are rounded outward, too.
LEARNED_BOUNDS = (*SPANNING, WIDE[2], (-(2**24) - 9, -(2**24) - 1), (2**24 + 2, 2**25 - 5))
LEARNED = (-3.0, -2.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.7, 1000.0, -1000.0, np.inf, -np.inf)


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", **named(FLOATS))
@pytest.mark.parametrize("bounds", [(-128, 127), (0, 15), (-8, 7), *LEARNED_BOUNDS])
def test_learnable_per_tensor(dtype, bounds):
    for i, z in enumerate((*LEARNED, 2e7, -2e7, 3e9)):
        scale = np.array([SCALES[i % len(SCALES)]], F32)
        zero_point = np.array([z], F32)
        x = cases.inputs(dtype, float(scale[0]), *bounds)
        g = cases.inputs(dtype, 0.1, -8, 7, finite=True, seed=1)
        args = scale, zero_point, *bounds
        name = "fake_quantize_learnable_per_tensor_affine"
        agree(name, x, *args, note=z)
        for rounding in ("pytorch", "nearest") if bounds[0] <= 0 <= bounds[1] else ():
            agree(f"{name}_backward", g, x, *args, 0.3, zero_point_rounding=rounding, note=z)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(float, F32), (np.float32, F32), (np.float64, F64), (F16.type, F32), (BF16.type, F32)],
)
def test_gradients_of_numbers(number, dtype):
    """Those of a float32, but for a number of NumPy that is a float64."""
    name, x = "fake_quantize_learnable_per_tensor_affine_backward", np.ones(3, F32)
    actual = getattr(nq, name)(x, x, number(0.3), number(0.5), -8, 7)
    arrays = (np.array([float(number(v))], dtype) for v in (0.3, 0.5))
    assert_same(actual, getattr(oracle, name)(x, x, *arrays, -8, 7))


@pytest.mark.parametrize("number", [int, np.int64, np.uint8])
def test_gradients_of_an_integer_scale(number):
    """On a tape that watches the input alone, say: the forward takes it."""
    name, x = "fake_quantize_learnable_per_tensor_affine_backward", np.ones(3, F32)
    actual = getattr(nq, name)(x, x, number(2), 1, -8, 7)
    assert_same(actual, getattr(oracle, name)(x, x, F32.type([2]), F32.type([1]), -8, 7))


@pytest.mark.parametrize(("dtype", "parameter"), pairs(INPUTS, INPUTS))
def test_learnable_per_channel_token_and_group(dtype, parameter):
    for bounds in ((-128, 127), (0, 15)):
        s, _ = cases.qparams(6, *bounds)
        s[(s < 1e-3) | (s > 1e3)] = 0.7
        z = np.resize(np.array(LEARNED), 6).astype(parameter)
        x = cases.rows(dtype, s, np.zeros(6), *bounds)
        g = cases.rows(dtype, np.full(6, 0.1), np.zeros(6), -8, 7, finite=True, seed=9)
        s = s.astype(parameter)
        for rounding in ("pytorch", "nearest") if parameter == F32 else ("pytorch",):
            for op, a, b, extra in (
                ("per_channel", x, g, (0,)),
                ("per_channel", x.T.copy(), g.T.copy(), (1,)),
                ("per_token", x, g, ()),
                ("per_channel_group", x.reshape(2, -1), g.reshape(2, -1), ()),
            ):
                p = (s.reshape(2, 3), z.reshape(2, 3)) if op.endswith("group") else (s, z)
                size = {"group_size": 256} if op.endswith("group") else {}
                name, args = f"fake_quantize_learnable_{op}_affine", (*p, *extra, *bounds)
                agree(name, a, *args, note=op, **size)
                agree(f"{name}_backward", b, a, *args, grad_factor=0.7, note=op,
                      zero_point_rounding=rounding, **size)  # fmt: skip


@pytest.mark.parametrize("bounds", LEARNED_BOUNDS)
def test_learnable_forward_per_channel_with_wide_bounds(bounds):
    z = np.array([0.5, -2e7, 2e7, 1e9, -1e9, 3e9, np.inf, -np.inf], F32)
    s = np.linspace(0.1, 2, 8).astype(F32)
    x = cases.rows(F32, s, np.clip(z, *bounds).astype(np.int64), *bounds)
    agree("fake_quantize_learnable_per_channel_affine", x, s, z, 0, *bounds)
    agree("fake_quantize_learnable_per_token_affine", x, s, z, *bounds)


@pytest.mark.parametrize("bounds", LEARNED_BOUNDS)
def test_learnable_per_channel_of_float64_with_wide_bounds(bounds):
    """A zero point at a bound that is no float32, and bounds and sums that a float32 rounds."""
    lo, hi = bounds
    z = np.array([0.5, 3.3, lo + 0.0, hi + 0.0, 3e9, -3e9, np.inf, -np.inf], F32)
    s = np.linspace(0.1, 2, 8).astype(F32)
    x = cases.rows(F64, s, np.clip(z, lo, hi).astype(np.int64), lo, hi)
    g = cases.rows(F64, np.full(8, 0.1), np.zeros(8), -8, 7, finite=True)
    name = "fake_quantize_learnable_per_channel_affine"
    agree(name, x, s, z, 0, lo, hi)
    for rounding in ("pytorch", "nearest") if lo <= 0 <= hi else ():
        agree(f"{name}_backward", g, x, s.astype(F64), z.astype(F64), 0, lo, hi,
              zero_point_rounding=rounding)  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), [
    ((20_000,), None), ((3, 9_000), 0), ((9_000, 3), 1), ((2, 70, 5_000), 1), ((5_000, 70), 1),
    ((2, 5, 49), 1), ((300, 5, 7), 1), ((4096, 2), 1), ((4097, 1), 1), ((1, 64 * 64 + 1), 0),
    ((16, 256), None), ((17, 255), None), ((17, 256), None), ((17, 257), None), ((9, 500), None),
    ((4, 3, 32, 31), None), ((70, 9, 7), None), ((2, 9000), None), ((5000, 1), None),
    ((515, 260), None), ((5000, 1), 1), ((17, 1, 256), 1), ((256 * 4096 + 9000,), None),
    ((8, 16), 0), ((17, 48), 0), ((521, 32), 0), ((300, 512), 0), ((9, 528), 0),  # all at once
    ((2, 3, 127), 1), ((2, 3, 128), 1), ((3, 4, 144), 1), ((3, 2, 385), 1), ((2, 300, 130), 1),
])  # fmt: skip
def test_sums_follow_the_tree(shape, axis):
    """Shapes that cross every boundary of the tree: lanes, strips, tiles, blocks, runs, rows."""
    rng = np.random.default_rng(7)
    x, g = (rng.normal(size=shape).astype(F32) for _ in range(2))
    g = np.ldexp(g, rng.integers(-30, 30, shape))  # so different in size that any order shows
    count = 1 if axis is None else shape[axis]
    s, z = rng.uniform(0.1, 0.4, count).astype(F32), rng.normal(size=count).astype(F32)
    s, z = s.astype(F64), z.astype(F64)  # and so are the sums: every bit is seen
    if axis is None:
        agree("fake_quantize_learnable_per_tensor_affine_backward", g, x, s, z, -8, 7)
    else:
        agree("fake_quantize_learnable_per_channel_affine_backward", g, x, s, z, axis, -8, 7)


#: Shapes on both sides of every constant by which channels that lie side by side are cut.
BESIDE = (
    *((33, n) for n in (2, 3, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129)),  # STRIP: some rows
    *((50, n) for n in (255, 256, 257, 511, 513, 1000, 4096)),  # PART
    *((rows, 257) for rows in (63, 64, 65, 129)), (70, 513, 2), (37, 300, 8),  # TURNS
    (70, 1535), (70, 1536), (130, 1537), (33, 2000), (140, 1537, 2),  # lanes that have no room
    (19, 4097), (35, 8193), (18, 2049, 2), (17, 513, 8),  # LONG_ROW
    *((21, 256 // inner + k, inner) for inner in (2, 4, 8, 16) for k in (-1, 0, 1)),
    *((rows, n) for rows in (4095, 4096, 4097, 8200) for n in (2, 17)),  # TILE
    *((4097, n) for n in (65, 257)),
    *((10_000 // inner, 3, inner) for inner in (2, 4, 8, 16)),  # lanes of a row
    *((21, 1024 // inner + k, inner) for inner in (2, 4, 8, 16) for k in (-1, 0, 1)),  # LINE
    *((16, 70, inner) for inner in (15, 16, 17, 31, 32)),
    *((n, 65, 16) for n in (1, 2, 3)), *((n, 65) for n in (1, 2, 15, 16, 17, 31)),  # few rows
)  # fmt: skip

#: The same for channels that are runs: GRAIN and TILE, of a run and of a block, and STRIP.
RUNS = (
    *((3, 70, n) for n in (233, 234, 235, 255, 256, 257)), (2, 65, 127), (9, 300, 49),
    *((3, 5, n) for n in (4095, 4096, 4097, 16_385)), (40, 70, 32), (1, 300, 24), (3, 1, 3000),
    (9000, 1), (1, 7, 32), (1, 8, 512), (1, 9, 16), (1, 17, 48), (1, 9, 528),
)  # fmt: skip


@lru_cache(maxsize=1)  # of one number of threads and of the other
def sums_of_channels(shape):
    """Arguments whose terms cancel, and what the oracle makes of them."""
    rng = np.random.default_rng(11)
    x, g = (rng.normal(size=shape).astype(F32) for _ in range(2))
    g = np.ldexp(g, rng.integers(-30, 30, shape))
    s, z = rng.uniform(0.1, 0.4, shape[1]), rng.normal(size=shape[1])
    args = g, x, s, z, 1, -8, 7
    return args, oracle.fake_quantize_learnable_per_channel_affine_backward(*args)


@pytest.mark.parametrize("threads", [
    1,
    pytest.param(2, marks=pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2,
                                             reason="Numba has one thread here")),
])  # fmt: skip
@pytest.mark.parametrize("shape", BESIDE + RUNS, ids=str)
def test_sums_of_channels_however_they_are_cut(shape, threads, monkeypatch):
    args, expected = sums_of_channels(shape)
    some = everywhere(PARALLEL_FROM=0) if threads > 1 else nullcontext()
    if threads > 1:  # segments of a task or a few
        monkeypatch.setattr("npquant.cpu.target.GRAIN", 256)
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        with some:
            got = nq.fake_quantize_learnable_per_channel_affine_backward(*args)
    finally:
        numba.set_num_threads(before)
    assert_same(got, expected)


@pytest.mark.parametrize("channels", [2, 3, 64, 65])
@pytest.mark.parametrize("dtype", [np.float16, F32, np.float64])
def test_sums_wherever_a_result_begins(dtype, channels):
    """A line of the cache begins anywhere in it."""
    rng = np.random.default_rng(12)
    shape = (4100, channels)
    x, g = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    g = np.ldexp(g, rng.integers(-9, 9, shape))
    s, z = (rng.uniform(0.1, 0.4, channels) for _ in range(2))
    name = "fake_quantize_learnable_per_channel_affine_backward"
    expected = getattr(oracle, name)(g, x, s, z, 1, -8, 7)
    room = np.empty(x.size + 64, dtype)
    code = "float64" if dtype == np.float64 else "float32"
    for begin in range(33):
        y = room[begin : begin + x.size].reshape(shape)
        sums = np.empty_like(s), np.empty_like(z)
        learnable_gradients_per_channel(
            per_channel(shape, 1), g, x, s, z, (-8.0, 7.0, 1.0), code, y, *sums
        )
        assert_same((y, *sums), expected, begin)


@pytest.mark.parametrize("order", ["F", "part of F", "last axis first", "every second"])
@pytest.mark.parametrize("kind", ["tensor", "channel", "token", "channel_group"])
def test_sums_of_what_is_not_flat(kind, order, monkeypatch):
    """Boxes of some channels and of parts of them, and rows side by side, some at a time."""
    monkeypatch.setattr("npquant.cpu.walk.PIECE", 100)
    monkeypatch.setattr("npquant.cpu.channels.PIECE", 100)
    monkeypatch.setattr("npquant.cpu.channels.ROOM", 1 << 15)
    monkeypatch.setattr("npquant.cpu.sums.CHANNELS_AT_A_TIME", 40)
    rng = np.random.default_rng(13)
    for shape in ((17, 40), (3, 20, 24), (2, 9, 4100), (16, 4096), (24, 8192), (6, 4100, 3),
                  (300, 260), (3, 5, 20, 30), (2, 12, 8192)):  # fmt: skip
        x, g = (rng.normal(size=shape).astype(F32) for _ in range(2))
        g = np.ldexp(g, rng.integers(-30, 30, shape))
        if order == "F":
            x, g = np.asfortranarray(x), np.asfortranarray(g)
        elif order == "part of F":
            x, g = (np.asfortranarray(np.concatenate([a[:1], a]))[1:] for a in (x, g))
        elif order == "last axis first":
            x, g = (np.moveaxis(np.moveaxis(a, -1, 0).copy(), 0, -1) for a in (x, g))
        else:
            x = np.repeat(x, 2, axis=-1)[..., ::2]
        size = shape[-1] // 2 if shape[-1] % 2 == 0 else 3
        if kind == "channel_group" and (len(shape) != 2 or shape[-1] % size):
            continue
        for axis in range(len(shape)) if kind == "channel" else [None]:
            last = {"channel": (axis, -8, 7), "channel_group": (-8, 7, size)}.get(kind, (-8, 7))
            least = {
                "tensor": (1,),
                "channel": (shape[axis or 0],),
                "token": (*shape[:-1], 1),
                "channel_group": (*shape[:-1], shape[-1] // size),
            }[kind]
            s, z = rng.uniform(0.1, 0.4, least), rng.normal(size=least)
            agree(f"fake_quantize_learnable_per_{kind}_affine_backward", g, x, s, z, *last)


@pytest.mark.parametrize("rows", [255, 256, 257, 512, 700])
def test_sums_of_a_tensor_some_rows_at_a_time(rows, monkeypatch):
    monkeypatch.setattr("npquant.cpu.sums.ROWS_AT_A_TIME", 256)
    rng = np.random.default_rng(14)
    x, g = (rng.normal(size=(rows, 8, 40)).astype(F32) for _ in range(2))
    g = np.ldexp(g, rng.integers(-30, 30, g.shape))
    s, z = np.array([0.2]), np.array([0.7])
    agree("fake_quantize_learnable_per_tensor_affine_backward", g, x, s, z, -8, 7)


def test_sums_that_float32_does_not_hold(monkeypatch):
    """They become infinities without a word: of a row, of short and long ones, and of parts."""
    monkeypatch.setattr("npquant.cpu.sums.ROWS_AT_A_TIME", 256)
    for shape in ((4096,), (9, 1024), (3, 5000), (257, 8, 40)):
        x, g = np.full(shape, 1e3, F32), np.full(shape, 3e38, F32)
        agree("fake_quantize_learnable_per_tensor_affine_backward", g, x, np.array([0.1], F32),
              np.zeros(1, F32), -128, 127)  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), [((6000, 3), 1), ((40, 6, 3), 1), ((5, 6000, 3), 1),
                                             ((300, 7, 9), 1), ((17_000, 2), 0), ((40, 6, 32), 1),
                                             ((40, 61, 32), 1), ((9, 50, 96), 1),
                                             ((3, 5, 512), 1), ((3, 300, 32), 1),
                                             ((1, 300, 32), 1)])  # fmt: skip
def test_short_runs_of_channels(shape, axis):
    """Tables of several parts, whole blocks, and pieces that begin within a channel or a period."""
    s, z = cases.qparams(shape[axis], -100, 100)
    s[(s < 1e-3) | (s > 1e3)] = 0.7
    x = np.random.default_rng(3).normal(0, 20, shape).astype(F32)
    wide = np.zeros((*shape, 2), F32)
    wide[..., 1] = x
    for data in (x, wide[..., 1]):
        agree("quantize_per_channel", data, s, z, axis, -128, 127, np.int8)
    out = np.zeros((*shape, 2), np.int8)[..., 1]
    nq.quantize_per_channel(x, s, z, axis, -128, 127, np.int8, out=out)
    assert_same(out, nq.quantize_per_channel(x, s, z, axis, -128, 127, np.int8))


@pytest.mark.parametrize("channels", [3, 300, 768, 1023])
def test_what_is_left_of_a_period_that_is_repeated(channels):
    """Of segments and pieces the last may be no more than a table, which holds several periods."""
    s, z = cases.qparams(channels, -100, 100)
    s[(s < 1e-3) | (s > 1e3)] = 0.7
    with everywhere(PARALLEL_FROM=1):
        for some in (GRAIN, 2 * GRAIN):
            for rows in range(some // channels, (some + 2048) // channels + 2):
                shape = rows, channels
                if channels == 3 and rows % 97:
                    continue
                room = np.random.default_rng(rows).normal(0, 20, (rows, channels + 9)).astype(F32)
                codes = agree("quantize_per_channel", room[:, 9:], s, z, 1, -128, 127, np.int8)
                flat = room[:, 9:].copy()
                again = nq.quantize_per_channel(flat, s, z, 1, -128, 127, np.int8)
                assert_same(again, codes, shape)


@pytest.mark.parametrize("inner", range(1, 18))
def test_rows_of_few_elements(inner):
    """A table for each part of them, parts and segments that begin within a row, and a last one."""
    rng, rows = np.random.default_rng(inner), (2 * GRAIN + 700) // inner
    x = rng.normal(0, 20, (rows, inner)).astype(F32)
    s = rng.uniform(0.1, 0.5, (rows, 1)).astype(F32)
    z = rng.integers(-100, 100, (rows, 1)).astype(np.int32)
    with everywhere(PARALLEL_FROM=1):
        codes = agree("quantize_per_token", x, s, z, -128, 127, np.int8)
        for kinds in (F32, np.int32), (F32, F32), (F64, np.int64):
            qparams = (q.astype(kind) for q, kind in zip((s, z), kinds, strict=True))
            agree("dequantize_per_token", codes, *qparams, -128, 127, np.int8, F32)
        agree("fake_quantize_per_channel_affine_cachemask", x, s[:, 0], z[:, 0], 0, -128, 127)
        places = x[:: rows // 40, inner // 2]
        places[:] = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0], F32), places.size)
        for some in (x, x.astype(F16), x.astype(F64), -x[:, ::-1]):
            agree("choose_qparams_per_token", some, np.int8)
            agree("choose_qparams_per_token_asymmetric", some, np.int8)


@pytest.mark.parametrize("begin", [0, 1, 4, 12, 15])
@pytest.mark.parametrize("shape", [(70, 2112), (3, 2112 + 16_384)])
def test_many_channels_wherever_the_data_begin(shape, begin):
    """More than NEAR, whole lines of the cache of them: these are done as they lie."""
    s, z = cases.qparams(shape[1], -100, 100)
    s[(s < 1e-3) | (s > 1e3)] = 0.7
    room = np.random.default_rng(5).normal(0, 20, math.prod(shape) + 16).astype(F32)
    x = room[begin : begin + math.prod(shape)].reshape(shape)
    agree("quantize_per_channel", x, s, z, 1, -128, 127, np.int8)
    agree("fake_quantize_per_channel_affine_cachemask", x, s, z, 1, -128, 127)


@pytest.mark.parametrize("place", [0, 4095, 4096, 9000, 12_292])
def test_extremes_in_any_tile(place):
    for sign in (1, -1):
        x = np.random.default_rng(4).normal(size=12_293).astype(F32)
        x[place] = sign * 100
        x.flags.writeable = False
        with long_way():  # or a small array has no tiles
            agree("choose_qparams", x, -128, 127, 1e-5, np.int8)
            agree("choose_qparams_per_token_asymmetric", x, np.int8)
            agree("choose_qparams_per_token_asymmetric", np.stack([x, x / 2], axis=1).T, np.int8)


@pytest.mark.parametrize("place", [0, 4095, 4096, 50_000, 69_999])
def test_extremes_in_any_tile_of_every_third_element(place):
    """These are found tile by tile, where those of flat data are one run."""
    for sign in (1, -1):
        x = np.random.default_rng(4).normal(size=70_000).astype(F32)
        x[place] = sign * 100
        agree("choose_qparams", np.repeat(x, 3)[::3], -128, 127, 1e-5, np.int8)


@pytest.mark.parametrize("place", [0, 21_844, 21_845, 50_000, 69_999])
def test_extremes_of_columns_in_any_tile(place):
    for sign in (1, -1):
        x = np.random.default_rng(4).normal(size=70_000).astype(F32)
        x[place] = sign * 100
        columns = np.stack([x, x / 2, np.roll(x, 1)], axis=1)
        agree("choose_qparams_per_token_asymmetric", columns.T, np.int8)


@pytest.mark.parametrize("find", [of_any_size, minmax_finite], ids=["all", "finite"])
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_extremes_of_channels_of_short_runs(dtype, find):
    """Runs of a channel are columns, but of too many channels, or if they are long."""
    for outer, channels, inner in (
        (300, 2, 3), (2, 3, 64), (2, 3, 65), (5, 600, 9), (3, 4096, 8), (3, 4097, 8), (1, 5, 4),
        (6, 7, 1), (4, 1, 6), (700, 64, 9),
    ):  # fmt: skip
        x = np.random.default_rng(inner).normal(0, 9, (outer, channels, inner)).astype(dtype)
        wide, c = x.astype(F64), np.arange(channels)
        x[-1, :, -1] = np.array([np.nan, np.inf, -np.inf], dtype)[c % 3]
        if find is of_any_size:
            wide[-1, :, -1] = x[-1, :, -1]
        else:
            wide[-1, :, -1] = wide[0, :, 0]
        if outer > 1 or find is of_any_size:
            least, greatest = find(per_channel(x.shape, 1), x)
            assert_same(least, wide.min((0, 2)).astype(dtype), (outer, channels, inner))
            assert_same(greatest, wide.max((0, 2)).astype(dtype), (outer, channels, inner))


@pytest.mark.parametrize("find", [of_any_size, minmax_finite], ids=["all", "finite"])
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_extremes_of_rows_that_are_folded(dtype, find):
    """A NaN and the infinities in every place of a row; and rows that are too long."""
    for inner in (*range(2, 3 * LANES + 2), 64, 100, 128, LONGEST, LONGEST + 1):
        assert folds(inner) == (inner <= LONGEST)
        places = np.arange(inner) if inner < LONGEST else np.arange(1, inner, 97)
        odd = np.repeat(np.array([np.nan, np.inf, -np.inf], dtype), len(places))
        rows, place = len(odd) + 2 * MANY + 5, np.tile(places, 3)
        x = np.random.default_rng(inner).normal(0, 9, (rows, inner)).astype(dtype)
        wide, row = x.astype(F64), np.arange(rows - len(odd), rows)
        x[row, place] = odd
        if find is of_any_size:
            wide[row, place] = odd
        else:  # what is not finite is not seen
            wide[row, place] = wide[row, (place + 1) % inner]
        least, greatest = find(per_token(x.shape), x)
        assert_same(least, wide.min(1).astype(dtype), inner)
        assert_same(greatest, wide.max(1).astype(dtype), inner)


@pytest.mark.parametrize(
    "dtype", **named((F32, F16, BF16, np.int8, np.uint8, np.uint16, np.int32, np.int64))
)
def test_extremes_of_folded_rows_in_every_place(dtype):
    """Of integers too; of rows that lie as they do, and of those of which it is every second."""
    for inner in (LANES, LANES + 1, 40, 100):
        x = np.random.default_rng(inner).integers(1, 99, (3 * inner, inner)).astype(dtype)
        row, dtype = np.arange(len(x)), np.dtype(dtype)
        ends = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-7, 120)
        x[row, row % inner], x[row, (row + row // inner + 1) % inner] = ends
        for lay in (x, np.repeat(x, 2, axis=1)[:, ::2]):
            least, greatest = of_any_size(per_token(x.shape), lay)
            assert_same((least, greatest), (x.min(1), x.max(1)), inner)


@pytest.mark.parametrize(
    "dtype", **named((*FLOATS, np.int8, np.uint8, np.uint16, np.int32, np.int64))
)
def test_extremes_of_long_rows_in_every_place(dtype):
    """Of each sign alone and of both, zeros of both, and NaNs; of every second element, too."""
    lanes, dtype = VECTORS // np.dtype(dtype).itemsize, np.dtype(dtype)
    for inner in (LONGEST + 1, LONGEST + AT_ONCE * lanes - 1, LONGEST + AT_ONCE * lanes):
        rng, rows = np.random.default_rng(inner), 3 * inner // 97
        x = rng.integers(2, 99, (rows, inner)).astype(dtype)
        row, place = np.arange(rows), (97 * np.arange(rows)) % inner
        place[-AT_ONCE:] = np.arange(inner - AT_ONCE, inner)
        if dtype.kind in "iu":
            x[row, place] = np.where(row % 2, np.iinfo(dtype).min, np.iinfo(dtype).max)
        else:
            x[row % 3 == 0] *= -1
            x[row % 3 == 1] *= rng.choice([-1, 1], (rows, inner)).astype(dtype)[row % 3 == 1]
            odd = np.array([120, 1, 0.0, -0.0, -1, -120, np.nan, -np.nan], dtype)
            x[row, place] = odd[row % 8]
        wide = x if dtype.kind in "iu" else x.astype(F64)
        least, greatest = wide.min(1).astype(dtype), wide.max(1).astype(dtype)
        for lay in (x, np.repeat(x, 2, axis=1)[:, ::2]):
            assert_same(of_any_size(per_token(x.shape), lay), (least, greatest), inner)


def test_the_least_of_zeros():
    """-0.0 is less than 0.0, in whole vectors as in others."""
    least, greatest = np.array([-0.0], F32), np.array([0.0], F32)
    for n in (3, LONGEST + 1):
        x = np.zeros(n, F32)
        x[n // 2] = -0.0
        assert_same(of_any_size(per_token(x.shape), x), (least, greatest))
        assert_same(of_any_size(per_token(x.shape), -x), (least, greatest))


@pytest.mark.parametrize("inner", [LANES - 1, LANES, 40])
def test_extremes_of_few_channels(inner):
    """Each of one run, which is folded, and of several."""
    x = np.random.default_rng(inner).normal(size=(3, 5, inner)).astype(F32)
    for axis, others in ((0, (1, 2)), (1, (0, 2)), (2, (0, 1))):
        found = cpu.minmax(per_channel(x.shape, axis), x)
        assert_same(found, (x.min(others), x.max(others)), axis)


@pytest.mark.parametrize("op", ["choose_qparams_per_token", "choose_qparams_per_token_asymmetric"])
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_choose_qparams_of_many_rows(dtype, op):
    """Folded or not, of which some wait together: in one call, and in several."""
    for inner in (1, 2, LANES - 1, LANES, 24, 64, LONGEST, LONGEST + 1):
        for rows in (2, ON_STACK, ON_STACK + 1, ONE_CALL_OF_RUNS // inner + 1):
            x = np.random.default_rng(rows).normal(0, 9, (rows, inner)).astype(dtype)
            agree(op, x, np.int8, note=x.shape)


# --- beyond int64 -----------------------------------------------------------------------------

#: Codes as wide as an int64, and half as wide.
FAR = ((-(2**63), 2**63 - 1), (0, 2**63 - 1), (-(2**63), 0), (-(2**62), 2**62))


def about_int64(dtype):
    """Values on both sides of its ends, and far beyond them, in order."""
    end = dtype.type(2.0**63)
    beside = (np.nextafter(end, dtype.type(side)) for side in (0, np.inf))
    up = np.sort(np.array([*beside, end, 9.3e18, 1e30, np.inf], dtype))
    return np.concatenate([-up[::-1], up])


@pytest.mark.interpreted
@pytest.mark.parametrize("rounding", ["reciprocal", "divide"])
@pytest.mark.parametrize("dtype", **named((F32, F64)))
@pytest.mark.parametrize("z", [0, 7, -8])
def test_values_beyond_int64_have_the_code_on_their_side(dtype, rounding, z):
    x = np.stack([about_int64(dtype)] * 2, axis=1)
    codes = np.where(x > 0, 7, -8)
    count, option = len(x), {"rounding": rounding}
    s, zero_points = np.ones(count, F32), np.full(count, z, np.int32)
    args = -8, 7, np.int8
    for name, *qparams in (
        ("quantize_per_tensor", 1.0, z),
        ("quantize_per_channel", s, zero_points, 0),
        ("quantize_per_token", s, zero_points),
        ("quantize_per_channel_group", s, zero_points),
    ):
        size = {"group_size": 2} if name.endswith("group") else {}
        q = agree(name, x, *qparams, *args, **size, **option)
        assert_same(q, codes.astype(np.int8), name)
    values = (codes - z).astype(dtype), np.zeros(x.shape, bool)
    one = np.ones(1, F32), np.array([z])
    name = "fake_quantize_per_tensor_affine_cachemask"
    assert_same(agree(name, x, 1.0, z, -8, 7, **option), values, name)
    name += "_tensor_qparams"
    assert_same(agree(name, x, *one, np.array([1]), -8, 7, **option), values, name)
    for kind in (np.int32, np.float32, np.float16):
        name = "fake_quantize_per_channel_affine_cachemask"
        args = s, zero_points.astype(kind), 0, -8, 7
        assert_same(agree(name, x, *args, **option), values, (name, kind))
    name = "fake_quant_per_channel_cachemask"
    assert_same(agree(name, x, s, zero_points, 0, -8, 7, **option), values, name)


@pytest.mark.parametrize("rounding", ["pytorch", "nearest"])
@pytest.mark.parametrize("dtype", **named((F32, F64)))
def test_learned_values_beyond_int64_are_clipped_on_their_side(dtype, rounding):
    x = np.stack([about_int64(dtype)] * 2, axis=1)
    codes, count = np.where(x > 0, 7, -8).astype(dtype), len(x)
    s, z = np.ones(count, F32), np.full(count, 3, F32)
    for op, *where in (("channel", 0), ("token",), ("channel_group",)):
        name, args = f"fake_quantize_learnable_per_{op}_affine", (s, z, *where, -8, 7)
        size = {"group_size": 2} if op.endswith("group") else {}
        assert_same(agree(name, x, *args, **size), codes - 3, name)
        gradients = agree(f"{name}_backward", np.ones_like(x), x, *args, **size,
                          zero_point_rounding=rounding)  # fmt: skip
        sums = (codes - 3).sum(axis=1).astype(F32)
        assert_same(gradients, (np.zeros_like(x), sums, np.full(count, -2, F32)), name)
    name, args = "fake_quantize_learnable_per_tensor_affine", (s[:1], z[:1], -8, 7)
    assert_same(agree(name, x, *args), codes - 3, name)
    for value, (code, _) in zip(x, codes, strict=True):
        gradients = agree(f"{name}_backward", np.ones(2, dtype), value, *args,
                          zero_point_rounding=rounding)  # fmt: skip
        sums = np.array([2 * (code - 3)], F32), np.array([-2], F32)
        assert_same(gradients, (np.zeros(2, dtype), *sums), value)


@pytest.mark.parametrize("bounds", FAR)
@pytest.mark.parametrize("dtype", **named((F32, F64)))
def test_codes_as_wide_as_int64_do_not_wrap(dtype, bounds):
    """No greater value has a lesser result, wherever zero points shift the codes to."""
    x, (lo, hi) = about_int64(dtype), bounds
    x = np.concatenate([x[: x.size // 2], np.array([-4e18, -3.0, 0.0, 2.5, 4e18], dtype),
                        x[x.size // 2 :]])  # fmt: skip
    for z in (0, 5, -5, 2**30, lo, hi, lo // 2, hi // 2):
        if not lo <= z <= hi:
            continue
        zeros = [np.array([z], np.int32)] if abs(z) < 2**31 else []
        zeros.append(np.array([z]).astype(F32))
        for scale in (0.25, 1.0, 4.0):
            s, zero = np.array([scale], F32), zeros[-1]
            results = [agree("fake_quantize_learnable_per_tensor_affine", x, s, zero, lo, hi)]
            name = "fake_quantize_learnable_per_channel_affine"
            results += agree(name, x[None], s, zero, 0, lo, hi)
            for rounding in ("reciprocal", "divide"):
                option = {"rounding": rounding}
                name = "fake_quantize_per_tensor_affine_cachemask"
                results += [agree(name, x, scale, z, lo, hi, **option)[0]]
                name = "fake_quantize_per_channel_affine_cachemask"
                for some in zeros:
                    results += [*agree(name, x[None], s, some, 0, lo, hi, **option)[0]]
            for y in results:
                assert (np.diff(y) >= 0).all(), (z, scale, y)
                assert y[0] < y[-1], (z, scale, y)


# --- qparams, fused, conversion ---------------------------------------------------------------

DATA = (
    [[-1.3, 0.2, 2.7]], [[4.0, 6.0]], [[-4.0, -6.0]], [[0.0, 0.0]], [[-0.0, 1e-9]],
    [[1e-30, -1e-38]], [[np.nan, 1.0]],
    [[np.inf, -1.0]], [[-np.inf, 3.0]], [[60000.0, -60000.0]], [[3e38, -3e38]],
    [[2.0, 2.0]], [[0.5, 1.5, -2.5], [10, 20, 30]], [[-7e-6, 1e-5]],
)  # fmt: skip


def test_groups_of_nothing_may_have_any_size():
    x, p = np.zeros((3, 0), F32), np.zeros((3, 0), F32)
    for size in (2, 128, 2**70):
        q = nq.quantize_per_channel_group(x, p, p, -8, 7, np.int8, size)
        assert (q.shape, q.dtype) == ((3, 0), np.int8)


@pytest.mark.interpreted
def test_qparams_of_bounds_far_apart():
    """Up to the most that an int64 holds, and for affine zero points, an int32."""
    x = np.array([-1, 3], F32)
    next_to_a_tie = 0, 2**60 + 2**36 + 1  # which float32 would round up, and a float64 is down
    for bounds in ((-1, 2**63 - 2), (-(2**62), 2**62 - 1), (-(2**63) + 1, 0), next_to_a_tie):
        agree("choose_qparams_symmetric", x, *bounds, 0.0, np.int8, note=bounds)
    for bounds in ((-(2**31), 2**31 - 1), (0, 2**31 - 1), (-(2**31), 0)):
        agree("choose_qparams", x, *bounds, 0.0, np.int8, note=bounds)


@pytest.mark.parametrize("bounds", [(0, 2**32 - 1), (-(2**31) - 1, 7), (-8, 2**31)])
def test_affine_qparams_have_bounds_of_int32(bounds):
    """Or zero points would wrap."""
    x = np.array([-1, 1], F32)
    beyond = pytest.raises(ValueError, match=r"-2147483648\.\.2147483647")
    with beyond:
        nq.choose_qparams(x, *bounds, 1e-3, np.int32)
    for ends in ((x[:1], x[1:]), (x[0], x[1])):
        with beyond:
            nq.determine_qparams(*ends, *bounds, np.int32, 1e-3, False)
        nq.determine_qparams(*ends, *bounds, np.int32, 1e-3, False, "per_tensor_symmetric")


@pytest.mark.interpreted
def test_float_qparams_of_bounds_far_apart():
    """PyTorch divides by a Python float, which is rounded twice."""
    ends = np.zeros(1, F32), np.full(1, 2.0**100, F32)
    args = *ends, 0, 2**60 + 2**36 + 1, np.int8, 2.0**-23, False
    assert nq.determine_qparams(*args, "per_channel_affine_float_qparams")[0] == 2.0**40


def test_a_learned_zero_point_that_no_float64_holds():
    """It is rounded once, per tensor as per channel: by way of float64 it would go down."""
    z, far = 2**60 + 2**36 + 1, (-(2**63), 2**63 - 1)
    x, s = np.array([[2.0**36]], F32), np.ones(1, F32)
    expected = nq.fake_quantize_learnable_per_channel_affine(x, s, np.array([z]), 0, *far)
    assert expected == 2.0**37
    for zero_point in (np.array([z]), np.array(z), z):
        y = nq.fake_quantize_learnable_per_tensor_affine(x, s, zero_point, *far)
        assert_same(y, expected)


def test_more_axes_than_numpy_adds_one_to():
    """Data that are not aligned are read as bytes, of which there is an axis more."""
    memory = np.zeros(4 * 20_000 + 1, np.uint8)
    x = np.frombuffer(memory, F32, 20_000, 1)
    x[...] = np.linspace(-20, 20, x.size)
    expected = nq.quantize_per_tensor(x.copy(), 0.1, 0, -128, 127, np.int8)
    codes = nq.quantize_per_tensor(x.reshape((1,) * 63 + x.shape), 0.1, 0, -128, 127, np.int8)
    assert codes.ndim == 64
    assert_same(codes.ravel(), expected)


def test_signalling_nans_are_true_without_a_word():
    for dtype, signalling in ((BF16, 0x7F81), (F16, 0x7C01)):
        x = np.full(40, signalling, np.uint16).view(dtype)
        for n in (1, 40):
            assert nq.convert_element_type(x[:n], bool).all()


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_choose_qparams(dtype):
    for data in DATA:
        with np.errstate(over="ignore"):
            x = np.array(data).astype(dtype)
        for target in TARGETS:
            lo, hi = BOUNDS[target]
            for bounds in ((lo, hi), (max(lo, -8), min(hi, 7))):
                for op in ("choose_qparams", "choose_qparams_symmetric"):
                    agree(op, x, *bounds, 1.2e-7, target, note=(data, bounds))
        agree("choose_qparams_per_token", x, np.int8, note=data)
        agree("choose_qparams_per_token_asymmetric", x, np.int8, note=data)


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", **named((np.int8, np.uint8, np.int32, np.int64)))
def test_choose_qparams_per_token_takes_integers(dtype):
    info = np.iinfo(dtype)
    agree("choose_qparams_per_token", np.array([[info.min, 3], [info.max, 0]], dtype), np.int8)


def rows_with_ties(count, length, dtype, symmetric):
    """Rows whose elements are halves of their own scale, or next to these, but for the extremes."""
    rng = np.random.default_rng(length)
    x = rng.normal(rng.integers(-2, 3, (count, 1)), 9, (count, length)).astype(dtype)
    choose = "choose_qparams_per_token" + ("" if symmetric else "_asymmetric")
    scales, zero_points = getattr(oracle, choose)(x, np.int8)
    codes = rng.integers(-128, 128, x.shape) + rng.choice([0.5, -0.5, 0.5000001, 0.0], x.shape)
    ties = ((codes - zero_points.astype(F64)) * scales.astype(F64)).astype(dtype)
    bits = ties.view(f"i{dtype.itemsize}") + rng.choice([0, 0, 0, 1, -1, 2, -2], x.shape)
    ties = np.where(ties == 0, ties, bits.astype(f"i{dtype.itemsize}").view(dtype))
    return np.clip(ties, x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_quantize_per_token_dynamic(dtype, symmetric):
    """Rows that are done many together, one by one, or in two steps."""
    longest = dynamic.LONGEST // dtype.itemsize
    short = 1, 2, 15, 16, 17, 31, 32, 48, 64, 80, 96, 97, 511, 513, 527, 528, 1039, 4096
    for length in (*short, GRAIN - 1, GRAIN + 1, longest, longest + 1):
        count = max(2, min(GRAIN // length + 3, 500))
        x = rows_with_ties(count, length, dtype, symmetric)
        agree("quantize_per_token_dynamic", x, np.int8, symmetric=symmetric, note=length)
        agree("quantize_per_token_dynamic", x[:, ::-1], np.int8, symmetric=symmetric, note=length)
    for count in (1, dynamic.MOST_OF_ONE, dynamic.MOST_OF_ONE + 1):
        x = np.random.default_rng(count).normal(0, 9, (count, 1)).astype(dtype)
        agree("quantize_per_token_dynamic", x, np.int8, symmetric=symmetric, note=count)


def test_bfloat16_codes_per_token_of_every_scale():
    """All mantissas of the largest element, and all that are no larger."""
    bits = np.arange(0x3F80 + 128, dtype=np.uint16)
    upward = np.concatenate([bits, bits | np.uint16(0x8000)]).view(BF16)
    for some in np.split(np.arange(0x3F80, 0x4000, dtype=np.uint16), 8):
        largest = some.view(BF16)[:, None]
        x = np.clip(upward.astype(F32), -largest.astype(F32), largest.astype(F32)).astype(BF16)
        agree("quantize_per_token_dynamic", x, np.int8, symmetric=True, note=some[0])


def test_symmetric_codes_per_token_have_no_least_one():
    """A bfloat16 is less than 127 of its own scales, or more than 127.5, and -128 has no mirror."""
    numbers = -np.arange(0x3F80, 0x4000, dtype=np.uint16).view(BF16)
    for length in (2, dynamic.VECTOR):
        x = numbers.repeat(length).reshape(-1, length)
        codes, scales, zero_points = agree("quantize_per_token_dynamic", x, np.int8, symmetric=True)
        assert codes.min() == -127
        assert (nq.quantize_per_token(x, scales, zero_points, -128, 127, np.int8) == -128).any()


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", **named((F32, F16, BF16)))
def test_unsure_codes_of_what_is_no_number(dtype):
    """Their bits are no code of a byte; without the compiler Python would refuse to store them."""
    x = np.array([[1, np.nan, np.inf, -np.inf, 0.5, -1.5]], dtype)
    agree("quantize_per_token", x, np.ones((1, 1)), np.zeros((1, 1), np.int64), -128, 127, np.int8)
    with pytest.raises(ValueError, match=r"^input must have rows that are finite"):
        nq.quantize_per_token_dynamic(x, np.int8)


@pytest.mark.parametrize("symmetric", [False, True])
def test_quantize_per_token_dynamic_reads_rows_once(symmetric, monkeypatch):
    """The second op is not called where one kernel does both, whatever is between the rows."""
    monkeypatch.setattr(nq.ops.dynamic, "quantize_per_token", None)
    for shape in ((70, 300), (4, 2), (2, 3, 5), (1200, 300), (5, 7, 600)):
        x = rows_with_ties(math.prod(shape[:-1]), shape[-1], F32, symmetric).reshape(shape)
        agree("quantize_per_token_dynamic", x, np.int8, symmetric=symmetric, note=shape)
        for apart in (x.repeat(2, axis=-1)[..., ::2], x.repeat(3, axis=0)[1::3], x.swapaxes(0, -2)):
            agree("quantize_per_token_dynamic", apart, np.int8, symmetric=symmetric, note=shape)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", **named(FLOATS))
def test_quantize_per_token_dynamic_refuses_what_is_not_finite(dtype, symmetric):
    """It says in which row, wherever it lies; a width that the dtype does not hold is none."""
    for shape, row in (((5, 40), 0), ((5, 40), 4), ((2, 3, 70), 4), ((600, 500), 599), ((3, 1), 1)):
        for bad in (np.nan, np.inf, -np.inf):
            x = np.ones(shape, dtype)
            x.reshape(-1, shape[-1])[row, -1] = bad
            with pytest.raises(ValueError, match=f"^input must have rows .* in row {row}$"):
                nq.quantize_per_token_dynamic(x, np.int8, symmetric=symmetric)
    with pytest.raises(ValueError, match=r"^input must have rows .* in row 0$"):
        nq.quantize_per_token_dynamic(np.array(np.inf, dtype), np.int8, symmetric=symmetric)
    most = ml_dtypes.finfo(dtype).max
    x = np.array([[1, 2], [-most, most]], dtype)
    if symmetric:
        agree("quantize_per_token_dynamic", x, np.int8, symmetric=True)
    else:
        with pytest.raises(ValueError, match=r"^input must have rows .* in row 1$"):
            nq.quantize_per_token_dynamic(x, np.int8)


@pytest.mark.interpreted
@pytest.mark.parametrize("qscheme", nq.ops.qparams.QSCHEMES)
def test_determine_qparams(qscheme):
    ranges = [(-1.3, 2.7), (4.0, 6.0), (-6.0, -4.0), (0.0, 0.0), (np.nan, np.nan), (-np.inf, 1.0),
              (-3e38, 3e38), (-1e-9, 1e-9), (np.inf, -np.inf)]  # fmt: skip
    for dtype, eps in itertools.product((F32, F64), (np.array([np.finfo(F32).eps]), 1e-5)):
        valid = [r for r in ranges if not r[0] > r[1]]
        pairs = [tuple(np.array(v, dtype) for v in r) for r in ranges]
        pairs += [tuple(np.array(v, dtype) for v in zip(*valid, strict=True))]
        pairs += [(np.zeros(0, dtype), np.zeros(0, dtype))]
        for mn, mx in pairs:
            for target, lo, hi in ((np.int8, -128, 127), (np.uint8, 0, 255), (np.uint8, 0, 15),
                                   (np.int8, -8, 7), (np.int32, -(2**31), 2**31 - 1),
                                   (np.uint16, 0, 65535)):  # fmt: skip
                for custom in (False, True):
                    agree("determine_qparams", mn, mx, lo, hi, target, eps, custom, qscheme,
                          note=(mn, mx, lo, hi, custom))  # fmt: skip


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("dtype", "zero_point"), [(F32, np.int32), (F64, np.int64), (BF16, F32)], ids=str
)
@pytest.mark.parametrize("values", [[0.5, -3, 2], [np.nan, 1], [np.inf, 1], [-0.0, 0.0], [5e-39]])
@pytest.mark.parametrize("bounds", [(-128, 127), (-(2**30), 2**30)])
def test_fused_at_once(dtype, zero_point, values, bounds):
    """With one scale, a small array takes one kernel, and the long way several."""
    x = np.resize(np.array(values), (3, 5)).astype(dtype)
    for symmetric, observer_on, masked in itertools.product((False, True), repeat=3):
        op = nq.fused_moving_avg_obs_fake_quant
        op = nq.fused_moving_avg_obs_fake_quant_cachemask if masked else op
        found = []
        for way in (nullcontext, long_way):
            state = [np.full(1, v, F32) for v in (-1.5, 2.5, 0)]
            state.append(np.zeros(1, zero_point))
            with way():
                got = op(x, observer_on, 1, *state, 0.01, *bounds, 0, False, symmetric)
            found.append((*state, *(got if masked else (got,))))
        for one, other in zip(*found, strict=True):
            assert_same(one, other, (symmetric, observer_on))


@pytest.mark.interpreted
@pytest.mark.parametrize("per_row", [False, True])
def test_fused_state_lies_apart(per_row):
    """From data of the other byte order too, which are copied; and from itself beside a spec."""
    ends, scale, zero_point = np.zeros(2, F32), np.ones(1, F32), np.zeros(1, np.int32)
    rest = scale, zero_point, 0.01, 0, 255, 0, per_row
    op = nq.fused_moving_avg_obs_fake_quant
    x = np.arange(8).reshape(1, 8).astype(F32)
    for data in (x, x.astype(x.dtype.newbyteorder())):
        before = data.copy()
        low = data.view(F32)[0, :1]
        with pytest.raises(ValueError, match="running_min must be apart from input"):
            op(data, 1, 1, low, ends[1:], *rest)
        assert (data == before).all()
    swapped = x.astype(x.dtype.newbyteorder())
    with pytest.raises(TypeError, match="running_min must be a NumPy array"):
        op(swapped, 1, 1, 0.0, 1.0, *rest)
    for data in (x, nq.ArraySpec(x.shape, x.dtype)):
        with pytest.raises(ValueError, match="running_max must be apart from running_min"):
            op(data, 1, 1, ends[:1], ends[:1], *rest)


@pytest.mark.interpreted
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_fused(per_row, symmetric):
    rng = np.random.default_rng(3)
    batches = [rng.normal(i, 1 + i, (4, 30)).astype(F32) for i in range(3)]
    batches += [np.full((4, 30), v, F32) for v in (0.0, 1e-5, 5.0, np.inf, np.nan)]
    batches += [np.array([[-1e-5, 3e-5]] * 4, F32), np.zeros((4, 0), F32)]
    batches += [np.array([[-2, v, 3]] * 4, F32) for v in (np.nan, -np.nan)]
    # A scale without a finite reciprocal, a range that ends at zero, and one that is not infinite.
    batches += [np.array([ends] * 4, F32) for ends in ((0, 1e-37), (-2, 0), (-3.2e38, 1))]
    # Subnormal numbers, of which a symmetric range becomes 0.
    batches += [np.array([[-v, v]] * 4, F32) for v in (1e-44, 2e-43)]
    for bounds in ((-128, 127), (0, 255), (0, 15), (-8, 7), (-7, 8), (0, 1)):
        for start in range(len(batches)):
            count = 4 if per_row else 1
            state = [np.full(count, np.inf, F32), np.full(count, -np.inf, F32), np.ones(count, F32),
                     np.zeros(count, np.int32)]  # fmt: skip
            other = [p.copy() for p in state]
            # Each of them first, and with the two that follow; and one long average.
            for x in batches if start == 0 else (batches * 2)[start : start + 3]:
                for on in ((1, 1), (1, 0), (0, 1)):
                    tail = 0.01, *bounds, 0, per_row, symmetric
                    op = "fused_moving_avg_obs_fake_quant_cachemask"
                    actual = getattr(nq, op)(x, *on, *state, *tail)
                    with np.errstate(all="ignore"):
                        expected = getattr(oracle, op)(x, *on, *other, *tail)
                    assert_same((*actual, *state), (*expected, *other), f"{bounds} {start} {on}")


@pytest.mark.parametrize(
    ("grad", "mask"), [((0, 1), (0, 3)), ((0, 3), (2, 0, 3)), ((0,), (1, 2, 0)), ((0, 3), (0, 1))]
)
def test_a_mask_without_elements_has_the_shape_of_the_gradient(grad, mask):
    op = nq.fake_quantize_per_tensor_affine_cachemask_backward
    assert op(np.zeros(grad, F32), np.zeros((1, *grad), bool)).shape == (1, *grad)
    with pytest.raises(ValueError, match="mask must have the shape of grad"):
        op(np.zeros(grad, F32), np.zeros(mask, bool))


def test_more_axes_than_numpy_broadcasts():
    grad, mask = np.zeros((1,) * 33, F32), np.ones((2, 3), bool)
    with pytest.raises(ValueError, match="mask must have the shape of grad"):
        nq.fake_quantize_per_tensor_affine_cachemask_backward(grad, mask)


CONVERTIBLE = (*FLOATS, *cases.FLOAT8, *map(np.dtype, ("bool", "int8", "uint8", "int16", "uint16",
                                                       "int32", "uint32", "int64")))  # fmt: skip


@pytest.mark.parametrize("target", **named(CONVERTIBLE))
def test_convert_element_type(target):
    values = [0.0, -0.0, 0.3, -1.5, 300, -300, 464, 61440, 61439, 1e9, 65519, 65520, 2.0**-9]
    values += [np.nan, np.inf, -np.inf, 1 + 2.0**-11 + 2.0**-40, 2.0**-17, 2.0**-10 * 1.5, 1e-40]
    values += [sign * v for v in (2**31 - 200, 2**31 - 0.5, 2**31, 2**31 + 0.5, 3000000257, 2**63)
               for sign in (1, -1)]  # fmt: skip
    for source in (*FLOATS, *cases.FLOAT8):
        with np.errstate(all="ignore"):
            agree("convert_element_type", np.array(values).astype(source), target, note=source)
    z = np.array(values, np.complex64) + 1j
    with np.errstate(all="ignore"):
        real = z if target == np.dtype(bool) else z.real  # 0 + 1j is not zero
        assert_same(nq.convert_element_type(z, target), oracle.convert_element_type(real, target))
    for source in ("bool", "int8", "uint8", "int16", "int32", "int64"):
        x = np.array([0, 1, -1, 127, 128, 300, 2**24 + 1, -(2**31), 2**62 + 1]).astype(source)
        agree("convert_element_type", x, target, note=source)


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_of_64_bits_are_rounded_to_float32_first(sign):
    """Of these a float64 would be half-way between two float32, and that between two bfloat16."""
    tie, bf16 = sign * (2**62 + 2**54 + 2**38 + 1), np.dtype(ml_dtypes.bfloat16)
    x, above = np.array([[tie, tie]]), sign * (2.0**62 + 2.0**55)
    assert float(agree("convert_element_type", x, bf16)[0, 0]) == above
    codes, one, z = np.zeros((1, 2), np.int8), np.ones(1, F32), np.array([-tie])
    bounds, narrow = (-128, 127, np.int8), (-(2**15), 2**15 - 1, np.int16)
    y = agree("dequantize_per_channel", codes, one, z, 0, *bounds, out_dtype=bf16)
    assert float(y[0, 0]) == above
    for scale in (one.astype(bf16), one):
        agree("dequantize_per_token", codes, scale, z, *bounds, bf16)
        agree("dequantize_per_channel_group", codes, scale[:, None], z[:, None], *bounds, 2, bf16)
    scale = np.array([2.0**55], bf16)
    for rounding in ("reciprocal", "divide"):
        for name, qparams, size in (
            ("quantize_per_token", (scale, [0]), ()),
            ("quantize_per_channel_group", (scale[:, None], [[0]]), (2,)),
        ):
            q = agree(name, x, *qparams, *narrow, *size, rounding=rounding)
            assert q[0, 0] == sign * 129, (name, rounding)
    x = np.array([[sign * (2**62 + 2**38 + 1)]])
    scale, _ = agree("choose_qparams_per_token", x, np.int8)
    assert scale[0, 0] == np.float32(2.0**62 + 2.0**39) / np.float32(127)
    far = np.array([[-sign * 1e300]])
    agree("fake_quantize_learnable_per_channel_affine", far, one, x[0], 0, -(2**63), 2**63 - 1)


@pytest.mark.parametrize("scale", [2.5e74, 1e-200])
@pytest.mark.parametrize("rounding", ["reciprocal", "divide"])
def test_fake_quant_per_channel_has_the_scales_of_float64(scale, rounding):
    """Nothing of it is float32 where the data are not."""
    x = np.array([[4 * scale, -1.2 * scale]])
    y = nq.fake_quant_per_channel(x, np.array([scale]), [0], 0, -8, 7, rounding=rounding)
    assert y.tolist() == [[4 * scale, -scale]]
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="scales must be positive and finite, got"):
            nq.fake_quant_per_channel(x, [wrong], [0], 0, -8, 7, rounding=rounding)


def test_backward_of_more_axes_than_broadcast_shapes_knows():
    grad, mask = np.ones((1,) * 39 + (4,)), np.array([True, False, True, False])
    y = nq.fake_quant_per_channel_backward(grad, mask)
    assert y.tolist() == (grad * mask).tolist()
    with pytest.raises(ValueError, match="mask must have the shape of grad"):
        nq.fake_quant_per_channel_backward(grad, mask[:3])
