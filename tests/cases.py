"""Adversarial inputs and qparams, seeded and shared by all tests; NumPy and ml_dtypes only."""

import json
import math
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np

FLOATS = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))

#: Every quantized dtype with the bounds an op accepts for it.
BOUNDS = {
    np.dtype(dtype): bounds
    for dtype, bounds in (
        (np.int8, (-128, 127)),
        (np.uint8, (0, 255)),
        (np.int16, (-32768, 32767)),
        (np.uint16, (0, 65535)),
        (np.int32, (-(2**31), 2**31 - 1)),
        (ml_dtypes.float8_e4m3fn, (-448, 448)),
        (ml_dtypes.float8_e5m2, (-57344, 57344)),
        (ml_dtypes.int4, (-8, 7)),
        (ml_dtypes.uint4, (0, 15)),
        (ml_dtypes.int2, (-2, 1)),
        (ml_dtypes.uint2, (0, 3)),
    )
}
FLOAT8 = tuple(dtype for dtype in BOUNDS if dtype.name.startswith("float8"))
SUB_BYTE = tuple(dtype for dtype in BOUNDS if dtype.name in ("int4", "uint4", "int2", "uint2"))
#: Those PyTorch has, too.
PYTORCH = tuple(dtype for dtype in BOUNDS if dtype not in SUB_BYTE)

#: Bounds for fake quantize: full bytes, few bits, a range beside zero, a single value.
RANGES = ((-128, 127), (0, 255), (-8, 7), (0, 15), (-5, 100), (-32768, 32767), (0, 0))

#: Powers of two, decimals, the smallest with a finite float32 inverse, and large ones; the long
#: decimal is a float64 whose float32 and float64 inverses disagree.
SCALES = (1.0, 0.5, 2.0**-10, 0.1, 1 / 3, 0.41988401138528, 3e-39, 1e-30, 13.7, 37000.0, 1e30)

#: Elements that :func:`inputs` returns: enough for every kind, and whole groups of 32.
LENGTH = 256


def zero_points(quant_min, quant_max):
    """Return zero points inside the bounds: 0, odd, negative, and the bounds themselves."""
    wanted = (0, 1, 3, -3, -2, 100, quant_min, quant_max)
    return tuple(dict.fromkeys(z for z in wanted if quant_min <= z <= quant_max))


def specials(dtype):
    """Return the values that break formulas: zeros, infinities, NaN, subnormals, huge ones."""
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    least = ml_dtypes.finfo(dtype).tiny
    huge = (1e30, 2.0**31, 2.0**62, 2.0**63, 2.0**63 * (1 + 2.0**-7), 3e38, 60000.0)
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, 3 * tiny, least, -least]
    with np.errstate(over="ignore"):
        return np.array([*values, *huge, *(-h for h in huge)], np.float64).astype(dtype)


def _shifted(values, ulps):
    """Move floats by a number of their own ulps, away from zero or toward it."""
    integer = f"i{values.dtype.itemsize}"
    moved = (values.view(integer) + np.array(ulps, integer)).view(values.dtype)
    return np.where((values == 0) | ~np.isfinite(values), values, moved)


def inputs(dtype, scale, quant_min, quant_max, zero_point=0, *, finite=False, seed=0):
    """Return LENGTH values in which a formula's every rounding and bound is met."""
    args = np.dtype(dtype), scale, quant_min, quant_max, zero_point
    return _inputs(*args, finite=finite, seed=seed).copy()


@lru_cache(maxsize=4096)
def _inputs(dtype, scale, quant_min, quant_max, zero_point, *, finite, seed):
    """The same, made once.

    Ties (k + 1/2) * scale and their neighbours at +-1 and +-2 ulp, the neighbourhood of both
    bounds, special values (unless ``finite``, which also keeps x / scale below 2**31), and normals.
    """
    seeds = seed, abs(quant_min), abs(quant_max), *dtype.name.encode()
    rng = np.random.default_rng(seeds)
    low, high = quant_min - zero_point, quant_max - zero_point
    near = [edge + step for edge in (low, high, 0) for step in range(-2, 3)]
    inner = rng.integers(low, high, 6, endpoint=True)
    steps = np.array([*near, *inner], np.float64)
    with np.errstate(over="ignore"):
        ties = ((steps + 0.5) * scale).astype(dtype)
        exact = (steps * scale).astype(dtype)
        spread = (high - low + 4) / 3 * scale
        parts = [exact, *(_shifted(ties, ulps) for ulps in (0, 1, -1, 2, -2)), specials(dtype)]
        values = np.concatenate(parts)
        normal = rng.normal((low + high) / 2 * scale, spread, LENGTH).astype(dtype)
    values = np.concatenate([values, normal[: LENGTH - values.size]])
    if finite:
        with np.errstate(invalid="ignore", over="ignore"):
            good = np.abs(values.astype(np.float64)) < 2.0**31 * scale
            good &= np.isfinite(values)
        values = np.where(good, values, np.where(np.isfinite(normal), normal, 0).astype(dtype))
    return rng.permutation(values)


