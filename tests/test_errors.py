"""Every wrong argument of every op: the type of the error, the name in it, nothing written."""

import re
import warnings
from itertools import combinations

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
import npquant.autograd as ag
from calls import CALLS, DATA, PARAMETERS, WITH_OUT, arguments, axis_name, results, specs
from cases import assert_same
from npquant.adaround import AdaroundLoss
from npquant.gptq import gptq
from npquant.modules import FakeQuantize, LearnableFakeQuantize, MinMaxObserver
from npquant.optim import SGD
from wrongs import ARGUMENTS, F32, HUGE, SHAPE, shape_of, valid, wrongs


def bits(kwargs):
    return {k: v.tobytes() for k, v in kwargs.items() if isinstance(v, np.ndarray)}


def complaint(name, kwargs, error, argument):
    """What is wrong with the error of a wrong call; None if nothing is."""
    before = bits(kwargs)
    try:
        results(name, kwargs)
    except Exception as raised:
        if type(raised) is not error:
            return f"raised {raised!r}, not a {error.__name__}"
        if not re.search(rf"\b({argument})\b", str(raised)):
            return f"does not name {argument}: {raised!r}"
    else:
        return f"did not raise a {error.__name__}"
    return None if bits(kwargs) == before else "wrote to an array before it raised"


def raises_and_writes_nothing(name, kwargs, error, argument):
    assert complaint(name, kwargs, error, argument) is None


