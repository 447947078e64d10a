"""State: every module and optimizer is saved, copied and loaded in the middle of its work.

What follows has the bits that it would have had; what is malformed is refused whole, with its key;
and nothing that is loaded is ever called.
"""

import copy
import functools
import inspect
import io
import pickle
import warnings
from contextlib import suppress
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
import npquant.autograd as ag
import npquant.modules as npq
from cases import assert_same
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
from npquant.optim import SGD, Adam

F32 = np.float32
SMALL = {"dtype": np.int8, "quant_min": -8, "quant_max": 7}
ROWS = {**SMALL, "qscheme": "per_channel_affine"}

#: name -> what makes the module; its name begins with that of its class.
MAKE = {
    "MinMaxObserver": lambda: MinMaxObserver(np.int8, "per_tensor_symmetric", eps=1e-3),
    "MovingAverageMinMaxObserver": lambda: MovingAverageMinMaxObserver(0.3, **SMALL),
    "PerChannelMinMaxObserver": lambda: PerChannelMinMaxObserver(1),
    "PerChannelMinMaxObserver, float qparams": lambda: PerChannelMinMaxObserver(
        -1, qscheme="per_channel_affine_float_qparams"
    ),
    "MovingAveragePerChannelMinMaxObserver": lambda: MovingAveragePerChannelMinMaxObserver(0.3),
    "HistogramObserver": lambda: HistogramObserver(64, np.int8, upsample_rate=4),
    "PercentileObserver": lambda: PercentileObserver(97, 64),
    "PercentileObserver, channels": lambda: PercentileObserver(97, 64, 1),
    "MSEObserver": lambda: MSEObserver(64, **SMALL),
    "MSEObserver, channels": lambda: MSEObserver(64, 0, **SMALL),
    "EntropyObserver": lambda: EntropyObserver(64, **SMALL),
    "EntropyObserver, channels": lambda: EntropyObserver(64, 0, **SMALL),
    "FakeQuantize": lambda: FakeQuantize(HistogramObserver, bins=64, quant_min=-8, quant_max=7,
                                         dtype=np.int8),
    "FakeQuantize, channels": lambda: FakeQuantize(PerChannelMinMaxObserver, -8, 7, ch_axis=1,
                                                   dtype=np.int8),
    "FusedMovingAvgObsFakeQuantize": lambda: FusedMovingAvgObsFakeQuantize(
        averaging_constant=0.3, **SMALL
    ),
    "FusedMovingAvgObsFakeQuantize, channels": lambda: FusedMovingAvgObsFakeQuantize(
        MovingAveragePerChannelMinMaxObserver, averaging_constant=0.3, **ROWS
    ),
    "LearnableFakeQuantize": lambda: LearnableFakeQuantize(MSEObserver, bins=64, **SMALL),
    "LearnableFakeQuantize, channels": lambda: LearnableFakeQuantize(
        PerChannelMinMaxObserver, ch_axis=0, channel_len=4, init="lsq+", **ROWS
    ),
    "LearnableFakeQuantize, tokens": lambda: LearnableFakeQuantize(
        MovingAveragePerChannelMinMaxObserver, per_token=True, channel_len=4, init="lsq", **ROWS
    ),
    "AdaroundFakeQuantizer": lambda: AdaroundFakeQuantizer(quant_min=-8, quant_max=7),
    "AdaroundFakeQuantizer, groups": lambda: AdaroundFakeQuantizer(
        None, "per_channel_affine", -8, 7, group_size=4
    ),
}  # fmt: skip
by_module = pytest.mark.parametrize("name", MAKE)


def test_every_module_is_here():
    """Those that are no base of others' alone."""
    kinds = {name for name in npq.__all__ if name not in ("Module", "Observer", "FakeQuantizeBase")}
    assert all(issubclass(getattr(npq, name), Module) for name in kinds)
    assert {name.partition(",")[0] for name in MAKE} == kinds


