"""`ArraySpec` in place of arrays: the shapes, dtypes and errors of the real call."""

import copy
import inspect
import pickle

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
from calls import CALLS, DATA, PARAMETERS, WITH_OUT, arguments, axes, axis_name, spec, specs
from cases import BOUNDS, FLOATS
from npquant.adaround import AdaroundLoss
from npquant.autograd import flatten
from npquant.gptq import gptq
from npquant.modules import (
    FakeQuantize,
    LearnableFakeQuantize,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PercentileObserver,
)
from npquant.optim import SGD, Adam
from wrongs import ARGUMENTS, valid, wrongs

SHAPES = ((), (1,), (8,), (0,), (0, 3), (3, 0), (2, 0, 4), (1, 1, 1), (6, 8), (2, 3, 4))


def outcome(name, kwargs):
    """The specs of what a call returns, or its error."""
    try:
        got = getattr(nq, name)(**kwargs)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return tuple(map(spec, got if isinstance(got, tuple) else (got,)))


def check(name, make, note=None):
    """The same call on arrays, on specs, and on data as specs among real qparams."""
    real = outcome(name, make())
    assert outcome(name, specs(make())) == real, note
    assert outcome(name, specs(make(), DATA)) == real, note
    return real


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_shapes(name, shape):
    """Every shape, axis and axis out of range: those that do not fit give the same errors."""
    for axis in {*axes(name, shape), *([-1, -len(shape), len(shape)] if axis_name(name) else [])}:
        check(name, lambda axis=axis: arguments(name, shape, axis), axis)


@pytest.mark.parametrize("name", CALLS)
def test_dtypes_of_the_data(name):
    """Of data without elements, so that no kernel is compiled; ranges cannot be of nothing."""
    shape = (0,) if name == "determine_qparams" else (0, 8)
    shape = (2, 4) if name.startswith("choose") else shape
    for dtype in (*FLOATS, np.dtype(np.int8), np.dtype(np.int32), ml_dtypes.float8_e4m3fn):

        def make(dtype=dtype):
            kwargs = arguments(name, shape)
            for key in DATA:
                if key in kwargs and key != "mask":
                    kwargs[key] = kwargs[key].astype(dtype)
            return kwargs

        check(name, make, dtype)


@pytest.mark.parametrize("name", [n for n in CALLS if "dtype" in PARAMETERS[n]])
def test_dtype(name):
    codes = name.startswith("dequantize")
    for dtype in (*BOUNDS, *FLOATS, np.dtype(np.int64), np.dtype(bool), "uint8", "int4", int):

        def make(dtype=dtype):
            kwargs = arguments(name, (8,) if name == "determine_qparams" else (0, 8))
            if name.startswith("choose"):
                kwargs = arguments(name, (2, 4))
            if codes:
                kwargs |= {key: kwargs[key].astype(dtype) for key in DATA if key in kwargs}
            lo, hi = BOUNDS.get(np.dtype(dtype), (0, 1))
            if "quant_min" in kwargs:
                kwargs |= {"quant_min": lo, "quant_max": hi}
            return kwargs | {"dtype": dtype}

        check(name, make, dtype)


@pytest.mark.parametrize("name", [n for n in CALLS if n.startswith("dequantize")])
def test_dtype_of_the_output(name):
    key = "out_dtype" if "out_dtype" in PARAMETERS[name] else "output_dtype"
    for dtype in (*FLOATS, None, float, "bfloat16"):
        (got,) = check(name, lambda dtype=dtype: {**arguments(name, (0, 8)), key: dtype}, dtype)
        assert got.dtype == (np.float32 if dtype is None else np.dtype(dtype))


@pytest.mark.parametrize("name", [n for n in CALLS if "rounding" in PARAMETERS[n]])
def test_rounding(name):
    check(name, lambda: arguments(name, (6, 8)) | {"rounding": "divide"})


