"""Fake-quantize modules: outputs, qparams and gradients, switches, state, errors."""

import copy
import math
import pickle
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
import npquant.autograd as ag
import npquant.modules as npq
import oracle
import oracle_observers
from cases import FLOATS, assert_same, same_state
from npquant import cpu
from npquant.autograd import Parameter
from npquant.errors import show
from npquant.modules import (
    AdaroundFakeQuantizer,
    EntropyObserver,
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    LearnableFakeQuantize,
    MinMaxObserver,
    Module,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    MSEObserver,
    PercentileObserver,
    PerChannelMinMaxObserver,
)
from npquant.optim import SGD

F32 = np.float32
MODULES = (
    FakeQuantize, FusedMovingAvgObsFakeQuantize, LearnableFakeQuantize, AdaroundFakeQuantizer,
)  # fmt: skip
#: Modules do nothing with data but give it to ops and observers, which are tested with all dtypes.
by_dtype = pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=[] if d == np.float32 else pytest.mark.full) for d in FLOATS],
    ids=str,
)
rng = np.random.default_rng


def data(shape, seed=0, dtype=F32):
    """Return data with some outliers."""
    return (rng(seed).normal(0, 1, shape) ** 3).astype(dtype)


def on_a_tape(module, x, grad, *sources):
    """Return the output, and the gradients of the sources."""
    with ag.Tape() as tape:
        for source in sources:
            tape.watch(source)
        y = tape.apply(module, x)
    return y, *tape.gradient(y, list(sources), grad)


def one_of_each(axis=None):
    """Return every module, per tensor or per channel, for arrays of shape (4, 6)."""
    if axis is None:
        kind, observer, channels = "per_tensor", MovingAverageMinMaxObserver, {}
    else:
        kind, observer = "per_channel", MovingAveragePerChannelMinMaxObserver
        channels = {"channel_len": (4, 6)[axis]}
    args = observer, -8, 7
    options = {"dtype": np.int8, "qscheme": f"{kind}_symmetric"}
    if axis is not None:
        options["ch_axis"] = axis
    return (
        FakeQuantize(*args, **options),
        FusedMovingAvgObsFakeQuantize(*args, **options),
        LearnableFakeQuantize(*args, **options, **channels),
        AdaroundFakeQuantizer(None, f"{kind}_symmetric", -8, 7, axis or 0),
    )


# --- FakeQuantize -----------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_fake_quantize(scheme, axis, dtype):
    kind = "tensor" if axis is None else "channel"
    module = FakeQuantize(
        MovingAverageMinMaxObserver if axis is None else MovingAveragePerChannelMinMaxObserver,
        -8, 7, dtype=np.int8, qscheme=f"per_{kind}_{scheme}", averaging_constant=0.3,
        **({} if axis is None else {"ch_axis": axis}),
    )  # fmt: skip
    seen, clipped = None, 0
    for i, x in enumerate(data((5, 7), seed, dtype) for seed in range(3)):
        grad = data((5, 7), 9, dtype)
        y, gx = on_a_tape(module, x, grad, x)
        now = oracle_observers.extremes(x, axis)
        moved = zip(seen or now, now, strict=True)
        seen = [oracle_observers.move(*v, 0.3) for v in moved] if i else now
        scale, zero_point = oracle_observers.qparams(
            *map(np.atleast_1d, seen), -8, 7, module.qscheme, 0
        )
        zero_point = zero_point.astype(np.int32)
        assert_same((module.scale, module.zero_point), (scale, zero_point))
        args = x, scale, zero_point, *(() if axis is None else (axis % 2,)), -8, 7
        expected, mask = getattr(oracle, f"fake_quantize_per_{kind}_affine_cachemask")(*args)
        assert_same(y, expected)
        assert_same(gx, oracle.fake_quantize_per_tensor_affine_cachemask_backward(grad, mask))
        clipped += (~mask).sum()
    assert clipped > 0
    module.disable_observer()
    assert_same(module(x), expected)
    module(x * 2)
    assert_same((module.scale, module.zero_point), (scale, zero_point))


def test_float_qparams():
    module = FakeQuantize(PerChannelMinMaxObserver, 0, 255, qscheme=npq.observers.FLOAT_QPARAMS)
    x = data((3, 40)) + 2
    y = module(x)
    assert module.zero_point.dtype == F32
    # A code is at most half a step off, and float zero points reach every range.
    assert (abs(y - x) <= module.scale[:, None] * 0.51).all()


def test_switches():
    for module in one_of_each():
        x = data((4, 6))
        before = module.state_dict()
        module.disable_fake_quant()
        module.disable_observer()
        assert module(x) is x
        changed = [k for k, v in module.state_dict().items() if not np.array_equal(v, before[k])]
        static = isinstance(module, LearnableFakeQuantize)
        assert changed == ["fake_quant_enabled", "static_enabled" if static else "observer_enabled"]
        module.enable_observer()
        assert module(x) is x or isinstance(module, FusedMovingAvgObsFakeQuantize)
        assert module.activation_post_process.max_val == x.max()
        module.enable_fake_quant()
        y = module(x)
        assert (y != x).any() or isinstance(module, AdaroundFakeQuantizer)
        module.enable_fake_quant(False)
        assert module.fake_quant_enabled[0] == 0


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_parameters_pass(axis):
    """A weight goes through as a Parameter, and its gradient comes back."""
    x, grad = data((4, 6)), data((4, 6), 1)
    for module, twin in zip(one_of_each(axis), one_of_each(axis), strict=True):
        w = ag.Parameter(x.copy())
        y, gw = on_a_tape(module, w, grad, w) if module is not None else None
        expected, gx = on_a_tape(twin, x, grad, x) if not _adaround(twin) else (twin(x), None)
        assert_same(y, expected)
        assert_same(module(w), expected)
        if _adaround(module):
            assert gw is None
        else:
            assert_same(gw, gx)
            assert (gw != 0).sum() > 0


def test_an_observer_passes_parameters():
    w = ag.Parameter(data((4, 6)))
    with ag.Tape() as tape:
        observer = MinMaxObserver()
        assert tape.apply(observer, w) is w
    assert observer.max_val == w.value.max()


def test_an_estimate_that_fails_changes_nothing():
    module = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype="int8", init="lsq+")
    before = tuple(module.state_dict().values())
    with pytest.raises(ValueError, match="x must not have a NaN"):
        module(np.array([np.nan, 1], F32))
    assert_same(tuple(module.state_dict().values()), before)


def _adaround(module):
    return isinstance(module, AdaroundFakeQuantizer)


@pytest.mark.parametrize("value", [[0.5], None, "0.5", nq.ArraySpec((1,), F32)])
def test_a_value_that_is_no_array(value):
    """It may have been set to anything; what then needs an array says what it was."""
    module = LearnableFakeQuantize(MinMaxObserver).enable_param_learning()
    module.scale.value = value
    uses = [("scale", module.calculate_qparams), ("scale", lambda: module(np.ones(3, F32)))]
    rounding = AdaroundFakeQuantizer()
    rounding.V.value = value
    for name, use in (*uses, ("value", lambda: repr(rounding))):
        with pytest.raises(TypeError, match=f"^{name} must be an array .*{re.escape(show(value))}"):
            use()
    for m, key in (module, "scale"), (rounding, "V"):
        with pytest.raises(ValueError, match=rf"state_dict\['{key}'\] must be a NumPy array, got"):
            m.state_dict()


@pytest.mark.parametrize("dtype", [np.float16, ">f4", np.int64, np.complex64, object])
def test_a_state_that_could_not_be_loaded_is_not_saved(dtype):
    rounding, learnable = AdaroundFakeQuantizer(), LearnableFakeQuantize(MinMaxObserver)
    rounding(np.ones((2, 2), F32))
    parameters = [(rounding, "V")]
    if np.dtype(dtype).kind in "cO":  # numbers become float32
        parameters += [(learnable, "scale"), (learnable, "zero_point")]
    for module, key in parameters:
        good, parameter = module.state_dict(), getattr(module, key)
        parameter.value = parameter.value.astype(dtype)
        with pytest.raises(ValueError, match=rf"state_dict\['{key}'\] must (have|not)"):
            module.state_dict()
        with pytest.raises(ValueError, match=rf"{key} must (have|not)"):
            copy.deepcopy(module)
        module.load_state_dict(good)
        assert_same(parameter.value, good[key])


def test_a_value_that_is_a_scalar_of_numpy():
    """It is what NumPy computes of an array without axes, as when that is scaled."""
    layer = Layer()
    layer.weight = Parameter(np.ones((), F32))
    learnable = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8).enable_param_learning()
    rounding = AdaroundFakeQuantizer(quant_min=-8, quant_max=7)
    rounding(np.array(0.3, F32))
    for module, name in (layer, "weight"), (learnable, "scale"), (rounding, "V"):
        fresh, parameter = copy.deepcopy(module), getattr(module, name)
        parameter.value = F32(0.5)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fresh):
            other.load_state_dict(module.state_dict())
            assert_same(other._get(name), module._get(name))
            assert other._get(name) == 0.5
    held = layer.weight
    layer.weight = held
    assert "(V >= 0).sum()=1" in repr(rounding)
    assert_same(learnable(np.array([0.6], F32)), np.array([0.5], F32))


def unobserving(**options):
    """One that rounds by the scale that it has."""
    module = AdaroundFakeQuantizer(**options)
    module.disable_observer()
    return module


def test_state_is_loaded_where_the_scale_has_no_axis():
    module, saved = (LearnableFakeQuantize(MinMaxObserver) for _ in range(2))
    module.scale.value = np.array(0.5, F32)
    saved.scale.value = np.array([0.25], F32)
    module.load_state_dict(saved.state_dict())
    assert_same(module.scale.value, saved.scale.value)


def test_nothing_and_specs():
    for axis in (None, 0):
        for module in one_of_each(axis):
            before = module.state_dict()
            empty = np.empty((0, 6), F32)
            assert module(empty) is empty
            held = ag.Parameter(empty)
            assert ag.call(module, held) is held
            y = module(nq.ArraySpec((4, 6), "float16"))
            assert (y.shape, y.dtype) == ((4, 6), np.float16)
            for key, array in module.state_dict().items():
                assert_same(array, before[key], key)


def test_a_shape_changes_no_state():
    """Not even where qparams were assigned that an observer would not choose."""
    learnable = LearnableFakeQuantize(MinMaxObserver)
    for module, scale in (
        (FakeQuantize(), 0.5), (FusedMovingAvgObsFakeQuantize(), 0.5),
        (learnable, -1),  # below the least, which a call raises it to
    ):  # fmt: skip
        module(np.array([0, 255], F32))
        module._get("scale")[...] = scale
        before = {name: module._get(name).copy() for name in ("scale", "zero_point")}
        assert module(nq.ArraySpec((2,), F32)).shape == (2,)
        for name, array in before.items():
            assert_same(module._get(name), array, name)


def test_a_shape_is_taken_where_an_array_gets_new_qparams():
    """Whatever those are that it would replace."""
    modules = FakeQuantize(MinMaxObserver), LearnableFakeQuantize(MinMaxObserver)
    for module in (*modules, FakeQuantize(PerChannelMinMaxObserver)):
        module.disable_fake_quant()
        module(np.array([np.inf, 1], F32))
        module.activation_post_process.reset_min_max_vals()
        module.enable_fake_quant()
        module.enable_observer()
        module._set("scale", np.full(module._get("scale").shape, np.nan, F32))
        assert module(nq.ArraySpec((2,), F32)) == nq.ArraySpec((2,), F32)
        assert np.isfinite(module(np.array([1, 2], F32))).all()


