"""npquant and its oracle against PyTorch 2.13, live: equal bits outside the departures.

And each departure: that PyTorch still does what docs/departures.md says, and that we do our own.

PyTorch is imported at the top and nothing skips: without the ``peers`` extra this folder is not
collected at all.
"""

import itertools

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch.ao.quantization.utils import determine_qparams

import cases
import npquant as nq
import oracle
from tensors import TORCH_DTYPE, to_numpy, to_torch

torch.set_num_threads(1)
aten, decomposed = torch.ops.aten, torch.ops.quantized_decomposed

F16, BF16, F32, F64 = cases.FLOATS
by_float = pytest.mark.parametrize("dtype", cases.FLOATS, ids=str)
by_target = pytest.mark.parametrize("target", cases.PYTORCH, ids=str)


def pytorch(op, *args, **kwargs):
    """Call a PyTorch op on arrays; arrays come back."""
    kwargs = {name: to_torch(value) for name, value in kwargs.items()}
    return to_numpy(op(*map(to_torch, args), **kwargs))


def usual(args):
    """Whether npquant itself is called: on float32. Other dtypes compile kernels of their own.

    tests/test_ops.py compares those with the oracle, which is compared here on all of them.
    """
    floating = [a.dtype for a in args if isinstance(a, np.ndarray) and a.dtype.kind in "fV"]
    return all(d == F32 or d in cases.FLOAT8 or d in cases.SUB_BYTE for d in floating)


def check(name, op, *args, keep=None, **kwargs):
    """Compare our functions with a PyTorch op, on all elements or those in ``keep``."""
    expected = pytorch(op, *args, **kwargs)
    if keep is not None:
        single = not isinstance(expected, tuple)
        expected = expected[keep] if single else tuple(e[keep] for e in expected)
    for ours in (oracle, nq) if usual(args) else (oracle,):
        actual = getattr(ours, name)(*args, **kwargs)
        if keep is not None:
            actual = actual[keep] if single else tuple(a[keep] for a in actual)
        note = f"{ours.__name__}.{name} {[a for a in args if not np.ndim(a)]}"
        cases.assert_same(actual, expected, note)


def inside_int64(x, scale):
    """Return where x / scale fits an int64: beyond it PyTorch overflows (D1)."""
    with np.errstate(all="ignore"):
        return ~(x.astype(np.float64) * (np.float32(1) / np.float32(scale)) >= 2.0**62)


def per_tensor_qparams(ranges=cases.RANGES):
    for quant_min, quant_max in ranges:
        for scale, zero_point in itertools.product(
            cases.SCALES, cases.zero_points(quant_min, quant_max)
        ):
            yield scale, zero_point, quant_min, quant_max


# --- fake quantize --------------------------------------------------------------------------------


@by_float
def test_fake_quantize_per_tensor(dtype):
    wide = (-(2**31), 2**31 - 1), (-(2**20), 2**25 + 1)
    for scale, zero_point, *bounds in per_tensor_qparams(cases.RANGES + wide):
        x = cases.inputs(dtype, scale, *bounds, zero_point)
        args = x, scale, zero_point, *bounds
        check(
            "fake_quantize_per_tensor_affine_cachemask",
            aten.fake_quantize_per_tensor_affine_cachemask,
            *args,
        )


def test_fake_quantize_per_tensor_tensor_qparams():
    name = "fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    x = cases.inputs(F32, 0.1, -128, 127)
    for zero_point, enabled in itertools.product((2.7, -2.7, 300.0, 3.0), (0, 0.5, 1, 2)):
        scale, z = np.array([0.1], np.float32), np.array([zero_point], np.float32)
        check(name, op, x, scale, z, np.array([enabled]), -128, 127)