def data(seed):
    """Return data whose range grows, so that histograms are rebuilt."""
    return (np.random.default_rng(seed).normal(0, 1 + seed, (4, 8)) ** 3).astype(F32)


class Work:
    """A module, and what it does: three arrays to observe, then as many steps of its optimizer."""

    def __init__(self, name):
        self.name, self.module, self.optimizer, self.step = name, MAKE[name](), None, 0

    def go_on(self, steps):
        """Do some steps; all that came of them."""
        return [self._one() for _ in range(steps)]

    def _one(self):
        self.step += 1
        m = self.module
        if self.step <= 3 or not hasattr(m, "fake_quant_enabled"):
            y = m(data(0 if hasattr(m, "V") else self.step))
        else:
            y = self._learn(m)
        return y.copy(), *m.calculate_qparams(), *m.state_dict().values()

    def _learn(self, m):
        m.enable_observer(False)
        if isinstance(m, LearnableFakeQuantize):
            m.enable_param_learning()
        sources = [getattr(m, key) for key in m._parameters]
        if not sources:
            return m(data(self.step))
        if self.optimizer is None:
            self.optimizer = Adam(sources, lr=0.01)
        with ag.Tape() as tape:
            y = tape.apply(m, data(0))
            loss = tape.apply(ag.mse_loss, y, data(0) * F32(0.9))
        self.optimizer.step(tape.gradient(loss, sources))
        return y


def saved(work, through):
    """Make it anew, and load the states that went through some file."""
    new = Work(work.name)
    new.step = work.step
    new.module.load_state_dict(through(work.module.state_dict()))
    if work.optimizer is not None:
        new.optimizer = Adam([getattr(new.module, key) for key in new.module._parameters], lr=9)
        new.optimizer.load_state_dict(pickle.loads(pickle.dumps(work.optimizer.state_dict())))
    return new


def npz(state):
    """Save and load without pickle."""
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return dict(loaded)


WAYS = {
    "pickle": lambda w: pickle.loads(pickle.dumps(w)),
    "pickle, protocol 0": lambda w: pickle.loads(pickle.dumps(w, 0)),
    "pickle, protocol 2": lambda w: pickle.loads(pickle.dumps(w, 2)),
    "deepcopy": copy.deepcopy,
    "state_dict": lambda w: saved(w, lambda state: state),
    "state_dict, pickled": lambda w: saved(w, lambda state: pickle.loads(pickle.dumps(state))),
    "state_dict, npz": lambda w: saved(w, npz),
}  # fmt: skip


@functools.cache
def uninterrupted(name):
    return Work(name).go_on(6)


@pytest.mark.parametrize("way", WAYS)
@by_module
def test_work_goes_on_after_a_copy(name, way):
    """While it observes, before it learns, while it learns; and the two share nothing."""
    expected = uninterrupted(name)
    for done in (2, 3, 5):
        work = Work(name)
        work.go_on(done)
        other = WAYS[way](work)
        for results in (other.go_on(6 - done), work.go_on(6 - done)):
            for step, (got, wanted) in enumerate(zip(results, expected[done:], strict=True)):
                assert_same(tuple(got), tuple(wanted), (done, step))


@by_module
def test_a_copy_is_another(name):
    work = Work(name)
    work.go_on(3)
    before = work.module.state_dict()
    for other in (copy.copy(work.module), copy.deepcopy(work.module)):
        assert type(other) is type(work.module)
        other(data(3) if "Adaround" not in name else data(0))
        for key, array in _arrays(other):
            array[...] = 1
            assert not np.may_share_memory(array, dict(_arrays(work.module))[key])
    for key, array in work.module.state_dict().items():
        assert_same(array, before[key], key)


class Holds(Module):
    """A buffer of any dtype."""

    _buffers = ("codes",)

    def __init__(self, codes):
        self.codes = codes