def test_messages_show_what_was_given():
    x, s, z = np.ones((2, 4), F32), np.ones(2, F32), np.zeros(2, np.int32)
    low, high = np.array([0, 1.5], F32), np.array([2, -1], F32)
    bounds, rest = (-8, 7), (2.0**-23, False, "per_channel_symmetric")
    named = ag.Parameter(x, "encoder.layer.0.attention.self.query.weight")
    lost = ag.Parameter(x)
    lost.value = None
    calls = {
        "got the class float32": lambda: nq.quantize_per_tensor(x, F32, 0, *bounds, np.int8),
        "got the class ndarray": lambda: nq.quantize_per_tensor(np.ndarray, 1, 0, *bounds, np.int8),
        r"scales must be an array of numbers, got \[1.0, None\]":
            lambda: nq.quantize_per_channel(x, [1.0, None], z, 0, *bounds, np.int8),
        "zero_points must be an array of numbers, got None":
            lambda: nq.quantize_per_channel(x, s, None, 0, *bounds, np.int8),
        "min_val must not exceed max_val, got 1.5 and -1.0 at index 1":
            lambda: nq.determine_qparams(low, high, *bounds, "int8", *rest),
        r"out_dtype must be a NumPy dtype, such as bfloat16, float16, float32, float64, got 'foo'":
            lambda: nq.dequantize_per_tensor(z, 1, 0, *bounds, np.int32, out_dtype="foo"),
        r"dtype must be a NumPy dtype, such as bfloat16, bool, float16, .*, uint8, got 'foo'":
            lambda: nq.convert_element_type(x, "foo"),
        r"dtype must be a NumPy dtype, such as bfloat16, float16, .*, uint8, got 'float31'":
            lambda: nq.ArraySpec((2,), "float31"),
        r"dtype must be a NumPy dtype, such as float8_e4m3fn, .*, uint8, got 'int3'":
            lambda: nq.quantize_per_tensor(x, 1, 0, *bounds, "int3"),
        r"scales must have the shape \(2, 1\) or \(2,\) for group_size 128, got \(2, 2\)":
            lambda: nq.quantize_per_channel_group(x, x[:, :2], x[:, :2], *bounds, np.int8),
        r"scales must have the shape .* for group_size an integer of \d+ bits, got":
            lambda: nq.quantize_per_channel_group(x, x, x, *bounds, np.int8, HUGE**13),
        r"zero_point must have the shape \(2, 2\) or \(4,\) for group_size 2, got \(2,\)":
            lambda: gptq(x, np.eye(4), x[:, :2], z, *bounds, group_size=2),
        r"scale must have the shape \(2,\) without group_size \(axis=None takes one of all\), "
        r"got \(2, 2\)":
            lambda: gptq(x, np.eye(4), x[:, :2], x[:, :2], *bounds),
        r"got matrix, of which np.asarray\(...\) makes one":
            lambda: nq.quantize_per_tensor(x.view(np.matrix), 1, 0, *bounds, np.int8),
        r"weight must be a NumPy array, got MaskedArray, whose .filled\(...\) is one":
            lambda: gptq(np.ma.array(x), np.eye(4), 1, 0, *bounds),
        r"got \|V2, which .view\(ml_dtypes.bfloat16\) makes bfloat16 again":
            lambda: nq.quantize_per_tensor(np.zeros(3, "V2"), 1, 0, *bounds, np.int8),
        r"input must have the dtype int4, got \|V1, which .view\(ml_dtypes.int4\) makes int4 again":
            lambda: nq.dequantize_per_tensor(np.zeros(3, "V1"), 1, 0, *bounds, ml_dtypes.int4),
        r"input must have the dtype int8, got \|V1$":
            lambda: nq.dequantize_per_tensor(np.zeros(3, "V1"), 1, 0, *bounds, np.int8),
        r"ch_axis must be an integer, got 'rows' \(str\)": lambda:
            nq.fused_moving_avg_obs_fake_quant(x, 1, 1, *(s[:1].copy() for _ in range(3)), z[:1],
                                               0.1, *bounds, "rows"),
        "observer must be a class of observers, got the class int":
            lambda: FakeQuantize(int, *bounds),
        r"value must be a NumPy array, got Series of shape \(2,\) and dtype float32$":
            lambda: ag.Parameter(Series()),
        r"got <a Series of one> \(Series\)$":
            lambda: nq.quantize_per_tensor(x, Series(1), 0, *bounds, np.int8),
        r"weight must be a NumPy array, got an array of shape \(2,\) and dtype float32$":
            lambda: gptq(OnGpu(), np.eye(2), 1, 0, *bounds),
        r"got \|V4$": lambda: nq.quantize_per_tensor(np.zeros(3, "V4"), 1, 0, *bounds, np.int8),
        r"got torch.int8 \(Named\): give 'int8'":
            lambda: nq.quantize_per_tensor(x, 1, 0, *bounds, Named("int8")),
        r"got torch.quint8 \(Named\): give 'uint8'":
            lambda: nq.quantize_per_tensor(x, 1, 0, *bounds, Named("quint8")),
        r"got torch.quint4x2 \(Named\): give 'uint4'":
            lambda: nq.quantize_per_tensor(x, 1, 0, *bounds, Named("quint4x2")),
        r"got torch.quantized \(Named\)$":
            lambda: nq.quantize_per_tensor(x, 1, 0, *bounds, Named("quantized")),
        r"input must be .* got Parameter, whose .value is one$":
            lambda: nq.quantize_per_tensor(ag.Parameter(x), 1, 0, *bounds, np.int8),
        r"scale must be .*, got Parameter\(float32 of shape [^)]*\)\), whose .value is an array$":
            lambda: nq.quantize_per_tensor(x, ag.Parameter(x), 0, *bounds, np.int8),
        r"weight must be .*, got Parameter\(float32 of shape [^)]*\)\), whose .value is an array$":
            lambda: gptq(ag.Parameter(x), np.eye(2), 1, 0, *bounds),
        r"scale must be .*'encoder.layer.0.*\.\.\., whose .value is an array$":
            lambda: nq.quantize_per_tensor(x, named, 0, *bounds, np.int8),
        r"scale must be .*, got Parameter\(None\) \(Parameter\)$":
            lambda: nq.quantize_per_tensor(x, lost, 0, *bounds, np.int8),
        r"value must be a NumPy array, got ArraySpec$":
            lambda: ag.Parameter(nq.ArraySpec((2,), np.float32)),
        r"params\[0\] must be a NumPy array or have one as its value, got ArraySpec$":
            lambda: SGD([nq.ArraySpec((2,), np.float32)]),
        r"target must have the dtype of input, float32, got float64$":
            lambda: ag.mse_loss(x, np.float64(2)),
        r"other must have the dtype of input, float32, got float64, of which float\(":
            lambda: ag.mul(x, np.float64(2)),
        r"scale must have the shape \(1,\) without group_size \(axis=None takes one of all\), got":
            lambda: gptq(np.ones((1, 2), F32), np.eye(2), 1.0, 0, *bounds),
        r"got torch.per_tensor_affine \(Named\): give 'per_tensor_affine'":
            lambda: MinMaxObserver(qscheme=Named("per_tensor_affine")),
        r"scale must be a number or an array of one element, got \[0.1\] \(list\)":
            lambda: nq.quantize_per_tensor(x, [0.1], 0, *bounds, np.int8),
        r"scale must be a number .*, got Learned, whose .detach\(\).numpy\(\) is an array":
            lambda: nq.quantize_per_tensor(x, Learned(), 0, *bounds, np.int8),
        r"value must be a NumPy array, got Learned, whose .detach\(\).numpy\(\) is an array":
            lambda: ag.Parameter(Learned()),
        "observer must be a class of observers, got MinMaxObserver":
            lambda: FakeQuantize(MinMaxObserver()),
        "observer must be a class of observers, got MinMax":
            lambda: LearnableFakeQuantize(MinMaxObserver(), *bounds),
    }  # fmt: skip
    for text, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=text):
            call()


