"""The oracle against bits recorded from PyTorch 2.13, and against itself made wrong.

Needs neither PyTorch nor npquant: ``data/golden.npz`` holds the recorded calls.
"""

import inspect
import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import cases
import oracle

F16, BF16, F32, F64 = cases.FLOATS
GOLDEN = {}
for call in cases.golden():
    GOLDEN.setdefault(call[0], []).append(call[1:])


def results(name, args, kwargs):
    """Call the oracle on copies; return its outputs and the arrays it updates in place."""
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    outputs = getattr(oracle, name)(*args, **kwargs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return (*outputs, *args[3:7]) if name.startswith("fused") else outputs


def array(words, dtype):
    """Return the array with these bits, written as hexadecimal words."""
    return np.array([int(word, 16) for word in words.split()], f"u{np.dtype(dtype).itemsize}").view(
        dtype
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    for number, (args, kwargs, expected) in enumerate(GOLDEN[name]):
        cases.assert_same(results(name, args, kwargs), expected, f"{name}, call {number}")


# --- golden vectors that numerics.md prints -------------------------------------------------------

X = array(
    "3d4ccccd 3e19999a be800000 414c0000 c14d999a 7149f2ca 7fc00000 80000000 3e99999a 40e9999a", F32
)
PER_TENSOR = (
    "00000000 3e4ccccd be4ccccd 41466667 c14ccccd 41466667 c151999a 00000000 3e99999a 40e9999a"
)
MASK = np.array([1, 1, 1, 0, 1, 0, 0, 1, 1, 1], bool)
HALF = "0000 3266 b266 4a33 ca73 4a33 ca8d 0000 34cd 474d"
BRAIN = "3dcd 3e4d be4d 4146 c14e 4146 c152 0000 3e9a 40ea"
PER_CHANNEL = PER_TENSOR.split()
PER_CHANNEL[5] = "41466667"  # 1e30 saturates (D1); PyTorch's int64 overflows to c151999a
FLOAT_ZERO = (
    "3d99999a 3e333333 be666667 41460000 c14d3333 41460000 c1520000 bccccccd 3e8ccccd 40e8cccd"
)


@pytest.mark.parametrize(("dtype", "words"), [(F32, PER_TENSOR), (F16, HALF), (BF16, BRAIN)])
def test_vector_per_tensor(dtype, words):
    with np.errstate(over="ignore"):
        x = X.astype(dtype)
    actual = oracle.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -128, 127)
    cases.assert_same(actual, (array(words, dtype), MASK))


def test_vector_per_channel():
    scale = np.array([0.1], F32)
    args = X[None], scale, np.array([3], np.int32), 0, -128, 127
    actual = oracle.fake_quantize_per_channel_affine_cachemask(*args)
    cases.assert_same(actual, (array(" ".join(PER_CHANNEL), F32)[None], MASK[None]))
    args = X[None], scale, np.array([3.25], F32), 0, -128, 127
    actual = oracle.fake_quantize_per_channel_affine(*args)
    cases.assert_same(actual, array(FLOAT_ZERO, F32)[None])


def test_vector_learnable_backward():
    x = np.array([0.05, 0.15, -0.25, 12.75, -12.85, 2.09, -2.0909042, -0.0, 0.30000001, 7.3], F32)
    grad = array(
        "bf800000 bf471c72 bf0e38e4 beaaaaaa bde38e38 3de38e38 3eaaaaaa 3f0e38e4 3f471c72 3f800000",
        F32,
    )
    grad_input = grad.copy()
    grad_input[3] = -0.0
    args = grad, x, np.array([0.1], F32), np.array([2], F32), -128, 127, 0.5
    actual = oracle.fake_quantize_learnable_per_tensor_affine_backward(*args)
    cases.assert_same(actual[0], grad_input)
    # PyTorch adds in float32: ten terms of at most 65, so within 10 * 2**-24 * 650.
    np.testing.assert_allclose(actual[1], array("c1a7a1e4", F32), rtol=0, atol=4e-4)
    np.testing.assert_allclose(actual[2], array("3c888888", F32), rtol=1e-6)


def test_vector_quantize():
    x = np.array([-41.77845764160156], F32)
    actual = oracle.quantize_per_tensor(x, 0.41988401138528, 0, -128, 127, np.int8)
    cases.assert_same(actual, array("9c", np.int8))
    x, e4m3fn = np.array([0.3, 1.5, 17, 19, 27, 1e9], F32), ml_dtypes.float8_e4m3fn
    actual = oracle.quantize_per_tensor(x, 1.0, 0, -448, 448, e4m3fn)
    cases.assert_same(actual, array("00 40 58 5a 5e 7e", e4m3fn))
    q = np.array([-128, 5, 127], np.int8)
    actual = oracle.dequantize_per_tensor(q, 0.1, 3, -128, 127, np.int8, out_dtype=F16)
    cases.assert_same(actual, array("ca8d 3266 4a33", F16))


def test_vector_choose_qparams_per_token_asymmetric():
    x = np.array([[0.5, 1.5, -2.5], [10, 20, 30]], F32)
    scales = array("3f90101020000000 3fbe1e1e20000000", F64)[:, None]
    zero_points = array("1f ffffffffffffff80", np.int64)[:, None]
    actual = oracle.choose_qparams_per_token_asymmetric(x, np.int8)
    cases.assert_same(actual, (scales, zero_points))


def test_vector_sum():
    terms = np.float32(1) / np.arange(1, 101, dtype=F32)
    pytorch = array("40a5ff00", F32)  # one float32 tree; ours is float64 and rounds once
    np.testing.assert_allclose(oracle.tree_sum(terms[None]), pytorch, rtol=100 * 2.0**-24)


# --- the arithmetic under the formulas ------------------------------------------------------------


def triples(dtype):
    """Return a, b, c with products that nearly cancel, tie or underflow."""
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 2000)).astype(dtype)
    a[:1000] *= (10.0 ** rng.integers(-18, 18, 1000)).astype(dtype)
    c[::4] = -(a * b)[::4]  # exactly the product's rounding error remains
    c[1::4] = np.ldexp(a * b, rng.integers(10, 60, 2000))[1::4]
    special = np.array([0.0, -0.0, np.inf, np.nan, 1e-30, -1e-38, 3e38, 1.0], dtype)
    if dtype == F64:  # beyond what its arithmetic of pairs can do
        special = np.concatenate([special, [5e-324, -1e-300, 2.0**-900, 2.0**990, -1e308]])
    grid = np.array(list(itertools.product(special, repeat=3)), dtype).T
    return np.concatenate([(a, b, c), grid], axis=1)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_fma_is_one_rounding(dtype):
    """Halfway between neighbours decides: compare exact distances, no second implementation."""
    a, b, c = triples(dtype)
    with np.errstate(all="ignore"):
        actual, plain = oracle.fma(a, b, c), a * b + c
    assert actual.dtype == dtype
    finite = np.isfinite(plain) & np.isfinite(actual)
    np.testing.assert_array_equal(actual[~np.isfinite(plain)], plain[~np.isfinite(plain)])
    for got, x, y, z in zip(*(v[finite].tolist() for v in (actual, a, b, c)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = [np.nextafter(dtype.type(got), dtype.type(side)) for side in (-np.inf, np.inf)]
        error = abs(exact - Fraction(got))
        for other in (n for n in near if np.isfinite(n)):
            distance = abs(exact - Fraction(float(other)))
            even = int(np.array(got, dtype).view(f"i{dtype.itemsize}")) % 2 == 0
            assert error < distance or (error == distance and even), (x, y, z)
    assert np.count_nonzero(actual != plain) > 400  # the data tells one rounding from two


def test_round_once():
    tie = 1 + 2.0**-8  # between two bfloat16 numbers
    values = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, 1e300, -0.0, np.inf])
    actual = oracle.round_once(values, BF16).astype(F64)
    np.testing.assert_array_equal(actual, [1, 1 + 2.0**-7, 1, np.inf, 0, np.inf])
    half = oracle.round_once(np.array([1 + 2.0**-11 + 2.0**-40]), F16)
    assert half == np.float16(1 + 2.0**-10)


