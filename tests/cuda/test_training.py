"""Tape, optimizers and modules on arrays on a GPU: the CPU's bits, and nothing goes to the host."""

from copy import copy as shallow
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest

import npquant as nq
from cases import assert_same
from npquant import cuda
from npquant.adaround import AdaroundLoss
from npquant.arithmetic import add
from npquant.arrays import copy
from npquant.autograd import Parameter, Tape
from npquant.cuda import optim, target, walk
from npquant.cuda.arrays import OWN
from npquant.formulas import optim as formulas
from npquant.modules import (
    AdaroundFakeQuantizer,
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    LearnableFakeQuantize,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    MSEObserver,
    PerChannelMinMaxObserver,
)
from npquant.optim import SGD, Adam
from twins import MEMORY, given

RNG = np.random.default_rng(5)
BATCHES = [RNG.normal(0, 1 + i, (3, 37)).astype(np.float32) for i in range(3)]
OBSERVERS = {
    "min-max": lambda: MinMaxObserver(dtype=np.int8),
    "moving average": lambda: MovingAverageMinMaxObserver(0.1),
    "per channel": lambda: PerChannelMinMaxObserver(ch_axis=0, dtype=np.int8),
    "symmetric": lambda: PerChannelMinMaxObserver(dtype=np.int8, qscheme="per_channel_symmetric"),
    "moving, per channel": lambda: MovingAveragePerChannelMinMaxObserver(0.1),
}
MODULES = {
    "fake quantize": FakeQuantize,
    "fake quantize per channel": lambda: FakeQuantize(PerChannelMinMaxObserver),
    "fused": FusedMovingAvgObsFakeQuantize,
    "fused per channel": lambda: FusedMovingAvgObsFakeQuantize(
        MovingAveragePerChannelMinMaxObserver
    ),
    "learnable, estimating": lambda: LearnableFakeQuantize(MinMaxObserver, scale=0.1),
    "adaround": lambda: AdaroundFakeQuantizer(),
}
LEARNABLE = {
    "tensor": lambda: LearnableFakeQuantize(
        MinMaxObserver, -8, 7, 0.3, 0.6, dtype=np.int8, use_grad_scaling=True
    ),
    "channel": lambda: LearnableFakeQuantize(
        PerChannelMinMaxObserver, -8, 7, 0.3, 0.6, 3, dtype=np.int8
    ),
    "token": lambda: LearnableFakeQuantize(
        PerChannelMinMaxObserver, -8, 7, 0.3, 0.6, 3, dtype=np.int8, per_token=True
    ),
    "group": lambda: LearnableFakeQuantize(
        PerChannelMinMaxObserver, -8, 7, 0.3, 0.6, 12, dtype=np.int8, group_size=8
    ),
}
OPTIMIZERS = {
    "SGD": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: Adam(p, 0.01),
}


@pytest.fixture(autouse=True)
def _nothing_goes_to_the_host(monkeypatch):
    """Where a test brings a result to NumPy, it says so by `seen`."""

    def refuse(*args):
        raise AssertionError("copied to the host")

    monkeypatch.setattr("npquant.cuda.to_host", refuse)


seen_on_host = cuda.to_host


def seen(value):
    return value if isinstance(value, np.ndarray) else seen_on_host(value)


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert not isinstance(a, np.ndarray)
        assert_same(seen(a), b)


@pytest.mark.parametrize("name", OBSERVERS)
def test_observers(name):
    ours, theirs = OBSERVERS[name](), OBSERVERS[name]()
    for x in BATCHES:
        ours(cuda.to_device(x))
        theirs(x)
    same((ours.min_val, ours.max_val), (theirs.min_val, theirs.max_val))
    same(ours.calculate_qparams(), theirs.calculate_qparams())


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    ours, theirs = MODULES[name](), MODULES[name]()
    for x in BATCHES:
        same((ours(cuda.to_device(x)),), (theirs(x),))
    same(ours.calculate_qparams(), theirs.calculate_qparams())