@by_float
@pytest.mark.parametrize("kind", [np.int32, np.float32, np.float16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fake_quantize_per_channel(dtype, kind, axis):
    for seed, bounds in enumerate(cases.RANGES):
        scale, zero_point = cases.qparams(33, *bounds, seed=seed)
        x = cases.channels(dtype, scale, zero_point, *bounds, axis, seed=seed)
        if kind != np.int32:
            zero_point = (zero_point + np.resize([0, 0.25, -0.5, 0.1], 33)).astype(kind)
        shape = [1, 1, 1]
        shape[axis] = -1
        keep = inside_int64(x, scale.reshape(shape))
        check(
            "fake_quantize_per_channel_affine_cachemask",
            aten.fake_quantize_per_channel_affine_cachemask,
            *(x, scale, zero_point, axis, *bounds),
            keep=keep,
        )
        assert keep.mean() > 0.8


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_fake_quantize_per_channel_float_zero_point_is_one_fma(dtype):
    """Ties of x * inv + z within a rounding: where a product rounded first goes the other way."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 1, 64).astype(np.float32)
    zero_point = rng.uniform(-100, 100, 64).astype(np.float32)
    steps = rng.integers(-500, 500, (64, 512)) + 0.5
    x = ((steps - zero_point[:, None].astype(F64)) * scale[:, None].astype(F64)).astype(dtype)
    check(
        "fake_quantize_per_channel_affine_cachemask",
        aten.fake_quantize_per_channel_affine_cachemask,
        *(x, scale, zero_point, 0, -1000, 1000),
    )


@pytest.mark.parametrize("dtype", [*cases.FLOATS, np.dtype(np.int32)], ids=str)
def test_masked_gradients(dtype):
    x = cases.inputs(F32, 1.0, -128, 127)
    grad = np.where(np.isfinite(x), x, np.float32(-1)).clip(-6e4, 6e4).astype(dtype)
    mask = np.random.default_rng(0).random(x.shape) < 0.5
    tensor_op = aten.fake_quantize_per_tensor_affine_cachemask_backward
    channel_op = aten.fake_quantize_per_channel_affine_cachemask_backward
    check("fake_quantize_per_tensor_affine_cachemask_backward", tensor_op, grad, mask)
    check("fake_quantize_per_channel_affine_cachemask_backward", channel_op, grad, mask)
    check("fake_quant_per_channel_backward", lambda g, m: g * m, grad, mask)


# --- learnable ------------------------------------------------------------------------------------


LEARNABLE_ZERO_POINTS = (0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -2.6, -3.0, 3.49999, 300.0, -300.0)
#: Where the bounds are not float32 numbers.
WIDE = ((-(2**25) - 1, 2**25 + 1), (-(2**26) - 3, 2**24 + 5), (-(2**31), 2**31 - 1))
SPANNING_ZERO = tuple(r for r in cases.RANGES if r[0] <= 0 <= r[1])


@by_float
def test_learnable_per_tensor(dtype):
    for bounds, zero_point in itertools.product(SPANNING_ZERO, LEARNABLE_ZERO_POINTS):
        for scale in cases.SCALES:
            x = cases.inputs(dtype, scale, *bounds)
            args = x, np.array([scale], np.float32), np.array([zero_point], np.float32), *bounds
            check(
                "fake_quantize_learnable_per_tensor_affine",
                aten._fake_quantize_learnable_per_tensor_affine,
                *args,
            )


@by_float
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_learnable_per_channel(dtype, axis):
    for seed, bounds in enumerate(SPANNING_ZERO):
        scale, zero_point = cases.qparams(33, *bounds, seed=seed)
        x = cases.channels(dtype, scale, zero_point, *bounds, axis, seed=seed, finite=True)
        zero_point = np.resize(np.array(LEARNABLE_ZERO_POINTS, np.float32), 33)
        check(
            "fake_quantize_learnable_per_channel_affine",
            aten._fake_quantize_learnable_per_channel_affine,
            *(x, scale, zero_point, axis, *bounds),
        )


def gradients(x, seed=0):
    return np.random.default_rng(seed).normal(size=x.shape).astype(x.dtype)


def assert_terms(actual, expected):
    """Compare terms with sums of one element: PyTorch adds each to +0.0, so -0.0 is +0.0."""
    actual = actual.reshape(-1)
    cases.assert_same(np.where(actual == 0, np.float32(0), actual), expected.reshape(-1))


@pytest.mark.parametrize("bounds", [*SPANNING_ZERO, *WIDE], ids=str)
def test_learnable_terms_per_tensor(bounds):
    op = aten._fake_quantize_learnable_per_tensor_affine_backward
    qparams = itertools.product(cases.SCALES[::2], LEARNABLE_ZERO_POINTS[::3])
    for seed, (scale, zero_point) in enumerate(qparams):
        x = cases.inputs(F32, scale, *bounds, seed=seed)[::4]
        x = x[inside_int64(x, scale)]
        grad, factor = gradients(x, seed), 0.3
        params = np.array([scale], np.float32), np.array([zero_point], np.float32)
        expected = [
            pytorch(op, grad[i : i + 1], x[i : i + 1], *params, *bounds, factor)
            for i in range(x.size)
        ]
        grad_input, scale_terms, zero_point_terms = oracle.learnable_terms(
            grad, x, oracle.per_tensor(x), *params, *bounds, factor, tensor_op=True
        )
        expected = [np.concatenate(column) for column in zip(*expected, strict=True)]
        cases.assert_same(grad_input, expected[0])
        assert_terms(scale_terms, expected[1])
        assert_terms(zero_point_terms, expected[2])


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("bounds", [*SPANNING_ZERO, *WIDE], ids=str)
def test_learnable_terms_per_channel(bounds, dtype):
    """One element a channel: PyTorch's sums are the terms themselves."""
    op = aten._fake_quantize_learnable_per_channel_affine_backward
    for seed, (scale, zero_point) in enumerate(
        itertools.product(cases.SCALES, LEARNABLE_ZERO_POINTS)
    ):
        x = cases.inputs(dtype, scale, *bounds, seed=seed)
        x = x[inside_int64(x, scale)].reshape(1, -1)
        grad = gradients(x, seed)
        params = np.full(x.size, scale, dtype), np.full(x.size, zero_point, dtype)
        expected = pytorch(op, grad, x, *params, 1, *bounds, 0.3)
        grad_input, *terms = oracle.learnable_terms(
            grad, x, oracle.per_channel(x, 1), *params, *bounds, 0.3
        )
        # PyTorch returns float32 gradients even for bfloat16 input (D7).
        cases.assert_same(grad_input.astype(F32), expected[0])
        for actual, one in zip(terms, expected[1:], strict=True):
            assert_terms(actual, one)


def assert_sums(actual, expected, terms):
    """Compare float32 sums of float32 terms with the exact sum, each within its own bound.

    An addition errs by at most u = 2**-24 of its partial sum, so a sum by at most k u S, with
    S = sum |term| and k the most additions that any term passes through. PyTorch adds in lanes
    along a cascade of 16 rows a level: for n < 2**14 terms k = 16 + 16 + 2 rows, 4 levels,
    4 accumulators, 8 lanes and 8 left over, below 64; one more u covers the second order. The
    oracle adds in float64, k = 64 rows, 6 halvings and 4 tiles, and rounds once to float32.
    """
    magnitude = np.abs(terms.astype(F64)).sum(axis=1)
    exact = oracle.exact_sum(terms)
    assert terms.shape[1] < 2**14
    assert np.all(np.abs(expected.astype(F64) - exact) <= 65 * 2.0**-24 * magnitude)
    bound = 2.0**-24 * np.abs(exact) + 75 * 2.0**-53 * magnitude + 2.0**-150  # half a subnormal
    assert np.all(np.abs(actual.astype(F64) - exact) <= bound)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_learnable_gradient_sums(axis):
    name = "fake_quantize_learnable_per_" + ("tensor" if axis is None else "channel") + "_affine"
    op = getattr(aten, f"_{name}_backward")
    for seed, bounds in enumerate(SPANNING_ZERO):
        count = 1 if axis is None else 33
        scale, _ = cases.qparams(count, *bounds, seed=seed)
        zero_point = np.resize(np.array(LEARNABLE_ZERO_POINTS, np.float32), count)
        zeros = np.zeros(count)
        x = cases.channels(F32, scale, zeros, *bounds, axis or 0, seed=seed, finite=True)
        grad = gradients(x, seed)
        where = () if axis is None else (axis,)
        args = grad, x, scale, zero_point, *where, *bounds, 0.3
        layout = oracle.per_tensor(x) if axis is None else oracle.per_channel(x, axis)
        _, *terms = oracle.learnable_terms(
            *(grad, x, layout, scale, zero_point, *bounds, 0.3), tensor_op=axis is None
        )
        actual, expected = getattr(oracle, f"{name}_backward")(*args), pytorch(op, *args)
        cases.assert_same(actual[0], expected[0])
        for one, other, each in zip(actual[1:], expected[1:], terms, strict=True):
            assert one.shape == other.shape
            assert_sums(one, other, each)


# --- quantize and dequantize ----------------------------------------------------------------------


def narrowed(bounds):
    """Return the bounds of a dtype, and narrower ones inside them."""
    return bounds, (max(bounds[0], -5), 3)


def kept(x, expected, target):
    """Leave out what int32 cannot hold (D2): its own upper bound, and NaN (D4)."""
    if target != np.int32:
        return np.ones(x.shape, bool)
    return ~np.isnan(x) & (expected != 2**31 - 1)


@pytest.mark.parametrize("dtype", cases.FLOATS[:3], ids=str)
@by_target
def test_quantize_per_tensor(dtype, target):
    for scale, zero_point, *bounds in per_tensor_qparams(narrowed(cases.BOUNDS[target])):
        x = cases.inputs(dtype, scale, *bounds, zero_point)
        args = x, scale, zero_point, *bounds, target
        keep = kept(x, oracle.quantize_per_tensor(*args), target)
        check("quantize_per_tensor", decomposed.quantize_per_tensor, *args, keep=keep)


def test_quantize_per_tensor_overloads():
    x = cases.inputs(F32, 0.1, -128, 127)
    scale, zero_point = np.array([0.1], np.float32), np.array([1.7], np.float32)
    low, high = np.array(-100.5, np.float32), np.array(5.5, np.float32)
    for z in (zero_point, np.array([3])):
        args = x, scale, z, -128, 127, np.int8
        check("quantize_per_tensor", decomposed.quantize_per_tensor.tensor, *args)
        args = x, scale, z, low, high, np.int8
        check("quantize_per_tensor", decomposed.quantize_per_tensor.tensor2, *args)


@pytest.mark.parametrize("dtype", cases.FLOATS[:3], ids=str)
@by_target
def test_quantize_per_channel(dtype, target):
    for bounds, scale_dtype in itertools.product(narrowed(cases.BOUNDS[target]), cases.FLOATS):
        scale, zero_point = cases.qparams(17, *bounds)
        scale = np.where((scale < 1e-3) | (scale > 1e3), np.float32(0.3), scale).astype(scale_dtype)
        for axis, z_dtype in itertools.product((0, 1, -1), (np.int32, np.int64, F16, F32, F64)):
            z = (zero_point % 1000).astype(z_dtype)  # float16 holds those
            x = cases.channels(dtype, scale, z, *bounds, axis)
            args = x, scale, z, axis, *bounds, target
            keep = kept(x, oracle.quantize_per_channel(*args), target)
            check("quantize_per_channel", decomposed.quantize_per_channel, *args, keep=keep)


def representable(bounds, *dtypes):
    """Return whether PyTorch clamps at the bounds themselves in the promoted dtype (D2)."""
    with np.errstate(over="ignore"):
        return all(float(np.asarray(b).astype(d)) == b for b in bounds for d in dtypes)


@pytest.mark.parametrize("dtype", [*cases.FLOATS, np.dtype(np.int32)], ids=str)
@by_target
@pytest.mark.parametrize("group", [False, True])
def test_quantize_per_token_and_group(dtype, target, group):
    for bounds, scale_dtype in itertools.product(narrowed(cases.BOUNDS[target]), cases.FLOATS):
        if target != np.int32 and not representable(bounds, dtype, scale_dtype):
            continue
        scale, zero_point = cases.qparams(16, *bounds)
        scale = np.where((scale < 1e-3) | (scale > 1e3), np.float32(0.3), scale).astype(scale_dtype)
        for z_dtype in (np.int32, np.int64, F16, BF16, F32, F64):
            z = (zero_point % 100).astype(z_dtype)
            made_as = dtype if dtype in cases.FLOATS else F32
            x = cases.rows(made_as, scale, z, *bounds, finite=group)
            if dtype == np.int32:
                x = np.clip(np.nan_to_num(x), -1e9, 1e9).astype(dtype)
            if group:
                scale_, z_ = (np.repeat(v, 4).reshape(16, 4) for v in (scale, z))
                args = x, scale_, z_, *bounds, target, cases.LENGTH // 4
                op = decomposed.quantize_per_channel_group
            else:
                args = x, scale[:, None], z[:, None], *bounds, target
                op = decomposed.quantize_per_token
            name = op.__name__
            if target == np.int32 and 2**31 - 1 in bounds and F16 in (dtype, scale_dtype):
                continue  # PyTorch cannot convert the bound to float16
            keep = kept(x, getattr(oracle, name)(*args), target)
            check(name, op, *args, keep=keep)


def quantized(target, shape):
    """Return values over the whole range of a dtype, its bounds included."""
    low, high = cases.BOUNDS[target]
    rng = np.random.default_rng(5)
    values = rng.integers(low, high, shape, endpoint=True)
    values.reshape(-1)[:4] = low, high, 0, 1
    return (
        values.astype(np.float32).astype(target)
        if target in cases.FLOAT8
        else values.astype(target)
    )


@by_target
@pytest.mark.parametrize("out_dtype", [None, *cases.FLOATS], ids=str)
def test_dequantize_per_tensor(target, out_dtype):
    q = quantized(target, 300)
    for scale, zero_point in itertools.product(cases.SCALES, (0, 3, -3, 300, 2049, 100000)):
        args = q, scale, zero_point, *cases.BOUNDS[target], target
        op = decomposed.dequantize_per_tensor
        check("dequantize_per_tensor", op, *args, out_dtype=out_dtype)
    args = q, np.array([0.3]), np.array([1.7]), *cases.BOUNDS[target], target
    op = decomposed.dequantize_per_tensor.tensor
    check("dequantize_per_tensor", op, *args, out_dtype=out_dtype)


def test_dequantize_per_channel():
    """Where nothing wraps and no step rounds, 2.13 agrees with the older formula (D15)."""
    q = quantized(np.dtype(np.int8), (5, 6, 7))
    for axis, z in itertools.product((0, 1, 2, -1), (None, np.int64, np.float32)):
        scale, zero_point = cases.qparams(q.shape[axis], -128, 127)
        zero_point = None if z is None else zero_point.astype(z)
        args = q, scale, zero_point, axis, -128, 127, np.int8
        check("dequantize_per_channel", decomposed.dequantize_per_channel, *args)


@pytest.mark.parametrize("target", [d for d in cases.PYTORCH if d not in cases.FLOAT8], ids=str)
@pytest.mark.parametrize("output", cases.FLOATS, ids=str)
def test_dequantize_per_token_and_group(target, output):
    q = quantized(target, (16, 64))
    bounds = cases.BOUNDS[target]
    scale, zero_point = cases.qparams(16, *bounds)
    for scale_dtype, z_dtype in itertools.product(cases.FLOATS, (np.int64, F16, BF16, F32, F64)):
        if target == np.uint16 and z_dtype == np.int64:
            continue  # PyTorch refuses
        with np.errstate(all="ignore"):
            s, z = scale.astype(scale_dtype), (zero_point % 100).astype(z_dtype)
        args = q, s[:, None], z[:, None], *bounds, target, output
        check("dequantize_per_token", decomposed.dequantize_per_token, *args)
        if target == np.uint16:
            continue
        s, z = (np.repeat(v, 2).reshape(16, 2) for v in (s, z))
        args = q, s, z, *bounds, target, 32, output
        check("dequantize_per_channel_group", decomposed.dequantize_per_channel_group, *args)
        args = q, s, None, *bounds, target, 32, output
        check("dequantize_per_channel_group", decomposed.dequantize_per_channel_group, *args)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fake_quant_per_channel(axis):
    for seed, bounds in enumerate((*cases.RANGES, (-(2**31), 2**31 - 1))):
        for scale_dtype, z_dtype in ((F32, np.int32), (F64, np.float32)):
            scale, zero_point = cases.qparams(33, *bounds, seed=seed)
            x = cases.channels(F32, scale, zero_point, *bounds, axis, seed=seed)
            z = zero_point.astype(z_dtype)
            if z_dtype == np.float32:
                z = (zero_point % 1000 + 0.9).astype(z_dtype)
            args = x, scale.astype(scale_dtype), z, axis, *bounds
            check("fake_quant_per_channel", decomposed.fake_quant_per_channel, *args)
            tensor = to_torch(x).requires_grad_()
            rest = [to_torch(a) for a in args[1:]]
            decomposed.fake_quant_per_channel(tensor, *rest).backward(torch.ones(x.shape))
            mask = oracle.fake_quant_per_channel_cachemask(*args)[1]
            cases.assert_same(mask, tensor.grad.numpy() == 1)


def test_convert_element_type():
    op = decomposed.convert_element_type.no_fuse
    for source in (*cases.FLOATS, *cases.FLOAT8, np.dtype(np.int32)):
        values = np.array([0, 1.5, -1.5, 127.9, 300, -300, 464, 65504, 3e9, -3e9, 1e30, 3000000257])
        made_as = source if source in cases.FLOATS else F32
        with np.errstate(all="ignore"):
            x = np.concatenate([cases.inputs(made_as, 1.0, -128, 127), values.astype(made_as)])
            x = x.astype(source)
        for target in TORCH_DTYPE:
            keep = ~np.isnan(x) if target in (np.int32, np.int64) else np.ones(x.shape, bool)
            check("convert_element_type", op, x, target, keep=keep)


# --- choosing qparams -----------------------------------------------------------------------------


def ranges(dtype, count=300):
    """Return minima and maxima: one-sided, empty, tiny, huge, infinite, NaN and ordinary."""
    rng = np.random.default_rng(3)
    edges = [(0, 0), (2, 2), (-3, -1), (4, 6), (-1e-9, 1e-9), (-6e4, 6e4), (-3e38, 3e38)]
    edges += [(-np.inf, 1), (-1, np.inf), (np.nan, np.nan), (-1.3, 2.7), (1e-30, 2e-30)]
    random = np.sort(rng.normal(size=(count, 2)) * 10.0 ** rng.integers(-6, 5, (count, 1)))
    with np.errstate(all="ignore"):
        return np.concatenate([edges, random]).astype(dtype)


QSCHEMES = ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine")
QSCHEMES += ("per_channel_symmetric", "per_channel_affine_float_qparams")


@by_float
@pytest.mark.parametrize("qscheme", QSCHEMES)
def test_determine_qparams(dtype, qscheme):
    low, high = ranges(dtype).T
    eps = np.array([np.finfo(np.float32).eps])
    for target, bounds in cases.BOUNDS.items():
        if target not in cases.PYTORCH:
            continue
        for customized in (False, True):
            args = *bounds, target, eps.astype(np.float32), customized
            one_by_one = [(low[i], high[i]) for i in range(60)]
            for each in ((low, high), *one_by_one):
                scheme = getattr(torch, qscheme)
                expected = pytorch(determine_qparams, *each, *args, scheme)
                for one in (oracle, nq):
                    actual = one.determine_qparams(*each, *args, qscheme)
                    cases.assert_same(actual, expected, f"{one.__name__} {qscheme} {each} {args}")


@pytest.mark.parametrize("dtype", cases.FLOATS[:3], ids=str)
@pytest.mark.parametrize("name", ["choose_qparams", "choose_qparams_symmetric"])
def test_choose_qparams(dtype, name):
    for pair in ranges(dtype, 40):
        for target, bounds in ((np.int8, (-128, 127)), (np.uint8, (0, 255)), (np.int16, (-9, 999))):
            x = np.array([[pair[0], pair[1]], [pair[1], pair[0]]])
            check(name, getattr(decomposed, name).tensor, x, *bounds, 2.0**-12, target)


@pytest.mark.parametrize("dtype", [*cases.FLOATS, np.dtype(np.int16)], ids=str)
@pytest.mark.parametrize(
    "name", ["choose_qparams_per_token", "choose_qparams_per_token_asymmetric"]
)
def test_choose_qparams_per_token(dtype, name):
    if dtype == np.int16:
        x = np.random.default_rng(0).integers(-99, 99, (6, 5)).astype(dtype)
    else:
        x = ranges(dtype)[:, :, None].repeat(2, axis=2)
    op = getattr(decomposed, name)
    check(name, op, x, np.int8)
    check(name, op, x[4].reshape(-1), np.int8)
    check(name, op, x[4].reshape(-1)[0].reshape(()), np.int8)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [*cases.FLOATS, np.dtype(np.int16)], ids=str)
def test_quantize_per_token_dynamic(dtype, symmetric):
    """Rows with and without a rest beyond whole vectors; of zeros, and of one sign."""
    choose = "choose_qparams_per_token" if symmetric else "choose_qparams_per_token_asymmetric"
    bounds = (-127, 127) if symmetric else (-128, 127)

    def peer(x, dtype, symmetric):
        found = getattr(decomposed, choose)(x, dtype)
        return decomposed.quantize_per_token(x, *found, *bounds, dtype), *found

    rng = np.random.default_rng(3)
    for count, length in ((5, 7), (9, 64), (40, 513), (2, 4096)):
        x = rng.normal(rng.integers(-2, 3, (count, 1)), 9, (count, length)).astype(dtype)
        x[0], x[1] = abs(x[1]), 0
        check("quantize_per_token_dynamic", peer, x, np.int8, symmetric=symmetric)


# --- fused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_fused_moving_avg_obs_fake_quant(symmetric, per_row):
    op = torch.ops.aten._fused_moving_avg_obs_fq_helper
    rng = np.random.default_rng(11)
    widths = [(-128, 127), (0, 255), (-8, 7), (0, 127)]
    if not (symmetric and per_row):  # PyTorch makes NaN of it, and refuses its own zero point
        widths.append((0, 1))
    for trial, bounds in enumerate(widths * 6):
        count = 8 if per_row else 1
        state = (
            np.full(count, np.inf, np.float32),
            np.full(count, -np.inf, np.float32),
            np.ones(count, np.float32),
            np.zeros(count, np.int32),
        )
        own, peer = (tuple(make(one) for one in state) for make in (np.copy, to_torch))
        # Of subnormal numbers a symmetric range can become 0.
        size = 1e-44 if trial < 10 else 10.0 ** rng.integers(-8, 5)
        for batch in range(6):
            x = (rng.normal(rng.integers(-2, 3), 1, (8, 32)) * size).astype(np.float32)
            x[0] = 0
            x[1] = abs(x[1])
            x[2] = -abs(x[2])
            if trial >= 20 and batch == 4 and not per_row:
                x[3, 3], x[4, 4] = np.inf, np.nan
            on = np.array([batch != 3]), np.array([batch != 1])
            rest = 0.01 + 0.3 * (trial % 3), *bounds, 0, per_row, symmetric
            expected = to_numpy(op(to_torch(x), *(to_torch(o) for o in on), *peer, *rest))
            for one, held in ((oracle, state), (nq, own)):
                actual = one.fused_moving_avg_obs_fake_quant_cachemask(x, *on, *held, *rest)
                cases.assert_same(held, tuple(to_numpy(v) for v in peer), one.__name__)
                cases.assert_same(actual, expected, one.__name__)


# --- departures: PyTorch still does what they say, and the oracle does npquant's answer -----------

INF, NAN = np.float32(np.inf), np.float32(np.nan)
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


def both(name, op, *args, **kwargs):
    """Return PyTorch's outputs and ours, which are the oracle's."""
    ours = getattr(nq, name)(*args, **kwargs)
    cases.assert_same(ours, getattr(oracle, name)(*args, **kwargs), name)
    return pytorch(op, *args, **kwargs), ours


def about_int64(dtype):
    """What an int64 holds, up to its ends, and what it does not; both of both signs."""
    end = dtype.type(2.0**63)
    within = np.array([9.2e18, np.nextafter(end, dtype.type(0))], dtype)
    beyond = np.array([end, np.nextafter(end, dtype.type(INF)), 9.3e18, 1e30, INF], dtype)
    within, beyond = (np.concatenate([v, -v])[None] for v in (within, beyond))
    return np.append(within, [[-end]], axis=1), beyond[beyond != -end][None]


@pytest.mark.parametrize("kind", [np.int32, np.float32, np.float16])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_d1_beyond_int64_per_channel(dtype, kind):
    """PyTorch's bits up to the ends, and where its int64 is the least one, the bound beside x."""
    name, qparams = "fake_quantize_per_channel_affine_cachemask", (ONE, ZERO.astype(kind))
    within, beyond = about_int64(dtype if kind == np.int32 else F32)  # floats are added as float32
    within, beyond = within.astype(dtype), beyond.astype(dtype)
    for bounds in ((-8, 7), (-(2**31), 2**31 - 1), (-(2**62), 2**62)):
        check(name, getattr(aten, name), within, *qparams, 0, *bounds)
        theirs, ours = both(name, getattr(aten, name), beyond, *qparams, 0, *bounds)
        np.testing.assert_array_equal(theirs[0], np.full_like(beyond, bounds[0]))
        np.testing.assert_array_equal(ours[0], np.where(beyond > 0, *np.array(bounds, dtype)[::-1]))
        assert not theirs[1].any()
        assert not ours[1].any()
    # Where the least int64 is the lower bound, it was within the bounds for PyTorch.
    theirs, ours = both(name, getattr(aten, name), beyond, *qparams, 0, -(2**63), 7)
    assert theirs[1].all()
    assert not ours[1].any()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_d1_beyond_int64_per_tensor(dtype):
    """PyTorch clamps first: only codes as wide as an int64 leave it, or their differences do."""
    name, far = "fake_quantize_per_tensor_affine_cachemask", 2**62
    within, beyond = about_int64(dtype)
    for x in (within, beyond):
        check(name, getattr(aten, name), x, 1.0, 0, -far, far - 1)
        check(name, getattr(aten, name), x, 1.0, 3, -8, 7)
    positive = beyond[beyond > 0]
    for z, bounds, theirs_are, ours_are in (
        (0, (0, 2**63 - 1), -(2.0**63), 2.0**63),  # 2**63 - 1 is 2**63 in float64
        (-far, (-far, far), -(2.0**63), 2.0**63),
        (-(2**63), (-(2**63), 0), -(2.0**63), 2.0**63),
    ):
        theirs, ours = both(name, getattr(aten, name), positive, 1.0, z, *bounds)
        np.testing.assert_array_equal(theirs[0], np.full_like(positive, theirs_are))
        if z == 0 or dtype == F64:  # in float32, x - 2**62 rounds to less than 2**62
            np.testing.assert_array_equal(ours[0], np.full_like(positive, ours_are))
        assert (ours[0] > 0).all()


def test_d1_beyond_what_float64_holds():
    """Bounds and differences beyond 2**53 are rounded to float64; PyTorch's are int64."""
    name, bound = "fake_quantize_per_channel_affine_cachemask", 2**53 + 3
    x = np.array([[bound + 1.0]])
    theirs, ours = both(name, getattr(aten, name), x, ONE, ZERO.astype(np.int32), 0, 0, bound)
    assert theirs[0] == ours[0] == bound + 1.0
    assert (theirs[1], ours[1]) == (False, True)
    name, x = "fake_quantize_per_tensor_affine_cachemask", np.array([2.0**60 + 3 * 2.0**36])
    theirs, ours = both(name, getattr(aten, name), x, 1.0, 1, -(2**62), 2**62)
    assert (theirs[0], ours[0]) == (2.0**60 + 2.0**37, 2.0**60 + 2.0**38)


@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_d1_beyond_int64_in_the_learnable_ops(kind):
    """The forward per tensor clamps first, as the affine op does; all else converts first."""
    name, where = f"fake_quantize_learnable_per_{kind}_affine", () if kind == "tensor" else (0,)
    within, beyond = about_int64(F32)
    args = ONE, ZERO, *where, -8, 7, 1.0
    check(name, getattr(aten, f"_{name}"), within, *args)
    theirs, ours = both(name, getattr(aten, f"_{name}"), beyond, *args)
    clipped = np.where(beyond > 0, F32.type(7), F32.type(-8))
    np.testing.assert_array_equal(ours, clipped)
    np.testing.assert_array_equal(theirs, clipped if kind == "tensor" else np.full_like(beyond, -8))
    name += "_backward"
    for x in (*within[0], *beyond[0]):
        x = np.array([[x]], np.float32)
        theirs, ours = both(name, getattr(aten, f"_{name}"), np.ones_like(x), x, *args)
        assert ours[1] == (7 if x > 0 else -8)
        assert theirs[1] == (7 if 0 < x < 2.0**63 else -8)
        assert (theirs[2], ours[2]) == (-1, -1)


def test_d2_int32_saturation():
    x = np.array([2147483520, 2147483648, 3e9, INF, -INF], np.float32)
    args = x, 1.0, 0, -(2**31), 2**31 - 1, np.int32
    theirs, ours = both("quantize_per_tensor", decomposed.quantize_per_tensor, *args)
    np.testing.assert_array_equal(theirs, [2147483520, *4 * [-(2**31)]])
    np.testing.assert_array_equal(ours, [2147483520, *3 * [2**31 - 1], -(2**31)])


def test_d2_bounds_that_the_compute_dtype_cannot_hold():
    """PyTorch clamps at the rounded bound, beyond the one asked for, which may not even fit."""
    op = decomposed.quantize_per_tensor
    x = np.array([1e9], np.float32)
    theirs, ours = both("quantize_per_tensor", op, x, 1.0, 0, 0, 100000001, np.int32)
    assert (theirs, ours) == (100000000, 100000001)
    zero = np.zeros((1, 1), np.int64)
    for dtype, bound, target, wrong in (
        (F16, 4095, np.uint16, 4096),
        (BF16, 4095, np.uint16, 4096),
        (F16, 32767, np.int16, -32768),
        (BF16, 32767, np.int16, -32768),
        (BF16, 65535, np.uint16, 0),
    ):
        x, scale = np.array([[60000]]).astype(dtype), np.ones((1, 1), dtype)
        x = np.where(bound == 65535, np.inf, x.astype(F32)).astype(dtype)
        args = x, scale, zero, 0, bound, target
        theirs, ours = both("quantize_per_token", decomposed.quantize_per_token, *args)
        assert (theirs, ours) == (wrong, bound)
    x, scale = np.array([[4e4, 6e4]], F16), np.ones((1, 1), F16)
    args = x, scale, zero, 0, 65535, np.uint16
    with pytest.raises(RuntimeError, match="without overflow"):
        both("quantize_per_token", decomposed.quantize_per_token, *args)
    wide = np.array([[65000, 7e4]]).astype(BF16), scale.astype(BF16), *args[2:]
    theirs, ours = both("quantize_per_token", decomposed.quantize_per_token, *wide)
    assert (theirs.tolist(), ours.tolist()) == ([[65024, 0]], [[65024, 65535]])
    np.testing.assert_array_equal(nq.quantize_per_token(*args), x)


def test_d3_dequantize_wraps():
    low, high = np.array([[-128]], np.int8), np.array([1], np.int8)
    name = "dequantize_per_channel"
    args = low, ONE, high, 0, -128, 127, np.int8
    theirs, ours = both(name, getattr(decomposed, name), *args)
    assert (theirs, ours) == (127, -129)
    args = low, ONE[None], high[None], -128, 127, np.int8, np.dtype(F32)
    theirs, ours = both("dequantize_per_token", decomposed.dequantize_per_token, *args)
    assert (theirs, ours) == (127, -129)
    two, low = np.array([[0, 0]], np.uint8), np.array([[10]], np.uint8)
    args = two, ONE[None], low, 0, 255, np.uint8, 2, np.dtype(F32)
    name = "dequantize_per_channel_group"
    theirs, ours = both(name, getattr(decomposed, name), *args)
    assert (theirs == 246).all()
    assert (ours == -10).all()
    top = np.array([[2**31 - 1]], np.int32)
    args = top, ONE[None], np.array([[-10]], np.int32), 0, 255, np.int32, np.dtype(F32)
    theirs, ours = both("dequantize_per_token", decomposed.dequantize_per_token, *args)
    assert (theirs, ours) == (-(2.0**31), 2.0**31)


@pytest.mark.parametrize("target", [np.dtype(np.uint16), *cases.FLOAT8], ids=str)
def test_d3_dequantize_refuses(target):
    q = quantized(target, (2, 8))
    expected = q.astype(np.float32) - 3
    z = np.full(2, 3, np.int64)
    bounds = cases.BOUNDS[target]
    channel = q, np.ones(2, F32), z, 0, *bounds, target
    token = q, np.ones((2, 1), F32), z[:, None], *bounds, target, F32
    group = q, np.ones((2, 1), F32), z[:, None], *bounds, target, 8, F32
    for name, args in (
        ("dequantize_per_channel", channel),
        ("dequantize_per_token", token),
        ("dequantize_per_channel_group", group),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            pytorch(getattr(decomposed, name), *args)
        cases.assert_same(getattr(oracle, name)(*args), expected)


def test_d4_nan():
    x = np.array([NAN])
    for target, bounds, wrong, right in (
        (np.int8, (-128, 127), 0, 0),
        (np.int8, (5, 9), 0, 5),
        (np.uint16, (0, 65535), 0, 0),
        (np.int32, (-128, 127), -(2**31), 0),
        (np.int32, (-9, -5), -(2**31), -5),
    ):
        args = x, 1.0, 0, *bounds, target
        theirs, ours = both("quantize_per_tensor", decomposed.quantize_per_tensor, *args)
        assert (theirs, ours) == (wrong, right)
    for target in cases.FLOAT8:
        args = x, 1.0, 0, -100, 100, target
        theirs, ours = both("quantize_per_tensor", decomposed.quantize_per_tensor, *args)
        assert np.isnan(theirs)
        assert ours.view(np.uint8) == 0x7F
    args = x, 0.5, 1, -8, 7
    name = "fake_quantize_per_tensor_affine_cachemask"
    for outputs in both(name, getattr(aten, name), *args):
        assert (outputs[0], outputs[1]) == (-4.5, False)
    name = "convert_element_type"
    theirs, ours = both(name, decomposed.convert_element_type.no_fuse, x, np.int32)
    assert (theirs, ours) == (-(2**31), 0)
    group = np.array([[NAN, 1]]), ONE[None], ZERO[None], -8, 7, np.int8, 2
    with pytest.raises(AssertionError, match="NaN"):
        pytorch(decomposed.quantize_per_channel_group, *group)
    np.testing.assert_array_equal(oracle.quantize_per_channel_group(*group), [[0, 1]])


def test_d5_masked_gradients():
    grad, mask = np.array([NAN, INF, -INF, -1], np.float32), np.zeros(4, bool)
    for kind in ("tensor", "channel"):
        name = f"fake_quantize_per_{kind}_affine_cachemask_backward"
        theirs, ours = both(name, getattr(aten, name), grad, mask)
        assert np.isnan(theirs[:3]).all()
        cases.assert_same(ours, np.array([0.0, 0.0, -0.0, -0.0], np.float32))
    x = np.full((1, 4), 100, np.float32)
    args = grad[None], x, ONE, ZERO, 0, -8, 7, 1.0
    name = "fake_quantize_learnable_per_channel_affine_backward"
    theirs, ours = both(name, getattr(aten, f"_{name}"), *args)
    assert np.isnan(theirs[0][0, :3]).all()
    cases.assert_same(ours[0], np.array([[0.0, 0.0, -0.0, -0.0]], np.float32))


def test_d6_learnable_backward_of_a_vector_and_of_nothing():
    name = "fake_quantize_learnable_per_channel_affine_backward"
    x = np.array([0, 100, 200, 300], np.float32)
    params = np.ones(4, np.float32), np.zeros(4, np.float32)
    args = np.ones_like(x), x, *params, 0, -128, 127, 1.0
    theirs, ours = both(name, getattr(aten, f"_{name}"), *args)
    assert theirs[1].shape == ()
    assert theirs[1] == 254
    np.testing.assert_array_equal(ours[1], [0, 0, 127, 127])
    np.testing.assert_array_equal(ours[2], [0, 0, -1, -1])
    for kind, where in (("tensor", ()), ("channel", (0,))):
        name = f"fake_quantize_learnable_per_{kind}_affine_backward"
        x, seven = np.zeros((1, 0), np.float32), np.full(1, 7, np.float32)
        args = x, x, seven, seven, *where, -128, 127, 1.0
        theirs, ours = both(name, getattr(aten, f"_{name}"), *args)
        assert (theirs[1], theirs[2]) == (7, 7)
        assert (ours[1], ours[2]) == (0, 0)
        assert ours[0].shape == (1, 0)


def test_d7_dtypes_of_the_learnable_backward():
    for kind, where in (("tensor", ()), ("channel", (0,))):
        name = f"fake_quantize_learnable_per_{kind}_affine_backward"
        op = getattr(aten, f"_{name}")
        for dtype in cases.FLOATS:
            x = np.array([[0.25, 100]], dtype)
            args = x, x, ONE.astype(dtype), ZERO.astype(dtype), *where, -8, 7, 1.0
            if dtype in (F16, F64):
                with pytest.raises(RuntimeError):
                    pytorch(op, *args)
            else:
                assert {one.dtype for one in pytorch(op, *args)} == {F32}
            ours = getattr(oracle, name)(*args)
            cases.assert_same(ours[0], np.array([[0.25, 0]], dtype))
            cases.assert_same(ours[1], np.array([0.25 * -0.25 + 700], F64).astype(dtype))
            cases.assert_same(ours[2], np.array([-100], dtype))


def test_d8_axes_and_flat_scales():
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    scale, zero = np.array([1, 2], np.float32), np.zeros(2, np.int32)
    name = "fake_quantize_per_channel_affine"
    with pytest.raises(RuntimeError, match="axis"):
        pytorch(getattr(aten, name), x, scale, zero, -1, -8, 7)
    ours = [getattr(oracle, name)(x, scale, zero, axis, -8, 7) for axis in (-1, 1)]
    cases.assert_same(*ours)
    name = "fake_quant_per_channel"
    theirs = pytorch(getattr(decomposed, name), x, scale, zero, -1, -8, 7)
    assert theirs.shape == (1, 2, 2)
    ours = [getattr(oracle, name)(x, scale, zero, axis, -8, 7) for axis in (-1, 1)]
    cases.assert_same(*ours)
    args = np.full((2, 2), 4, np.float32), scale, zero, -128, 127, np.int8
    theirs, ours = both("quantize_per_token", decomposed.quantize_per_token, *args)
    np.testing.assert_array_equal(theirs, [[4, 2], [4, 2]])
    np.testing.assert_array_equal(ours, [[4, 4], [2, 2]])


def test_d9_scales_that_pytorch_refuses():
    x = cases.inputs(F32, 0.1, -128, 127)[None]
    zero = np.zeros(1, np.int32)
    for name in ("fake_quantize_per_channel_affine", "fake_quantize_learnable_per_channel_affine"):
        op = getattr(aten, name, None) or getattr(aten, f"_{name}")
        for dtype in (F16, BF16, F64):
            scale = np.array([0.1]).astype(dtype)
            with pytest.raises(RuntimeError):
                pytorch(op, x, scale, zero, 0, -128, 127)
            ours = [
                getattr(oracle, name)(x, s, zero, 0, -128, 127) for s in (scale, scale.astype(F32))
            ]
            cases.assert_same(*ours)


def test_d11_an_unobserved_range_has_the_dtypes_of_every_other():
    """Only PyTorch's values tell that it was not observed, so shape inference cannot know it."""
    eps = np.array([2.0**-23], np.float32)
    for low, high in ((INF, -INF), (np.zeros(0, F32), np.zeros(0, F32))):
        args = np.asarray(low), np.asarray(high), -128, 127, np.int8, eps, False
        with pytest.warns(UserWarning, match="must run observer"):
            theirs = pytorch(determine_qparams, *args, torch.per_tensor_affine)
        ours = oracle.determine_qparams(*args, "per_tensor_affine")
        assert (theirs[0], theirs[1], theirs[0].dtype) == (1, 0, F32)
        cases.assert_same(ours, (np.ones(1), np.zeros(1, np.int64)))


def test_d12_zero_point_of_the_per_tensor_backward():
    name = "fake_quantize_learnable_per_tensor_affine_backward"
    x = np.array([-6, -5, 10, 9, 11], np.float32)
    args = np.ones_like(x), x, ONE, np.array([-3], np.float32), -8, 7, 1.0
    theirs, ours = both(name, aten._fake_quantize_learnable_per_tensor_affine_backward, *args)
    np.testing.assert_array_equal(theirs[0], [1, 1, 0, 1, 0])
    cases.assert_same(ours, theirs)
    nearest = oracle.fake_quantize_learnable_per_tensor_affine_backward(
        *args, zero_point_rounding="nearest"
    )
    np.testing.assert_array_equal(nearest[0], [0, 1, 1, 1, 0])  # the forward's mask
    # One shared q: 6.5 rounds to 6, then + 1 stays inside; PyTorch rounds 7.5 to 8, outside.
    x = np.array([6.5], np.float32)
    args = np.ones_like(x), x, ONE, ONE, -8, 7, 1.0
    theirs, ours = both(name, aten._fake_quantize_learnable_per_tensor_affine_backward, *args)
    nearest = oracle.fake_quantize_learnable_per_tensor_affine_backward(
        *args, zero_point_rounding="nearest"
    )
    assert (theirs[0], ours[0], nearest[0], nearest[1]) == (0, 0, 1, -0.5)


@pytest.mark.parametrize("out_dtype", cases.FLOATS, ids=str)
@pytest.mark.parametrize("target", [np.dtype(np.int8), np.dtype(np.int32)], ids=str)
def test_d15_dequantize_per_channel_is_the_older_formula(target, out_dtype):
    """Composed here of PyTorch's own ops, a channel at a time as PyTorch once did."""
    q = quantized(target, (4, 400))
    scale, zero_point = np.array([0.1, 1 / 3, 0.7, 1e-3], F32), np.array([3, -3, 300, 2049])
    bounds = cases.BOUNDS[target]
    args = q, scale, zero_point, 0, *bounds, target
    rows = zip(*map(to_torch, (q, zero_point, scale)), strict=True)
    older = [(row.to(TORCH_DTYPE[out_dtype]) - z) * s for row, z, s in rows]
    older = to_numpy(torch.stack(older))
    theirs, ours = both(
        "dequantize_per_channel", decomposed.dequantize_per_channel, *args, out_dtype=out_dtype
    )
    cases.assert_same(ours, older)
    if (target, out_dtype) != (np.int8, F32):
        assert (ours != theirs).any()


def test_d15_codes_that_the_result_does_not_hold():
    """Per tensor PyTorch itself makes infinities of them."""
    q, s, z = np.array([[200000, -3]], np.int32), np.array([1e-4], F32), np.zeros(1, np.int64)
    args, rest = (-(2**31), 2**31 - 1, np.int32), {"out_dtype": F16}
    theirs, ours = both(
        "dequantize_per_channel", decomposed.dequantize_per_channel, q, s, z, 0, *args, **rest
    )
    assert theirs[0, 0] == 20
    assert ours[0, 0] == INF
    cases.assert_same(ours[:, 1:], theirs[:, 1:])
    cases.assert_same(*both(
        "dequantize_per_tensor", decomposed.dequantize_per_tensor, q, 1e-4, 0, *args, **rest
    ))  # fmt: skip


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_d24_a_row_that_is_not_finite(value, symmetric):
    """PyTorch raises when it has changed its state, but for -inf; the state is the same."""
    x = np.array([[1, value, 2], [1, 2, 3]], F32)
    state = (*(np.full(2, v, F32) for v in (np.inf, -np.inf, 1)), np.zeros(2, np.int32))
    peer, on = tuple(to_torch(a) for a in state), np.ones(1)
    rest = 0.01, -128, 127, 0, True, symmetric
    args = to_torch(x), to_torch(on), to_torch(on), *peer, *rest
    ours, _ = oracle.fused_moving_avg_obs_fake_quant_cachemask(x, on, on, *state, *rest)
    op = torch.fused_moving_avg_obs_fake_quant
    if value == -np.inf:
        cases.assert_same(ours, to_numpy(op(*args)))
    else:
        with pytest.raises(RuntimeError, match="must be between"):
            op(*args)
    cases.assert_same(state, tuple(to_numpy(a) for a in peer))
    assert not np.isfinite(ours[0]).any()
    np.testing.assert_array_equal(ours[1], [1, 2, 3])


def test_d29_uint32_depends_on_the_length():
    op = decomposed.convert_element_type.no_fuse
    for value, alone, among in ((-3e9, 1294967296, 2147483648), (5e9, 705032704, 0)):
        for n, theirs in (1, alone), (64, among):
            assert int(op(torch.full((n,), value), torch.uint32)[0]) == theirs
            assert oracle.convert_element_type(np.full(n, value, F32), np.uint32)[0] == alone


ONES, ZEROS, CODES = np.ones(2, F32), np.zeros(2, np.int32), np.ones((2, 4), np.int8)
VALUES, ROWS = np.ones((2, 4), F32), (np.ones((2, 1), F32), np.zeros((2, 1), np.int32))
GROUPS = np.ones((2, 2), F32), np.zeros((2, 2), np.int32)
OF_CHANNELS = -128, 127, np.int8, 1e-5, False, "per_channel_affine"


def _ranges(low, high, *rest):
    *rest, eps, custom, scheme = rest
    eps = torch.tensor([eps])
    return determine_qparams(low, high, *rest, eps, custom, getattr(torch, scheme))


@pytest.mark.parametrize(
    ("name", "theirs", "args"),
    [
        ("determine_qparams", _ranges, (-GROUPS[0], GROUPS[0], *OF_CHANNELS)),
        ("determine_qparams", _ranges, (-ONES, ONES[:1], *OF_CHANNELS)),
        ("determine_qparams", _ranges, (-ONES, ONES.astype(F64), *OF_CHANNELS)),
        ("determine_qparams", _ranges, (np.array([-1, 0]), np.array([1, 2]), *OF_CHANNELS)),
        ("determine_qparams", _ranges, (-ONES, ONES, 127, -128, *OF_CHANNELS[2:])),
        ("dequantize_per_channel",
         lambda *a, out_dtype: decomposed.dequantize_per_channel(*a, out_dtype=out_dtype),
         (CODES, ONES, ZEROS, 0, -8, 7, np.int8, {"out_dtype": np.int32})),
        ("dequantize_per_token", decomposed.dequantize_per_token,
         (CODES, *ROWS, -8, 7, np.int8, np.int32)),
        ("dequantize_per_token", decomposed.dequantize_per_token,
         (CODES, *ROWS, -8, 7, np.uint8, F32)),
        ("dequantize_per_channel_group", decomposed.dequantize_per_channel_group,
         (CODES, *GROUPS, -8, 7, np.int8, 2, np.int32)),
        ("dequantize_per_channel_group", decomposed.dequantize_per_channel_group,
         (CODES, *GROUPS, -8, 7, np.uint8, 2, F32)),
        ("fake_quant_per_channel", decomposed.fake_quant_per_channel,
         (VALUES, ONES, ZEROS, 0, 7, -8)),
        ("fake_quant_per_channel", decomposed.fake_quant_per_channel,
         (VALUES, ONES, np.array([0, 3_000_000_000]), 0, -8, 7)),
        ("fake_quantize_learnable_per_tensor_affine",
         torch._fake_quantize_learnable_per_tensor_affine,
         (VALUES, ONES[:1], ONES[:1], -8, 7, np.inf)),
        ("quantize_per_token", decomposed.quantize_per_token,
         (VALUES > 0, *ROWS, -128, 127, np.int8)),
        ("fake_quantize_per_tensor_affine_cachemask_backward",
         aten.fake_quantize_per_tensor_affine_cachemask_backward, (VALUES > 0, VALUES > 0)),
        ("fake_quantize_per_tensor_affine_cachemask_backward",
         aten.fake_quantize_per_tensor_affine_cachemask_backward, (VALUES * 1j, VALUES > 0)),
        ("convert_element_type", decomposed.convert_element_type.no_fuse, (VALUES, np.uint64)),
        ("convert_element_type", decomposed.convert_element_type.no_fuse, (VALUES, np.complex64)),
        ("fused_moving_avg_obs_fake_quant", torch.fused_moving_avg_obs_fake_quant,
         (VALUES, ONES[:1], ONES[:1], -ONES[:1], ONES[:1], ONES[:1], ZEROS[:1], np.inf, -8, 7, 0)),
    ],
)  # fmt: skip
def test_d30_what_pytorch_computes_and_we_do_not_take(name, theirs, args):
    def to_theirs(value):
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        return (
            getattr(torch, np.dtype(value).name) if isinstance(value, (type, np.dtype)) else value
        )

    *args, options = args if isinstance(args[-1], dict) else (*args, {})
    got = theirs(*map(to_theirs, args), **{k: to_theirs(v) for k, v in options.items()})
    assert all(isinstance(t, torch.Tensor) for t in (got if isinstance(got, tuple) else (got,)))
    with pytest.raises((TypeError, ValueError), match=r" must (not |have |be |lie )"):
        getattr(nq, name)(*args, **options)


def test_complex_numbers_to_bool():
    op, z = decomposed.convert_element_type.no_fuse, np.array([1j, 0, 1], np.complex64)
    theirs = op(torch.from_numpy(z), torch.bool).numpy()
    np.testing.assert_array_equal(theirs, [True, False, True])
    np.testing.assert_array_equal(oracle.convert_element_type(z, np.bool_), theirs)


def test_tensors_that_require_a_gradient():
    """PyTorch's RuntimeError becomes a TypeError that names the argument, and what to take."""
    x, scales = np.ones((2, 4), np.float32), torch.nn.Parameter(torch.ones(2))
    args = np.zeros(2, np.int32), 0, -8, 7, np.int8
    for wrong in (scales, [scales[0], scales[1]], torch.ones(2, dtype=torch.complex64).conj().imag):
        with pytest.raises(TypeError, match=r"^scales must be .* tensor\.(detach|resolve_neg)\("):
            nq.quantize_per_channel(x, wrong, *args)
    with pytest.raises(TypeError, match=r"^input must be .* whose \.detach\(\)\.numpy\(\) is an"):
        nq.quantize_per_channel(torch.nn.Parameter(torch.tensor(x)), scales, *args)
    taken = nq.quantize_per_channel(x, scales.detach(), *args)
    cases.assert_same(taken, np.ones((2, 4), np.int8))