def in_groups(sums):
    """The promised order of adding tiles, and the rows of a tensor, a number at a time."""
    while len(sums) > 1:
        groups = [sums[i : i + 256] for i in range(0, len(sums), 256)]
        sums = []
        for first, *others in groups:
            for v in others:
                first += v
            sums.append(first)
    return sums[0] if sums else 0.0


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 4095, 4096, 4097, 12345, 256 * 4096 + 9000])
def test_tree_sum_walks_the_promised_tree(length):
    terms = np.random.default_rng(length).normal(size=length) * 10.0 ** np.arange(length) ** 0.2
    sums = []
    for start in range(0, length, 4096):
        lanes = [0.0] * 16
        for place, term in enumerate(terms[start : start + 4096].tolist()):
            lanes[place % 16] += term
        for half in (8, 4, 2, 1):
            for i in range(half):
                lanes[i] += lanes[i + half]
        sums.append(lanes[0])
    expected = in_groups(sums)
    assert oracle.tree_sum(terms[None]) == expected
    assert math.isclose(expected, math.fsum(terms), rel_tol=0, abs_tol=1e-12 * sum(abs(terms)))


@pytest.mark.parametrize(("shape", "row"), [
    ((4096,), 4096), ((5000,), 5000), ((16, 256), 4096), ((17, 256), 256), ((17, 255), 17 * 255),
    ((9, 3, 40, 30), 1200), ((70, 9, 7), 70 * 9 * 7), ((2, 9000), 9000), ((5000, 1), 5000),
    ((1, 300, 256), 256), ((0, 300), 0), ((), 1),
])  # fmt: skip
def test_rows_of_a_tensor(shape, row):
    """As few last axes as hold 256 elements, of a tensor that is more than a tile."""
    assert oracle.rows_of_tensor(shape) == row


