"""npquant's fake-quantize modules against PyTorch 2.13's: outputs, state, gradients, switches."""

import itertools

import numpy as np
import pytest
import torch
import torch.ao.quantization as pytorch
from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize

import npquant.autograd as ag
import npquant.modules as npq
from cases import assert_same

torch.set_num_threads(1)

DTYPES = {np.uint8: torch.quint8, np.int8: torch.qint8, np.int32: torch.qint32}
RANGES = ((np.uint8, 0, 255), (np.int8, -128, 127), (np.int8, -8, 7), (np.int8, -127, 127),
          (np.uint8, 0, 15), (np.int32, -32768, 32767))  # fmt: skip
PER_TENSOR = ("MovingAverageMinMaxObserver", "MinMaxObserver", "HistogramObserver")
PER_CHANNEL = ("MovingAveragePerChannelMinMaxObserver", "PerChannelMinMaxObserver")
rng = np.random.default_rng
tensor = torch.from_numpy


def schemes(observer):
    """The schemes of an observer."""
    if "Channel" not in observer:
        return "per_tensor_affine", "per_tensor_symmetric"
    return "per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams"


def pair(name, observer, dtype, qscheme, *args, **options):
    """Return our module and PyTorch's."""
    ours = getattr(npq, name)(
        getattr(npq, observer), *args, dtype=dtype, qscheme=qscheme, **options
    )
    kind = _LearnableFakeQuantize if name == "LearnableFakeQuantize" else getattr(pytorch, name)
    theirs = kind(
        getattr(pytorch, observer), *args, dtype=DTYPES[dtype], qscheme=getattr(torch, qscheme),
        **options,
    )  # fmt: skip
    return ours, theirs


def check_state(ours, theirs, note=""):
    state, expected = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(expected), note
    for key in state:
        # A tensor that NumPy has seen can be resized no more.
        assert_same(state[key], expected[key].clone().numpy(), f"{note} {key}")


def differentiated(ours, theirs, x, grad, *names):
    """Run both on a tape; return outputs and the gradients of x and of parameters."""
    with ag.Tape() as tape:
        tape.watch(x)
        y = tape.apply(ours, x)
    parameters = [getattr(ours, name) for name in names]
    got = (y, *tape.gradient(y, [x, *parameters], grad)) if y is not x else (x, grad)
    t = tensor(x.copy()).requires_grad_()
    for name in names:
        getattr(theirs, name).grad = None
    out = theirs(t)
    if out.requires_grad:
        out.backward(tensor(grad))
    expected = [out.detach(), t.grad, *(getattr(theirs, name).grad for name in names)]
    return got, tuple(None if v is None else v.numpy() for v in expected)


def data(shape, seed):
    """Data that changes its spread and its side from one array to the next."""
    x = rng(seed).normal(0, 1 + seed % 3, shape) + (seed % 4 == 3) * 3
    return x.astype(np.float32)


