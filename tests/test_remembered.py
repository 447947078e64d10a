"""What ops remember from call to call: nothing of what may change, and errors never."""

import math

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
from calls import CALLS, arguments, results, results_the_long_way
from cases import assert_same
from npquant import checks

E5M2 = ml_dtypes.float8_e5m2
X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


class Mutable:
    """An integer that is another one later, and equal to itself all the same."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def test_objects_that_change():
    bound = Mutable(7)
    first = nq.fake_quantize_per_tensor_affine(X, 0.1, 0, -8, bound)
    bound.value = 3
    again = nq.fake_quantize_per_tensor_affine(X, 0.1, 0, -8, bound)
    assert_same(first, nq.fake_quantize_per_tensor_affine(X, 0.1, 0, -8, 7))
    assert_same(again, nq.fake_quantize_per_tensor_affine(X, 0.1, 0, -8, 3))


class MutableNumber(np.int64):
    """The same, of a class made of NumPy's."""

    value = 7

    def __index__(self):
        return self.value


class MutableKind:
    """What NumPy takes for a dtype, and later for another."""

    dtype = np.dtype(np.float32)


def test_what_is_made_of_numpy_may_change():
    bound = MutableNumber(7)
    codes = X.astype(np.int8)
    for value, kind in ((7, np.float32), (3, np.float64)):
        bound.value, MutableKind.dtype = value, np.dtype(kind)
        given = nq.fake_quantize_per_tensor_affine(X, 0.1, 0, -8, bound)
        assert_same(given, nq.fake_quantize_per_tensor_affine(X, 0.1, 0, -8, value))
        y = nq.dequantize_per_tensor(codes, 0.1, 0, -8, 7, np.int8, out_dtype=MutableKind)
        assert_same(y, nq.dequantize_per_tensor(codes, 0.1, 0, -8, 7, np.int8, out_dtype=kind))


@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_change(name):
    """Each array is written to between two calls; the second call sees what is there then."""
    shape = (4,) if name == "determine_qparams" else (6, 8)
    given = arguments(name, shape)
    op = getattr(nq, name)
    op(**{k: copied(v) for k, v in given.items()})
    for argument, value in given.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            continue
        changed = {k: copied(v) for k, v in given.items()}
        wanted = {k: copied(v) for k, v in given.items()}
        op(**changed)
        for k, v in given.items():  # what the call itself updates is set back
            if isinstance(v, np.ndarray):
                changed[k][...] = v
        new = value.flat[0]
        if new == value.flat[-1]:  # as of one element
            new = 1 - new if argument.endswith(("_on", "_enabled")) else new + 1
        changed[argument].flat[-1] = wanted[argument].flat[-1] = new
        assert not np.array_equal(changed[argument], value), argument
        assert_same(op(**changed), op(**wanted), argument)


def copied(value):
    return value.copy() if isinstance(value, np.ndarray) else value


def test_scales_that_become_wrong():
    scale, zero_point = np.ones(3, np.float32), np.zeros(3, np.int32)
    nq.fake_quantize_per_channel_affine(X, scale, zero_point, 0, -8, 7)
    zero_point[1] = 8
    with pytest.raises(ValueError, match=r"zero_point must lie within -8\.\.7, got 8 at index 1"):
        nq.fake_quantize_per_channel_affine(X, scale, zero_point, 0, -8, 7)
    zero_point[1], scale[2] = 0, np.nan
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        nq.fake_quantize_per_channel_affine(X, scale, zero_point, 0, -8, 7)


def test_numbers_that_are_equal():
    """True is 1 and 1.0 is 1, but they are no bounds."""
    nq.quantize_per_tensor(X, 1.0, 0, 0, 1, np.int8)
    for wrong in (True, 1.0, np.float32(1)):
        with pytest.raises(TypeError, match="quant_max must be an integer"):
            nq.quantize_per_tensor(X, 1.0, 0, 0, wrong, np.int8)


@pytest.mark.parametrize("name", ["fake_quantize_per_tensor_affine", "adaround_soft",
                                  "choose_qparams_per_token"])  # fmt: skip
def test_metadata_of_a_dtype_stay_with_its_arrays(name):
    """A dtype with them equals one without; results of later calls would have them."""
    checks.calls.forget()
    kwargs = arguments(name, (6, 8))
    described = kwargs["input"].astype(np.dtype(np.float32, metadata={"unit": "V"}))
    getattr(nq, name)(**kwargs | {"input": described})
    for result in results(name, kwargs):
        assert result.dtype.metadata is None


@pytest.mark.parametrize("name", ["fake_quantize_per_tensor_affine", "adaround_soft",
                                  "choose_qparams_per_token"])  # fmt: skip
@pytest.mark.parametrize("before", [False, True])
def test_metadata_of_a_dtype_become_no_results(name, before):
    """Whether or not a plan is remembered, or the data go the long way."""
    checks.calls.forget()
    kwargs = arguments(name, (6, 8))
    if before:
        getattr(nq, name)(**kwargs)
    described = kwargs["input"].astype(np.dtype(np.float32, metadata={"unit": "V"}))
    for data in (described, described.copy("F"), np.repeat(described, 2, axis=1)[:, ::2]):
        for way in (results, results_the_long_way):
            for result in way(name, kwargs | {"input": data}):
                assert result.dtype.metadata is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 8), (0, 8)])
def test_metadata_of_learned_qparams_become_no_gradients(dtype, shape):
    """At once or the long way: a gradient has the dtype, not what a user has written beside it."""
    checks.calls.forget()
    described = np.dtype(dtype, metadata={"unit": "V"})
    name = "fake_quantize_learnable_per_tensor_affine_backward"
    kwargs = arguments(name, shape)
    for q in ("scale", "zero_point"):
        kwargs[q] = np.ones(1, dtype).astype(described)
    for data in (kwargs["input"], np.repeat(kwargs["input"], 2, axis=1)[:, ::2]):
        for way in (results, results_the_long_way):
            y, *gradients = way(name, kwargs | {"input": data})
            assert y.dtype.metadata is None
            assert [(g.dtype, g.dtype.metadata) for g in gradients] == [(dtype, None)] * 2


def test_integers_of_numpy_have_no_zeros_of_two_signs():
    """So their calls are found at once when they come again."""
    signs = checks.calls._signs
    assert signs((np.int64(0), np.uint8(0), np.bool_(False), 0, False)) == ()
    assert signs((np.float32(-0.0), 0.0, ml_dtypes.bfloat16(-0.0))) == (-1, 1, -1)


def test_zeros_of_both_signs_are_told_apart():
    sign = checks.remembered(lambda v: math.copysign(1, v))
    for kind in (float, np.float16, np.float32, np.longdouble, ml_dtypes.bfloat16, E5M2):
        zeros = kind(0.0), kind(-0.0), kind(0.0)
        assert [sign(v) for v in zeros] == [1, -1, 1], kind


def test_zeros_of_both_signs_are_remembered():
    asked = []
    check = checks.remembered(lambda *args: asked.append(args))
    for args in ((0.0, 1.0), (-0.0, 1.0), (0.0, -0.0), (-0.0, 0.0), (np.float32(0), 1)) * 3:
        check(*args)
    assert len(asked) == 5


def test_zeros_without_a_sign_are_remembered():
    asked = []
    check = checks.remembered(asked.append)
    for zero in (0, False, np.int64(0), np.False_):
        check(zero)
        check(zero)
    assert len(asked) == 4