@pytest.mark.parametrize("name", MODULES)
def test_state_survives_the_host(name, monkeypatch):
    """Saved to NumPy in the middle, and loaded into a new module that goes on."""
    ours, theirs = MODULES[name](), MODULES[name]()
    first, second = BATCHES[0], BATCHES[0][:, ::-1].copy()
    ours(cuda.to_device(first))
    theirs(first)
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    state = ours.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    for key, value in theirs.state_dict().items():
        assert_same(state[key], value)
    again = MODULES[name]()
    again.load_state_dict(state)
    same((again(cuda.to_device(second)),), (theirs(second),))


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_a_scale_of_another_dtype_is_learned_in_float32(dtype, monkeypatch):
    fake, x = LEARNABLE["tensor"]().enable_param_learning(), cuda.to_device(BATCHES[0])
    fake.scale.value = cuda.to_device(np.full(1, 0.1, dtype))
    with Tape() as tape:
        y = tape.apply(fake, x)
    (gradient,) = tape.gradient(y, [fake.scale], x)
    assert seen(gradient).dtype == seen(fake.scale.value).dtype == np.float32
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    LEARNABLE["tensor"]().load_state_dict(fake.state_dict())


def training(make, optimizer, put):
    """Three steps: the outputs, the gradients and the state after them."""
    fake = make().enable_param_learning()
    step = OPTIMIZERS[optimizer]([fake.scale, fake.zero_point])
    found = []
    for i, x in enumerate(BATCHES):
        x, grad = put(x), put(BATCHES[i - 1])
        with Tape() as tape:
            tape.watch(x)
            y = tape.apply(fake, x)
        gradients = tape.gradient(y, [x, fake.scale, fake.zero_point], grad)
        step.step(gradients[1:])
        found += [y, *gradients, copy(fake.scale.value), copy(fake.zero_point.value)]
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["tensor", "channel", "token"])
def test_learned_qparams(name, optimizer):
    ours = training(LEARNABLE[name], optimizer, cuda.to_device)
    same(ours, training(LEARNABLE[name], optimizer, np.copy))


def test_learned_groups(monkeypatch):
    monkeypatch.setattr(f"{__name__}.BATCHES", [x[:, :32].copy() for x in BATCHES])
    ours = training(LEARNABLE["group"], "SGD", cuda.to_device)
    same(ours, training(LEARNABLE["group"], "SGD", np.copy))


def test_a_gradient_of_two_uses_is_their_sum():
    def both(put):
        x, scale = put(BATCHES[0]), Parameter(put(np.array([0.3], np.float32)))
        zero_point = put(np.zeros(1, np.float32))
        with Tape() as tape:
            f = nq.fake_quantize_learnable_per_tensor_affine
            y = tape.apply(f, x, scale, zero_point, -8, 7)
            z = tape.apply(f, y, scale, zero_point, -2, 1)
        return [z, *tape.gradient(z, [scale], put(BATCHES[1]))]

    same(both(cuda.to_device), both(np.copy))


def test_adaround_is_learned():
    def learned(put):
        w, fake = put(BATCHES[0]), AdaroundFakeQuantizer()
        fake(w)
        step, found = Adam([fake.V], 0.1), []
        for _ in range(2):
            with Tape() as tape:
                soft = tape.apply(fake, w)
                loss = tape.apply(nq.adaround_regularizer, fake.V, 4.0)
            gradient = tape.gradient(loss, fake.V)
            step.step([gradient])
            found += [soft, loss, gradient, copy(fake.V.value)]
        return [*found, fake.hard(w), fake.codes(w)]

    ours, theirs = learned(cuda.to_device), learned(np.copy)
    same(ours, theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HistogramObserver(64),
        lambda: MSEObserver(64, dtype=np.int8),
        lambda: MSEObserver(64, 1, np.int8),
    ],
    ids=["histogram", "doubling", "channels"],
)
def test_counting_observers(make, monkeypatch):
    """They count where the data is, also of a wider range; what they keep is NumPy's."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs = make(), make()
    for x in (*BATCHES, 9 * BATCHES[0], BATCHES[0].T.copy().T):
        assert theirs(x) is x
        given = cuda.to_device(x)
        assert ours(given) is given
        assert type(ours.histogram) is type(ours.min_val) is np.ndarray
        assert_same(tuple(ours.state_dict().values()), tuple(theirs.state_dict().values()))
    assert_same(ours.calculate_qparams(), theirs.calculate_qparams())
    with pytest.raises(ValueError, match="x must not have a NaN"):
        ours(cuda.to_device(np.full((3, 37), np.nan, np.float32)))
    assert_same(tuple(ours.state_dict().values()), tuple(theirs.state_dict().values()))
    infinite = np.resize(np.array([np.inf, 0.5, -np.inf], np.float32), (3, 37))
    for observer, x in ((ours, cuda.to_device(infinite)), (theirs, infinite)):
        with pytest.warns(UserWarning, match="infinities"):
            observer(x)
    assert_same(tuple(ours.state_dict().values()), tuple(theirs.state_dict().values()))


@pytest.mark.parametrize(
    "make",
    [lambda: FakeQuantize(PerChannelMinMaxObserver, -8, 7, dtype=np.int8), AdaroundFakeQuantizer],
    ids=["buffers", "parameters"],
)
@pytest.mark.parametrize("how", [shallow, deepcopy])
def test_copies_of_what_is_on_a_gpu(how, make, monkeypatch):
    """Numba's arrays cannot be copied as other objects are, so they are copied there."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)  # by the check of a state
    ours, theirs = make(), make()
    ours(cuda.to_device(BATCHES[0])), theirs(BATCHES[0])

    def refuse(self, memo):
        raise TypeError("a handle of the driver")

    monkeypatch.setattr(type(ours.scale), "__deepcopy__", refuse, raising=False)
    other = how(ours)
    for name in ours._parameters:  # which a step writes to
        value = getattr(ours, name).value
        SGD([value], 1.0).step([cuda.to_device(np.ones(value.shape, np.float32))])
    ours(cuda.to_device(9 * BATCHES[0]))
    same([other(cuda.to_device(BATCHES[0]))], [theirs(BATCHES[0])])
    observers = other.activation_post_process, theirs.activation_post_process
    same(*([o.min_val, o.max_val] for o in observers))