def test_a_shape_is_refused_as_an_array_of_it_is():
    """By what the observer, groups and bounds ask of it, which is not what the op asks."""
    shape, channels = nq.ArraySpec((4, 6), F32), "per_channel_symmetric"
    wide = -(2**31), 2**31 - 1
    adaround, learnable = AdaroundFakeQuantizer, LearnableFakeQuantize
    for make, match in (
        (lambda: adaround(None, channels, -8, 7, 3), "ch_axis must be an axis of x"),
        (lambda: adaround(None, channels, -8, 7, group_size=4), "group_size must be"),
        (lambda: adaround(None, "per_tensor_affine", *wide, dtype="int32"), "quant_max must lie"),
        (lambda: learnable(PerChannelMinMaxObserver, ch_axis=3), "ch_axis must be an axis of x"),
        (lambda: learnable(PerChannelMinMaxObserver, channel_len=6, group_size=4), "group_size"),
    ):  # fmt: skip
        for x in (data((4, 6)), shape):
            module = make()
            module.enable_observer()
            with pytest.raises(ValueError, match=match):
                module(x)
    for make in (
        lambda: adaround(None, channels, -8, 7),
        lambda: adaround(None, channels, -8, 7, group_size=3),
        lambda: learnable(PerChannelMinMaxObserver, channel_len=4).enable_static_estimate(),
    ):
        assert make()(shape).shape == make()(data((4, 6))).shape == (4, 6)


def test_a_shape_where_the_observer_has_seen_more_than_the_module():
    """A call would have as many scales as there are channels."""
    module, other = (FakeQuantize(PerChannelMinMaxObserver) for _ in range(2))
    other(data((4, 8)))
    module.activation_post_process.merge(other.activation_post_process)
    assert module(nq.ArraySpec((4, 8), F32)).shape == (4, 8)
    with pytest.raises(ValueError, match="x must have 4 channels along ch_axis 0, as before"):
        module(nq.ArraySpec((3, 8), F32))
    assert_same(module.scale, np.ones(1, F32))
    assert module(data((4, 8))).shape == (4, 8)


@pytest.mark.parametrize("dtype", [F32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_scalars_of_numpy(dtype):
    """What ops take as an array, modules do, too: before they have observed it, and after."""
    for make in (*MODULES[:2], lambda: LearnableFakeQuantize(MSEObserver), MODULES[3]):
        one, other = make(), make()
        for value in (-1.5, 0.7):
            x = dtype(value)
            assert_same(one(x), other(np.array(x)))
            with ag.Tape() as tape:
                assert_same(tape.apply(one, x), other(np.array(x)))
        same_state(one, other)


def test_a_nan_that_was_observed():
    module = FakeQuantize()
    module.disable_fake_quant()
    module(np.array([np.nan, 1], F32))
    module.enable_fake_quant()
    with pytest.raises(ValueError, match="scale must be positive and finite in float32, got nan"):
        module(np.ones(2, F32))
    fresh = FakeQuantize()
    fresh.load_state_dict(module.state_dict())
    same_state(fresh, module)


@pytest.mark.parametrize(
    "kind", [FakeQuantize, FusedMovingAvgObsFakeQuantize, LearnableFakeQuantize]
)
def test_float64_with_one_scale_is_a_float32_product(kind):
    """As the docstrings say: of its codes it is what dequantize gives in float32."""
    module = kind(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    x = data((4, 64)).astype(np.float64)
    y, (scale, z) = module(x), module.calculate_qparams()
    codes = nq.quantize_per_tensor(x, scale, z, 0, 255, np.uint8)
    given = [
        nq.dequantize_per_tensor(codes, scale, z, 0, 255, np.uint8, out_dtype=dtype)
        for dtype in (F32, np.float64)
    ]
    assert_same(y, given[0].astype(np.float64))
    assert not np.array_equal(y, given[1])


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_spoils_the_scale_is_not_observed(wrong):
    for module in one_of_each():
        if isinstance(module, FusedMovingAvgObsFakeQuantize):  # as PyTorch's
            continue
        module(data((4, 6)))
        before = {key: np.copy(value) for key, value in module.state_dict().items()}
        x = data((4, 6), 1)
        x[1, 2] = wrong
        with pytest.raises(ValueError, match=r"(scale|x|min_val|max_val) must .*(got|NaN)"):
            module(x)
        for key, value in module.state_dict().items():
            assert_same(value, before[key], key)
        module(data((4, 6), 2))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_spoils_float_zero_points_is_not_observed(wrong):
    """The scale of a channel that is nowhere a number, or infinite throughout, is 1."""
    x = data((4, 6), 1)
    x[1] = wrong
    for kind, channels in ((FakeQuantize, {}), (LearnableFakeQuantize, {"channel_len": 4})):
        options = {"qscheme": npq.observers.FLOAT_QPARAMS, **channels}
        module, fresh = (kind(PerChannelMinMaxObserver, 0, 255, **options) for _ in range(2))
        module(data((4, 6)))
        before = {key: np.copy(value) for key, value in module.state_dict().items()}
        with pytest.raises(ValueError, match="zero_point must be finite in float32"):
            fresh(x)
        with pytest.raises(ValueError, match=r"in float32, got (nan|inf): x is not finite"):
            module(x)
        for key, value in module.state_dict().items():
            assert_same(value, before[key], key)
        for again in (module, fresh):
            again(data((4, 6), 2))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "x must be finite"),
        (3e38, "scale must be positive .* got inf: x is not finite, or"),
    ],
)
def test_weights_that_are_no_numbers_leave_no_trace_where_none_are_rounded(value, message):
    """They are needed all the same, to begin with; of one code a scale is twice the greatest."""
    module = AdaroundFakeQuantizer(quant_min=-1, quant_max=0)
    module.disable_fake_quant()
    with pytest.raises(ValueError, match=message):
        module(np.array([value, 1], F32))
    x = data((4, 6))
    assert_same(module(x), x)
    fresh = AdaroundFakeQuantizer(quant_min=-1, quant_max=0)
    fresh.disable_fake_quant()
    fresh(x)
    same_state(module, fresh)


def of_counts(axis=None, **options):
    """Return modules whose observers count, for arrays of shape (4, 6)."""
    kind, channels = ("per_tensor", {}) if axis is None else ("per_channel", {"ch_axis": axis})
    options = {"dtype": np.int8, "qscheme": f"{kind}_symmetric", **channels, **options}
    counting = (MSEObserver, EntropyObserver, PercentileObserver)
    learned = {} if axis is None else {"channel_len": (4, 6)[axis]}
    return (
        *(FakeQuantize(o, -8, 7, **options) for o in counting),
        *([] if channels else [FakeQuantize(HistogramObserver, -8, 7, **options)]),
        *(
            LearnableFakeQuantize(MSEObserver, -8, 7, init=init, **learned, **options)
            for init in ("observer", "lsq", "lsq+")
        ),
    )


def test_a_range_without_a_scale_is_not_counted():
    """Infinities no observer of counts sees, but a range may be wider than its few codes reach."""
    options = {"quant_min": 0, "quant_max": 1, "dtype": np.uint8, "qscheme": "per_tensor_affine"}
    module = FakeQuantize(PercentileObserver, percentile=100, **options)
    module(data((4, 6)))
    before = {key: np.copy(value) for key, value in module.state_dict().items()}
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        module(np.array([-3.4e38, 3.4e38], F32))
    for key, value in module.state_dict().items():
        assert_same(value, before[key], key)


@pytest.mark.parametrize("init", ["lsq", "lsq+"])
def test_an_estimate_that_is_no_scale_is_not_kept(init):
    for axis in (None, 0):
        channels = {} if axis is None else {"channel_len": 4, "ch_axis": 0}
        scheme = "per_tensor_symmetric" if axis is None else "per_channel_symmetric"
        module = LearnableFakeQuantize(
            MSEObserver, -8, 7, dtype=np.int8, qscheme=scheme, init=init, **channels
        )
        module(data((4, 6)))
        before = {key: np.copy(value) for key, value in module.state_dict().items()}
        x = data((4, 6), 1)
        x[1, 2] = np.inf
        with (
            pytest.warns(UserWarning, match="infinities"),
            pytest.raises(ValueError, match="scale must be positive and finite in float32, got"),
        ):
            module(x)
        for key, value in module.state_dict().items():
            assert_same(value, before[key], key)