# --- FakeQuantize -----------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lo", "hi"), RANGES)
@pytest.mark.parametrize("observer", [*PER_TENSOR, *PER_CHANNEL])
def test_fake_quantize(observer, dtype, lo, hi):
    """Six arrays; the switches are turned on the way, and both go on from a loaded state."""
    for qscheme in schemes(observer):
        axes = [{}] if "tensor" in qscheme else [{"ch_axis": a} for a in (0, 1, 2)]
        for axis in axes:
            ours, theirs = pair("FakeQuantize", observer, dtype, qscheme, lo, hi, **axis)
            check_state(ours, theirs)
            for i in range(6):
                observing, enabled = i not in (2, 4), i not in (1, 4)
                for module in (ours, theirs):
                    module.enable_observer(observing)
                    module.enable_fake_quant(enabled)
                x, grad = data((3, 4, 5), i), data((3, 4, 5), i + 10)
                note = f"{observer} {qscheme} {axis} {i}"
                got, expected = differentiated(ours, theirs, x, grad)
                if enabled:
                    assert_same(got, expected, note)
                else:
                    assert got[0] is x
                    assert_same(x, expected[0], note)
                check_state(ours, theirs, note)
            assert_same(
                ours.calculate_qparams(), tuple(v.numpy() for v in theirs.calculate_qparams())
            )
            fresh = pair("FakeQuantize", observer, dtype, qscheme, lo, hi, **axis)[0]
            fresh.load_state_dict({k: v.clone().numpy() for k, v in theirs.state_dict().items()})
            fresh.enable_fake_quant()
            theirs.enable_fake_quant()
            x = data((3, 4, 5), 7)
            assert_same(fresh(x), theirs(tensor(x)).numpy())


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_fake_quantize_of_other_floats(dtype):
    for observer, qscheme in ((PER_TENSOR[0], "per_tensor_affine"),
                              (PER_CHANNEL[0], "per_channel_affine")):  # fmt: skip
        ours, theirs = pair("FakeQuantize", observer, np.int8, qscheme)
        for i in range(3):
            x = data((4, 9), i).astype(dtype)
            assert_same(ours(x), theirs(tensor(x)).numpy())
            check_state(ours, theirs)


def test_default_arguments():
    for name in ("FakeQuantize", "FusedMovingAvgObsFakeQuantize"):
        ours, theirs = getattr(npq, name)(), getattr(pytorch, name)()
        assert (ours.quant_min, ours.quant_max) == (theirs.quant_min, theirs.quant_max)
        assert ours.ch_axis == theirs.ch_axis
        assert ours.is_per_channel == theirs.is_per_channel
        x = data((3, 4), 0)
        assert_same(ours(x), theirs(tensor(x)).numpy())
        check_state(ours, theirs)


def test_is_dynamic():
    options = {"averaging_constant": 1, "is_dynamic": True}
    ours, theirs = pair("FakeQuantize", PER_TENSOR[0], np.uint8, "per_tensor_affine", **options)
    assert ours.is_dynamic
    assert theirs.is_dynamic
    for i in range(3):
        x = data(9, i)
        assert_same(ours(x), theirs(tensor(x)).numpy())


@pytest.mark.parametrize("name", ["FakeQuantize", "FusedMovingAvgObsFakeQuantize"])
@pytest.mark.parametrize("observer", [PER_TENSOR[0], PER_CHANNEL[0]])
def test_bounds_are_those_that_the_observer_has_by_now(name, observer):
    """Fewer bits, more, and others while nothing is observed."""
    for qscheme in schemes(observer)[:2]:
        ours, theirs = pair(name, observer, np.int8, qscheme, -128, 127, averaging_constant=1)
        for i, (lo, hi) in enumerate([(-128, 127), (-8, 7), (-128, 127), (-127, 127)]):
            for module in (ours, theirs):
                module.activation_post_process.quant_min = lo
                module.activation_post_process.quant_max = hi
                module.enable_observer(i < 3)
            for x in (data((3, 4), i), data((3, 4), i) * 3):
                assert_same(ours(x), theirs(tensor(x)).numpy(), f"{qscheme} {i}")
                check_state(ours, theirs, f"{qscheme} {i}")
            assert (ours.quant_min, ours.quant_max) == (lo, hi)