@pytest.mark.parametrize("way", [way for way in WAYS if "state_dict" not in way])
@pytest.mark.parametrize(
    "dtype", [bool, np.uint64, np.complex64, ml_dtypes.int4, ml_dtypes.float8_e4m3fn]
)
def test_buffers_of_any_dtype_are_copied_and_saved(dtype, way):
    module = Holds(np.arange(3).astype(dtype))
    other = WAYS[way](module)
    assert_same(other.codes, module.codes)
    assert not np.may_share_memory(other.codes, module.codes)
    other.load_state_dict(module.state_dict())
    with pytest.raises(ValueError, match="codes must not be an array of objects"):
        WAYS[way](Holds(np.array([1, "a"], object)))


@pytest.mark.parametrize(
    ("make", "batches"),
    [
        # What was infinite is replaced, while the other end is averaged; constant 1 rounds.
        (FusedMovingAvgObsFakeQuantize, ([5, np.inf], [1, 2])),
        (
            lambda: FakeQuantize(
                MovingAverageMinMaxObserver, is_dynamic=True, averaging_constant=1.0
            ),
            ([-1321048.625, 6404226.5], [0.1049, 0.1049]),
        ),
    ],
)
def test_moving_ends_that_have_crossed(make, batches):
    module = make()
    for batch in batches:
        module(np.array(batch, F32))
    seen = module.activation_post_process
    assert seen.min_val > seen.max_val
    loaded = make()
    loaded.load_state_dict(module.state_dict())
    for other in (loaded, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same(_values(other), _values(module))
    plain = MinMaxObserver()
    with pytest.raises(ValueError, match=r"'min_val'\] must not exceed"):
        plain.load_state_dict(seen.state_dict())


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, 0.9), Adam])
def test_a_copy_of_an_optimizer_steps_by_itself(make):
    value = np.ones(3)
    optimizer = make([value])
    optimizer.step([value])
    before = optimizer.state_dict()
    other = copy.copy(optimizer)
    assert other.params[0] is value
    other.step([np.ones(3)])
    for key, array in before["state"][0].items():
        assert np.array_equal(optimizer.state_dict()["state"][0][key], array)
        assert not np.array_equal(other.state_dict()["state"][0][key], array)


COUNTING = [HistogramObserver, PercentileObserver, MSEObserver, EntropyObserver]


@pytest.mark.parametrize("make", COUNTING)
def test_counts_and_extremes_belong_together(make):
    observer = make(bins=64, **SMALL)
    empty = observer.state_dict()
    observer(np.array([1, 2], F32))
    state = observer.state_dict()
    counts = state["histogram"]
    for change in (
        {"min_val": np.array(np.nan, F32)},
        {"min_val": np.array(-np.inf, F32)},
        # PyTorch's own counts nothing of a range beyond float32.
        *([{"histogram": np.zeros_like(counts)}] * (make is not HistogramObserver)),
        {"histogram": np.full_like(counts, 2**62)},
        {"min_val": empty["min_val"], "max_val": empty["max_val"]},
    ):
        with pytest.raises(ValueError, match="state_dict"):
            make(bins=64, **SMALL).load_state_dict(state | change)
    make(bins=64, **SMALL).load_state_dict(state)


def test_a_histogram_has_a_range_that_is_a_float32():
    """PyTorch may have saved another (D26)."""
    observer = HistogramObserver(bins=4)
    state = observer.state_dict()
    observer.load_state_dict(state)  # of nothing
    state |= {"histogram": np.ones(4, F32), "min_val": np.array(-3e38, F32)}
    with pytest.raises(ValueError, match="less min_val must be a float32, got"):
        observer.load_state_dict(state | {"max_val": np.array(3e38, F32)})
    observer.load_state_dict(state | {"max_val": np.array(0, F32)})


def _values(module):
    return tuple(module.state_dict().values())


def _arrays(module):
    return [(key, m._get(name)) for key, m, name in module._state()]


# --- what is refused --------------------------------------------------------------------------


class Called(Exception):
    pass