@pytest.mark.parametrize(
    ("place", "kernel"),
    [
        (cpu, "minmax"), (cpu, "count_doubling"), (cpu, "count_linear"),
        (npq.observers.counting, "double_range"), (npq.observers.histogram, "respread"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_an_interrupt_leaves_an_observer_as_it_was(monkeypatch, place, kernel):
    """It is raised when the kernel that runs has ended."""

    def interrupted(*args, **kwargs):
        run(*args, **kwargs)
        raise KeyboardInterrupt

    met = 0
    for module in (*of_counts(), *of_counts(0), *one_of_each()):
        observer = module.activation_post_process
        observer(data((4, 6)))
        before = {key: np.copy(value) for key, value in observer.state_dict().items()}
        held = [array for name in observer._names() if (array := observer._get(name)) is not None]
        with monkeypatch.context() as patch:
            run = getattr(place, kernel)
            patch.setattr(place, kernel, interrupted)
            try:
                observer(data((4, 6), 1) * 5)
            except KeyboardInterrupt:
                met += 1
                for (key, value), array in zip(before.items(), held, strict=True):
                    assert_same(observer.state_dict()[key], value, key)
                    assert_same(np.asarray(array), value, key)
    assert met >= 1, kernel


class Fixed(npq.Observer):
    """Qparams that are known before, as PyTorch's FixedQParamsObserver has them: it keeps none."""

    _schemes = ("per_tensor_affine",)
    held = np.array([0.5], F32), np.array([3], np.int32)

    def __init__(self, quant_min=0, quant_max=255):
        super().__init__(np.uint8, "per_tensor_affine", False, quant_min, quant_max, 2**-23, False)

    def forward(self, call, x):
        return x

    def calculate_qparams(self):
        return self.held


@pytest.mark.parametrize("module", [FakeQuantize, LearnableFakeQuantize])
def test_an_observer_that_keeps_no_range_chooses_too(module):
    """Of data, not of nothing; and what it holds is copied, as optimizers write to scales."""
    m = module(Fixed, quant_min=0, quant_max=255)
    for x, scale in (np.empty(0, F32), 1.0), (np.array([0.6, 1.4], F32), 0.5):
        y = m(x)
        for name, held in zip(("scale", "zero_point"), Fixed.held, strict=True):
            assert not np.may_share_memory(m._get(name), held)
        assert_same(m.state_dict()["scale"], np.array([scale], F32))
    assert_same(y, np.array([0.5, 1.5], F32))


def test_what_an_observer_of_the_user_chooses_can_be_kept():
    """In whatever dtype and shape: a module is copied and saved with it. No scale becomes 0."""

    class Wide(MinMaxObserver):
        def calculate_qparams(self):
            return nq.determine_qparams(self.min_val, self.max_val, 0, 255, np.uint8, 2**-23, False)

    module = FakeQuantize(Wide)
    y = module(np.array([0, 1.0], F32))
    assert_same(module.scale, np.array([1 / 255], F32))
    again = FakeQuantize(Wide)
    again.load_state_dict(module.state_dict())
    for other in (copy.copy(module), copy.deepcopy(module), again):
        other.disable_observer()
        assert_same(other(np.array([0, 1.0], F32)), y)

    class Tiny(MinMaxObserver):
        def calculate_qparams(self):
            return np.array([1e-50]), np.zeros(1, np.int32)

    module = FakeQuantize(Tiny)
    with pytest.raises(ValueError, match="scale must be positive and finite in float32, got 0"):
        module(np.array([0, 1.0], F32))
    assert module.activation_post_process.min_val == np.inf
    assert_same(module.scale, np.ones(1, F32))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("init", "lsq*"), ("zero_point_rounding", "up"), ("group_size", 1), ("per_token", "no")],
)
def test_options_of_what_is_learned_are_looked_at_when_they_are_assigned(name, wrong):
    module = LearnableFakeQuantize(MinMaxObserver)
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        setattr(module, name, wrong)


class Wrong(MinMaxObserver):
    chosen = np.ones(1, F32), np.zeros(1, np.int32)

    def calculate_qparams(self):
        return self.chosen


@pytest.mark.parametrize("zero_point", [2**32 + 3, -1, 256, 3.7])
def test_zero_points_that_an_observer_of_the_user_may_not_choose(zero_point):
    """A cast would make others of them. Where the scale is no number, none is used."""
    module, x = FakeQuantize(Wrong), np.array([0.6, 1.4], F32)
    module.activation_post_process.chosen = np.array([0.5]), np.array([zero_point])
    message = (
        f"zero_point of activation_post_process must be of integers within 0..255, got {zero_point}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        module(x)
    assert_same(module.zero_point, np.zeros(1, np.int32))
    for chosen in ((np.array([0.5]), np.array([3.0])), (F32(0.5), np.int64(3))):
        module.activation_post_process.chosen = chosen
        assert_same(module(x), np.array([0.5, 1.5], F32))
        assert_same(module.zero_point, np.full(1, 3, np.int32))
    module.disable_fake_quant()
    module.activation_post_process.chosen = np.array([np.nan]), np.array([zero_point])
    module(x)


@pytest.mark.parametrize(
    ("dtype", "zero_point", "codes", "bounds"),
    [
        ("float32", 2.0**31, np.int32, (-(2**31), 2**31 - 1)),
        ("float16", np.inf, np.uint16, (0, 65535)),
        (ml_dtypes.bfloat16, 65536, np.uint16, (0, 65535)),
        ("float16", 3, np.int32, (-(2**20), 2**20)),
    ],
)
def test_zero_points_that_their_dtype_does_not_hold(dtype, zero_point, codes, bounds):
    """The bounds are not rounded to it, by which the first three would be inside."""
    module = FakeQuantize(Wrong, *bounds, dtype=codes)
    module.activation_post_process.chosen = np.array([0.5]), np.array([zero_point], dtype)
    if zero_point == 3:
        assert_same(module(np.array([0.6, 1.4], F32)), np.array([0.5, 1.5], F32))
        return
    with pytest.raises(ValueError, match="zero_point"):
        module(np.array([0.6, 1.4], F32))
    assert_same(module.zero_point, np.zeros(1, np.int32))


@pytest.mark.parametrize("module", [FakeQuantize, LearnableFakeQuantize])
@pytest.mark.parametrize(
    ("chosen", "match"),
    [
        ((0.5, 3), "^scale of activation_post_process must be"),
        ((np.ones(1, F32), [3]), "^zero_point of activation_post_process must be"),
        ((np.ones(1, F32), np.array([3], object)), "^zero_point of .* must have a dtype"),
        ((np.ones(1, F32), np.zeros(2, int)), r"^zero_point of .* must have the shape \(1,\)"),
        (None, "^activation_post_process must choose scale and zero_point, two arrays, got None"),
        ((np.ones(1, F32),), "^activation_post_process must choose scale and zero_point"),
    ],
)
def test_what_an_observer_of_the_user_may_not_choose(module, chosen, match):
    made = module(Wrong)
    made.activation_post_process.chosen = chosen
    with pytest.raises((TypeError, ValueError), match=match):
        made(np.array([0.6, 1.4], F32))


def test_a_module_without_state_is_copied():
    class Same(npq.Module):
        def forward(self, call, x):
            return x

    for other in (copy.copy(Same()), copy.deepcopy(Same())):
        assert type(other) is Same
        assert other.state_dict() == {}


class Layer(npq.Module):
    """A layer that may have no bias, as PyTorch's."""

    _parameters = ("weight", "bias")

    def __init__(self):
        self.weight, self.bias = Parameter(np.ones((2, 3), F32)), None


def test_a_parameter_may_be_none():
    layer = Layer()
    for m in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert list(m.state_dict()) == ["weight"]
        m.load_state_dict({"weight": np.zeros((2, 3), F32)})
        assert_same(m.weight.value, np.zeros((2, 3), F32))
    layer.bias = None
    wrong = Parameter(np.ones(2, F32))
    wrong.value = "none"
    with pytest.raises(TypeError, match="bias must be a NumPy array"):
        layer.bias = wrong
    layer.bias = Parameter(np.ones(2, F32))
    assert list(copy.deepcopy(layer).state_dict()) == ["weight", "bias"]
    for held in (None, np.ones(2, F32), SimpleNamespace(value=np.ones(2, F32))):
        with pytest.raises(TypeError, match="bias must be a Parameter, got"):
            layer.bias = held


def test_what_an_interrupt_brings_back_is_what_was_there(monkeypatch):
    """Not what a module would make of it: here float64 without an axis, as a user may have it."""
    new, old = LearnableFakeQuantize(MinMaxObserver), LearnableFakeQuantize(MinMaxObserver)
    old.scale.value = given = np.array(0.5)
    put = npq.Module._set

    def interrupted(self, name, array):
        put(self, name, array)
        if name == "scale":
            monkeypatch.setattr(npq.Module, "_set", put)
            raise KeyboardInterrupt

    monkeypatch.setattr(npq.Module, "_set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        old.load_state_dict(new.state_dict())
    assert old.scale.value is given


@pytest.mark.parametrize("module", [FakeQuantize, LearnableFakeQuantize])
def test_state_that_is_loaded_is_old_or_new_wherever_it_is_interrupted(module, monkeypatch):
    new, old = module(MinMaxObserver), module(MinMaxObserver)
    for m, k in (new, 1), (old, 50):
        m(k * np.linspace(-1, 2, 30, dtype=F32))
    before, places = old.state_dict(), []
    put = npq.Module._set

    def interrupted(self, name, array):
        put(self, name, array)
        places.append(name)
        if len(places) == stops[-1]:
            raise KeyboardInterrupt

    stops = []
    for stop in range(1, len(before) + 1):
        places.clear()
        stops.append(stop)
        with monkeypatch.context() as patch:
            patch.setattr(npq.Module, "_set", interrupted)
            with pytest.raises(KeyboardInterrupt):
                old.load_state_dict(new.state_dict())
        assert {k: v.tobytes() for k, v in old.state_dict().items()} == {
            k: v.tobytes() for k, v in before.items()
        }


class Own(np.ndarray):
    """Arrays of a class of the user's."""


@pytest.mark.parametrize(
    "kind", [lambda a: a.view(Own), lambda a: a.astype(a.dtype.newbyteorder())]
)
def test_what_an_observer_of_the_user_chooses_is_looked_at(kind):
    """Whatever arrays it has them in."""

    class Chosen(MinMaxObserver):
        found = 0.5

        def calculate_qparams(self):
            return kind(np.array([self.found], F32)), kind(np.zeros(1, np.int32))

    module = FakeQuantize(Chosen)
    assert_same(module(np.array([0.6], F32)), np.array([0.5], F32))
    module.activation_post_process.found = np.inf
    with pytest.raises(ValueError, match="scale must be positive and finite in float32, got inf"):
        module(np.array([0.6], F32))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_call_that_is_broken_off_may_be_made_again(error, monkeypatch):
    """What it observed before qparams were chosen would count twice."""

    def broken_off(*args):
        raise error

    kind = FakeQuantize, LearnableFakeQuantize
    for module, twin in ([k(MovingAverageMinMaxObserver) for _ in range(2)] for k in kind):
        for some in (module, twin):
            some.enable_observer()
            some(np.array([0, 1], F32))
        with monkeypatch.context() as patch:
            patch.setattr(MovingAverageMinMaxObserver, "calculate_qparams", broken_off)
            with pytest.raises(error):
                module(np.array([0, 300], F32))
        for some in (module, twin):
            some(np.array([0, 300], F32))
        for key, array in twin.state_dict().items():
            assert_same(module.state_dict()[key], array, key)


def test_bounds_are_the_observers():
    """There they are assigned, and what is exchanged for it has the new ones."""
    for module in one_of_each():
        observer = module.activation_post_process
        other = type(observer)(quant_min=-4, quant_max=3, dtype="int8", qscheme=module.qscheme)
        with pytest.raises(ValueError, match="must have the quant_min -8, got -4"):
            module.activation_post_process = other
        observer.quant_min, observer.quant_max = -4, 3
        module.activation_post_process = other
        assert (module.quant_min, module.quant_max) == (-4, 3)
        assert "quant_min=-4, quant_max=3" in repr(module)
        y, scale = module(data((4, 6))), module.calculate_qparams()[0]
        assert -4 <= np.rint(y / scale).min() < np.rint(y / scale).max() <= 3
        with pytest.raises(AttributeError, match="quant_min"):
            module.quant_min = -8


def test_an_observer_is_exchanged_for_one_of_the_same_settings():
    """With others a call would fail, or choose qparams that the state cannot have."""
    for module in one_of_each():
        place = "activation_post_process"
        kind = type(module.activation_post_process)
        for wrong, words in (
            (kind(quant_min=-8, quant_max=7, dtype="int16", qscheme=module.qscheme), "dtype int8"),
            (kind(quant_min=-8, quant_max=7, dtype="int8"), "qscheme per_tensor_symmetric, got"),
            (kind(quant_min=-7, quant_max=7, dtype="int8", qscheme=module.qscheme), "quant_min -8"),
            (kind(quant_min=-8, quant_max=8, dtype="int8", qscheme=module.qscheme), "quant_max 7"),
        ):
            held = getattr(module, place)
            with pytest.raises(ValueError, match=f"{place} must have the {words}"):
                setattr(module, place, wrong)
            assert getattr(module, place) is held
        same = kind(quant_min=-8, quant_max=7, dtype="int8", qscheme=module.qscheme)
        setattr(module, place, same)
        assert module.activation_post_process is same
        assert module(data((4, 6))).shape == (4, 6)
    for module in one_of_each(1):
        kind = type(module.activation_post_process)
        wrong = kind(ch_axis=0, quant_min=-8, quant_max=7, dtype="int8", qscheme=module.qscheme)
        with pytest.raises(ValueError, match="must have the ch_axis 1, got 0"):
            module.activation_post_process = wrong
    fused = FusedMovingAvgObsFakeQuantize()
    with pytest.raises(TypeError, match="must be a moving average, got MinMaxObserver"):
        fused.activation_post_process = MinMaxObserver()
    with pytest.raises(ValueError, match="must be a moving average, got MinMaxObserver"):
        fused.__setstate__(vars(fused) | {"activation_post_process": MinMaxObserver()})


def test_ends_of_different_channels():
    """Each is right by itself, and together they would be read past an end."""
    _, module, *_ = one_of_each(0)
    seen = module.activation_post_process
    seen.min_val, seen.max_val = np.zeros(3, F32), np.ones(2, F32)
    for use in (module.calculate_qparams, lambda: module(data((3, 6)))):
        with pytest.raises(ValueError, match="max_val must have 3 channels, as min_val has, got 2"):
            use()


class Outer(npq.Observer):
    """It hands on to another one, as observers of the user's own may."""

    _schemes = ("per_tensor_affine",)
    _modules = ("inner",)

    def __init__(self):
        self.inner = MovingAverageMinMaxObserver()
        super().__init__(np.uint8, "per_tensor_affine", False, None, None, 2**-23, False)

    def forward(self, call, x):
        return self.inner(x)

    def calculate_qparams(self):
        return self.inner.calculate_qparams()


def test_what_an_observer_within_an_observer_has_seen_is_forgotten_too():
    module = FakeQuantize(Outer)
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        module(np.array([np.nan, 1], F32))
    assert module.activation_post_process.inner._unset
    assert_same(module(np.array([0, 255], F32)), np.array([0, 255], F32))


def test_an_estimate_of_infinities_is_refused():
    """They are in no bin, so that of what is infinite throughout there would be nothing."""
    for axis in ({}, {"channel_len": 2}):
        kind = PerChannelMinMaxObserver if axis else MinMaxObserver
        module = LearnableFakeQuantize(kind, 0, 255, init="lsq+", **axis)
        before = module.state_dict()
        with pytest.raises(ValueError, match="x must be finite to estimate by 'lsq\\+'"):
            module(F32([[np.inf, np.inf], [1, 2]]))
        for key, array in module.state_dict().items():
            assert_same(array, before[key], key)


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_are_estimated_some_at_a_time(axis, monkeypatch):
    """Histograms of all would take 32 KiB a channel."""
    x = np.random.default_rng(2).normal(0, 1, (7, 7)).astype(F32) * np.arange(1, 8, dtype=F32)

    def estimate():
        module = LearnableFakeQuantize(
            PerChannelMinMaxObserver, -8, 7, dtype=np.int8, channel_len=7, ch_axis=axis,
            init="lsq+",
        )  # fmt: skip
        module(x)
        return module.calculate_qparams()

    whole = estimate()
    monkeypatch.setattr("npquant.modules.learnable._CHANNELS", 3)
    assert_same(estimate(), whole)
    assert len(np.unique(whole[0])) == 7


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("axis", [None, 0])
def test_a_step_that_fails_leaves_a_module_as_it_was(axis, error):
    """There was no memory for its result, say: the same data would count twice."""

    def failing(step, *args, **kwargs):
        ag.call(step, *args, **kwargs)  # and has done what it does
        raise error

    for seen in (0, 1):
        for module in one_of_each(axis):
            if isinstance(module, LearnableFakeQuantize):
                module.enable_observer()
            if seen:
                module(data((4, 6)))
            before = {key: np.copy(value) for key, value in module.state_dict().items()}
            with pytest.raises(error):
                module.forward(failing, data((4, 6), 1) * 5)
            for key, value in module.state_dict().items():
                assert_same(value, before[key], key)


@pytest.mark.parametrize("kind", [npq.HistogramObserver, npq.PercentileObserver])
def test_an_observer_forgets_all_or_nothing(kind, monkeypatch):
    """It would be none that can be saved: extremes of nothing beside counts."""

    def none_left(*args):
        raise MemoryError

    observer = kind()
    observer(data((4, 6)))
    before = observer.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(np, "zeros", none_left)
        with pytest.raises(MemoryError):
            observer.reset_min_max_vals()
    for key, array in observer.state_dict().items():
        assert_same(array, before[key], key)


def test_what_was_learned_is_not_estimated_wherever_a_switch_is_interrupted(monkeypatch):
    module = LearnableFakeQuantize(MinMaxObserver).enable_static_estimate()
    switched = []

    def interrupted(self, enabled=True):
        switched.append(enabled)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LearnableFakeQuantize, "toggle_fake_quant", interrupted)
        with pytest.raises(KeyboardInterrupt):
            module.enable_param_learning()
    assert switched == [True]
    assert module.learning_enabled
    assert not module.static_enabled


def test_arrays_are_replaced():
    """What a tape, or a user, still holds stays as it is."""
    for module in (*one_of_each(0), *one_of_each(), *of_counts(0), *of_counts()):
        module(data((4, 6)))
        held = [(key, m._get(name)) for key, m, name in module._state()]
        copies = [array.copy() for _, array in held]
        module(data((4, 6), 1) * 300)
        for (key, array), copied in zip(held, copies, strict=True):
            assert_same(array, copied, key)
        if not _adaround(module):
            assert (module.state_dict()["scale"] != dict(held)["scale"]).all()
    module = one_of_each()[2].enable_param_learning()
    scale, zero_point = np.full(1, -1, F32), np.full(1, 3, F32)
    module.scale.value, module.zero_point.value = scale, zero_point
    module(data((4, 6)))
    assert (scale, zero_point) == (-1, 3)
    assert module.zero_point.value == 0


# --- fused ------------------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_fused(scheme, axis, dtype):
    shape = () if axis is None else ((4, 6)[axis],)
    kind = "per_tensor" if axis is None else "per_channel"
    observer = (
        MovingAverageMinMaxObserver if axis is None else MovingAveragePerChannelMinMaxObserver
    )
    options = {} if axis is None else {"ch_axis": axis}
    module = FusedMovingAvgObsFakeQuantize(
        observer, -8, 7, dtype=np.int8, qscheme=f"{kind}_{scheme}", averaging_constant=0.3,
        **options,
    )  # fmt: skip
    state = [np.full(shape, np.inf, F32), np.full(shape, -np.inf, F32),
             np.ones(shape or 1, F32), np.zeros(shape or 1, np.int32)]  # fmt: skip
    for i, (observing, enabled) in enumerate([(1, 0), (1, 1), (0, 1), (1, 1)]):
        x, grad = data((4, 6), i, dtype), data((4, 6), i + 9, dtype)
        module.enable_observer(observing)
        module.enable_fake_quant(enabled)
        y, gx = on_a_tape(module, x, grad, x)
        rest = 0.3, -8, 7, axis or 0, axis is not None, scheme == "symmetric"
        expected, mask = nq.fused_moving_avg_obs_fake_quant_cachemask(
            x, observing, enabled, *state, *rest
        )
        assert_same(y, expected)
        assert_same(gx, np.where(mask, grad, np.copysign(0, grad)).astype(dtype))
        seen = module.activation_post_process
        assert_same((seen.min_val, seen.max_val), tuple(state[:2]))
        qparams = module.calculate_qparams()
        if enabled:
            assert_same((module.scale, module.zero_point), tuple(state[2:]))
            assert_same(qparams, tuple(state[2:]))
        else:
            assert module.scale.tolist() == [1]
            module.enable_fake_quant()
            module.disable_observer()
            module(x)
            assert_same(qparams, (module.scale, module.zero_point))


@pytest.mark.parametrize("observing", [True, False])
@pytest.mark.parametrize("axis", [None, 0])
def test_options_of_an_observer_go_together_and_with_the_module(axis, observing):
    """They are looked at by each call, also where nothing is observed."""
    for module in one_of_each(axis):
        module(data((4, 6)))
        module.enable_observer(observing)
        held, observer = tuple(module.state_dict().values()), module.activation_post_process
        for name, other, error in (
            ("quant_max", 300, r"must lie within .* for int8, got -8\.\.300"),
            ("dtype", np.int16, "activation_post_process must have the dtype int8, got int16"),
        ):
            before = getattr(observer, name)
            setattr(observer, name, other)
            for _ in range(2):
                with pytest.raises(ValueError, match=error):
                    module(2 * data((4, 6)))
            setattr(observer, name, before)
            assert_same(tuple(module.state_dict().values()), held)
        module(data((4, 6)))


def test_fused_quantizes_before_it_observes():
    """Ranges of nothing have the scale 0.1; they stay ranges of nothing."""
    module = one_of_each(0)[1]
    module.disable_observer()
    module(data((4, 6)))
    assert_same(module.scale, np.full(4, 0.1, F32))
    assert module.activation_post_process.min_val.shape == (0,)
    module.enable_observer()
    module(data((5, 6)))
    assert module.scale.shape == (5,)


@pytest.mark.parametrize("kwargs", [{}, {"observer": MovingAveragePerChannelMinMaxObserver}])
def test_the_fused_module_comes_to_one_kernel(kwargs, monkeypatch):
    """Its state is as the op has the least to do with."""
    module, other = (FusedMovingAvgObsFakeQuantize(**kwargs) for _ in range(2))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    module(x)
    expected = other(x), other(2 * x)
    monkeypatch.setattr("npquant.backend.of", None)  # which other ways call
    assert_same(module(2 * x), expected[1])


def test_fused_has_seen_nothing():
    module = FusedMovingAvgObsFakeQuantize()
    with pytest.warns(UserWarning, match="nothing was observed"):
        assert_same(module.calculate_qparams(), (np.ones(1, F32), np.zeros(1, np.int64)))


# --- learnable --------------------------------------------------------------------------------

GRANULARITIES = ("tensor", "channel", "token", "group")


def learnable(granularity, scheme="affine", **options):
    """Return a module for arrays of shape (2, 3, 8), and its op with what stands beside bounds."""
    kind, observer = "per_channel", PerChannelMinMaxObserver
    op = f"fake_quantize_learnable_per_{granularity}_affine"
    before, after = (), ()
    if granularity == "tensor":
        kind, observer = "per_tensor", MinMaxObserver
    elif granularity == "channel":
        options |= {"ch_axis": -2, "channel_len": 3}
        before = (1,)
    elif granularity == "token":
        options |= {"per_token": True, "channel_len": 6}
    else:
        options |= {"group_size": 4, "channel_len": 12}
        op, after = "fake_quantize_learnable_per_channel_group_affine", (4,)
    module = LearnableFakeQuantize(
        observer, -8, 7, dtype=np.int8, qscheme=f"{kind}_{scheme}", **options
    )
    return module, op, before, after


def rows_of(x, granularity):
    """The elements of each channel."""
    if granularity == "tensor":
        return x.reshape(1, -1)
    if granularity == "channel":
        return np.moveaxis(x, 1, 0).reshape(3, -1)
    return x.reshape(-1, 8 if granularity == "token" else 4)


@by_dtype
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_learnable(granularity, scheme, dtype):
    module, op, before, after = learnable(granularity, scheme, use_grad_scaling=True)
    x, grad = data((2, 3, 8), 0, dtype), data((2, 3, 8), 1, dtype)
    rows = rows_of(x, granularity).astype(F32)
    scale, zero_point = oracle_observers.qparams(
        rows.min(axis=1), rows.max(axis=1), -8, 7, module.qscheme, 0
    )
    zero_point = zero_point.astype(F32)
    for learning in (False, True):
        y, *grads = on_a_tape(module, x, grad, x, module.scale, module.zero_point)
        assert_same((module.scale.value, module.zero_point.value), (scale, zero_point))
        args = x, scale, zero_point, *before, -8, 7, *after
        assert_same(y, getattr(oracle, op)(*args))
        expected = getattr(nq, f"{op}_backward")(
            grad, *args, (x.size * 7) ** -0.5, zero_point_rounding="nearest"
        )
        assert_same(grads[0], expected[0])
        if not learning:
            assert grads[1:] == [None, None]
        elif scheme == "symmetric":
            assert_same(grads[1], expected[1])
            assert grads[2] is None
        else:
            assert_same(tuple(grads[1:]), expected[1:])
        # Learned values stay, whatever passes; negative zero points are rounded to nearest.
        assert module.enable_param_learning() is module
        if scheme == "affine":
            zero_point = np.full_like(zero_point, -2.6)
        scale = (scale * F32(0.7)).astype(F32)
        module.scale.value, module.zero_point.value = scale, zero_point


def test_learnable_rounds_its_zero_point_as_the_forward_does():
    """PyTorch's backward takes -2 where its forward takes -3 (D12)."""
    module = LearnableFakeQuantize(MinMaxObserver, -8, 7, zero_point=-3.0, dtype=np.int8)
    module.enable_param_learning()
    x = np.array([-6, -5, 10, 9, 11], F32)
    y, gx = on_a_tape(module, x, np.ones(5, F32), x)
    assert gx.tolist() == [0, 1, 1, 1, 0]
    assert y.tolist() == [-5, -5, 10, 9, 10]
    as_pytorch = LearnableFakeQuantize(
        MinMaxObserver, -8, 7, zero_point=-3.0, dtype=np.int8, zero_point_rounding="pytorch"
    )
    as_pytorch.enable_param_learning()
    again, gx = on_a_tape(as_pytorch, x, np.ones(5, F32), x)
    assert_same(again, y)
    assert gx.tolist() == [1, 1, 0, 1, 0]
    with pytest.raises(ValueError, match="zero_point_rounding must be"):
        LearnableFakeQuantize(MinMaxObserver, zero_point_rounding="even")


def test_eps_is_the_least_scale():
    module = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8).enable_param_learning()
    held = module.scale
    module.scale.value = np.array([-1], F32)
    assert_same(module.calculate_qparams()[0], np.array([2.0**-23], F32))
    module(np.ones(3, F32))
    assert module.scale is held
    assert_same(module.scale.value, np.array([2.0**-23], F32))


def test_learned_qparams():
    module, *_ = learnable("channel", scale=0.5)
    module.zero_point.value = np.array([-2.5, 100, -np.inf], F32)
    expected = np.full(3, 0.5, F32), np.array([-2, 7, -8])
    assert_same(module.calculate_qparams(), expected)
    module.zero_point.value[0] = np.nan
    with pytest.raises(ValueError, match="zero_point must be a number, got nan"):
        module.calculate_qparams()


@pytest.mark.parametrize(("bounds", "zero_point", "expected"), [
    ((-(2**31), 2**31 - 1), 3e9, 2**31 - 128), ((-(2**31), 2**31 - 1), -3e9, -(2**31)),
    ((-(2**24) - 1, 2**24 + 1), 3e9, 2**24), ((-(2**24) - 3, 2**24 + 3), 3e9, 2**24 + 2),
    ((-(2**24) - 3, 2**24 + 3), -3e9, -(2**24) - 2),
])  # fmt: skip
def test_learned_zero_points_within_wide_bounds(bounds, zero_point, expected):
    """No float32 beyond a bound, as in a call: an element of 0 stays 0 there."""
    module = LearnableFakeQuantize(MinMaxObserver, *bounds, zero_point=zero_point, dtype=np.int32)
    assert module.calculate_qparams()[1].tolist() == [expected]
    module.enable_param_learning()
    assert module(np.zeros(1, F32)) == 0


@pytest.mark.parametrize(("dtype", "bounds", "middle"), [
    (np.uint8, (0, 255), 127), (ml_dtypes.uint4, (0, 15), 7), (np.uint8, (0, 100), 50),
    (np.int8, (-128, 127), 0),
])  # fmt: skip
def test_symmetric_zero_points_are_the_observers(dtype, bounds, middle):
    """PyTorch sets them to zero, and clips what is negative (D28)."""
    module = LearnableFakeQuantize(
        MinMaxObserver, *bounds, dtype=dtype, qscheme="per_tensor_symmetric", zero_point=3.0
    )
    x = np.array([-1, 0.5, 1], F32)
    for _ in range(2):
        y = module(x)
        assert module.zero_point.value.tolist() == [middle]
        assert (abs(y - x) <= 1.01 * module.scale.value).all()
        module.enable_param_learning()
        module.zero_point.value = np.zeros(1, F32)
        assert module.calculate_qparams()[1].tolist() == [middle]


def test_float_qparams_are_learned_per_channel():
    """PyTorch takes the first channel's for all (D28)."""
    module = LearnableFakeQuantize(PerChannelMinMaxObserver, channel_len=2,
                                   qscheme="per_channel_affine_float_qparams")  # fmt: skip
    x = np.array([[0, 1], [0, 100]], F32)
    assert module(x)[1, 1] == 100
    assert module.scale.value.shape == (2,)


def test_reduced_range():
    """PyTorch's learnable module keeps the bounds whose half its qparams are for (D28)."""
    options = {"quant_min": -128, "quant_max": 127, "dtype": np.int8, "reduce_range": True}
    for kind in (FakeQuantize, LearnableFakeQuantize):
        module = kind(MinMaxObserver, **options)
        module(np.array([-1, 1], F32))
        assert (module.quant_min, module.quant_max) == (-64, 63)
        module.enable_observer(False)
        assert abs(module(np.array([-9, 9], F32))).max() < 1.02


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize(("bounds", "factor"), [((-128, 127), 127), ((-128, 0), 128)])
def test_grad_scaling(bounds, factor, size):
    module = LearnableFakeQuantize(MinMaxObserver, *bounds, dtype=np.int8, use_grad_scaling=True,
                                   qscheme="per_tensor_affine")  # fmt: skip
    plain = copy.copy(module.enable_param_learning())
    plain.use_grad_scaling = False
    x, grad = data(16)[-size:] * 300, np.ones(size, F32)
    scaled, unscaled = (on_a_tape(m, x, grad, m.scale)[1].item() for m in (module, plain))
    # The terms are multiplied before they are added: each is rounded once more than without.
    assert math.isclose(scaled, unscaled / math.sqrt(size * factor), rel_tol=1e-5)
    assert module(x[:0]).size == 0


@by_dtype
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_lsq(granularity, dtype):
    x = data((2, 3, 8), 3, dtype)
    for scheme in ("affine", "symmetric"):
        module, *_ = learnable(granularity, scheme, init="lsq", zero_point=-1.0)
        module(data((2, 3, 8)))
        module(x)  # of the last array alone
        mean = abs(rows_of(x, granularity).astype(np.float64)).mean(axis=1)
        # Sums of at most 48 float64 in two orders, then rounded to float32.
        np.testing.assert_allclose(module.scale.value, 2 * mean / math.sqrt(7), rtol=2.0**-23)
        assert (module.zero_point.value == (-1 if scheme == "affine" else 0)).all()
    both = np.stack([x.astype(F32), data((2, 3, 8))])
    assert module.activation_post_process.max_val.max() == both.max()


@by_dtype
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_lsq_plus(granularity, dtype):
    x = data((2, 3, 8), 3, dtype)
    module, *_ = learnable(granularity, "symmetric", init="lsq+")
    module(x)
    rows = rows_of(x, granularity).astype(np.float64)
    mean, std = rows.mean(axis=1), rows.std(axis=1)
    expected = np.maximum(abs(mean - 3 * std), abs(mean + 3 * std)) / 8
    np.testing.assert_allclose(module.scale.value, expected, rtol=2.0**-23)  # as above
    assert (module.zero_point.value == 0).all()

    module, *_ = learnable(granularity, "affine", init="lsq+")
    module(x)
    axis = None if granularity == "tensor" else 0
    observer = MSEObserver(ch_axis=axis, dtype=np.int8, quant_min=-8, quant_max=7)
    observer(np.ascontiguousarray(rows_of(x, granularity)))
    scale, zero_point = observer.calculate_qparams()
    assert_same((module.scale.value, module.zero_point.value), (scale, zero_point.astype(F32)))


@pytest.mark.parametrize("init", ["lsq", "lsq+"])
def test_estimates_of_a_vector_per_channel(init):
    """Each element is a channel, and an array of no axes when it is looked at alone."""
    x, options = np.array([1, -2, 3.5], F32), {"qscheme": "per_channel_symmetric", "init": init}
    module = LearnableFakeQuantize(
        PerChannelMinMaxObserver, -8, 7, dtype=np.int8, channel_len=3, **options
    )
    module(x)
    far = abs(x).astype(np.float64)
    expected = 2 * far / math.sqrt(7) if init == "lsq" else far / 8  # of no deviation
    assert_same(module.scale.value, expected.astype(F32))


@pytest.mark.parametrize(
    ("dtype", "bits"), [*((t, 4) for t in FLOATS), (np.dtype(F32), 21)], ids=str
)
@pytest.mark.parametrize("fine", [False, True], ids=["powers of two", "other scales"])
def test_codes_of_a_learned_module(dtype, bits, fine):
    """Those of its result dequantize to it. Its input is ties, whose own codes are others."""
    ops = {
        "channel": (nq.quantize_per_channel, nq.dequantize_per_channel, {"ch_axis": 0}, (0,), ()),
        "token": (nq.quantize_per_token, nq.dequantize_per_token, {"per_token": True}, (), ()),
        "group": (nq.quantize_per_channel_group, nq.dequantize_per_channel_group,
                  {"group_size": 16}, (), (16,)),
    }  # fmt: skip
    bounds = lo, hi, code = (
        -(2 ** (bits - 1)),
        2 ** (bits - 1) - 1,
        np.int8 if bits == 4 else np.int32,
    )
    for name, (quantize, dequantize, kwargs, before, after) in ops.items():
        width = 16 if name == "group" else 64
        count = 4 * 64 // width
        module = LearnableFakeQuantize(
            PerChannelMinMaxObserver, lo, hi, channel_len=count, dtype=code,
            qscheme="per_channel_affine", **kwargs,
        ).enable_param_learning()  # fmt: skip
        scale = 2.0 ** rng(0).integers(-5, 0, count) * (1.1 if fine else 1)
        module.scale.value[:] = scale
        module.zero_point.value[:] = rng(1).integers(lo, hi + 1, count) + rng(2).uniform(
            -0.4, 0.4, count
        )
        steps = rng(3).integers(3 * lo // 2, -3 * lo // 2, (count, width)) + 0.5
        x = (steps * scale.astype(F32)[:, None]).astype(dtype).reshape(4, 64)
        y, (s, z) = module(x), module.calculate_qparams()
        codes = quantize(y, s, z, *before, *bounds, *after)
        if dtype == np.float64:
            s = s.astype(np.float64)
        options = {"out_dtype" if name == "channel" else "output_dtype": dtype}
        assert_same(dequantize(codes, s, z, *before, *bounds, *after, **options), y)
        if name != "channel" and not fine:
            assert (quantize(x, s, z, *before, *bounds, *after) != codes).any()
        if fine and dtype == F32:
            divided = quantize(x, s, z, *before, *bounds, *after, rounding="divide")
            assert (divided != codes).any()


def test_lsq_without_positive_codes():
    module = LearnableFakeQuantize(MinMaxObserver, -9, 0, dtype=np.int8, init="lsq",
                                   qscheme="per_tensor_symmetric")  # fmt: skip
    module(np.array([-1, 2], F32))
    assert module.scale.value == F32(2 * 1.5 / math.sqrt(9))


def test_the_least_error_with_float_qparams():
    """It is searched with integer ones: a zero point in float32 has no code of its own."""
    options = {"quant_min": -8, "quant_max": 7, "dtype": np.int8, "ch_axis": 0}
    module = LearnableFakeQuantize(
        PerChannelMinMaxObserver, channel_len=2, init="lsq+",
        qscheme="per_channel_affine_float_qparams", **options,
    )  # fmt: skip
    observer = MSEObserver(**options)
    x = data((2, 30))
    module(x)
    scale, zero_point = observer(x) is not None and observer.calculate_qparams()
    assert_same((module.scale.value, module.zero_point.value), (scale, zero_point.astype(F32)))


def test_a_scale_below_eps_is_raised_in_static_estimates_too():
    """What the call uses is what it says that it uses, so that codes dequantize to the result."""
    module = LearnableFakeQuantize(MinMaxObserver, 0, 255, eps=1e-12)
    x = np.linspace(0, 1e-6, 11).astype(F32)
    y, (scale, zero_point) = module(x), module.calculate_qparams()
    assert scale == module.scale.value == F32(2.0**-23)
    bounds = 0, 255, np.uint8
    codes = nq.quantize_per_tensor(y, scale, zero_point, *bounds)
    assert_same(nq.dequantize_per_tensor(codes, scale, zero_point, *bounds), y)
    module.enable_observer(False)
    assert_same(module(x), y)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, ">f4"])