# --- fused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lo", "hi"), RANGES)
@pytest.mark.parametrize("observer", [PER_TENSOR[0], PER_CHANNEL[0]])
def test_fused(observer, dtype, lo, hi):
    """All switches in turn, from the first array on."""
    for qscheme in schemes(observer)[:2]:
        for first in ((1, 1), (1, 0), (0, 1)):
            ours, theirs = pair("FusedMovingAvgObsFakeQuantize", observer, dtype, qscheme, lo, hi,
                                averaging_constant=0.3)  # fmt: skip
            switches = [first, (1, 1), (1, 0), (0, 1), (0, 0), (1, 1)]
            for i, (observing, enabled) in enumerate(switches):
                for module in (ours, theirs):
                    module.enable_observer(bool(observing))
                    module.enable_fake_quant(bool(enabled))
                x, grad = data((3, 4, 5), i), data((3, 4, 5), i + 10)
                note = f"{observer} {qscheme} {i} {observing} {enabled}"
                got, expected = differentiated(ours, theirs, x, grad)
                assert_same(got, expected, note)
                if "channel" in qscheme and i == 0 and first != (1, 1):
                    continue  # D27
                check_state(ours, theirs, note)


def test_d27_state_that_nobody_wrote():
    """PyTorch makes room for the channels, and leaves what lay there before in it."""
    ours, theirs = pair("FusedMovingAvgObsFakeQuantize", PER_CHANNEL[0], np.int8,
                        "per_channel_symmetric", -128, 127)  # fmt: skip
    for module in (ours, theirs):
        module.disable_fake_quant()
    x = data((64, 4), 0)
    ours(x)
    theirs(tensor(x))
    assert theirs.scale.shape == (64,)
    assert_same(ours.scale, np.ones(1, np.float32))


def test_d27_qparams_that_no_forward_used():
    """PyTorch's calculate_qparams are the observer's, and its forward takes others."""
    for qscheme, x in (("per_tensor_symmetric", [-1.3, 0.2, 2.7]), ("per_tensor_affine", [0, 0])):
        ours, theirs = pair(
            "FusedMovingAvgObsFakeQuantize", PER_TENSOR[0], np.int8, qscheme, -128, 127
        )
        x = np.array(x, np.float32)
        ours(x)
        theirs(tensor(x))
        assert theirs.calculate_qparams()[0] != theirs.scale
        assert_same(ours.calculate_qparams(), (theirs.scale.numpy(), theirs.zero_point.numpy()))


def test_d27_float_qparams_are_those_of_integers():
    """PyTorch's fused op chooses integers for them, which npquant does not call floats."""
    observer, floats = PER_CHANNEL[0], "per_channel_affine_float_qparams"
    fused, x = "FusedMovingAvgObsFakeQuantize", data((3, 8), 1)
    theirs = getattr(pytorch, fused)(
        getattr(pytorch, observer), 0, 255, dtype=torch.quint8, qscheme=getattr(torch, floats)
    )
    ours = getattr(npq, fused)(
        getattr(npq, observer), 0, 255, dtype=np.uint8, qscheme="per_channel_affine"
    )
    assert_same(ours(x), theirs(tensor(x)).numpy())
    assert_same(ours.zero_point, theirs.zero_point.numpy().astype(np.int32))
    assert theirs.zero_point.dtype == torch.float32
    with pytest.raises(ValueError, match="qscheme must have integer zero points, as per_channel_a"):
        pair(fused, observer, np.uint8, floats, 0, 255)


def test_d27_nothing_after_a_reset():
    """PyTorch chooses qparams of a range that nothing was seen of, and warns."""
    ours, theirs = pair("FakeQuantize", PER_TENSOR[0], np.int8, "per_tensor_affine", -128, 127)
    x = np.array([-1.3, 0.2, 2.7], np.float32)
    for module, of in ((ours, np.asarray), (theirs, tensor)):
        module(of(x))
        module.activation_post_process.reset_min_max_vals()
    held = ours.scale.copy()
    ours(x[:0])
    with pytest.warns(UserWarning, match="must run observer before calling calculate_qparams"):
        theirs(tensor(x[:0]))
    assert (theirs.scale, theirs.zero_point) == (1, 0)
    assert_same(ours.scale, held)


# --- learnable --------------------------------------------------------------------------------

PARAMETERS = ("scale", "zero_point")