class Named:
    """A dtype or a scheme of PyTorch."""

    __module__ = "torch"

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_zero_point_that_is_a_scalar_of_numpy(kind):
    """It is what the array without axes is that it stands for."""
    x = np.linspace(-1, 1, 9, dtype=F32)
    q = np.arange(-4, 5, dtype=np.int8)
    for z in (0, 2, 2.5):
        for call in (
            lambda z: nq.quantize_per_tensor(x, 0.1, z, -8, 7, np.int8),
            lambda z: nq.dequantize_per_tensor(q, 0.1, z, -8, 7, np.int8),
            lambda z: nq.fake_quantize_per_tensor_affine(x, 0.1, z, -8, 7),
            lambda z: nq.adaround_hard(x, x, 0.1, z, -8, 7),
        ):
            assert_same(call(kind(z)), call(np.array(z, kind)))
            if z == int(z):
                assert_same(call(kind(z)), call(int(z)))
        assert (call(kind(z)) != call(0)).any() == (z != 0)


class Series:
    """A column of pandas."""

    dtype = "float32"

    def __init__(self, size=2):
        self.size, self.shape = size, (size,)

    def __repr__(self):
        return "<a Series\nof one>"


class OnGpu(Series):
    """A tensor of PyTorch on a GPU that requires a gradient."""

    is_cuda = True

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")


class Learned:
    """A tensor of PyTorch that requires a gradient."""

    shape, dtype, size = (2,), "torch.float32", 2

    def detach(self):
        raise AssertionError("nothing of it is called")

    def numpy(self):
        raise AssertionError("nothing of it is called")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on it. Use tensor.detach().numpy() instead.")


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_a_tensor_that_requires_a_gradient(name, argument):
    """What PyTorch says of it is in the error, and what is data is told how to become an array."""
    for tensor in (Learned(), [Learned()]):
        with pytest.raises(TypeError, match=rf"\b{argument}\b") as error:
            results(name, valid(name) | {argument: tensor})
        if type(tensor) is Learned and argument in (*DATA, "out", "scales", "zero_points"):
            assert ".detach().numpy()" in str(error.value)


@pytest.mark.parametrize("name", [name for name in WITH_OUT if "scale" in PARAMETERS[name]])
def test_what_data_with_gaps_and_a_place_are_given_beside(name):
    """It is looked at before anything is asked of it."""
    kwargs = valid(name)
    key = next(key for key in DATA if key in kwargs)
    x = kwargs[key]
    out = np.empty(x.shape, results(name, kwargs)[0].dtype)
    with_gaps = np.repeat(x, 2, axis=-1)[..., ::2]
    with pytest.raises(TypeError, match=r"\bscale\b"):
        results(name, kwargs | {key: with_gaps, "out": out, "scale": Learned()})