def test_learned_qparams_of_another_dtype_become_float32(dtype):
    """`choose_qparams` gives float64; a module made the same way takes the state, and back."""

    def made(scale):
        module = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
        module.scale.value = scale
        module.zero_point.value = np.array([0.3], scale.dtype)
        return module.enable_param_learning()

    scale, x = np.array([0.3], dtype), data((2, 3, 8))
    module, other = made(scale), made(np.ones(1, F32))
    other.load_state_dict(module.state_dict())
    assert_same(other.scale.value, scale.astype(F32))
    assert_same(module.calculate_qparams(), other.calculate_qparams())
    assert_same(module(x), other(x))
    assert_same(module.scale.value, scale.astype(F32))
    before = made(np.ones(1, F32)).state_dict()
    module = made(scale)
    module.load_state_dict(before)
    assert_same(module.scale.value, np.ones(1, F32))


def test_learned_qparams_are_converted_before_they_go_to_the_data(monkeypatch):
    """A library of GPUs may know no bfloat16 of NumPy's."""
    monkeypatch.setattr(npq.learnable, "following", None)
    given = np.ones(1, ml_dtypes.bfloat16)
    assert_same(npq.learnable._single(given, "an array on a GPU"), np.ones(1, F32))


@pytest.mark.parametrize("name", ["scale", "zero_point"])
@pytest.mark.parametrize("value", [
    np.array([1 + 2j]), np.array(["a"]), np.array([True]), np.array([1], "m8[s]"), "a", None, [0.5],
    0.5, 1, np.ma.array([0.5]),
])  # fmt: skip
def test_what_is_no_learned_value_is_named(name, value):
    x, module = data((3, 4)), LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    module(x)
    getattr(module.enable_param_learning(), name).value = value
    words = f"^{name} must (be (an array of NumPy or on a GPU|a NumPy array)|have a dtype)"
    with pytest.raises(TypeError, match=words):
        module.calculate_qparams()
    with pytest.raises(TypeError, match=words):
        module(x)