@pytest.mark.parametrize(("rows", "row"), [(1, 5000), (17, 256), (300, 300)])
def test_tree_sum_of_the_rows_of_a_tensor(rows, row):
    terms = np.random.default_rng(row).normal(size=(rows, row)) * 10.0 ** np.arange(row) ** 0.2
    expected = in_groups([float(v) for v in oracle.tree_sum(terms)])
    assert oracle.tree_sum(terms.reshape(1, -1), row) == expected


def test_tree_sum_starts_at_positive_zero():
    assert not np.signbit(oracle.tree_sum(np.full((1, 64), -0.0)))


# --- ops that PyTorch lacks, against those it has -------------------------------------------------


@pytest.mark.parametrize("dtype", cases.FLOATS, ids=str)
@pytest.mark.parametrize("rounding", ["pytorch", "nearest"])
def test_token_and_group_are_channels(dtype, rounding):
    scale, zero_point = cases.qparams(8, -8, 7)
    zero_point = zero_point + np.float32(0.3)
    rows = cases.rows(dtype, scale, zero_point.astype(int), -8, 7)
    grad = cases.inputs(dtype, 1.0, -8, 7, finite=True)[::-1] * np.ones((8, 1), dtype)
    params, name = (scale, zero_point), "fake_quantize_learnable_per_{}_affine".format
    channel, token, group = (
        (getattr(oracle, name(kind)), getattr(oracle, f"{name(kind)}_backward"))
        for kind in ("channel", "token", "channel_group")
    )
    expected = (
        channel[0](rows, *params, 0, -8, 7),
        *channel[1](grad, rows, *params, 0, -8, 7, 0.3, zero_point_rounding=rounding),
    )
    actual = (
        token[0](rows, *params, -8, 7),
        *token[1](grad, rows, *params, -8, 7, 0.3, zero_point_rounding=rounding),
    )
    cases.assert_same(actual, expected)
    wide, wide_grad = (v.reshape(4, -1) for v in (rows, grad))
    size, params = cases.LENGTH, (scale.reshape(4, 2), zero_point.reshape(4, 2))
    actual = (
        group[0](wide, *params, -8, 7, size),
        *group[1](wide_grad, wide, *params, -8, 7, size, 0.3, zero_point_rounding=rounding),
    )
    expected = tuple(one.reshape(4, -1) for one in expected)
    cases.assert_same(actual, expected)


@pytest.mark.parametrize("rounding", ["pytorch", "nearest"])
def test_two_byte_backward_is_float32_rounded_once(rounding):
    scale, zero_point = np.array([0.1], F32), np.array([-2.5], F32)
    op = oracle.fake_quantize_learnable_per_tensor_affine_backward
    for dtype in (F16, BF16):
        x, grad = (cases.inputs(dtype, 0.1, -8, 7, finite=True, seed=i) for i in (0, 1))
        args = scale, zero_point, -8, 7, 0.3
        wide = op(grad.astype(F32), x.astype(F32), *args, zero_point_rounding=rounding)
        actual = op(grad, x, *args, zero_point_rounding=rounding)
        cases.assert_same(actual, (wide[0].astype(dtype), *wide[1:]))


@pytest.mark.parametrize("target", cases.SUB_BYTE, ids=str)
def test_sub_byte_targets_are_narrow_bytes(target):
    bounds = cases.BOUNDS[target]
    x = cases.inputs(F32, 0.3, *bounds)
    args = x, 0.3, bounds[0], *bounds
    actual = oracle.quantize_per_tensor(*args, target)
    expected = oracle.quantize_per_tensor(*args, np.int8)
    np.testing.assert_array_equal(actual.astype(np.int8), expected)
    assert {expected.min(), expected.max()} == set(bounds)
    back = oracle.dequantize_per_tensor(actual, 0.3, bounds[0], *bounds, target)
    cases.assert_same(back, oracle.dequantize_per_tensor(expected, *args[1:], np.int8))


# --- can it fail? ---------------------------------------------------------------------------------


def half_up(v):
    return np.floor(v + v.dtype.type(0.5))


def zero_point_first(x, inverse, z):
    return np.rint(x * inverse + z)


def other_order(*args, zero_first, right=oracle._quantize):
    return right(*args, zero_first=not zero_first)