def sum_bound(x, grad, scale, zero_point, lo, hi, axis):
    """How far two float32 sums of one channel's terms may lie apart, for scale and zero point.

    Terms have equal bits. A sum of n of them in float32, in any order, is off by at most n u times
    the sum of their magnitudes; ours is rounded once.
    """
    shape = [1] * x.ndim
    if axis is not None:
        shape[axis] = -1
    s, z = (np.float64(v).reshape(shape) for v in (scale, zero_point))
    x, grad = x.astype(np.float64), abs(grad.astype(np.float64))
    q = np.rint(x / s) + z
    inside = (q >= lo) & (q <= hi)
    of_scale = grad * np.where(inside, abs(q - z - x / s), abs(np.clip(q, lo, hi) - z))
    of_zero_point = grad * np.where(inside, 0, s)
    axes = None if axis is None else tuple(i for i in range(x.ndim) if i != axis)
    n = x.size if axis is None else x.size // x.shape[axis]
    return [np.sum(t, axes).reshape(-1) * (n + 2) * 2.0**-24 for t in (of_scale, of_zero_point)]


def away_from_ties(scale, shape, seed, axis=None):
    """Data whose codes nobody can take for their neighbours, some of them out of range."""
    random = rng(seed)
    where = [1] * len(shape)
    if axis is not None:
        where[axis] = -1
    codes = random.integers(-170, 170, shape) + random.uniform(-0.4, 0.4, shape)
    return (codes * np.reshape(scale, where)).astype(np.float32)


@pytest.mark.parametrize(("dtype", "lo", "hi"), RANGES[:3])
@pytest.mark.parametrize("observer", [*PER_TENSOR[:2], *PER_CHANNEL])
@pytest.mark.parametrize("scaling", [False, True])
def test_learnable(observer, dtype, lo, hi, scaling):
    """Estimates, then learning with steps in between, then estimates again."""
    for qscheme in schemes(observer)[:2]:
        if "symmetric" in qscheme and dtype == np.uint8:
            continue  # D28
        axes = (None,) if "tensor" in qscheme else (0, 1)
        for axis in axes:
            options = {} if axis is None else {"ch_axis": axis, "channel_len": (3, 4)[axis]}
            ours, theirs = pair("LearnableFakeQuantize", observer, dtype, qscheme, lo, hi,
                                use_grad_scaling=scaling, **options)  # fmt: skip
            check_state(ours, theirs)
            note = f"{observer} {qscheme} {axis}"
            for i in range(3):
                x = data((3, 4, 5), i)
                if i == 1:
                    ours.enable_static_observation()
                    theirs.enable_static_observation()
                if i == 2:
                    ours.enable_static_estimate()
                    theirs.enable_static_estimate()
                assert_same(ours(x), theirs(tensor(x)).detach().numpy(), note)
                check_state(ours, theirs, note)
            ours.enable_param_learning()
            assert theirs.enable_param_learning() is theirs
            for i in range(3):
                scale, zero_point = (getattr(ours, name).value for name in PARAMETERS)
                x, grad = away_from_ties(scale, (3, 4, 5), i, axis), data((3, 4, 5), i)
                got, expected = differentiated(ours, theirs, x, grad, *PARAMETERS)
                assert_same(got[:2], expected[:2], note)
                bounds = sum_bound(x, grad, scale, zero_point, lo, hi, axis)
                factor = (x.size * hi) ** -0.5 if scaling else 1
                for k, bound in enumerate(bounds):
                    if k == 1 and "symmetric" in qscheme:
                        assert got[3] is None  # D28
                        continue
                    assert (abs(got[2 + k] - expected[2 + k]) <= bound * factor).all(), note
                assert_same(
                    ours.calculate_qparams(), tuple(v.numpy() for v in theirs.calculate_qparams())
                )
                # Both go on from the same scales; a zero point that is far below a bound, too.
                moved = scale * np.float32(1 + 0.1 * i), np.rint(abs(zero_point)) * (i != 2)
                for name, value in zip(PARAMETERS, moved, strict=True):
                    getattr(ours, name).value = value.astype(np.float32)
                    getattr(theirs, name).data.copy_(tensor(value))
            ours.scale.value = -ours.scale.value
            theirs.scale.data.neg_()
            x = data((3, 4, 5), 5)
            assert_same(ours(x), theirs(tensor(x)).detach().numpy(), note)
            check_state(ours, theirs, note)


