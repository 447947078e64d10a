"""What is wrong for each argument of each op: how to make it of the right one, and the error."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import npquant as nq
from calls import CALLS, DATA, PARAMETERS, STATE, WITH_OUT, arguments, results

F32 = np.float32
HUGE = 10**400
SHAPE = (6, 8)


class Wrong(NamedTuple):
    """One wrong argument: how to make it of the right one, and what must be raised."""

    label: str
    error: type[Exception]
    make: Any  # a function of the right value
    #: Whether it takes an array's elements or memory to tell; shape inference cannot.
    data: bool = False


def types(**values):
    return [Wrong(label, TypeError, lambda _, v=v: v) for label, v in values.items()]


def values(**values):
    return [Wrong(label, ValueError, lambda _, v=v: v) for label, v in values.items()]


def in_array(**values):
    return [
        Wrong(k, ValueError, lambda _, v=v: np.array([v], F32), data=True)
        for k, v in values.items()
    ]


def with_element(value, dtype=None):
    """Change one element, the last."""

    def make(p):
        p = p.astype(dtype or p.dtype)
        p.reshape(-1)[-1] = value
        return p

    return make


def elements(dtype=None, **values):
    return [Wrong(k, ValueError, with_element(v, dtype), data=True) for k, v in values.items()]


def masked(p):
    return np.ma.masked_array(p, mask=np.zeros(p.shape, bool))


# --- tables: what is wrong for one kind of argument -----------------------------------------------

#: A class has the attributes of its instances, but no values for them.
CLASSES = types(a_class=np.float32, an_array_class=np.ndarray)
NO_NUMBER = CLASSES + types(
    none=None, text="1", a_list=[1.0], a_complex=1j, a_bool=True, a_numpy_bool=np.True_
)
NO_NUMBER += types(
    complex_array=np.ones(1, complex),
    object_array=np.ones(1, object),
    text_array=np.array(["1"]),
    masked_array=masked(np.ones(1, F32)),
    a_time=np.timedelta64(3, "s"),
    float8_array=np.ones(1, ml_dtypes.float8_e5m2),
    uint64_array=np.ones(1, np.uint64),
    long_double_array=np.ones(1, np.longdouble),
)
NO_NUMBER += [Wrong("a_spec", TypeError, lambda _: nq.ArraySpec((1,), np.int32), data=True)]
NUMBER = NO_NUMBER + values(two=np.ones(2, F32), none_at_all=np.ones(0, F32), too_large=HUGE)
FINITE = NUMBER + values(nan=np.nan, infinite=np.inf, minus_infinite=F32("-inf"))
SCALE = FINITE + values(zero=0.0, negative=-0.1, integer_zero=0) + in_array(zero_in_array=0)
INTEGER = NO_NUMBER + types(a_float=1.0, a_numpy_float=np.float64(1))
INTEGER += values(two=np.ones(2, np.int32), too_large=HUGE) + in_array(nan_in_array=np.nan)
#: What is truncated to a bound or a zero point, and to nothing else.
FRACTION = in_array(fraction_in_array=0.5, fraction_below_zero=-0.5)
SWITCH = [row for row in FINITE if "bool" not in row.label]
SWITCH += in_array(nan_in_array=np.nan)
BOUND = INTEGER + values(beyond_int64=2**63, below_int64=-(2**63) - 1)

NO_ARRAY = CLASSES + types(none=None, text="x", a_number=1.0, an_int=1, a_list=[1.0, 2.0])
NO_ARRAY += [
    Wrong("object_array", TypeError, lambda x: x.astype(object)),
    Wrong("text_array", TypeError, lambda x: x.astype(str)),
    Wrong("string_array", TypeError, lambda x: np.full(x.shape, "a", np.dtypes.StringDType())),
    Wrong("masked_array", TypeError, masked),
    Wrong("times", TypeError, lambda x: x.astype("m8[s]")),
    Wrong("long_double", TypeError, lambda x: x.astype(np.longdouble)),
    Wrong("int4", TypeError, lambda x: np.zeros(x.shape, ml_dtypes.int4)),
]
COMPLEX = [Wrong("complex_array", TypeError, lambda x: x.astype(complex))]
BOOL = [Wrong("bool_array", TypeError, lambda x: x.astype(bool))]
INTEGERS = [Wrong("int_array", TypeError, lambda x: np.ones(x.shape, np.int16))]
ANY_DATA = NO_ARRAY + COMPLEX + BOOL
FLOATS = ANY_DATA + INTEGERS
CODES = [*FLOATS, Wrong("float_array", TypeError, lambda q: q.astype(F32))]
MASK = NO_ARRAY + COMPLEX + INTEGERS + [Wrong("other_shape", ValueError, lambda m: m[:-1])]
GRAD = [
    *FLOATS,
    Wrong("other_dtype", TypeError, lambda g: g.astype(np.float64)),
    Wrong("other_shape", ValueError, lambda g: g[:-1]),
    Wrong("other_axes", ValueError, lambda g: g.reshape(-1)),
]

QPARAMS = types(none=None, text="x", a_dict={}, ragged=[[1.0], [1.0, 2.0]])
QPARAMS += COMPLEX + BOOL + [row for row in NO_ARRAY if row.label.endswith("array")]
QPARAMS += [
    Wrong("too_large_for_any_dtype", TypeError, lambda p: [HUGE] * len(p)),
    Wrong("one_too_few", ValueError, lambda p: p[:-1]),
    Wrong("one_too_many", ValueError, lambda p: np.concatenate([p, p[:1]])),
    Wrong("one_axis_more", ValueError, lambda p: p[None, None]),
    Wrong("one_for_all", ValueError, lambda p: p.reshape(-1)[:1]),
    Wrong("a_number", ValueError, lambda p: p.reshape(-1)[0]),
]
SCALES = QPARAMS + elements(zero=0, negative=-0.1, nan=np.nan, infinite=np.inf)
SCALES_FLOAT32 = SCALES + elements(np.float64, too_small=1e-60, too_large=1e60)
NO_NAN = elements(F32, nan=np.nan)
#: Numbers stand for float32 parameters here, so a number has the wrong shape only.
LEARNED = [row for row in QPARAMS if row.label != "too_large_for_any_dtype"] + INTEGERS
LEARNED_ZERO = [row for row in LEARNED if row not in INTEGERS]
ONE_LEARNED = [row for row in LEARNED if row.label not in ("one_for_all", "a_number")]
ONE_LEARNED = [row for row in ONE_LEARNED if row.label != "one_too_few"] + values(
    none_at_all=np.ones(0, F32)
)
ONE_LEARNED_ZERO = [row for row in ONE_LEARNED if row not in INTEGERS]
STATES = [row for row in NO_ARRAY if row.label != "text_array"] + COMPLEX + BOOL
STATES += [
    Wrong("other_dtype", TypeError, lambda p: p.astype(np.float16)),
    Wrong("one_too_few", ValueError, lambda p: p[:-1]),
    Wrong("one_axis_more", ValueError, lambda p: p[None]),
    Wrong("read_only", ValueError, lambda p: np.frombuffer(p.tobytes(), p.dtype), data=True),
    Wrong("broadcast", ValueError, lambda p: repeated(p), data=True),
]

DTYPE = types(none=None, unknown="float7", a_number=3, an_object=object, a_complex=np.complex64)
DTYPE += types(unparsable="f4, (2,", unhashable=np.timedelta64(3, "s"))
TARGET = DTYPE + types(a_float=np.float32, a_bool=bool, too_wide=np.int64)
OUT_DTYPE = [row for row in TARGET if row.label not in ("none", "a_float")]
OUT_DTYPE += types(float8=ml_dtypes.float8_e5m2, an_integer=np.int8)
CHOICE = types(none=None, a_number=1, an_array=np.ones(2), a_list=["pytorch"]) + values(
    unknown="up"
)

AXIS = [row for row in INTEGER if row.label not in ("two", "nan_in_array")]
AXIS += FRACTION + values(too_far=2, too_far_back=-3, beyond_int64=2**63, below_int64=-(2**63) - 1)
# A group greater than the row is the row, as in PyTorch.
GROUP_SIZE = [row for row in INTEGER if row.label != "too_large"]
GROUP_SIZE += FRACTION + values(
    zero=0, one=1, negative=-4, not_dividing=3, below_int64=-(2**63) - 1
)


def repeated(y):
    """A writeable array whose elements share one place."""
    return np.lib.stride_tricks.as_strided(y, y.shape, [0] * y.ndim)


def sliding(y):
    """A writeable array of windows of one row, which overlap."""
    row = np.zeros(sum(y.shape), y.dtype)
    return np.lib.stride_tricks.as_strided(row, y.shape, [y.itemsize] * y.ndim)


#: `make` gets a right `out` here.
OUT = [row for row in NO_ARRAY + COMPLEX if row.label != "none"] + [
    Wrong("other_dtype", TypeError, lambda y: np.empty(y.shape, np.uint32)),
    Wrong("other_shape", ValueError, lambda y: y[:-1]),
    Wrong("other_axes", ValueError, lambda y: y.reshape(-1)),
    Wrong("read_only", ValueError, lambda y: np.broadcast_to(y, y.shape), data=True),
    Wrong("broadcast", ValueError, lambda y: repeated(y), data=True),
    Wrong("sliding", ValueError, sliding, data=True),
]

# --- which table belongs to which argument --------------------------------------------------------

#: The ops that take one scale and zero point as numbers, and those that take float zero points.
PER_TENSOR = [name for name in CALLS if "per_tensor" in name]
IN_OWN_PRECISION = [name for name in CALLS if name.startswith(("quantize", "dequantize"))]
#: Of those, the ops whose scales are in the precision of the output, which is float32 here.
IN_THAT_OF_OUTPUT = ["dequantize_per_tensor", "dequantize_per_channel"]


def out_of_range(make_low, make_high):
    return [
        Wrong("below_quant_min", ValueError, make_low, data=True),
        Wrong("above_quant_max", ValueError, make_high, data=True),
    ]


def data_table(name, argument):
    if argument == "mask":
        return MASK
    if argument == "V":
        return GRAD if "input" in PARAMETERS[name] else FLOATS
    if argument == "grad" and not name.startswith(("fake_quantize_learnable", "adaround")):
        return ANY_DATA
    if argument in ("grad", "max_val"):
        return GRAD if argument == "grad" else [row for row in GRAD if row.label != "other_axes"]
    if name.startswith("dequantize"):
        return CODES
    if name == "convert_element_type":
        return NO_ARRAY
    takes_integers = "quantize_per_token", "quantize_per_channel_group", "choose_qparams_per_token"
    return ANY_DATA if name.startswith(takes_integers) else FLOATS


def scale_table(name):
    if name.startswith("fused"):
        return STATES
    if "learnable_per_tensor" in name:
        return (
            ONE_LEARNED + elements(zero=0, negative=-1, nan=np.nan, infinite=np.inf)
            if "backward" in name
            else SCALE
        )
    if name in PER_TENSOR:
        return SCALE + values(too_small=1e-60, beyond=1e60) * in_float32(name)
    if "learnable" in name and "backward" in name:
        return LEARNED + SCALES[len(QPARAMS) :]
    return SCALES_FLOAT32 if in_float32(name) else SCALES


def in_float32(name):
    """Whether a scale that float32 does not hold is refused."""
    return name not in IN_OWN_PRECISION or name in IN_THAT_OF_OUTPUT


def zero_point_table(name):
    if name.startswith("fused"):
        return STATES
    if "learnable" in name:
        if name in PER_TENSOR:
            if "backward" in name:
                return ONE_LEARNED_ZERO + NO_NAN
            return NUMBER + values(nan=np.nan)
        return (LEARNED_ZERO if "backward" in name else QPARAMS) + NO_NAN
    if name.endswith("tensor_qparams"):
        return FINITE + values(beyond_int32=2.0**31, below_int32=-(2**31) - 1)
    if name in PER_TENSOR:
        beyond = [] if name in IN_OWN_PRECISION else values(below=-9, above=8, beyond_int64=2**63)
        rows = [row for row in INTEGER if row.label != "a_numpy_float"]  # it stands for an array
        return rows + in_array(infinite_in_array=np.inf) + values(a_numpy_nan=F32("nan")) + beyond
    if name in IN_OWN_PRECISION:
        optional = name.startswith("dequantize_per_channel")
        rows = [row for row in QPARAMS if row.label != "none" or not optional]
        return rows + elements(F32, nan=np.nan, infinite=np.inf)
    if "decomposed" in name or name.startswith("fake_quant_"):
        return QPARAMS + elements(np.int64, beyond_int32=2**31) + elements(F32, nan=np.nan)
    return QPARAMS + out_of_range(with_element(-9), with_element(8))


def table(name, argument):
    """All that is wrong for an argument of an op."""
    if argument in DATA:
        return data_table(name, argument)
    if name.startswith("fused") and argument in STATE:
        return STATES
    if argument in ("scale", "scales"):
        return scale_table(name)
    if argument in ("zero_point", "zero_points"):
        return zero_point_table(name)
    if argument == "quant_min":
        return BOUND + values(above_quant_max=200) + (values(below_dtype=-129) * dtyped(name))
    if argument == "quant_max":
        return BOUND + values(below_quant_min=-200) + (values(above_dtype=128) * dtyped(name))
    if argument == "dtype":
        some = [row for row in TARGET if row.label not in ("a_float", "a_bool", "too_wide")]
        return some if name == "convert_element_type" else TARGET
    if name.startswith("adaround") and argument in ("axis", "group_size"):
        # None is one scale for all; and the call has an axis, so that it can have no groups.
        rows = {"axis": AXIS, "group_size": GROUP_SIZE + values(beside_axis=4)}[argument]
        return [row for row in rows if row.label != "none"]
    return {
        "axis": AXIS,
        "ch_axis": AXIS,
        "group_size": GROUP_SIZE,
        "beta": FINITE + values(less_than_one=0.5),
        "weight": FINITE,
        "out_dtype": OUT_DTYPE,
        "output_dtype": OUT_DTYPE,
        "eps": FINITE + values(negative=-1e-45, beyond_float32=2.0**128),
        "grad_factor": FINITE,
        "averaging_const": FINITE,
        "qscheme": CHOICE,
        "zero_point_rounding": CHOICE,
        "rounding": CHOICE,
        "out": OUT,
    }.get(argument, SWITCH)


def dtyped(name):
    """Whether the bounds must lie within those of `dtype`."""
    return name in IN_OWN_PRECISION


#: What depends on two arguments, or on one op alone.
SPECIAL = {
    ("adaround_soft", "quant_max"): values(too_wide=2**23 + 1),
    ("adaround_codes", "dtype"): types(float8=ml_dtypes.float8_e4m3fn),
    ("adaround_codes", "quant_min"): values(below_dtype=-129),
    **{
        (name, "V"): types(two_bytes=np.ones(SHAPE, np.float16))
        for name in CALLS
        if "V" in PARAMETERS[name]
    },
    ("choose_qparams", "input"): [Wrong("empty", ValueError, lambda x: x[:0])],
    ("choose_qparams_symmetric", "input"): [Wrong("empty", ValueError, lambda x: x[:0])],
    ("choose_qparams_per_token", "input"): [Wrong("empty", ValueError, lambda x: x[:, :0])],
    ("choose_qparams_per_token_asymmetric", "input"): [
        Wrong("empty", ValueError, lambda x: x[:, :0])
    ],
    ("quantize_per_token_dynamic", "input"): [
        Wrong("empty", ValueError, lambda x: x[:, :0]),
        *elements(nan=np.nan, infinite=-np.inf),
    ],
    ("choose_qparams_per_token", "dtype"): types(other=np.uint8),
    ("quantize_per_token_dynamic", "dtype"): types(other=np.uint8),
    ("choose_qparams", "quant_max"): values(without_zero=-1, one_code=-128),
    ("choose_qparams", "quant_min"): values(without_zero=1, too_far_apart=127 - 2**63),
    ("determine_qparams", "quant_min"): values(too_far_apart=127 - 2**63),
    ("determine_qparams", "min_val"): elements(above_max_val=1e9),
    ("fused_moving_avg_obs_fake_quant", "quant_max"): values(one_code=-8, beyond_int32=2**31),
    **{
        (name, "quant_min"): values(without_zero=1)
        for name in CALLS
        if "learnable" in name and "backward" in name
    },
    **{
        (name, "input"): [Wrong("one_axis", ValueError, lambda x: x[0])]
        for name in ("quantize_per_channel_group",)
    },
}


def parameters(name):
    """The arguments of the valid call, and what it leaves at its default."""
    defaults = ("out", "out_dtype", "output_dtype")
    return [*arguments(name, shape_of(name)), *(p for p in defaults if p in PARAMETERS[name])]


def shape_of(name):
    return SHAPE[1:] if name == "determine_qparams" else SHAPE


def wrongs(name, argument):
    """Every wrong value of an argument of an op."""
    return [*table(name, argument), *SPECIAL.get((name, argument), [])]


ARGUMENTS = [(name, argument) for name in CALLS for argument in parameters(name)]


def valid(name):
    """A valid call, with an `out` whose bits show whether it was written to."""
    kwargs = arguments(name, shape_of(name))
    if name in WITH_OUT:
        kwargs["out"] = np.empty_like(results(name, kwargs)[0])
        kwargs["out"].view(np.uint8)[...] = 0x5A
    return kwargs