def rows(dtype, scales, zero_points, quant_min, quant_max, *, finite=False, seed=0):
    """Return (len(scales), LENGTH) inputs, each row made for its own scale and zero point."""
    pairs = zip(scales, zero_points, strict=True)
    bounds = quant_min, quant_max
    return np.stack(
        [
            inputs(dtype, float(s), *bounds, int(z), finite=finite, seed=seed + i)
            for i, (s, z) in enumerate(pairs)
        ]
    )


def channels(dtype, scales, zero_points, quant_min, quant_max, axis, *, finite=False, seed=0):
    """Return a 3-D array whose ``axis`` holds the channels, in any position and C order."""
    flat = rows(dtype, scales, zero_points, quant_min, quant_max, finite=finite, seed=seed)
    boxed = flat.reshape(len(flat), 8, LENGTH // 8)
    return np.ascontiguousarray(np.moveaxis(boxed, 0, axis))


def qparams(count, quant_min, quant_max, *, seed=0):
    """Return ``count`` float32 scales and int32 zero points, cycling through the awkward ones."""
    rng = np.random.default_rng([seed, count])
    awkward = np.resize(np.array(SCALES, np.float32), count)
    random = rng.uniform(1e-3, 2, count).astype(np.float32)
    scales = np.where(np.arange(count) % 3 == 2, random, awkward)
    return scales, np.resize(np.array(zero_points(quant_min, quant_max), np.int32), count)


def bits(array):
    """Return the bit patterns, with every NaN written as one: no NaN's payload is promised."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    patterns = array.view(f"u{array.dtype.itemsize}")
    if array.dtype.kind in "iu":
        return patterns
    return np.where(np.isnan(array), np.iinfo(patterns.dtype).max, patterns)


def assert_same(actual, expected, note=""):
    """Fail unless two arrays, or two tuples of them, agree in shape, dtype and every bit."""
    if isinstance(expected, tuple):
        assert len(actual) == len(expected), note
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, note)
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), note
    different = np.flatnonzero(bits(actual).reshape(-1) != bits(expected).reshape(-1))
    first = [(i, actual.reshape(-1)[i], expected.reshape(-1)[i]) for i in different[:5]]
    assert not first, f"{note}: {different.size} of {actual.size} differ, first {first}"


def same_state(a, b):
    """Fail unless two modules have the same state: its names, in their order, and every bit."""
    assert list(a.state_dict()) == list(b.state_dict())
    for key, array in a.state_dict().items():
        assert_same(array, b.state_dict()[key], key)


def golden():
    """Yield the calls recorded from PyTorch 2.13: (name, args, kwargs, results).

    ``results`` are the outputs, then the arrays that the op updates in place. The arrays are the
    caller's own; ``data/record_golden.py`` writes the file and says how.
    """
    with np.load(Path(__file__).parent / "data" / "golden.npz") as file:
        index, stored = json.loads(file["index"].item()), file["bits"]

    def value(spec):
        if not isinstance(spec, dict):
            return spec
        dtype = np.dtype(spec["dtype"])
        if "at" not in spec:
            return dtype
        count = math.prod(spec["shape"]) * dtype.itemsize
        return stored[spec["at"] :][:count].copy().view(dtype).reshape(spec["shape"])

    for call in index["calls"]:
        kwargs = {name: value(one) for name, one in call["kwargs"].items()}
        results = tuple(map(value, call["results"]))
        yield call["name"], tuple(map(value, call["args"])), kwargs, results