def test_learned_qparams_that_are_integers_become_float32():
    module = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8).enable_param_learning()
    module.scale.value, module.zero_point.value = np.array([2]), np.array([1], np.int8)
    other = copy.deepcopy(module)
    for m in (module, other):
        assert_same(m(np.array([-4.4, 99], F32)), np.array([-4, 12], F32))
        assert_same((m.scale.value, m.zero_point.value), (np.full(1, 2, F32), np.ones(1, F32)))


def test_a_scale_without_axes():
    """An op takes it, and so estimates replace it; an error is that of the op."""
    x = data((2, 3, 8))

    def learnable_as_new():
        return LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)

    module, fresh = learnable_as_new(), learnable_as_new()
    module.scale.value = np.array(0.5, F32)
    module.zero_point.value = np.array([np.nan], F32)
    module.enable_param_learning()
    with pytest.raises(ValueError, match="zero_point must"):
        module(x)
    module.zero_point.value = np.array([1], F32)
    expected = module(x)
    for other in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert_same(other(x), expected)
    assert_same(module.state_dict()["scale"], np.array([0.5], F32))
    fresh.load_state_dict(module.state_dict())
    assert_same(fresh(x), expected)
    fresh, module.zero_point.value = learnable_as_new(), np.array([np.nan], F32)
    module.enable_static_estimate()
    assert_same(module(x), fresh(x))
    assert_same(module.scale.value, fresh.scale.value)
    module.scale.value, module.zero_point.value = np.array(0.5, F32), np.array(1.4, F32)
    found = module.calculate_qparams()
    assert [type(a) for a in found] == [np.ndarray] * 2
    assert_same(found, (np.array(0.5, F32), np.array(1)))