@pytest.mark.parametrize("name", OBSERVERS)
def test_a_state_that_comes_back(name, monkeypatch):
    """What was seen on a GPU goes on in NumPy with NumPy's data, and merges with it."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs = OBSERVERS[name](), OBSERVERS[name]()
    ours(cuda.to_device(BATCHES[0])), theirs(BATCHES[0])
    for observer in (ours, theirs):
        observer(BATCHES[1])
    assert type(ours.min_val) is np.ndarray
    assert_same((ours.min_val, ours.max_val), (theirs.min_val, theirs.max_val))
    if "moving" not in name:
        there = OBSERVERS[name]()
        there(cuda.to_device(BATCHES[2]))
        ours.merge(there)
        theirs(BATCHES[2])
        assert_same((ours.min_val, ours.max_val), (theirs.min_val, theirs.max_val))


NOTHING = {"min_val": np.inf, "max_val": -np.inf}


@pytest.mark.parametrize("name", ["moving average", "moving, per channel"])
def test_a_range_of_nothing_that_is_assigned(name, monkeypatch):
    """It is that of an observer that has seen nothing, as in NumPy."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs = OBSERVERS[name](), OBSERVERS[name]()
    ours(cuda.to_device(BATCHES[1]))
    for end, value in NOTHING.items():
        value = np.full(theirs.min_val.shape, value, np.float32)
        setattr(ours, end, cuda.to_device(value))
    with pytest.warns(UserWarning, match="nothing was observed"):
        assert_same(ours.calculate_qparams(), (np.ones(1, np.float32), np.zeros(1, np.int64)))
    ours(cuda.to_device(BATCHES[0])), theirs(BATCHES[0])
    same((ours.min_val, ours.max_val), (theirs.min_val, theirs.max_val))


@pytest.mark.parametrize("step", [2, -2])
@pytest.mark.parametrize("name", ["per channel", "symmetric", "fused per channel"])
def test_ends_with_gaps(name, step):
    """What is assigned lies as it does, and qparams are chosen of its elements."""
    make = (OBSERVERS | MODULES)[name]
    ours, theirs = make(), make()
    ends = np.float32([-1, -9, -2, -9, -4, -9]), np.float32([3, 99, 5, 99, 9, 99])
    for module, bring in ((ours, cuda.to_device), (theirs, np.copy)):
        observer = getattr(module, "activation_post_process", module)
        observer.min_val, observer.max_val = (bring(v)[::step] for v in ends)
    same(ours.calculate_qparams(), theirs.calculate_qparams())


def test_what_is_assigned_on_a_gpu_is_checked():
    """Its dtype and its shape, as in NumPy; its values are there."""
    one, three = np.ones(1, np.float32), np.ones(3, np.float32)
    observer, module = OBSERVERS["per channel"](), LEARNABLE["channel"]()
    fused = MODULES["fused"]()
    for owner, name, value, message in (
        (observer, "min_val", three.astype(np.float64), "the dtype float32, got float64"),
        (observer, "max_val", three.reshape(1, 3), r"the shape \(3,\), got \(1, 3\)"),
        (MinMaxObserver(), "max_val", three, r"the shape \(\), got \(3,\)"),
        (module, "scale", one, r"the shape \(3,\), got \(1,\)"),
        (module, "zero_point", three.astype(np.float64), "the dtype float32, got float64"),
        (fused, "scale", three, r"the shape \(1,\), got \(3,\)"),
        (fused, "zero_point", one, "the dtype int32, got float32"),
    ):
        for bring in (np.copy, cuda.to_device):
            given = Parameter(bring(value)) if name in owner._parameters else bring(value)
            with pytest.raises((TypeError, ValueError), match=f"{name} must have {message}"):
                setattr(owner, name, given)