class Evil:
    """Whatever asks it anything is found out."""

    def _called(self, *args, **kwargs):
        raise Called

    __array__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __call__ = _called
    __getitem__ = __bool__ = __array_interface__ = __reduce__ = copy = astype = _called
    __repr__ = __str__ = __format__ = _called


class EvilArray(np.ndarray):
    def copy(self, *args, **kwargs):
        raise Called

    astype = reshape = tobytes = __array_ufunc__ = __array_function__ = copy


def spoilt(key, array):
    """What may not stand in place of an array."""
    yield from (None, 3, "text", [1.0], array.tolist(), Evil(), array.astype(object))
    yield from (array.astype(np.complex64), array.astype(str), array.astype("datetime64[s]"))
    yield np.zeros((), [("a", array.dtype)])
    yield np.ma.masked_array(array, True)
    if array.itemsize > 1:
        yield array.astype(array.dtype.newbyteorder())
    if key != "V":  # which has the shape of any weights
        yield np.zeros((1, *array.shape, 1), array.dtype)


@by_module
def test_malformed_state(name):
    """Each key, and each fault: refused with the name of the key, and nothing has changed."""
    work = Work(name)
    work.go_on(2)
    module = work.module
    before = pickle.dumps(module)
    good = Work(name)
    good.go_on(5)
    state = good.module.state_dict()
    for key in state:
        for value in spoilt(key, state[key]):
            with pytest.raises(ValueError, match=rf"state_dict\['{key}'\] must"):
                module.load_state_dict(state | {key: value})
        with pytest.raises(ValueError, match=f"must have the key '{key}'"):
            module.load_state_dict({k: v for k, v in state.items() if k != key})
    for key in ("other", "", "scale.", "V", 3, None):
        if key not in state:
            with pytest.raises(ValueError, match=f"{key!r} too"):
                module.load_state_dict(state | {key: np.ones(1, F32)})
    for wrong in (None, [], list(state.items()), "state", 3, Evil()):
        with pytest.raises(ValueError, match="state_dict must be a mapping, got"):
            module.load_state_dict(wrong)
    assert pickle.dumps(module) == before
    module.load_state_dict(state)
    assert pickle.dumps(module) != before


@by_module
def test_the_state_of_another_class(name):
    work = Work(name)
    work.go_on(3)
    for other in MAKE:
        module = MAKE[other]()
        before = pickle.dumps(module)
        if set(module.state_dict()) != set(work.module.state_dict()):
            with pytest.raises(ValueError, match="state_dict must have the key"):
                module.load_state_dict(work.module.state_dict())
            assert pickle.dumps(module) == before


@by_module
def test_arrays_of_other_classes_are_taken_as_arrays(name, tmp_path):
    """As memory maps are, which np.load gives; what a class has of its own is never called."""
    work = Work(name)
    work.go_on(3)
    state = {}
    for i, (key, array) in enumerate(work.module.state_dict().items()):
        np.save(tmp_path / f"{i}.npy", array)
        # NumPy maps no array without elements.
        state[key] = np.load(tmp_path / f"{i}.npy", mmap_mode="r" if array.size else None)
    for changed in (state, {key: array.view(EvilArray) for key, array in state.items()}):
        module = MAKE[name]()
        module.load_state_dict(changed)
        for key, array in _arrays(module):
            assert type(array) is np.ndarray, key
            assert array.flags.writeable, key
            assert array.flags.c_contiguous, key
            assert_same(array, np.asarray(state[key]), key)


def test_a_pickle_of_memory_maps(tmp_path):
    """As joblib loads it: a module's arrays are plain, so that its next step knows them."""
    observer = MovingAveragePerChannelMinMaxObserver(**ROWS)
    observer(data(0))
    attributes = dict(vars(observer))
    for key in ("min_val", "max_val"):
        np.save(tmp_path / f"{key}.npy", attributes[key])
        attributes[key] = np.load(tmp_path / f"{key}.npy", mmap_mode="r")
    again = taken(observer, attributes)
    for module in (observer, again):
        module(data(1))
    for (key, array), (_, other) in zip(_arrays(observer), _arrays(again), strict=True):
        assert_same(other, array, key)