def test_estimates_of_zeros():
    for init in ("observer", "lsq", "lsq+"):
        for scheme in ("affine", "symmetric"):
            module, *_ = learnable("token", scheme, init=init)
            assert not module(np.zeros((2, 3, 8), F32)).any()
            assert (module.scale.value == F32(2.0**-23)).all()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_other_channels_than_announced(granularity):
    module, *_ = learnable(granularity)
    before = copy.deepcopy(module)
    shape = {"tensor": (2, 3, 8), "channel": (2, 4, 8), "token": (2, 2, 8), "group": (2, 3, 16)}
    x = data(shape[granularity])
    if granularity == "tensor":
        module(x)
        return
    what = {"channel": "channels", "token": "rows", "group": "groups"}[granularity]
    with pytest.raises(ValueError, match=f"channel_len must be the number of {what}"):
        module(x)
    same_state(module, before)


def test_modes():
    module = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)

    def switches():
        names = ("static_enabled", "fake_quant_enabled", "learning_enabled", "observer_enabled")
        return [int(getattr(module, name)[0]) for name in names]

    assert switches() == [1, 1, 0, 1]
    assert module.enable_param_learning() is module
    assert switches() == [0, 1, 1, 1]
    assert module.enable_static_observation() is module
    assert switches() == [1, 0, 0, 1]
    assert module.enable_static_estimate() is module
    assert switches() == [1, 1, 0, 1]
    module.toggle_observer_update(False).toggle_fake_quant(False).toggle_qparam_learning()
    assert switches() == [0, 0, 1, 1]
    module = LearnableFakeQuantize(MinMaxObserver, -4, 3, dtype=np.int8)
    assert module.bitwidth == 3
    module.activation_post_process.quant_min = -12
    assert module.bitwidth == 4


def test_a_tape_keeps_the_scale_that_was_used():
    """Two calls with two estimates: each has the gradient of its own."""
    module = LearnableFakeQuantize(MovingAverageMinMaxObserver, -8, 7, dtype=np.int8,
                                   averaging_constant=1)  # fmt: skip
    one, two = np.array([-8, 8, 7], F32), np.array([-80, 80, 75], F32)
    module.toggle_qparam_learning()
    with ag.Tape() as tape:
        tape.watch(one)
        first = tape.apply(module, one)
        y = tape.apply(ag.add, first, tape.apply(module, two))
    got = tape.gradient(y, one, np.ones(3, F32))
    module(one)
    expected = on_a_tape(module, one, np.ones(3, F32), one)[1]
    assert_same(got, expected)


def test_training_with_learned_scales():
    """Ten steps on scales that are far too large lower the error."""
    module = LearnableFakeQuantize(MinMaxObserver, -8, 7, scale=3.0, dtype=np.int8)
    module.enable_param_learning()
    x, losses = rng(0).normal(size=500).astype(F32), []
    optimizer = SGD([module.scale, module.zero_point], lr=1.0)
    for _ in range(10):
        with ag.Tape() as tape:
            loss = tape.apply(ag.mse_loss, tape.apply(module, x), x)
        optimizer.step(tape.gradient(loss, [module.scale, module.zero_point]))
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


# --- AdaRound ---------------------------------------------------------------------------------


def adaround(granularity, scheme="symmetric"):
    """Return a module for arrays of shape (2, 3, 8), and where its channels lie."""
    if granularity == "tensor":
        return AdaroundFakeQuantizer(None, f"per_tensor_{scheme}", -8, 7), {}
    if granularity == "channel":
        module = AdaroundFakeQuantizer(None, f"per_channel_{scheme}", -8, 7, 1)
        return module, {"axis": 1}
    module = AdaroundFakeQuantizer(None, f"per_channel_{scheme}", -8, 7, group_size=4)
    return module, {"group_size": 4}


@by_dtype
@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
def test_adaround(granularity, scheme, dtype):
    module, where = adaround(granularity, scheme)
    x, grad = data((2, 3, 8), 2, dtype), data((2, 3, 8), 3, dtype)
    rows = rows_of(x, granularity).astype(F32)
    scale, zero_point = oracle_observers.qparams(
        rows.min(axis=1), rows.max(axis=1), -8, 7, module.qscheme, 0
    )
    qparams = scale, zero_point.astype(np.int32), -8, 7
    v = nq.adaround_init(x, scale if where else scale[0], **where)
    for _ in range(3):  # shapes stay, V stays, its gradient comes
        y, dv = on_a_tape(module, x, grad, module.V)
        assert_same((module.scale, module.zero_point), qparams[:2])
        for own in module.calculate_qparams():
            own += 1  # of a copy
        assert_same(module.calculate_qparams(), qparams[:2])
        assert_same(module.V.value, v)
        args = (s.item() if not where and i < 2 else s for i, s in enumerate(qparams))
        args = x, v, *args
        assert_same(y, nq.adaround_soft(*args, **where))
        assert_same(dv, nq.adaround_soft_backward(grad, *args, **where))
        assert (dv != 0).any()
        assert_same(module.hard(x), oracle.adaround_hard(*args, **where))
        expected = oracle.adaround_codes(*args, np.int8, **where)
        assert_same(module.codes(x), expected)
        assert_same(module.codes(x, "int4"), expected.astype(ml_dtypes.int4))
        v = rng(5).normal(size=v.shape).astype(v.dtype)
        module.V.value = v.copy()
    module.use_soft_rounding = False
    assert_same(module(x), module.hard(x))
    assert set(np.unique(module.codes(x))) <= set(range(-8, 8))
    with ag.Tape() as tape:
        tape.watch(x)
        assert_same(tape.apply(module, x), module.hard(x))


def test_adaround_with_bounds_that_no_op_takes():
    """They are refused before anything is observed, of float64 only beyond 2**52."""
    w, ends = data((4, 6)), {"quant_min": -(2**23) - 1, "quant_max": 2**23, "dtype": np.int32}
    module = AdaroundFakeQuantizer(**ends)
    before = module.state_dict()
    with pytest.raises(ValueError, match="quant_min and quant_max must lie within -8388608"):
        module(w)
    for key, value in module.state_dict().items():
        assert_same(value, before[key], key)
    assert module(w.astype(np.float64)).dtype == np.float64
    module = AdaroundFakeQuantizer(**ends)
    module.disable_fake_quant()
    with pytest.raises(ValueError, match="quant_min and quant_max must lie within -8388608"):
        module(w)
    module.disable_observer()
    assert module(w) is w


def test_adaround_by_default():
    module = AdaroundFakeQuantizer()
    assert (module.dtype, module.quant_min, module.quant_max) == (np.int8, -128, 127)
    w = data((4, 6))
    # Within the range soft weights are the weights themselves, but for the 2e-6 of a code that
    # the logarithm and the sigmoid may be off: numerics.md 10.1.
    inside = abs(w) < 127 * F32(w.max() / 127.5)
    module(w)
    inside = abs(w / module.scale) < 127
    assert (abs(module(w) - w)[inside] <= module.scale * 128 * 2.0**-22).all()
    assert_same(module.hard(w), (np.floor(w / module.scale + F32(0.5)).clip(-128, 127)
                                 * module.scale).astype(F32))  # fmt: skip