def two_roundings(a, b, c):
    return a * b + c


def zero_point_up(zero_point, quant_min, quant_max):
    return np.clip(half_up(zero_point), quant_min, quant_max)


def double_reciprocal(scale):
    return 1 / np.float64(scale)


def single_reciprocal(scale):
    return np.float32(1) / np.float32(scale)


def wide_inverse(scales):
    return 1 / np.asarray(scales, F64).reshape(-1, 1)


def one_rounding(q, layout, scale, zero_point, out_dtype):
    product = (q.reshape(layout).astype(F64) - zero_point) * scale
    return oracle.cast(product, out_dtype or F32).reshape(q.shape)


def unrounded_step(operation, a, b):
    return operation(a.astype(F64), b.astype(F64))


def rounded_to_int(values, bits=64, right=oracle._to_int):
    return right(np.rint(values), bits)


def unsigned_mask(grad, mask):
    return np.where(mask, grad, np.zeros_like(grad))


def times_reciprocal(span, number):
    span = np.atleast_1d(span)
    return (span * np.float32(1 / number)).astype(span.dtype)


def unfused_qparams(low, high, *bounds_and_symmetric):
    *bounds, symmetric = bounds_and_symmetric
    scheme = "per_tensor_symmetric" if symmetric else "per_tensor_affine"
    args = low, high, *bounds, np.int8, np.float32(6.1e-5), False, scheme
    return tuple(one.item() for one in oracle.determine_qparams(*args))


def names(*patterns):
    return [name for name in GOLDEN if any(p in name for p in patterns)]


BACKWARD = names("learnable_per_tensor_affine_backward", "learnable_per_channel_affine_backward")
FORWARD = names("fake_quant_per_channel", "fake_quantize_")
FORWARD = [name for name in FORWARD if "backward" not in name]
QUANTIZE = [name for name in GOLDEN if name.startswith("quantize_")]
#: A name in the oracle, something wrong to put there, and the ops whose bits must then differ.
WRONG = [
    ("rint", half_up, [*QUANTIZE, *FORWARD, *BACKWARD]),
    ("_quantize", other_order, QUANTIZE),
    ("round_then_add", zero_point_first, FORWARD),
    ("add_then_round", oracle.round_then_add, BACKWARD),
    ("fma", two_roundings, [*BACKWARD, "fake_quantize_per_channel_affine"]),
    ("_nearest", zero_point_up, [n for n in names("learnable") if "tensor_affine_b" not in n]),
    ("reciprocal", double_reciprocal, FORWARD),
    ("reciprocal", single_reciprocal, ["quantize_per_tensor"]),
    ("_inverse", wide_inverse, [n for n in QUANTIZE if n != "quantize_per_tensor"]),
    ("_dequantize", one_rounding, ["dequantize_per_tensor"]),
    ("_step", unrounded_step, names("dequantize_per_token", "dequantize_per_channel_group")),
    ("_to_int", rounded_to_int, ["convert_element_type"]),
    ("_masked", unsigned_mask, names("cachemask_backward", "per_channel_backward")),
    ("_divide", times_reciprocal, names("choose_qparams", "determine_qparams")),
    ("_fused_qparams", unfused_qparams, names("fused")),
]
WRONG = [(attribute, wrong, name) for attribute, wrong, each in WRONG for name in each]


@pytest.mark.parametrize(
    ("attribute", "wrong", "name"), WRONG, ids=lambda v: getattr(v, "__name__", v)
)
def test_golden_rejects_a_wrong_formula(monkeypatch, attribute, wrong, name):
    monkeypatch.setattr(oracle, attribute, wrong)
    with pytest.raises(AssertionError, match="differ"), np.errstate(all="ignore"):
        test_golden(name)


def zero_point_place(name):
    """Return where an op takes its zero point as an input, or None."""
    places = {p: i for i, p in enumerate(inspect.signature(getattr(oracle, name)).parameters)}
    return None if name.startswith("fused") else places.get("zero_point", places.get("zero_points"))


SHIFTED = [name for name in GOLDEN if zero_point_place(name) is not None]


@pytest.mark.parametrize("name", SHIFTED)
def test_golden_rejects_a_zero_point_off_by_one(monkeypatch, name):
    place, right = zero_point_place(name), getattr(oracle, name)

    def off_by_one(*args, **kwargs):
        wrong = [a + 1 if i == place and a is not None else a for i, a in enumerate(args)]
        return right(*wrong, **kwargs)

    monkeypatch.setattr(oracle, name, off_by_one)
    with pytest.raises(AssertionError, match="differ"):
        test_golden(name)


def test_every_op_has_a_wrong_formula():
    assert {*SHIFTED, *(name for _, _, name in WRONG)} == set(GOLDEN)