VALUES = (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1.0, 1e-45, 3e38, -3e38, 2.0**31, 2.0**62)


@by_module
def test_values_that_cannot_be(name):
    """A state with one such value is refused, or a module that has it is none that dies of it."""
    work = Work(name)
    work.go_on(3)
    state = work.module.state_dict()
    refused, taken = [], 0
    for key, array in state.items():
        for value in VALUES:
            if array.dtype.kind in "iu":
                bounds = np.iinfo(array.dtype)
                if not bounds.min <= value <= bounds.max:
                    continue
            for where in (slice(None), slice(-1, None)):
                changed = array.copy()
                changed.reshape(-1)[where] = value
                module = MAKE[name]()
                before = pickle.dumps(module)
                try:
                    module.load_state_dict(state | {key: changed})
                except ValueError as error:
                    refused.append(str(error))
                    assert pickle.dumps(module) == before
                    continue
                taken += 1
                assert not key.endswith("eps") or 0 < value < np.inf
                for call in (module.calculate_qparams, lambda m=module: m(data(0))):
                    with warnings.catch_warnings(), suppress(TypeError, ValueError):
                        warnings.simplefilter("ignore", UserWarning)
                        call()
    assert refused
    # Of two that contradict each other either may be named.
    assert [e for e in refused if not any(f"state_dict['{key}'] must" in e for key in state)] == []
    assert taken > 0


# --- optimizers -------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": lambda p: SGD(p, 0.1),
    "SGD, momentum": lambda p: SGD(p, 0.1, 0.9, weight_decay=0.01),
    "Adam": lambda p: Adam(p, 0.1),
}
by_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


NUMBERS = ("lr", "momentum", "weight_decay", "decoupled_weight_decay", "eps", "step")


def changed(state, place, wrong):
    """The same state with something else in one place, which may be new."""
    if not place:
        return wrong
    state = copy.deepcopy(state)
    inner = state
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = wrong
    return state


@by_optimizer
def test_malformed_state_of_an_optimizer(name):
    def make():
        optimizer = OPTIMIZERS[name]([np.ones(3, F32), ag.Parameter(np.ones((2, 2)))])
        optimizer.step([np.ones(3, F32), np.full((2, 2), 0.5)])
        return optimizer

    optimizer, state = make(), make().state_dict()
    optimizer.lr = 0.3
    before = pickle.dumps(optimizer)
    places = [(), ("other",), ("param_groups",), ("param_groups", 0), ("state",)]
    places += [("param_groups", 0, key) for key in state["param_groups"][0]]
    places += [("state", key) for key in (0, 7, -1, "0", None, 0.5, 1.0, True)]
    places += [("state", 0, key) for key in (*state["state"].get(0, ()), "other") if state["state"]]
    for place in places:
        for wrong in (None, 3, "text", [], [3], {}, Evil(), np.ones(2), {"state": Evil()}):
            if type(wrong) is int and place[-1:] and place[-1] in NUMBERS:
                continue  # that may be
            if type(wrong) is dict and not wrong and place == ("state",):
                continue  # before the first step
            names = [str(part) for part in place[-2:]] or ["state_dict"]
            with pytest.raises(ValueError) as raised:  # noqa: PT011 (what it says follows)
                optimizer.load_state_dict(changed(state, place, wrong))
            assert any(name in str(raised.value) for name in names), (place, wrong, raised.value)
            assert pickle.dumps(optimizer) == before, (place, wrong)
    optimizer.load_state_dict(state)
    assert pickle.dumps(optimizer) != before


