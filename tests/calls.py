"""One valid call of every public op, on given float32 data: the table other tests loop over."""

import inspect
import math
import sys
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest

import npquant as nq
from npquant.checks.calls import forget
from npquant.cpu import target
from npquant.ops import fast_choice, fast_path

#: The arguments that are data: arrays of one shape, read once.
DATA = ("input", "grad", "mask", "min_val", "max_val", "V")

#: The ops with an exponential in them: the oracle is near, and their own bits are the measure of
#: what must not change them. How near is for test_adaround.py to say.
NEAR = (
    "adaround_init",
    "adaround_soft",
    "adaround_soft_backward",
    "adaround_regularizer",
    "adaround_regularizer_backward",
)

#: The arguments that the fused ops update in place.
STATE = ("running_min", "running_max", "scale", "zero_point")

GROUP = 4
INT8 = {"quant_min": -128, "quant_max": 127, "dtype": np.int8}
BITS4 = {"quant_min": -8, "quant_max": 7}
ROUNDING = {"rounding": "reciprocal"}
CODES = {**INT8, **ROUNDING}


def data(shape, seed=0):
    """Return float32 data of which some lies beyond every range that the calls below use."""
    return _data(shape, seed).copy()


@lru_cache(maxsize=8)
def _data(shape, seed):
    return np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)


def scales(shape):
    """Return scales that differ from channel to channel."""
    return (np.float32(0.25) + np.arange(math.prod(shape), dtype=np.float32) % 7 / 10).reshape(
        shape
    )


def zero_points(shape, dtype=np.int32):
    """Return zero points between -3 and 3, fractional ones if they are floats."""
    fraction = 0 if np.issubdtype(dtype, np.integer) else 0.3
    return (np.arange(math.prod(shape)) % 7 - 3 + fraction).reshape(shape).astype(dtype)


def codes(x):
    """Return int8 codes of the shape of `x`."""
    return np.clip(np.rint(x * 20), -128, 127).astype(np.int8)


# Qparams: of all data, of every index of an axis, of every row, of every group of a row. The
# shapes are made without complaint for data that has no such axis: to complain is the op's part.


def _number(x, axis):
    return {"scale": 0.3, "zero_point": 2}


def _one(x, axis):
    return {"scale": np.array([0.3], np.float32), "zero_point": np.array([2.6], np.float32)}


def _named(shape, ending, dtype):
    return {f"scale{ending}": scales(shape), f"zero_point{ending}": zero_points(shape, dtype)}


def _channels(x, axis, ending="", dtype=np.int32):
    return {**_named(x.shape[axis:][:1] or (1,), ending, dtype), "axis": axis}


def _tokens(x, axis, ending="s", dtype=np.int32):
    return _named((*x.shape[:-1], 1) if x.ndim else (), ending, dtype)