def test_what_modules_ask_for_in_numpy_is_brought_there(monkeypatch):
    """Switches, eps, and all that observers of counts keep."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs = MODULES["fake quantize"](), MODULES["fake quantize"]()
    for module, bring in ((ours, cuda.to_device), (theirs, np.copy)):
        module(BATCHES[0])
        module.observer_enabled = bring(np.zeros(1, np.uint8))
        module.activation_post_process.eps = bring(np.ones(1, np.float32))
    same([ours(cuda.to_device(BATCHES[1]))], [theirs(BATCHES[1])])
    assert_same(ours.calculate_qparams(), theirs.calculate_qparams())
    with pytest.raises(ValueError, match="observer_enabled must be 0 or 1, got"):
        ours.observer_enabled = cuda.to_device(np.full(1, 2, np.uint8))
    for kind in (HistogramObserver, MSEObserver):
        ours, theirs = kind(64), kind(64)
        for observer, bring in ((ours, cuda.to_device), (theirs, np.copy)):
            observer(BATCHES[0])
            observer.min_val = bring(observer.min_val - 1)
            observer.histogram = bring(observer.histogram)
            observer(bring(BATCHES[1]))
        assert_same(tuple(ours.state_dict().values()), tuple(theirs.state_dict().values()))
        assert_same(ours.calculate_qparams(), theirs.calculate_qparams())


@pytest.mark.parametrize("name", ["per channel", "symmetric", "moving, per channel"])
@pytest.mark.parametrize("counts", [(3, 2), (2, 3)])
def test_ends_of_different_channels(name, counts):
    """Each is right by itself, and together they would be read past an end."""
    observer, x = OBSERVERS[name](), cuda.to_device(BATCHES[0])
    observer.min_val, observer.max_val = (cuda.to_device(np.ones(n, np.float32)) for n in counts)
    for use in (lambda: observer(x), observer.calculate_qparams):
        with pytest.raises(ValueError, match=f"max_val must have {counts[0]} channels, .*min_val"):
            use()
    assert [v.shape for v in (observer.min_val, observer.max_val)] == [(n,) for n in counts]


def test_ends_that_lie_apart(monkeypatch):
    """One in NumPy and one on a GPU are where the data is with the next call."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    for name in OBSERVERS:
        ours, theirs = OBSERVERS[name](), OBSERVERS[name]()
        ours(BATCHES[0]), theirs(BATCHES[0])
        ours.max_val = cuda.to_device(ours.max_val)
        assert_same(ours.calculate_qparams(), theirs.calculate_qparams())
        ours.min_val, ours.max_val = cuda.to_device(ours.min_val), theirs.max_val
        same(ours.calculate_qparams(), theirs.calculate_qparams())
        ours(cuda.to_device(BATCHES[1])), theirs(BATCHES[1])
        same((ours.min_val, ours.max_val), (theirs.min_val, theirs.max_val))


def test_sums_of_arrays_that_are_not_alike():
    """A kernel would read past the end of one."""
    a = cuda.to_device(np.ones(3, np.float32))
    for b in (np.ones(2, np.float32), np.ones(3)):
        with pytest.raises(ValueError, match=rf"float32 .*\(3,\) and {b.dtype} .*{len(b)}"):
            add(a, cuda.to_device(b))


