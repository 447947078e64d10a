"""Calls that come to every kernel: the ops of calls.py, their other kernels, and what has state."""

import ml_dtypes
import numpy as np

import npquant.modules as npq
from calls import CALLS, DATA, PARAMETERS, ROUNDING, arguments, data, fits, results, zero_points
from npquant import backend, metrics, optim
from npquant.dtypes import canonical
from npquant.layout import Granularity

DIVIDE = {"rounding": "divide"}
WIDE = {"quant_min": -(2**31), "quant_max": 2**31 - 1}
FLOAT8 = {"quant_min": -448, "quant_max": 448, "dtype": ml_dtypes.float8_e4m3fn}

#: The fused op with one scale.
ONE_SCALE = {
    "per_row_fake_quant": False,
    "running_min": np.full(1, -1, np.float32),
    "running_max": np.full(1, 2, np.float32),
    "scale": np.ones(1, np.float32),
    "zero_point": np.zeros(1, np.int32),
}


#: Arguments that lead an op to another kernel than those of calls.py do.
OTHERWISE = {
    "quantize_per_tensor": [DIVIDE, {**DIVIDE, **FLOAT8}, FLOAT8],
    "quantize_per_channel": [DIVIDE],
    "quantize_per_token": [DIVIDE],
    "quantize_per_token_dynamic": [{"symmetric": True}],
    "fake_quantize_per_tensor_affine": [DIVIDE, {**WIDE, **ROUNDING}, {**WIDE, **DIVIDE}],
    "fake_quantize_per_tensor_affine_cachemask_tensor_qparams": [
        {"fake_quant_enabled": np.array([0])}
    ],
    "fake_quantize_per_channel_affine_cachemask": [
        DIVIDE,
        {"zero_point": np.float32},
        {"zero_point": np.float16},
        {"zero_point": np.float32, **DIVIDE},
        WIDE,
    ],
    "fake_quant_per_channel_cachemask": [DIVIDE, WIDE, {**WIDE, **DIVIDE}],
    **{
        name: [{"zero_point_rounding": "nearest"}, WIDE]
        for name in CALLS
        if "learnable" in name and "backward" in name
    },
    "determine_qparams": [
        {"qscheme": f"per_channel_{name}"} for name in ("symmetric", "affine_float_qparams")
    ],
    "fused_moving_avg_obs_fake_quant": [
        {"symmetric_quant": True},
        {"fake_quant_on": np.array([0])},
        {"observer_on": np.array([0])},
        {"observer_on": np.array([0]), "symmetric_quant": True},
        ONE_SCALE,
        ONE_SCALE | {"symmetric_quant": True},
        ONE_SCALE | {"observer_on": np.array([0])},
    ],
}

OBSERVERS = (
    npq.MinMaxObserver,
    npq.MovingAverageMinMaxObserver,
    npq.PerChannelMinMaxObserver,
    npq.MovingAveragePerChannelMinMaxObserver,
    npq.HistogramObserver,
    npq.PercentileObserver,
    npq.MSEObserver,
    npq.EntropyObserver,
)
HISTOGRAMS = OBSERVERS[4:]


def shape_of(name):
    """A shape that the op takes, with tails to every vector and with runs that do not fit one."""
    return next(shape for shape in ((9, 28), (37,)) if fits(name, shape))


def otherwise(name):
    """Yield the calls of an op: that of calls.py, then those that take other kernels."""
    for change in ({}, *OTHERWISE.get(name, ())):
        kwargs = arguments(name, shape_of(name))
        for key, value in change.items():
            if key == "zero_point" and isinstance(value, type):
                value = zero_points(shape_of(name)[:1], value)
            if key in PARAMETERS[name]:
                kwargs[key] = np.copy(value) if isinstance(value, np.ndarray) else value
        yield kwargs


def op(name, dtype=np.float32, lay=lambda x: x):
    """Call an op in all ways, on floating data of this dtype that is laid out by `lay`."""
    for kwargs in otherwise(name):
        results(
            name, {k: lay(as_dtype(k, v, dtype)) if k in DATA else v for k, v in kwargs.items()}
        )


def as_dtype(key, x, dtype):
    """Floating data in this dtype; the V of two-byte weights is a float32."""
    if x.dtype != np.float32 or (key == "V" and np.dtype(dtype).itemsize == 2):
        return x
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def observer(kind):
    """Let observers of a kind see data twice, the second time with a wider range."""
    small = {"bins": 1024} if kind in HISTOGRAMS else {}
    by_channel = "PerChannel" in kind.__name__
    for scheme in ("affine", "symmetric", *["affine_float_qparams"] * by_channel):
        qscheme = f"per_{'channel' if by_channel else 'tensor'}_{scheme}"
        observed = kind(dtype=np.int8, qscheme=qscheme, **small)
        for size in (1, 9):
            observed(size * data((9, 28), seed=size))
        observed.calculate_qparams()


def optimizer(make, dtype=np.float32, lay=lambda x: x):
    """Two steps of an optimizer."""
    value = lay(data((9, 28)).astype(dtype))
    update = make([value])
    for seed in (1, 2):
        update.step([lay(data(value.shape, seed).astype(dtype))])


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd, decay": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.01),
    "sgd, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd, both": lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adam, decay": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: optim.Adam(p, 0.01, weight_decay=0.01, decoupled_weight_decay=True),
}


def distances():
    """How far apart two arrays are."""
    a, b = data((9, 28)), data((9, 28), 1)
    for metric in (metrics.sqnr, metrics.mse, metrics.cosine):
        metric(a, b)


def learnable_starts():
    """The scale that a learnable module begins with."""
    for init, scheme in (("lsq", "symmetric"), ("lsq+", "symmetric"), ("lsq+", "affine")):
        module = npq.LearnableFakeQuantize(
            npq.MinMaxObserver, -8, 7, dtype=np.int8, qscheme=f"per_tensor_{scheme}", init=init
        )
        module.enable_static_estimate()
        module(data((9, 28)))


def finite_range():
    """The range of what is finite, which observers that count ask for."""
    x = data((9, 28))
    x[0, 3], x[4, 5] = np.inf, -np.inf
    backend.of(x).minmax_finite(Granularity(1, x.size, None), x)


#: Dtypes that become bools, and what tells a wrong comparison with 0 from a right one.
TRUTHS = {
    **dict.fromkeys(
        ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
        (0.0, -0.0, 1.0, -3.0, np.nan, np.inf, 2.0**-9, 2.0**-133, 2.0**-1074),
    ),
    **dict.fromkeys(("int8", "int32"), (0, 1, -1, 127, -128)),
    "int64": (0, 1, -(2**63), 2**32, 2**53 + 1),
}


def truths():
    """Every other dtype as bools; on the CPU, the op does it with NumPy."""
    for name, values in TRUTHS.items():
        with np.errstate(all="ignore"):
            x = np.resize(np.array(values), 77).astype(canonical(name, "dtype"))
        backend.of(x).convert(x, np.empty(x.shape, np.bool_))


EVERYTHING = {
    **{name: lambda name=name: op(name) for name in CALLS},
    **{kind.__name__: lambda kind=kind: observer(kind) for kind in OBSERVERS},
    **{name: lambda make=make: optimizer(make) for name, make in OPTIMIZERS.items()},
    "metrics": distances,
    "minmax_finite": finite_range,
    "bools": truths,
    "LearnableFakeQuantize": learnable_starts,
}

#: What comes to kernels of NumPy's arrays alone.
NUMPYS = ("metrics", "LearnableFakeQuantize")