def test_learned_rounding_stays_until_it_is_reset():
    module, w = AdaroundFakeQuantizer(quant_min=-8, quant_max=7), data((4, 6))
    module(w)
    first = module.V.value.copy()
    held = module.V
    module.V.value = -first
    module(w)
    assert_same(module.V.value, -first)
    module.reset_rounding()
    with pytest.raises(ValueError, match="V must be made by a first call with the weights"):
        module.hard(w)
    module.disable_observer()
    module(w)
    assert module.V is held
    assert_same(module.V.value, first)


def test_weights_of_another_shape():
    module = AdaroundFakeQuantizer()
    module(data((4, 6)))
    before = copy.deepcopy(module)
    for call in (module, module.hard, module.codes):
        with pytest.raises(ValueError, match=r"the shape of V, \(4, 6\), got"):
            call(data((6, 4)))
        with pytest.raises(TypeError, match="x must have the precision of V, float32, got float64"):
            call(data((4, 6), 0, np.float64))
    same_state(module, before)


def test_rounding_alone_is_fitted():
    """Only V learns: the output of a layer comes nearer, and the codes stay neighbours."""
    w, x = rng(0).normal(size=(3, 8)).astype(F32), rng(1).normal(size=(50, 8)).astype(F32)
    module = AdaroundFakeQuantizer(quant_min=-4, quant_max=3)
    module(w)
    nearest = module.codes(w)
    wanted, optimizer = ag.linear(x, w), SGD([module.V], lr=5.0)

    def loss(weight):
        return float(ag.mse_loss(ag.linear(x, weight), wanted))

    # Soft weights can only follow the few that clamping has moved: start from random roundings.
    module.V.value = rng(2).normal(size=w.shape).astype(F32)
    before = loss(module(w))
    for _ in range(50):
        with ag.Tape() as tape:
            y = tape.apply(ag.linear, x, tape.apply(module, w))
            error = tape.apply(ag.mse_loss, y, wanted)
        optimizer.step(tape.gradient(error, [module.V]))
    assert loss(module(w)) < before / 4
    assert (abs(module.codes(w).astype(int) - nearest) <= 1).all()


# --- state and looks --------------------------------------------------------------------------

KEYS = {
    FakeQuantize: ["fake_quant_enabled", "observer_enabled", "scale", "zero_point"],
    FusedMovingAvgObsFakeQuantize: [
        "fake_quant_enabled", "observer_enabled", "scale", "zero_point",
    ],
    LearnableFakeQuantize: [
        "scale", "zero_point", "fake_quant_enabled", "observer_enabled", "static_enabled",
        "learning_enabled", "eps",
    ],
    AdaroundFakeQuantizer: [
        "V", "fake_quant_enabled", "observer_enabled", "scale", "zero_point",
    ],
}  # fmt: skip


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_state(axis):
    for module, fresh in zip(one_of_each(axis), one_of_each(axis), strict=True):
        x = data((4, 6))
        module(x)
        module.disable_observer()
        state = module.state_dict()
        own = [key for key in state if not key.startswith("activation_post_process.")]
        assert own == KEYS[type(module)]
        fresh.load_state_dict(state)
        for other in (fresh, pickle.loads(pickle.dumps(module)), copy.copy(module)):
            same_state(other, module)
            assert_same(other(x * 2), module(x * 2))
            other.enable_observer()
            other(x * 3)
        for key, array in module.state_dict().items():
            assert_same(array, state[key], key)
            array += 1
        assert_same(module.state_dict()["scale"], state["scale"])


def test_a_rounding_of_float64_is_loaded():
    module, fresh = AdaroundFakeQuantizer(), AdaroundFakeQuantizer()
    module.V.value = data((4, 6), 0, np.float64)
    fresh.load_state_dict(module.state_dict())
    assert_same(fresh.V.value, module.V.value)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"ch_axis": 1}, (6, 4), "6 by axis=1, got the shape (6, 4)"),
        ({"ch_axis": 1}, (6,), "6 by axis=1, got the shape (6,)"),
        ({"group_size": 3}, (4, 3), "8 by group_size=3, got the shape (4, 3)"),
        ({"group_size": 3}, (3, 8), "8 by group_size=3, got the shape (3, 8)"),
    ],
)
def test_a_rounding_of_other_channels_is_refused(options, shape, message):
    module = AdaroundFakeQuantizer(None, "per_channel_symmetric", -8, 7, **options)
    module(data((4, 6)))
    state = module.state_dict()
    module.load_state_dict(state | {"V": state["V"] + 1})
    with pytest.raises(ValueError, match=re.escape(f"of scale, {message}")):
        module.load_state_dict(state | {"V": np.zeros(shape, F32)})
    assert_same(module.V.value, state["V"] + 1)


STATE_FAULTS = [
    (lambda s: {k: v for k, v in s.items() if k != "scale"}, ValueError, "must have the key"),
    (lambda s: s | {"other": s["scale"]}, ValueError, "got 'other' too"),
    (lambda s: s | {"scale": s["scale"].astype(float)}, ValueError, "must have the dtype float32"),
    (lambda s: s | {"scale": s["scale"][None]}, ValueError, r"\['scale'\] must have the shape"),
    (lambda s: s | {"zero_point": s["zero_point"][:0]}, ValueError, "must have the shape"),
    (lambda s: s | {"fake_quant_enabled": s["fake_quant_enabled"] + 1}, ValueError, "must be 0 or"),
    (lambda s: s | {"observer_enabled": s["observer_enabled"][:0]}, ValueError, "have the shape"),
    (
        lambda s: s | {"activation_post_process.eps": -s["activation_post_process.eps"]},
        ValueError,
        "must be positive",
    ),
    (
        lambda s: s | {"activation_post_process.eps": np.array([np.inf], F32)},
        ValueError,
        r"must be positive and finite, got array\(\[inf\]",
    ),
]
FAULTS_OF = [
    (FakeQuantize, lambda s: s | {"scale": -s["scale"]}, ValueError, "must be positive"),
    (
        FakeQuantize,
        lambda s: s | {"zero_point": s["zero_point"] + 99},
        ValueError,
        r"\['zero_point'\] must lie within -8..7",
    ),
    (
        FakeQuantize,
        lambda s: s | {"zero_point": np.full_like(s["zero_point"], -9)},
        ValueError,
        r"\['zero_point'\] must lie within -8..7",
    ),
    (LearnableFakeQuantize, lambda s: s | {"eps": s["eps"] * 0}, ValueError, "must be positive"),
    (LearnableFakeQuantize, lambda s: s | {"eps": s["eps"] * np.inf}, ValueError, "and finite"),
    (LearnableFakeQuantize, lambda s: s | {"eps": s["eps"][:0]}, ValueError, "eps.* the shape"),
    (LearnableFakeQuantize, lambda s: s | {"eps": s["eps"][None]}, ValueError, "eps.* the shape"),
    (
        AdaroundFakeQuantizer,
        lambda s: s | {"V": s["V"].astype(np.float16)},
        ValueError,
        r"\['V'\] must have a dtype among float32, float64, got float16",
    ),
]


@pytest.mark.parametrize(
    ("kind", "spoil", "error", "message"), [*((Module, *f) for f in STATE_FAULTS), *FAULTS_OF]
)
def test_wrong_state(kind, spoil, error, message):
    """It is refused whole: nothing of it is taken."""
    for axis in (None, 1):
        for module in one_of_each(axis):
            if not isinstance(module, kind):
                continue
            module(data((4, 6)))
            state = copy.deepcopy(module)(data((4, 6), 1)) is not None and module.state_dict()
            before = copy.deepcopy(module)
            module.enable_fake_quant(False)
            module.load_state_dict(state)
            with pytest.raises(error, match=message):
                module.load_state_dict(spoil(state | {"scale": state["scale"] * 2}))
            same_state(module, before)


def test_repr():
    module = FakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    assert repr(module) == (
        "FakeQuantize(\n  fake_quant_enabled=[1], observer_enabled=[1], quant_min=-8, quant_max=7, "
        "dtype=int8, qscheme=per_tensor_affine, ch_axis=-1, scale=[1.], zero_point=[0]\n"
        "  (activation_post_process): MinMaxObserver(min_val=inf, max_val=-inf)\n)"
    )
    assert FusedMovingAvgObsFakeQuantize().extra_repr() == (
        "fake_quant_enabled=[1], observer_enabled=[1], scale=[1.], zero_point=[0], dtype=uint8, "
        "quant_min=0, quant_max=255, qscheme=per_tensor_affine, reduce_range=False"
    )
    module, *_ = learnable("group")
    assert "learning_enabled=[0]" in repr(module)
    assert "group_size=4" in repr(module)
    assert "per_token=True" in repr(learnable("token")[0])
    assert "(V >= 0).sum()=0" in repr(AdaroundFakeQuantizer())


def test_with_args():
    weights = FakeQuantize.with_args(
        observer=PerChannelMinMaxObserver.with_args(ch_axis=1), quant_min=-8, quant_max=7,
        dtype=np.int8,
    )  # fmt: skip
    one, other = weights(), weights(quant_max=6)
    assert (one.ch_axis, one.quant_max, other.quant_max) == (1, 7, 6)
    one(data((4, 6)))
    assert one.scale.shape == (6,)
    assert other.scale.shape == (1,)
    more = weights.with_args(quant_min=-4).with_args(quant_max=3)()
    assert (more.ch_axis, more.quant_min, more.quant_max) == (1, -4, 3)


def test_a_parameter_that_passes():
    """A module that is switched off gives back what it is given, and it is traced on."""
    w = ag.Parameter(data((3, 4)))
    module = FakeQuantize(quant_min=-8, quant_max=7, dtype=np.int8)
    assert type(module(w)) is np.ndarray
    module.disable_fake_quant()
    assert module(w) is w
    with ag.Tape() as tape:
        y = tape.apply(ag.mul, tape.apply(module, w), 2.0)
    assert_same(tape.gradient(y, w, np.ones_like(y)), np.full_like(y, 2))


def test_state_by_name():
    module, other = (FakeQuantize(quant_min=-8, quant_max=7, dtype=np.int8) for _ in range(2))
    module(data((3, 4)))
    other.load_state_dict(state_dict=module.state_dict())
    assert_same(other.scale, module.scale)


def test_histograms_and_searches_observe():
    x = data(5000)
    for observer in (HistogramObserver, MSEObserver):
        module, alone = FakeQuantize(observer, -8, 7, dtype=np.int8), observer(
            dtype=np.int8, quant_min=-8, quant_max=7
        )  # fmt: skip
        module(x)
        alone(x)
        assert_same(module.scale, alone.calculate_qparams()[0])
        assert module.scale[0] < (x.max() - x.min()) / 15


def test_searches_observe_channels_and_groups():
    x = data((3, 80))
    observer = MSEObserver(ch_axis=0, dtype=np.int8, qscheme="per_channel_symmetric",
                           quant_min=-8, quant_max=7, bins=64)  # fmt: skip
    observer(x.reshape(-1, 20))
    scale, _ = observer.calculate_qparams()
    options = {"dtype": np.int8, "qscheme": "per_channel_symmetric", "group_size": 20, "bins": 64}
    module = AdaroundFakeQuantizer(MSEObserver, quant_min=-8, quant_max=7, **options)
    module(x)
    assert_same(module.scale, scale)
    module = LearnableFakeQuantize(MSEObserver, -8, 7, channel_len=12, ch_axis=0, **options)
    module(x)
    assert_same(module.scale.value, scale)