@pytest.mark.parametrize("init", ["lsq", "lsq+", "observer"])
@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
def test_a_learned_start_after_a_gpu(init, scheme, monkeypatch):
    """The scale is started anew with NumPy's data, and the zero point comes back with it."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    make = lambda: LearnableFakeQuantize(
        MinMaxObserver, -8, 7, dtype=np.int8, qscheme=f"per_tensor_{scheme}", init=init
    )
    ours, theirs = make(), make()
    for module, bring in ((ours, cuda.to_device), (theirs, np.copy)):
        module.enable_static_estimate()(BATCHES[0])
        module.enable_param_learning()(bring(BATCHES[1]))
        module.enable_static_estimate()
    assert_same(ours(BATCHES[2]), theirs(BATCHES[2]))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_comes_back(name, monkeypatch):
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs = MODULES[name](), MODULES[name]()
    same([ours(cuda.to_device(BATCHES[0]))], [theirs(BATCHES[0])])
    for x in BATCHES[:2]:
        assert_same(ours(x), theirs(x))


@pytest.mark.parametrize("name", MODULES)
def test_a_state_is_brought_once(name, monkeypatch):
    """What was learned or loaded in NumPy stays where the data is."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs, brought = MODULES[name](), MODULES[name](), []
    for module in (ours, theirs):
        module(BATCHES[0])
        learnable = isinstance(module, LearnableFakeQuantize)
        (module.enable_param_learning if learnable else module.disable_observer)()
    upload = type(OWN).upload
    monkeypatch.setattr(type(OWN), "upload", lambda *a: brought.append(a) or upload(*a))
    given = cuda.to_device(BATCHES[1])
    for count in range(3):
        same([ours(given)], [theirs(BATCHES[1])])
        if not count:
            assert len(brought) > 1
            brought.clear()
    assert brought == []


def test_fake_quantize_of_a_histogram(monkeypatch):
    """What the observer chooses in NumPy goes to the GPU, where the data is."""
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    ours, theirs = (FakeQuantize(HistogramObserver, -8, 7, dtype=np.int8) for _ in range(2))
    for x in BATCHES:
        same([ours(cuda.to_device(x))], [theirs(x)])


@pytest.mark.parametrize("name", MODULES)
def test_a_spec_beside_state_on_a_gpu(name, monkeypatch):
    """It is asked for no more than shapes and dtypes, and launches nothing."""
    module, spec = MODULES[name](), nq.ArraySpec(BATCHES[0].shape, np.float32)
    module(cuda.to_device(BATCHES[0]))
    monkeypatch.setattr("npquant.cuda.target.Kernel.__call__", None)
    got = module(spec)
    assert (got.shape, got.dtype) == (spec.shape, spec.dtype)


@pytest.mark.parametrize("optimizer", ["momentum", "Adam"])
def test_the_state_of_an_optimizer_goes_where_its_parameter_is(optimizer, monkeypatch):
    """From NumPy to a GPU, through a file, and back."""
    first, second, third = (BATCHES[0] * k for k in (1.0, 0.5, 2.0))
    ours, theirs = (SimpleNamespace(value=np.ones_like(first)) for _ in range(2))
    update, expected = OPTIMIZERS[optimizer]([ours]), OPTIMIZERS[optimizer]([theirs])
    update.step([first])
    ours.value = cuda.to_device(ours.value)
    update.step([cuda.to_device(second)])
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)
    state = update.state_dict()
    assert all(isinstance(v, (np.ndarray, int)) for v in state["state"][0].values())
    again = OPTIMIZERS[optimizer]([ours])
    again.load_state_dict(state)
    ours.value = seen(ours.value)
    again.step([third])
    for g in (first, second, third):
        expected.step([g])
    assert_same(ours.value, theirs.value)


#: The second and the last begin beside a multiple of what is read at once.
LYING = {
    "C": np.copy,
    "beside": lambda x: np.append(x.dtype.type(0), x)[1:].reshape(x.shape),
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, 1::2],
}


@pytest.fixture
def anew(monkeypatch):
    """A step's kernel and what packs, as if nothing had been compiled."""
    adam = optim._adam(formulas.adam)
    copies = target.Kernel(walk._make_copy, "copy_strided")
    monkeypatch.setattr(cuda, "adam", adam)
    monkeypatch.setattr(walk, "_copy", copies)
    return adam.map.kernel, copies


@pytest.mark.parametrize("ours", LYING)
@pytest.mark.parametrize("theirs", LYING)
def test_what_is_compiled_before_a_step(ours, theirs, anew):
    """All that it comes to, and nothing else."""
    x = np.ones((4, 32), np.float32)
    arrays = tuple(MEMORY.upload(LYING[ours](x * k)) for k in (1, 0, 0))
    args = MEMORY.upload(LYING[theirs](x)), arrays, (0.5,) * 7
    run, given = cuda.adam.ready(*args)
    assert_same(MEMORY.download(arrays[0]), x, "it has not begun")
    ready = [set(kernel._entries) for kernel in anew]
    for kernel in anew:
        kernel._entries.clear()
    run(*given)
    assert [set(kernel._entries) for kernel in anew] == ready
    assert (MEMORY.download(arrays[0]) != x).all()