def test_learnable_toggles():
    for switches in itertools.product((True, False), repeat=3):
        ours, theirs = pair("LearnableFakeQuantize", PER_TENSOR[1], np.int8, "per_tensor_affine",
                            -128, 127, scale=0.3, zero_point=2.0)  # fmt: skip
        for module in (ours, theirs):
            module.toggle_observer_update(switches[0]).toggle_fake_quant(switches[1])
            module.toggle_qparam_learning(switches[2])
        check_state(ours, theirs)
        x = data((3, 4), 0)
        assert_same(ours(x), theirs(tensor(x)).detach().numpy(), str(switches))
        check_state(ours, theirs, str(switches))
        for module in (ours, theirs):
            module.disable_observer()
            module.disable_fake_quant()
        check_state(ours, theirs)
        assert ours.bitwidth == theirs.bitwidth == 8


def test_d28_symmetric_unsigned_codes():
    """PyTorch observes a zero point in the middle and clips what is negative all the same."""
    ours, theirs = pair("LearnableFakeQuantize", "MinMaxObserver", np.uint8, "per_tensor_symmetric")
    x = np.array([-1.3, 0.2, 2.7], np.float32)
    assert theirs(tensor(x))[0] == 0
    assert ours(x)[0] < -1.2


def test_d28_float_qparams():
    """PyTorch quantizes every channel with the scale of the first, and nothing says so."""
    ours, theirs = pair("LearnableFakeQuantize", "PerChannelMinMaxObserver", np.uint8,
                        "per_channel_affine_float_qparams", channel_len=2)  # fmt: skip
    x = np.array([[0, 1], [0, 100]], np.float32)
    assert theirs(tensor(x))[1, 1] == 1
    assert ours(x)[1, 1] == 100


def test_d28_other_bounds_than_the_observers():
    """PyTorch clips to the bounds that it was given at first, with a scale for others."""
    ours, theirs = pair(
        "LearnableFakeQuantize", "MinMaxObserver", np.int8, "per_tensor_symmetric", -8, 7
    )
    for module in (ours, theirs):
        module.activation_post_process.quant_min = -128
        module.activation_post_process.quant_max = 127
    x = np.array([-1, 0.2, 2.55], np.float32)
    assert theirs(tensor(x))[2] < 0.2
    assert ours(x)[2] > 2.5


def test_d28_grad_scaling_divides_by_zero():
    theirs = pair("LearnableFakeQuantize", "MinMaxObserver", np.int8, "per_tensor_affine", -128, 0,
                  use_grad_scaling=True)[1]  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        theirs(torch.ones(3))
    theirs = pair("LearnableFakeQuantize", "MinMaxObserver", np.uint8, "per_tensor_affine",
                  use_grad_scaling=True)[1]  # fmt: skip
    theirs.toggle_observer_update(False)
    with pytest.raises(ZeroDivisionError):
        theirs(torch.ones(0))


@pytest.mark.filterwarnings("ignore:.*reduce_range")
def test_d28_reduced_range():
    theirs = pair("LearnableFakeQuantize", "MinMaxObserver", np.int8, "per_tensor_affine", -128,
                  127, reduce_range=True)[1]  # fmt: skip
    theirs(torch.tensor([-1.0, 1.0]))
    theirs.toggle_observer_update(False)
    assert theirs(torch.tensor([9.0])) > 1.9