def _groups(x, axis, ending="s", dtype=np.int32):
    shape = (*x.shape[:-1], x.shape[-1] // GROUP) if x.ndim else ()
    return {**_named(shape, ending, dtype), "group_size": GROUP}


def _fake(x, axis):
    return {"input": x, **_number(x, axis), **BITS4, **ROUNDING}


def _fake_channels(x, axis):
    return {"input": x, **_channels(x, axis), **BITS4, **ROUNDING}


def _decomposed(x, axis):
    return {"input": x, **_channels(x, axis, "s"), **BITS4, **ROUNDING}


def _masked(x, axis):
    return {"grad": x, "mask": x > 0}


def _range(x, axis):
    return {"input": x, **INT8, "eps": 1e-5}


def _rows(x, axis):
    return {"input": x, "dtype": np.int8}


def _any_size(x):
    """Numbers so different in size that their sum depends on their order, even in float64."""
    exponents = np.arange(x.size) * 37 % 61 - 30
    return np.ldexp(np.roll(x, 1), exponents.reshape(x.shape))


def _learned(name, qparams):
    """Return the calls of a learnable op and of its backward, by name."""

    def forward(x, axis):
        return {"input": x, **qparams(x, axis), **BITS4, "grad_factor": 0.5}

    def backward(x, axis):
        kwargs = {"grad": _any_size(x), **forward(x, axis), "zero_point_rounding": "pytorch"}
        # The gradient has the dtype of the scale: in float64 every bit of the sum is seen.
        return kwargs | {"scale": kwargs["scale"].astype(np.float64)}

    name = f"fake_quantize_learnable_per_{name}_affine"
    return {name: forward, f"{name}_backward": backward}


def _fused(x, axis):
    n = x.shape[axis:][:1] or (1,)
    return {
        "input": x,
        "observer_on": np.array([1]),
        "fake_quant_on": np.array([1]),
        "running_min": np.full(n, -1, np.float32),
        "running_max": np.full(n, 2, np.float32),
        "scale": np.ones(n, np.float32),
        "zero_point": np.zeros(n, np.int32),
        "averaging_const": 0.25,
        **BITS4,
        "ch_axis": axis,
        "per_row_fake_quant": True,
        "symmetric_quant": False,
    }


def _determine(x, axis):
    options = {"has_customized_qrange": False, "qscheme": "per_channel_affine"}
    return {"min_val": -abs(x), "max_val": abs(x) + 1, **INT8, "eps": 1e-5, **options}


def _adaround(x, axis):
    """The qparams lie along an axis; per tensor and per group are for test_adaround.py."""
    s = {"scale": _channels(x, axis)["scale"], "axis": axis, "group_size": None}
    return {"input": x, "V": np.roll(x, 2) / np.float32(2), **s}


def _adarounded(x, axis):
    return {**_adaround(x, axis), "zero_point": _channels(x, axis)["zero_point"], **BITS4}


def _without(kwargs, *names):
    return {key: value for key, value in kwargs.items() if key not in names}


#: name -> function(x, axis) that gives the arguments by name; `axis` is for ops that have one.
CALLS = {
    "quantize_per_tensor": lambda x, axis: {"input": x, **_number(x, axis), **CODES},
    "dequantize_per_tensor": lambda x, axis: {"input": codes(x), **_number(x, axis), **INT8},
    "quantize_per_channel": lambda x, axis: {"input": x, **_channels(x, axis, "s"), **CODES},
    "dequantize_per_channel": lambda x, axis: {
        "input": codes(x),
        **_channels(x, axis, "s"),
        **INT8,
    },
    "quantize_per_token": lambda x, axis: {"input": x, **_tokens(x, axis), **CODES},
    "dequantize_per_token": lambda x, axis: {"input": codes(x), **_tokens(x, axis), **INT8},
    "quantize_per_channel_group": lambda x, axis: {"input": x, **_groups(x, axis), **CODES},
    "dequantize_per_channel_group": lambda x, axis: {
        "input": codes(x),
        **_groups(x, axis),
        **INT8,
    },
    "convert_element_type": lambda x, axis: {"input": x, "dtype": np.int16},
    "choose_qparams": _range,
    "choose_qparams_symmetric": _range,
    "choose_qparams_per_token": _rows,
    "choose_qparams_per_token_asymmetric": _rows,
    "quantize_per_token_dynamic": lambda x, axis: {**_rows(x, axis), "symmetric": False},
    "determine_qparams": _determine,
    "fake_quantize_per_tensor_affine": _fake,
    "fake_quantize_per_tensor_affine_cachemask": _fake,
    "fake_quantize_per_tensor_affine_cachemask_tensor_qparams": lambda x, axis: {
        "input": x,
        **_one(x, axis),
        "fake_quant_enabled": np.array([1]),
        **BITS4,
        **ROUNDING,
    },
    "fake_quantize_per_tensor_affine_cachemask_backward": _masked,
    "fake_quantize_per_channel_affine": _fake_channels,
    "fake_quantize_per_channel_affine_cachemask": _fake_channels,
    "fake_quantize_per_channel_affine_cachemask_backward": _masked,
    "fake_quant_per_channel": _decomposed,
    "fake_quant_per_channel_cachemask": _decomposed,
    "fake_quant_per_channel_backward": _masked,
    **_learned("tensor", _one),
    **_learned("channel", lambda x, axis: _channels(x, axis, dtype=np.float32)),
    **_learned("token", lambda x, axis: _tokens(x, axis, "", np.float32)),
    **_learned("channel_group", lambda x, axis: _groups(x, axis, "", np.float32)),
    "adaround_init": lambda x, axis: _without(_adaround(x, axis), "V"),
    "adaround_soft": _adarounded,
    "adaround_soft_backward": lambda x, axis: {"grad": np.roll(x, 1), **_adarounded(x, axis)},
    "adaround_hard": _adarounded,
    "adaround_codes": lambda x, axis: {**_adarounded(x, axis), "dtype": np.int8},
    "adaround_regularizer": lambda x, axis: {"V": x, "beta": 3.5},
    "adaround_regularizer_backward": lambda x, axis: {"V": x, "beta": 3.5, "weight": 0.5},
    "fused_moving_avg_obs_fake_quant": _fused,
    "fused_moving_avg_obs_fake_quant_cachemask": _fused,
}

PARAMETERS = {name: list(inspect.signature(getattr(nq, name)).parameters) for name in CALLS}

#: The ops that take `out`.
WITH_OUT = [name for name in CALLS if "out" in PARAMETERS[name]]

#: The ops whose array has a length for every channel and no other axis.
ONE_AXIS = ["determine_qparams"]


def axis_name(name):
    """Return what the op calls its axis, or None."""
    return next((p for p in ("axis", "ch_axis") if p in PARAMETERS[name]), None)


def fits(name, shape):
    """Whether the op takes data of this shape; empty data is another question."""
    if name in ONE_AXIS:
        return len(shape) == 1
    if "group_size" in PARAMETERS[name] and "adaround" not in name:
        matrix = len(shape) == 2 or (len(shape) > 0 and "learnable" in name)
        return matrix and shape[-1] % GROUP == 0
    return axis_name(name) is None or len(shape) > 0


def axes(name, shape):
    """Return the axes to try for the op: all, or one stand-in where it has no such argument."""
    return range(len(shape)) if axis_name(name) else range(1)


def every_call(name, shapes):
    """Return the valid calls of the op: (shape, axis)."""
    found = [(shape, axis) for shape in shapes if fits(name, shape) for axis in axes(name, shape)]
    assert found, f"no shape fits {name}"
    return found


def arguments(name, shape, axis=0, seed=0):
    """Return the arguments of a valid call on new data of this shape."""
    kwargs = CALLS[name](data(shape, seed), axis)
    # Of data without axes NumPy makes scalars; they are given as arrays.
    return {k: np.asarray(v) if isinstance(v, np.generic) else v for k, v in kwargs.items()}


def results(name, kwargs):
    """Call the op: its results in a tuple, and after them the arrays it updated in place."""
    got = getattr(nq, name)(**kwargs)
    state = [kwargs[key] for key in STATE] if name.startswith("fused") else []
    return *(got if isinstance(got, tuple) else (got,)), *state


@contextmanager
def everywhere(**values):
    """Set what is npquant.cpu.target's in every module that has imported it by its name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            before = vars(target)[name]
            for key, module in list(sys.modules.items()):
                if key.partition(".")[0] == "npquant" and vars(module).get(name) is before:
                    patch.setattr(module, name, value)
        forget()  # plans that were made with other values
        yield
    forget()


@contextmanager
def long_way():
    """Read-only data take no short cut of arrays that are as they mostly are, nor of copies."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (fast_path, fast_choice):
            patch.setattr(module, "plain", lambda x: False)
            patch.setattr(module, "PIECE", -1)
        patch.setattr(fast_path, "PACKED", float("inf"))
        yield


def results_the_long_way(name, kwargs):
    """The same of data that become read-only."""
    for key in DATA:
        if key in kwargs:
            kwargs[key].flags.writeable = False
    with long_way():
        return results(name, kwargs)


def in_order(x, order):
    """`x` lying densely in memory with its axes in this order, the slowest first."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def spec(value):
    """The spec of an array; anything else as it is."""
    if type(value) is not np.ndarray:
        return value
    return nq.ArraySpec(value.shape, value.dtype)


def specs(kwargs, names=None):
    """The same call with the specs of its arrays, or of those of these names."""
    return {k: spec(v) if names is None or k in names else v for k, v in kwargs.items()}