@by_optimizer
def test_a_state_that_was_loaded_stays(name):
    """The optimizer goes on with a copy, and not in the arrays that it was given."""
    optimizer = OPTIMIZERS[name]([np.ones(3, F32)])
    optimizer.step([np.ones(3, F32)])
    state = optimizer.state_dict()
    before = pickle.dumps(state)
    other = OPTIMIZERS[name]([np.ones(3, F32)])
    other.load_state_dict(state)
    other.step([np.full(3, 7, F32)])
    assert pickle.dumps(state) == before


# --- what pickles hold ------------------------------------------------------------------------


def taken(instance, attributes):
    """What a pickle of these attributes becomes."""
    other = object.__new__(type(instance))
    other.__setstate__(attributes)
    return other


def refused(instance, attributes, name):
    other = object.__new__(type(instance))
    with pytest.raises(ValueError, match=rf"\b{name}\b.* must|must have '{name}'"):
        other.__setstate__(attributes)
    assert other.__dict__ == {}


@by_module
def test_malformed_attributes(name):
    """A pickle is checked as a state is: by whoever takes it, before anything is taken."""
    work = Work(name)
    work.go_on(2)
    attributes = vars(work.module)
    assert vars(taken(work.module, attributes)) == attributes
    for wrong in (None, 3, "text", [], [("scale", 1)], {3: 4}, Evil()):
        refused(work.module, wrong, f"state of a {type(work.module).__name__}")
    for key in work.module._names():
        array = attributes[key]
        kept = {k: v for k, v in attributes.items() if k != key}
        refused(work.module, kept, key)
        parameter = key in work.module._parameters
        for value in (None, 3, "text", [1.0], Evil()):
            given = SimpleNamespace(value=value) if parameter else value
            refused(work.module, kept | {key: given}, key)
        if not parameter:
            for value in (array.astype(object), array.astype(str), np.ma.masked_array(array)):
                refused(work.module, kept | {key: value}, key)
    for key in work.module._modules:
        for value in (None, 3, work, Evil()):
            refused(work.module, attributes | {key: value}, key)


def test_attributes_that_cannot_be():
    """Settings that are missing, shapes and values."""
    fq = FakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    faults = [("scale", np.ones(2, F32)), ("scale", -np.ones(1, F32)),
              ("zero_point", np.int32([99])), ("observer_enabled", np.uint8([2]))]  # fmt: skip
    for key, value in faults:
        refused(fq, vars(fq) | {key: value}, key)
    for key in ("activation_post_process", "is_per_channel"):
        refused(fq, {k: v for k, v in vars(fq).items() if k != key}, key)
    observer = fq.activation_post_process
    refused(observer, vars(observer) | {"min_val": F32([1, 2])}, "min_val")
    for value in (np.nan, np.inf, 0):
        refused(observer, vars(observer) | {"eps": F32([value])}, "eps")


@by_module
def test_attributes_of_another_dtype(name):
    """No kernel would know it, or qparams would be chosen in another precision."""
    work = Work(name)
    work.go_on(2)
    attributes = vars(work.module)
    for key in work.module._buffers:
        for dtype in (np.float16, np.float64, np.int16, np.uint32):
            refused(work.module, attributes | {key: attributes[key].astype(dtype)}, key)


def test_attributes_with_gaps_and_read_only():
    """As pickles may bring them whose buffers come apart: kernels know none such."""
    observer = HistogramObserver(bins=64)
    observer(data(0))
    gaps, fixed = np.arange(128, dtype=F32)[::2], observer.min_val.copy()
    gaps[...] = observer.histogram
    fixed.flags.writeable = False
    again = taken(observer, vars(observer) | {"histogram": gaps, "min_val": fixed})
    for module in (observer, again):
        module(9 * data(1))
    for (key, array), (_, other) in zip(_arrays(observer), _arrays(again), strict=True):
        assert_same(other, array, key)