@pytest.mark.parametrize("n", [8, 2**15, 2**18])
@pytest.mark.parametrize("rows", [False, True])
def test_state_that_shares_memory(rows, n):
    """No two arrays that are updated may, nor one of them and the data; columns of one may."""
    count = 8 if rows else 1
    names = ("input", "running_min", "running_max", "scale", "zero_point")

    def given(columns=False):
        kept = np.tile(np.array([np.inf, -np.inf, 1, 0], F32), (count, 1))[:, :3].T
        state = [
            *(kept if columns else kept.copy()),
            np.zeros(count, np.int64 if not rows else np.int32),
        ]
        x = np.random.default_rng(0).normal(size=(count, n)).astype(F32)
        return x, 1, 1, *state, 0.01, 0, 255, 0, rows

    nq.fused_moving_avg_obs_fake_quant(*given(columns=True))
    for (i, first), (j, second) in combinations(enumerate(names), 2):
        x, *rest = given()
        places = [x.reshape(-1)[:count], *rest[2:6]]
        if second == "zero_point":  # memory that holds both
            both = np.zeros(count, np.int32 if rows else np.int64)
            places[j], places[i] = both, both.view(F32)[:count]
            x = x if i else both.view(F32).reshape(count, -1)[:, :1]
        else:
            places[j] = places[i]
        before = x.copy(), *(p.copy() for p in places[1:])
        args = x, *rest[:2], *places[1:], *rest[6:]
        with pytest.raises(ValueError, match=f"{second} must be apart from {first}"):
            nq.fused_moving_avg_obs_fake_quant(*args)
        assert_same((x, *places[1:]), before)


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_wrong_argument(name, argument):
    complaints = {}
    for row in wrongs(name, argument):
        kwargs = valid(name)
        kwargs[argument] = row.make(kwargs.get(argument))
        complaints[row.label] = complaint(name, kwargs, row.error, argument)
    assert complaints
    assert not {label: said for label, said in complaints.items() if said}


X, ONE, NONE = np.ones((1, 2), F32), np.ones(1, F32), np.zeros(1, np.int32)
Q = X.astype(np.int8)
#: What is taken, and what is refused next to it. In float32, 2**-150 is a tie that rounds to zero,
#: and BEYOND one that rounds to infinity.
BEYOND = (2 - 2.0**-24) * 2.0**127
FINITE_FLOAT32 = (np.nextafter(BEYOND, 0), -np.nextafter(BEYOND, 0)), (BEYOND, -BEYOND)
SCALE_FLOAT32 = (np.nextafter(2.0**-150, 1), 2.0**-149, *FINITE_FLOAT32[0][:1]), (2.0**-150, BEYOND)
INT64_ENDS = (-(2**63), 2**63 - 1), (-(2**63) - 1, 2**63)
TRUNCATED = (np.nextafter(-(2.0**31) - 1, 0), np.nextafter(2.0**31, 0)), (-(2.0**31) - 1, 2.0**31)
ENDS = {
    "one scale": (lambda v: nq.adaround_hard(X, X, v, 0, -8, 7), "scale", *SCALE_FLOAT32),
    "scales": (lambda v: nq.adaround_hard(X, X, np.array([v]), NONE, -8, 7, axis=0), "scale",
               *SCALE_FLOAT32),
    "scales of float32": (lambda v: nq.adaround_hard(X, X, F32([v]), NONE, -8, 7, axis=0), "scale",
                          SCALE_FLOAT32[0], (0, np.inf)),
    "to divide by": (lambda v: nq.quantize_per_tensor(X, v, 0, -8, 7, np.int8, rounding="divide"),
                     "scale", *SCALE_FLOAT32),
    "to dequantize": (lambda v: nq.dequantize_per_tensor(Q, v, 0, -8, 7, np.int8), "scale",
                      *SCALE_FLOAT32),
    "to dequantize channels": (lambda v: nq.dequantize_per_channel(
                                   Q, np.array([v]), None, 0, -8, 7, np.int8), "scales",
                               *SCALE_FLOAT32),
    "least scale": (lambda v: nq.choose_qparams(X, -8, 7, v, np.int8), "eps",
                    (0.0, -0.0, *FINITE_FLOAT32[0][:1]), (-5e-324, BEYOND)),
    "learned": (lambda v: LearnableFakeQuantize(MinMaxObserver, scale=1.0, zero_point=v),
                "zero_point", *FINITE_FLOAT32),
    "quantize": (lambda v: nq.quantize_per_tensor(X, 1.0, v, -8, 7, np.int8), "zero_point",
                 *INT64_ENDS),
    "dequantize": (lambda v: nq.dequantize_per_tensor(X.astype(np.int8), 1.0, v, -8, 7, np.int8),
                   "zero_point", *INT64_ENDS),
    "truncated": (lambda v: nq.fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                      X, ONE, np.array([v]), ONE, -8, 7), "zero_point", *TRUNCATED),
    "all truncated": (lambda v: nq.fake_quant_per_channel(X, ONE, np.array([v]), 0, -8, 7),
                      "zero_points", *TRUNCATED),
    "truncated float32": (lambda v: nq.fake_quant_per_channel(X, ONE, F32([v]), 0, -8, 7),
                          "zero_points", (-(2.0**31), 2.0**31 - 128), (-(2.0**31) - 256, 2.0**31)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ENDS)