@pytest.mark.parametrize("name", [n for n in CALLS if "learnable" in n and "backward" in n])
def test_gradients_take_the_form_of_their_parameters(name):
    # Without elements no kernel is compiled; with them, scales in float64 compile no new one.
    some = [((0, 8), s, z) for s in FLOATS for z in FLOATS] + [((2, 8), np.float64, np.float32)]
    for shape, *dtypes in some:

        def make(shape=shape, dtypes=dtypes):
            kwargs = arguments(name, shape)
            scale, zero_point = kwargs["scale"], kwargs["zero_point"]
            return kwargs | {
                "scale": scale.astype(dtypes[0]),
                "zero_point": zero_point.astype(dtypes[1]),
            }

        _, slope, shift = check(name, make)
        assert [slope.dtype, shift.dtype] == dtypes


@pytest.mark.parametrize("name", WITH_OUT)
def test_out(name):
    (got,) = outcome(name, specs(arguments(name, (6, 8))))
    out = nq.ArraySpec(got.shape, got.dtype)
    assert getattr(nq, name)(**specs(arguments(name, (6, 8))), out=out) is out


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_errors(name, argument):
    """What is wrong without a look at the data is the same error, word for word."""
    different = {}
    for row in wrongs(name, argument):
        kwargs = valid(name)
        right = kwargs.get(argument)
        wrong = row.make(right)
        given = spec(wrong) if type(right) is np.ndarray else wrong
        got = outcome(name, specs(kwargs) | {argument: given})
        real = outcome(name, kwargs | {argument: wrong})
        if not row.data and got != real:
            different[row.label] = got, real
    assert not different


#: Where a number may be the one element of an array, it may be a spec of one.
NUMBERS = [
    (name, argument)
    for name in CALLS
    for argument in ("scale", "zero_point", "quant_min", "quant_max")
    if argument in PARAMETERS[name]
    and ("per_tensor" in name or (name.startswith("adaround") and "quant" in argument))
]


@pytest.mark.parametrize(("name", "argument"), NUMBERS)
def test_numbers_as_specs(name, argument):
    kwargs = specs(valid(name))
    if not isinstance(kwargs[argument], nq.ArraySpec):
        right = outcome(name, kwargs)
        assert outcome(name, kwargs | {argument: nq.ArraySpec((1,), np.float32)}) == right
    for wrong in (nq.ArraySpec((1,), np.complex64), nq.ArraySpec((1,), bool)):
        with pytest.raises(TypeError, match=argument):
            getattr(nq, name)(**kwargs | {argument: wrong})
    with pytest.raises(ValueError, match=argument):
        getattr(nq, name)(**kwargs | {argument: nq.ArraySpec((99,), np.float32)})


SWITCHES = ("fake_quant_enabled", "observer_on", "fake_quant_on", "symmetric_quant", "symmetric",
            "has_customized_qrange")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "argument"), [(n, a) for n in CALLS for a in SWITCHES if a in PARAMETERS[n]]
)
def test_switches_as_specs(name, argument):
    """Of whatever a switch may be: a bool, too."""
    kwargs = specs(valid(name))
    right = outcome(name, kwargs | {argument: True})
    assert isinstance(right[0], nq.ArraySpec)
    for dtype in (bool, np.int8, np.float32):
        assert outcome(name, kwargs | {argument: nq.ArraySpec((1,), dtype)}) == right, dtype
    wrong = outcome(name, kwargs | {argument: nq.ArraySpec((2,), bool)})
    assert wrong[0] is ValueError
    assert argument in wrong[1]


@pytest.mark.parametrize("name", CALLS)
def test_results_are_specs_alone(name):
    kwargs = specs(arguments(name, (8,) if name == "determine_qparams" else (6, 8)))
    got = getattr(nq, name)(**kwargs)
    assert all(type(y) is nq.ArraySpec for y in (got if isinstance(got, tuple) else (got,)))


def test_nothing_is_allocated_for_zero_points_that_are_none():
    codes, scales = nq.ArraySpec((1 << 50, 2), np.int8), nq.ArraySpec((1 << 50,), np.float32)
    y = nq.dequantize_per_channel(codes, scales, None, 0, -8, 7, np.int8)
    assert (y.shape, y.dtype) == ((1 << 50, 2), np.float32)