@by_optimizer
def test_a_pickle_whose_buffers_are_read_only(name):
    """An optimizer writes to its state, so that is never somebody else's memory."""
    value, gradient = np.ones((4, 4))[:, ::2], np.ones((4, 2))  # that with gaps is in the pickle
    optimizer = OPTIMIZERS[name]([value])
    optimizer.step([gradient])
    apart = []
    pickled = pickle.dumps(optimizer, 5, buffer_callback=apart.append)
    buffers = [bytes(b.raw()) for b in apart]
    before = [bytes(bytearray(b)) for b in buffers]
    again = pickle.loads(pickled, buffers=buffers)
    for one in (optimizer, again):
        one.step([gradient])
    assert buffers == before
    assert_same(again.params[0], value)
    assert pickle.dumps(again.state_dict()) == pickle.dumps(optimizer.state_dict())


@by_module
def test_malformed_assignments(name):
    """What is assigned is checked as what is loaded is: by its name, and nothing has changed."""
    work = Work(name)
    work.go_on(2)
    module = work.module
    before = pickle.dumps(module)
    for key in (*module._names(), *module._modules):
        held = getattr(module, key)
        array = np.ones(1, F32) if key in module._modules else module._get(key)
        for value in (*spoilt(key, array), nq.ArraySpec(array.shape, array.dtype)):
            parameter = key in module._parameters
            for given in (value, SimpleNamespace(value=value)) if parameter else (value,):
                with pytest.raises((TypeError, ValueError), match=f"^{key} must"):
                    setattr(module, key, given)
        assert pickle.dumps(module) == before, key
        setattr(module, key, held)
        assert getattr(module, key) is held or key in module._buffers
        assert pickle.dumps(module) == before, key


def test_assignments_that_cannot_be():
    """Shapes and values; of two arrays that belong together either may come first."""
    fq, rows = FakeQuantize(MinMaxObserver, **SMALL), FakeQuantize(PerChannelMinMaxObserver)
    observer, counting = MinMaxObserver(), PercentileObserver(bins=64, ch_axis=0)
    learnable = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    for module, key, value in (
        (fq, "scale", F32([-1])), (fq, "scale", F32([1, 2])), (rows, "scale", F32([1, 0])),
        (rows, "zero_point", np.int32([[1]])), (fq, "fake_quant_enabled", np.uint8([2])),
        (fq, "observer_enabled", np.uint8(1)), (observer, "eps", F32([0])),
        (observer, "min_val", F32([1])), (counting, "histogram", np.zeros((2, 63), np.int64)),
        (HistogramObserver(bins=64), "histogram", np.zeros(63, F32)),
        (learnable, "scale", ag.Parameter(np.ones(2, F32))), (learnable, "eps", F32([np.nan])),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{key} must"):
            setattr(module, key, value)
    given = np.full(2, 0.5, F32)
    rows.scale, rows.zero_point = given, np.zeros(2, np.int32)
    given[0] = -1
    assert rows.scale.tolist() == [0.5, 0.5]
    observer.min_val, observer.max_val = F32(-1), np.array(2, F32)
    assert observer.calculate_qparams()[0] == F32(3) / F32(255)
    for module, key, value, message in (
        (fq, "zero_point", np.int32([8]), r"\['zero_point'\] must lie within -8..7"),
        (rows, "scale", F32([1, 2, 3]), r"\['zero_point'\] must have the shape \(3,\), got \(2,\)"),
        (observer, "min_val", F32(3), r"\['min_val'\] must not exceed max_val"),
    ):
        module.state_dict()
        setattr(module, key, value)
        with pytest.raises(ValueError, match=message):
            module.state_dict()


@pytest.mark.parametrize("made", [FakeQuantize, FusedMovingAvgObsFakeQuantize])
def test_a_zero_point_of_bounds_that_were_changed_since(made):
    """It is kept, copied and saved, and chosen anew by the next call."""
    module = made(quant_min=-128, quant_max=127, dtype=np.int8)
    module(F32([0, 1]))
    assert module.zero_point == -128
    observer = module.activation_post_process
    observer.quant_min, observer.quant_max = -8, 7
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module):
        other.load_state_dict(other.state_dict())
        assert other.zero_point == -128
        assert other(F32([0, 1])).tolist() == [0, 1]
        assert other.zero_point == -8
        with pytest.raises(ValueError, match=r"zero_point.* must lie within -128\.\.127, got"):
            other.load_state_dict(other.state_dict() | {"zero_point": np.int32([128])})