def test_the_last_numbers_that_are_taken(kind):
    call, name, taken, refused = ENDS[kind]
    for v in taken:
        call(v)
    for v in refused:
        with pytest.raises(ValueError, match=rf"^{name} must"):
            call(v)


@pytest.mark.parametrize("name", CALLS)
def test_valid_calls_are_valid(name):
    """Else the tests above would test nothing."""
    results(name, valid(name))


def arrays(kwargs):
    return [key for key, value in kwargs.items() if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("name", CALLS)
def test_a_spec_among_arrays(name):
    """A qparam, a state or `out` that is a spec beside real data, or one of two arrays of data."""
    every = arrays(valid(name))
    data = [key for key in every if key in DATA]
    for key in every:
        if data != [key]:
            named = "|".join(every) if key in data else key
            raises_and_writes_nothing(name, specs(valid(name), [key]), TypeError, f"({named})")


def test_out_is_compared_with_an_argument_by_its_name():
    """That is not `input` everywhere."""
    zeros = np.zeros((2, 4), F32)
    for data, op, args in (
        ("V", nq.adaround_regularizer_backward, (2.0,)),
        ("grad", nq.fake_quant_per_channel_backward, (np.ones((2, 4), bool),)),
        ("input", nq.quantize_per_tensor, (1.0, 0, -8, 7, np.int32)),
    ):
        out = zeros.view(np.int32) if data == "input" else zeros
        with pytest.raises(ValueError, match=f"^out must be {data} itself or not overlap it"):
            op(zeros[::-1], *args, out=out)


def test_what_is_named_beside_a_spec():
    """Of two arrays that are not of one kind both are named, as they are called there."""
    spec, x = nq.ArraySpec((3,), F32), np.ones(3, F32)
    calls = {
        "mask and grad": lambda: nq.fake_quant_per_channel_backward(
            x, nq.ArraySpec((3,), np.bool_)
        ),
        "max_val and min_val": lambda: nq.determine_qparams(x, spec, 0, 1, np.uint8, 0.5, False),
        "scale and weight": lambda: gptq(x[None], np.eye(3, dtype=F32), spec, spec, -8, 7),
        "V and input": lambda: nq.adaround_soft(x, spec, 1.0, 0, -8, 7),
        "gradients[0] and params[0]": lambda: SGD([x], 0.1).step([spec]),
        "target and output": lambda: AdaroundLoss(10).reconstruction(x, spec),
    }
    for named, call in calls.items():
        with pytest.raises(TypeError, match=f"^{re.escape(named)} must be of one kind"):
            call()


@pytest.mark.parametrize("name", WITH_OUT)
def test_an_array_as_out_among_specs(name):
    """Real qparams say nothing wrong of a spec, but nothing can be written for it."""
    raises_and_writes_nothing(name, specs(valid(name), DATA), TypeError, "out")


@pytest.mark.parametrize(
    "name", [n for n in CALLS if axis_name(n) or "group_size" in PARAMETERS[n]]
)
def test_data_without_an_axis(name):
    kwargs = valid(name)
    for key in DATA:
        if key in kwargs:
            kwargs[key] = kwargs[key].reshape(-1)[0].reshape(())
    raises_and_writes_nothing(name, kwargs, ValueError, f"({axis_name(name)}|input)")


@pytest.mark.parametrize("name", WITH_OUT)
def test_no_argument_is_unknown(name):
    with pytest.raises(TypeError, match="unexpected keyword"):
        results(name, valid(name) | {"output": None})


@pytest.mark.parametrize("name", CALLS)
def test_special_values_warn_of_nothing(name):
    """Infinities and NaN are data like any other; warnings are errors in this test run."""
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 0.0], F32)
    for x in (special, special[:1], special[1:2], special[3:5]):
        kwargs = arguments(name, shape_of(name))
        for key in DATA:
            if key in kwargs and kwargs[key].dtype == F32:
                kwargs[key] = np.resize(x, kwargs[key].shape)
        if "dynamic" in name:  # from such data it can choose no scale
            with pytest.raises(ValueError, match="input must have rows that are finite"):
                results(name, kwargs)
        else:
            results(name, kwargs)