def test_spec():
    x = nq.ArraySpec([np.int64(2), 3], "float16")
    assert (x.shape, x.dtype, x.ndim, x.size) == ((2, 3), np.float16, 2, 6)
    assert x == nq.ArraySpec((2, 3), np.dtype(">f2"))
    assert len({x, nq.ArraySpec((2, 3), np.float16), nq.ArraySpec((3, 2), np.float16)}) == 2
    assert x != (2, 3)
    assert repr(x) == "ArraySpec((2, 3), float16)"
    assert "Parameters" in inspect.getdoc(nq.ArraySpec)
    for shape in (range(2, 4), np.array([2, 3])):  # sequences as well
        assert nq.ArraySpec(shape, "float16") == x
    assert repr(nq.ArraySpec((True, 3), "float16")) == "ArraySpec((1, 3), float16)"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(x, protocol)) == copy.copy(x) == x


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        (3, "f4", TypeError),
        (None, "f4", TypeError),
        ((2.5,), "f4", TypeError),
        (("2",), "f4", TypeError),
        ("", "f4", TypeError),
        (b"ab", "f4", TypeError),
        (bytearray(b""), "f4", TypeError),
        (memoryview(b"ab"), "f4", TypeError),
        ({2: 3}, "f4", TypeError),
        ({}, "f4", TypeError),
        ({2, 3}, "f4", TypeError),
        (frozenset(), "f4", TypeError),
        ({2: 3}.keys(), "f4", TypeError),
        (iter([2, 3]), "f4", TypeError),
        (np.array(3), "f4", TypeError),
        ((-1,), "f4", ValueError),
        ((2,), None, TypeError),
        ((2,), "float7", TypeError),
    ],
)
def test_wrong_specs(shape, dtype, error):
    with pytest.raises(error, match="shape" if dtype == "f4" else "dtype"):
        nq.ArraySpec(shape, dtype)


ONE = nq.ArraySpec((1,), np.float32)
WEIGHT, EYE = np.ones((2, 4), np.float32), np.eye(4)
#: Numbers of what takes arrays alone, each by its name.
OF_NO_OP = {
    "lr": lambda: SGD([WEIGHT], ONE),
    "momentum": lambda: SGD([WEIGHT], 0.1, ONE),
    "eps": lambda: MinMaxObserver(eps=ONE),
    r"betas\[1\]": lambda: Adam([WEIGHT], betas=(0.9, ONE)),
    "quant_min": lambda: MinMaxObserver(quant_min=ONE, quant_max=7),
    "quant_max": lambda: gptq(WEIGHT, EYE, 1.0, 0, -8, ONE, axis=None),
    "reduce_range": lambda: MinMaxObserver(reduce_range=ONE),
    "averaging_constant": lambda: MovingAverageMinMaxObserver(ONE),
    "percentile": lambda: PercentileObserver(ONE),
    "scale": lambda: gptq(WEIGHT, EYE, ONE, 0, -8, 7, axis=None),
    "zero_point": lambda: LearnableFakeQuantize(MinMaxObserver, zero_point=ONE),
    "enabled": lambda: FakeQuantize().enable_fake_quant(ONE),
    "damping": lambda: gptq(WEIGHT, EYE, 1.0, 0, -8, 7, axis=None, damping=ONE),
    "start_dim": lambda: flatten(WEIGHT, ONE),
    "warm_start": lambda: AdaroundLoss(10, ONE),
}


@pytest.mark.parametrize("name", OF_NO_OP)
def test_a_spec_is_no_number_without_data_that_are_specs(name):
    with pytest.raises(TypeError, match=rf"^{name} must not be an ArraySpec, got"):
        OF_NO_OP[name]()


@pytest.mark.parametrize("name", ["shape", "dtype"])
def test_a_spec_stays_what_it_is(name):
    """It is a key of dictionaries, and what was found of it is remembered."""
    spec = nq.ArraySpec((3,), np.float32)
    with pytest.raises(AttributeError):
        setattr(spec, name, getattr(spec, name))