@pytest.mark.parametrize("made", [FakeQuantize, FusedMovingAvgObsFakeQuantize])
def test_a_zero_point_of_bounds_that_were_and_are_no_more(made):
    """Wider ones, for a while, than those that the module was made with."""
    module = made(quant_min=-8, quant_max=7, dtype=np.int8)
    observer = module.activation_post_process
    observer.quant_min, observer.quant_max = -128, 127
    module(F32([0, 1]))
    observer.quant_min, observer.quant_max = -8, 7
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module):
        other.load_state_dict(other.state_dict())
        assert other.zero_point == -128
        other(F32([0, 1]))
        assert other.zero_point == -8


class SlottedObserver(MinMaxObserver):
    __slots__ = ("note",)


class SlottedLayer(Module):
    __slots__ = ("scale", "weight")
    _parameters, _buffers = ("weight",), ("scale",)


class SlottedSGD(SGD):
    __slots__ = ("note",)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_attributes_in_slots(copied):
    """Classes of the user's may have such, of which Python makes a pair."""
    observer, layer, optimizer = (
        SlottedObserver(),
        SlottedLayer(),
        SlottedSGD([np.ones(3)], 0.1, 0.9),
    )
    observer(np.ones(3))
    optimizer.step([np.ones(3)])
    layer.weight, layer.scale = ag.Parameter(np.ones(3)), np.ones(2)
    for one in (observer, optimizer):
        one.note = ["kept"]
        other = copied(one)
        assert other.note == ["kept"]
        assert pickle.dumps(other) == pickle.dumps(one)
    other = copied(layer)
    assert not np.may_share_memory(other.scale, layer.scale)
    other.load_state_dict({"weight": np.zeros(3), "scale": np.zeros(2)})
    for a, kept in zip((layer.weight.value, layer.scale), map(np.ones, (3, 2)), strict=True):
        assert_same(a, kept)
    for a, loaded in zip((other.weight.value, other.scale), map(np.zeros, (3, 2)), strict=True):
        assert_same(a, loaded)
    for wrong in (None, [], Evil(), {3: 4}):
        refused(observer, (vars(observer), wrong), "state of a SlottedObserver")
        refused(optimizer, ({}, wrong), "state of a SlottedSGD")
    refused(observer, (vars(observer), {"min_val": F32([1, 2])}), "min_val")


@by_optimizer
def test_malformed_attributes_of_an_optimizer(name):
    optimizer = OPTIMIZERS[name]([np.ones(3, F32), ag.Parameter(np.ones((2, 2)))])
    optimizer.step([np.ones(3, F32), None])
    attributes = vars(optimizer)
    assert pickle.dumps(taken(optimizer, attributes)) == pickle.dumps(optimizer)
    refused(optimizer, [], f"state of a {type(optimizer).__name__}")
    for key in attributes:
        refused(optimizer, {k: v for k, v in attributes.items() if k != key}, key)
        for value in (None, "text", [], [3], Evil()):
            refused(optimizer, attributes | {key: value}, key)
    if attributes["_state"][0]:
        key = optimizer._arrays[0]
        for value in (None, np.ones(2, F32), np.ones(3)):
            entry = attributes["_state"][0] | {key: value}
            refused(optimizer, attributes | {"_state": [entry, {}]}, key)


def test_nothing_here_loads_pickles():
    """Loading is of arrays: no code of the package unpickles what a user gives."""
    for module in (npq, npq.module, npq.observers, npq.fake_quantize, npq.learnable, npq.adaround):
        assert "pickle" not in inspect.getsource(module)