#: Large or small, but right: (op, arguments).
EXTREME = (
    ("quantize_per_tensor", {"scale": 1e-320}),
    ("quantize_per_tensor", {"scale": 1e300}),
    ("dequantize_per_tensor", {"scale": 3e38}),
    ("dequantize_per_tensor", {"scale": 1e300, "out_dtype": np.float64}),
    ("dequantize_per_channel", {"scales": np.full(SHAPE[0], 3e38)}),
    ("dequantize_per_channel", {"scales": np.full(SHAPE[0], 1e300), "out_dtype": np.float64}),
    ("dequantize_per_token", {"scales": np.full(SHAPE[0], 1e300)}),
    ("choose_qparams", {"eps": 3e38}),
    ("choose_qparams_symmetric", {"eps": 3e38}),
    ("determine_qparams", {"eps": 3e38}),
    ("fake_quantize_learnable_per_tensor_affine", {"zero_point": 1e300}),
    ("fake_quantize_learnable_per_tensor_affine", {"zero_point": -np.inf}),
    ("fake_quantize_learnable_per_tensor_affine", {"grad_factor": 1e300}),
    ("fake_quantize_learnable_per_tensor_affine_backward", {"grad_factor": 1e300}),
    ("fused_moving_avg_obs_fake_quant", {"averaging_const": 1e300}),
    ("fused_moving_avg_obs_fake_quant", {"input": np.full(SHAPE, 1e300), "fake_quant_on": 0}),
)


@pytest.mark.parametrize(("name", "changes"), EXTREME)
def test_extreme_arguments_warn_of_nothing(name, changes):
    results(name, arguments(name, shape_of(name)) | changes)


def test_what_float32_does_not_hold_is_shown_as_given():
    """Not as the infinity or the zero that it would be rounded to."""
    x, one = np.ones((1, 1), F32), np.ones(1, F32)
    for beyond in (1e39, 1e-60):
        scale = np.array([beyond])
        shown = f"must be positive and finite in float32, got {beyond}"
        for step in (nq.fake_quantize_per_channel_affine, nq.fake_quant_per_channel):
            name = "scale" if step is nq.fake_quantize_per_channel_affine else "scales"
            with pytest.raises(ValueError, match=re.escape(f"{name} {shown} at index 0")):
                step(x, scale, [0], 0, -8, 7)
        codes = np.ones((1, 1), np.int8)
        with pytest.raises(ValueError, match=re.escape(f"scales {shown} at index 0")):
            nq.dequantize_per_channel(codes, scale, [0], 0, -8, 7, np.int8)
    with pytest.raises(
        ValueError, match=re.escape("zero_point must be finite in float32, got 1e+39")
    ):
        nq.fake_quantize_per_channel_affine(x, one, np.array([1e39]), 0, -8, 7)
    for beyond in (1e39, 1e-60):
        with pytest.raises(ValueError, match=re.escape(f"in float32, got {beyond}")):
            nq.fake_quantize_learnable_per_tensor_affine_backward(x, x, beyond, 0, -8, 7)


def test_classes_that_stand_for_no_dtype():
    """Of which some of NumPy's versions take another, and warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for abstract in (np.floating, np.integer, np.number, np.generic):
            with pytest.raises(TypeError, match="dtype must be a NumPy dtype"):
                nq.convert_element_type(np.ones(3, F32), abstract)
            with pytest.raises(TypeError, match="dtype must be a NumPy dtype"):
                nq.ArraySpec((3,), abstract)


def test_numbers_of_ml_dtypes_are_named():
    """They are shown as Python's are, which are allowed."""
    x = np.ones(1, np.float32)
    with pytest.raises(TypeError, match=r"zero_point must be an integer, got 3 \(int4\)"):
        nq.quantize_per_tensor(x, 0.1, ml_dtypes.int4(3), -8, 7, "int4")
    with pytest.raises(TypeError, match=r"scale must .*, got 0\.5 \(float8_e4m3fn\)"):
        nq.quantize_per_tensor(x, ml_dtypes.float8_e4m3fn(0.5), 0, -8, 7, "int4")