def test_d28_gradients_while_nothing_is_learned():
    theirs = pair("LearnableFakeQuantize", "MinMaxObserver", np.uint8, "per_tensor_affine")[1]
    assert theirs.learning_enabled == 0
    assert theirs.scale.requires_grad


def test_d28_channels_that_were_not_announced():
    theirs = pair("LearnableFakeQuantize", "PerChannelMinMaxObserver", np.uint8,
                  "per_channel_affine")[1]  # fmt: skip
    with pytest.raises(RuntimeError):
        theirs(torch.ones(2, 3))


# --- AdaRound ---------------------------------------------------------------------------------


class Adaround:
    """The formulas of the module in PyTorch's repository, on one array, without its faults."""

    def __init__(self, x, scale, zero_point):
        zeta, gamma = torch.tensor(1.1), torch.tensor(-0.1)
        self.zeta, self.gamma, self.scale, self.zero_point = zeta, gamma, scale, zero_point
        rest = x / scale - torch.floor(x / scale)
        self.V = (-torch.log((zeta - gamma) / (rest - gamma) - 1)).requires_grad_()

    def __call__(self, x, lo, hi, soft):
        stretched = torch.sigmoid(self.V) * (self.zeta - self.gamma) + self.gamma
        h = torch.clamp(stretched, 0, 1) if soft else (self.V >= 0).int()
        q = torch.clamp(torch.floor(x / self.scale) + self.zero_point + h, lo, hi)
        return (q - self.zero_point) * self.scale


@pytest.mark.parametrize(("lo", "hi"), [(-128, 127), (-8, 7)])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_adaround(axis, lo, hi):
    x, grad = data((6, 4, 5), 1), data((6, 4, 5), 2)
    kind = "per_tensor" if axis is None else "per_channel"
    ours = npq.AdaroundFakeQuantizer(None, f"{kind}_symmetric", lo, hi, axis or 0)
    options = {} if axis is None else {"ch_axis": axis}
    name = "MinMaxObserver" if axis is None else "PerChannelMinMaxObserver"
    observer = getattr(pytorch, name)(
        dtype=torch.qint8, qscheme=getattr(torch, f"{kind}_symmetric"), quant_min=lo, quant_max=hi,
        **options,
    )  # fmt: skip
    observer(tensor(x))
    scale, zero_point = observer.calculate_qparams()
    shape = [1] * 3
    if axis is not None:
        shape[axis] = -1
    theirs = Adaround(tensor(x), scale.reshape(shape), zero_point.reshape(shape))
    with ag.Tape() as tape:
        y = tape.apply(ours, x)
    dv = tape.gradient(y, ours.V, grad)
    out = theirs(tensor(x), lo, hi, True)
    out.backward(tensor(grad))
    s = scale.reshape(shape).numpy()
    # The contract, section 10.1: V within 2e-6 and h within 4e-7 of PyTorch's. The code, up to
    # hi - lo of them, and the product are rounded after that.
    assert (abs(ours.V.value - theirs.V.detach().numpy()) <= 2e-6).all()
    slack = s * (4e-7 + 2 * (hi - lo) * 2.0**-24)
    assert (abs(y - out.detach().numpy()) <= slack).all()
    # Three products of a sigmoid that is within 4e-7: g * s * 1.2 * sigma * (1 - sigma).
    assert (abs(dv - theirs.V.grad.numpy()) <= abs(grad) * s * 2e-6).all()
    ours.V.value = theirs.V.detach().numpy().copy()
    hard = theirs(tensor(x), lo, hi, False).detach().numpy()
    assert_same(ours.hard(x), hard)
    ours.use_soft_rounding = False
    assert_same(ours(x), hard)


# --- the rest ---------------------------------------------------------------------------------


def test_d10_errors():
    with pytest.raises(AssertionError):
        pytorch.FakeQuantize(quant_min=5, quant_max=3)
    half = pytorch.FakeQuantize(quant_min=5)
    assert half.quant_min == 0  # ignored