# --- errors -----------------------------------------------------------------------------------

ERRORS = [
    (lambda: FakeQuantize(3), TypeError, "observer must be a class of observers, got 3"),
    (lambda: FakeQuantize(dict), TypeError, "observer must be a class of observers, got the class"),
    (lambda: FakeQuantize(lambda **kwargs: kwargs), TypeError, "observer must make an Observer"),
    (lambda: FakeQuantize(quant_min=0), ValueError, "both or neither, got 0 and None"),
    (lambda: FakeQuantize(quant_max=9), ValueError, "both or neither, got None and 9"),
    (lambda: FakeQuantize(quant_min=9, quant_max=5), ValueError, "quant_min must not exceed"),
    (lambda: FakeQuantize(quant_min=-1, quant_max=5), ValueError, "must lie within 0..255"),
    (lambda: FakeQuantize(quant_min=0.5, quant_max=5), TypeError, "quant_min must be an integer"),
    (lambda: FakeQuantize(is_dynamic=True), ValueError, "averaging_constant must be 1"),
    (lambda: FakeQuantize(is_dynamic="yes"), TypeError, "is_dynamic must be a bool or a number"),
    (lambda: FakeQuantize(MinMaxObserver, dtype="float8_e5m2"), TypeError, "dtype of integers"),
    (lambda: FakeQuantize()([1.0]), TypeError, "x must be a NumPy array"),
    (lambda: FakeQuantize()(np.ones(3, int)), TypeError, "x must have a dtype among"),
    (lambda: FakeQuantize().enable_observer("on"), TypeError, "enabled must be a bool or a number"),
    (
        lambda: FakeQuantize().enable_observer(np.ma.masked_array([True], [True])),
        TypeError,
        "enabled must be a NumPy array, an array on a GPU or an ArraySpec, got MaskedArray",
    ),
    (lambda: FusedMovingAvgObsFakeQuantize(MinMaxObserver), TypeError, "must make a moving avera"),
    (
        lambda: FusedMovingAvgObsFakeQuantize(
            MovingAveragePerChannelMinMaxObserver, qscheme="per_channel_affine_float_qparams"
        ),
        ValueError,
        "qscheme must have integer zero points",
    ),
    (lambda: FusedMovingAvgObsFakeQuantize()(np.ones(3, int)), TypeError, "x must have a dtype"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, 0, 256), ValueError, "must lie within 0..255"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, 0, 0), ValueError, "quant_min < quant_max"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, scale=0), ValueError, "scale must be positive"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, zero_point=np.inf), ValueError, "must be finit"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, channel_len=0), ValueError, "-1 or positive"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, channel_len=-2), ValueError, "channel_len must"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, channel_len=2.5), TypeError, "channel_len must"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, channel_len=2**70), ValueError, "channel_len m"),
    (
        lambda: LearnableFakeQuantize(MinMaxObserver, zero_point=1e300),
        ValueError,
        "zero_point must",
    ),
    (lambda: LearnableFakeQuantize(MinMaxObserver, channel_len=2), ValueError, "channel_len must"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, init="mse"), ValueError, "init must be one of"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, per_token=True), ValueError, "must have chan"),
    (lambda: LearnableFakeQuantize(MinMaxObserver, group_size=4), ValueError, "must have channels"),
    (
        lambda: LearnableFakeQuantize(PerChannelMinMaxObserver, group_size=4, ch_axis=1),
        ValueError,
        "ch_axis 0, for tokens and groups, got per_channel_affine and 1",
    ),
    (
        lambda: LearnableFakeQuantize(PerChannelMinMaxObserver, group_size=1),
        ValueError,
        "group_size must be at least 2",
    ),
    (
        lambda: LearnableFakeQuantize(PerChannelMinMaxObserver, group_size=4, per_token=True),
        ValueError,
        "group_size must be None if per_token",
    ),
    (
        lambda: learnable("group")[0](data((2, 5))),
        ValueError,
        "divide or exceed the last axis of x",
    ),
    (lambda: learnable("group")[0](np.ones(())), ValueError, "x must have an axis to be grouped"),
    (lambda: learnable("channel")[0](np.ones(())), ValueError, "ch_axis must be an axis of x,"),
    (
        lambda: FusedMovingAvgObsFakeQuantize(MovingAveragePerChannelMinMaxObserver)(np.ones(())),
        ValueError,
        "ch_axis must be an axis of x, of",
    ),
    (lambda: learnable("tensor")[0](np.ones(3, int)), TypeError, "x must have a dtype among"),
    (lambda: AdaroundFakeQuantizer(0), TypeError, "observer must be a class of observers, got 0"),
    (lambda: AdaroundFakeQuantizer(""), TypeError, "observer must be a class of observers, got ''"),
    (lambda: AdaroundFakeQuantizer([]), TypeError, r"must be a class of observers, got \[\]"),
    (lambda: AdaroundFakeQuantizer(np.ones(2)), TypeError, "must be a class of observers, got an"),
    (lambda: AdaroundFakeQuantizer(qscheme="symmetric"), ValueError, "qscheme must be one of"),
    (lambda: AdaroundFakeQuantizer(qscheme=None), TypeError, "qscheme must be a string"),
    (lambda: AdaroundFakeQuantizer(dtype=np.uint8), ValueError, "must lie within 0..255"),
    (lambda: AdaroundFakeQuantizer(ch_axis=0.5), TypeError, "ch_axis must be an integer"),
    (lambda: AdaroundFakeQuantizer(group_size=4), ValueError, "unless the scheme has channels"),
    (
        lambda: AdaroundFakeQuantizer(None, "per_channel_symmetric", group_size=1),
        ValueError,
        "group_size must be at least 2",
    ),
    (lambda: AdaroundFakeQuantizer()(np.ones(3, int)), TypeError, "x must have a dtype among"),
    (
        lambda: unobserving(qscheme="per_channel_symmetric", ch_axis=3)(data((2, 2))),
        ValueError,
        r"ch_axis must be an axis of x, of shape \(2, 2\), got 3",
    ),
    (
        lambda: unobserving(qscheme="per_channel_symmetric")(data((2, 2))),
        ValueError,
        "x must have 1 channels along ch_axis 0, as scale has, got 2",
    ),
    (
        lambda: unobserving(qscheme="per_channel_symmetric", group_size=4)(data((2, 6))),
        ValueError,
        r"group_size must .* the last axis of x, of shape \(2, 6\), got 4",
    ),
    (
        lambda: unobserving(qscheme="per_channel_symmetric", group_size=3)(data((2, 6))),
        ValueError,
        "x must have 1 groups of 3, as scale has, got 4",
    ),
    (lambda: AdaroundFakeQuantizer().codes(data(3)), ValueError, "V must be made by a first call"),
    (lambda: adaround("group")[0](data((2, 5))), ValueError, "divide or exceed the last axis"),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_wrong_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_other_channels_than_before():
    for module in one_of_each(0)[:2]:
        module(data((4, 6)))
        before = copy.deepcopy(module)
        with pytest.raises(ValueError, match="x must have 4 channels"):
            module(data((5, 6)))
        same_state(module, before)


def test_other_channels_than_those_of_the_scale():
    """While nothing is observed: in terms of the module, not of its op."""
    module = FakeQuantize(PerChannelMinMaxObserver, qscheme="per_channel_affine")
    module(data((3, 4)))
    module.disable_observer()
    with pytest.raises(ValueError, match="x must have 3 channels along ch_axis 0, as scale has"):
        module(data((2, 4)))
    with pytest.raises(ValueError, match=r"ch_axis must be an axis of x, of shape \(\), got 0"):
        module(np.array(1.0, np.float32))
    module.scale[:] = np.nan  # that of its channels
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        module(data((3, 4)))
    for options, count, what in (
        ({}, 4, "channels"), ({"per_token": True}, 4, "rows"), ({"group_size": 2}, 8, "groups"),
    ):  # fmt: skip
        learned = LearnableFakeQuantize(
            PerChannelMinMaxObserver, qscheme="per_channel_affine", channel_len=3, **options
        )
        learned.enable_param_learning()
        words = f"channel_len must be the number of {what}, {count}, got 3"
        with pytest.raises(ValueError, match=words):
            learned(data((4, 4)))
        with pytest.raises(ValueError, match=r"must have the shape|channel_len must be"):
            learned(nq.ArraySpec((4, 4), np.float32))


@pytest.mark.parametrize(("options", "count"), [({}, 1), ({"channel_len": 4}, 4)])
def test_a_scale_of_another_shape_is_named(options, count):
    """The module has as many as it was told of: what was assigned is wrong."""
    kind = PerChannelMinMaxObserver if options else MinMaxObserver
    module = LearnableFakeQuantize(kind, **options).enable_param_learning()
    for shape in ((2,), (count, 1), (count, 2)):
        module.scale.value = np.ones(shape, F32)
        with pytest.raises(ValueError, match=rf"scale must .*\({count},\).* got \({shape[0]},"):
            module(data((4, 6)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_rounding_is_made_of_what_is_not_finite(value):
    module = AdaroundFakeQuantizer()
    module.disable_observer()
    with pytest.raises(ValueError, match="x must be finite"):
        module(np.array([value, 0.3], np.float32))
    assert module.V.value.size == 0
    assert module(np.array([0.2, 0.3], np.float32)).shape == (2,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("observer", [HistogramObserver, MSEObserver, PercentileObserver])
@pytest.mark.filterwarnings("ignore")
def test_what_no_rounding_is_made_of_leaves_no_trace(observer, value):
    """Observers of counts leave infinities out, and choose a scale."""
    module = AdaroundFakeQuantizer(observer, bins=64)
    before = module.state_dict()
    with pytest.raises(ValueError, match=r"x must (be finite|not have a NaN)"):
        module(np.array([value, 0.3, -0.2], F32))
    after = module.state_dict()
    assert before.keys() == after.keys()
    for name in before:
        assert_same(after[name], before[name], name)
    assert module(np.array([0.2, 0.3], F32)).shape == (2,)


def test_a_child_is_an_observer():
    module = FakeQuantize()
    for other in (FakeQuantize(), 3):
        with pytest.raises(TypeError, match="activation_post_process must be an Observer, got"):
            module.activation_post_process = other
    state = {**vars(module), "activation_post_process": FakeQuantize()}
    with pytest.raises(ValueError, match="activation_post_process must be an Observer, got"):
        object.__new__(FakeQuantize).__setstate__(state)
    module.activation_post_process = MovingAverageMinMaxObserver()
    assert module(np.ones(3, np.float32)).shape == (3,)


def test_public_names():
    for kind in (*MODULES, npq.FakeQuantizeBase):
        assert kind.__name__ in npq.__all__
    with pytest.raises(NotImplementedError, match="FakeQuantizeBase has no qparams"):
        npq.FakeQuantizeBase(MinMaxObserver, {}).calculate_qparams()


def test_a_spec_of_other_channels_is_refused_as_an_array_is():
    m = LearnableFakeQuantize(PerChannelMinMaxObserver, -8, 7, dtype=np.int8, channel_len=3)
    m.enable_param_learning()
    for x in (np.ones((4, 3), np.float32), nq.ArraySpec((4, 3), np.float32)):
        with pytest.raises(ValueError, match="channel_len must be the number of channels, 4"):
            m(x)