def test_what_is_compiled_before_a_step_of_arrays_at_another_address(anew):
    """Which is another kernel, though they lie alike."""
    x, entries = np.ones((4, 32), np.float32), anew[0]._entries
    for lay, count in ((LYING["C"], 1), (LYING["beside"], 2), (LYING["C"], 2)):
        arrays = tuple(MEMORY.upload(lay(x * k)) for k in (1, 0, 0))
        run, given = cuda.adam.ready(MEMORY.upload(lay(x)), arrays, (0.5,) * 7)
        assert len(entries) == count
        run(*given)
        assert len(entries) == count


def test_an_interrupt_while_a_step_of_another_dtype_is_compiled(anew, monkeypatch):
    """Of the second parameter: the first has not moved."""
    compile_, values = target.Kernel._compiled, [np.ones(3, np.float32), np.ones(3)]
    ours, gradients = map(cuda.to_device, values), list(map(cuda.to_device, values))
    optimizer = Adam(ours)

    def interrupted(kernel, key):
        if np.dtype(np.float64) in key[0]:
            raise KeyboardInterrupt
        return compile_(kernel, key)

    with monkeypatch.context() as patch:
        patch.setattr(target.Kernel, "_compiled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(gradients)
    assert_same([seen(p) for p in optimizer.params], values)
    assert optimizer._state == [{}, {}]
    optimizer.step(gradients)
    assert all((seen(p) < 1).all() for p in optimizer.params)


def test_wrong_state_of_a_parameter_on_a_gpu():
    """What lies in NumPy is looked at there, as beside a parameter in NumPy."""
    host, there = np.ones_like(BATCHES[0]), cuda.to_device(BATCHES[0])
    for value in (host, there):
        optimizer = Adam([value])
        for mean, message in (
            (-host, "must not be negative"), (host[:2], "must have the shape"),
            (host.astype(np.float64), "must have the dtype float32"),
        ):  # fmt: skip
            state = {"step": 1, "exp_avg": host, "exp_avg_sq": mean}
            with pytest.raises((TypeError, ValueError), match=rf"exp_avg_sq'\] {message}"):
                optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: state}})
        swapped = host.astype(">f4")
        state = {"step": 1, "exp_avg": swapped, "exp_avg_sq": swapped}
        optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: state}})


def test_parameters_that_overlap():
    """On a GPU, beside others in NumPy: the first that overlaps one before it is named."""
    p, host = cuda.to_device(np.ones(8, np.float32)), np.ones(8, np.float32)
    SGD([p[:4], host, p[4:]])
    for values, i in (
        ([host, p[:4], p[3:]], 2), ([p[:4], host, host[1:], p[3:]], 2),
        ([p[:4], p[3:], host, host[1:]], 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"params must lie apart, params\[{i}\] overlaps"):
            SGD(values)


def test_optimizers_refuse_a_mixture():
    p = cuda.to_device(BATCHES[0])
    with pytest.raises(TypeError, match=r"gradients\[0\] and params\[0\] must be of one kind"):
        SGD([p], 0.1).step([BATCHES[0]])


def test_a_parameter_that_cannot_be_copied_is_refused_before_a_step():
    """Of nine axes none are side by side; the parameter before it stays as it is."""
    whole = np.ones((4,) * 9, np.float32)[(slice(None, None, 2),) * 9]
    p = cuda.to_device(BATCHES[0])
    for step in (SGD([p, given(whole)], 0.1).step, Adam([p, given(whole)], 0.1).step):
        with pytest.raises(ValueError, match="at most 8 axes that are not side by side"):
            step([cuda.to_device(BATCHES[0]), cuda.to_device(whole.copy())])
        assert_same(seen(p), BATCHES[0])


def test_the_loss_of_adaround(monkeypatch):
    """What holds V has no method `fill` of its own: PyTorch's and Numba's have none."""
    loss, v = AdaroundLoss(10), np.linspace(-2, 2, 7, dtype=np.float32)
    there = cuda.to_device(v)
    monkeypatch.setattr(type(there), "fill", None, raising=False)
    for step in (0, 5):
        gradient = loss.regularizer_backward(step, there)
        assert_same(seen(gradient), loss.regularizer_backward(step, v))
    monkeypatch.setattr("npquant.cuda.to_host", seen_on_host)  # as the loss is a number of Python's
    for step in (0, 5):
        assert loss.regularizer(step, there) == loss.regularizer(step, v)
