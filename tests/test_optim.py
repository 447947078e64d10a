"""SGD and Adam: the update rules step by step in NumPy, layouts, state, and what is refused.

PyTorch's bits are for tests/peers/test_pytorch_optim.py.
"""

import copy
import pickle
import re
from collections import Counter
from contextlib import contextmanager, nullcontext
from itertools import product
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from calls import everywhere
from cases import assert_same
from npquant import cpu, optim
from npquant.autograd import Parameter
from npquant.cpu import strided, target
from npquant.optim import SGD, Adam
from oracle import fma

F32, F64 = np.float32, np.float64
MAKE = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "sgd, decay": lambda p: SGD(p, lr=0.1, weight_decay=0.01),
    "sgd, momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "sgd, both": lambda p: SGD(p, 0.1, 0.9, weight_decay=0.01),
    "adam": lambda p: Adam(p, lr=0.01),
    "adam, quick": lambda p: Adam(p, 0.01, (0.3, 0.5), 1e-4),
    "adam, half": lambda p: Adam(p, 0.01, (0.5, 0.9)),
    "adam, decay": lambda p: Adam(p, 0.01, weight_decay=0.3),
    "adamw": lambda p: Adam(p, 0.01, weight_decay=0.3, decoupled_weight_decay=True),
}
by_rule = pytest.mark.parametrize("rule", MAKE)


def data(shape, steps=4, dtype=F32):
    rng = np.random.default_rng(0)
    value = rng.normal(0, 1, shape).astype(dtype)
    return value, [rng.normal(0, 10.0**t, shape).astype(dtype) for t in range(-1, steps - 1)]


def by_hand(rule, value, gradients):
    """The rule in whole-array NumPy, each step rounded but for the fused ones."""
    kind = value.dtype.type
    options = MAKE[rule]([value.copy()])
    value, lr = value.copy(), options.lr
    buffer = mean = square = None
    for t, g in enumerate(gradients, 1):
        if rule.startswith("adam"):
            beta1, beta2 = options.betas
            mean = np.zeros_like(value) if mean is None else mean
            square = np.zeros_like(value) if square is None else square
            if options.decoupled_weight_decay:
                value = value * kind(1 - lr * options.weight_decay)
            elif options.weight_decay:
                g = fma(kind(options.weight_decay), value, g)
            near = 1 - beta1 < 0.5
            rate = kind(1 - beta1)
            mean = fma(rate, g - mean, mean) if near else fma(rate - kind(1), g - mean, g)
            square = fma(kind(1 - beta2) * g, g, square * kind(beta2))
            denominator = np.sqrt(square) / kind((1 - beta2**t) ** 0.5) + kind(options.eps)
            value = value + kind(-(lr / (1 - beta1**t))) * mean / denominator
            continue
        if options.weight_decay:
            g = fma(kind(options.weight_decay), value, g)
        if options.momentum:
            buffer = g if buffer is None else buffer * kind(options.momentum) + g
            g = buffer
        value = fma(kind(-lr), g, value)
    return value


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", [F32, F64])
@by_rule
def test_rule(rule, dtype):
    value, gradients = data((5, 67), dtype=dtype)
    expected = by_hand(rule, value, gradients)
    optimizer = MAKE[rule]([value])
    for g in gradients:
        before = g.copy()
        optimizer.step([g])
        assert_same(g, before, "a gradient is only read")
    assert_same(value, expected)


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "unaligned": lambda x: (
        np.frombuffer(bytearray(b"0" + x.tobytes()), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@by_rule
def test_layouts(rule, layout):
    """Parameters, gradients or both may lie in any way; more than one packed piece."""
    lay = LAYOUTS[layout]
    value, gradients = data((130, 131))
    expected = by_hand(rule, value, gradients)
    for lay_value, lay_gradient in ((lay, lay), (lay, np.copy), (np.copy, lay)):
        v = lay_value(value)
        optimizer = MAKE[rule]([v])
        for g in gradients:
            optimizer.step([lay_gradient(g)])
        assert_same(v, expected)


@by_rule
def test_segments_in_any_order(rule, in_segments):
    """Each element once."""
    begins = in_segments(7)
    value, gradients = data((5, 67))
    expected = by_hand(rule, value, gradients)
    optimizer = MAKE[rule]([value])
    with everywhere(PARALLEL_FROM=1):  # or it would not be called so
        for g in gradients:
            optimizer.step([g])
    assert len(begins) > len(gradients)
    assert_same(value, expected)


def test_numbers_without_the_compiler():
    """Its signature rounds them, those of a tuple too, and flattens arrays; Python must be told."""
    one = target.types.float32
    signature = (one, target.types.Tuple([one, one]), target.array_type(np.dtype(F32)))
    gradient = np.ones((1, 1), F32)
    a, (b, c), array = target._uncompiled(lambda *args: args, signature)(0.1, (0.1, 3), gradient)
    assert (a, b, c) == (F32(0.1), F32(0.1), 3)
    assert {type(a), type(b), type(c)} == {F32}
    assert array.shape == (1,)
    assert np.shares_memory(array, gradient)


def test_objects_with_a_value():
    """A parameter is its present value, though that be another array than before."""
    parameter = SimpleNamespace(value=np.ones(3, F32))
    optimizer = SGD([parameter], lr=1)
    optimizer.step([np.ones(3, F32)])
    assert parameter.value.tolist() == [0, 0, 0]
    parameter.value = np.full(3, 5, F32)
    optimizer.step([np.ones(3, F32)])
    assert parameter.value.tolist() == [4, 4, 4]


def instead(run):
    """What does this in place of a kernel, and needs no compiler."""
    return SimpleNamespace(ready=lambda *args: (run, args))


def test_a_step_that_fails_is_not_counted(monkeypatch):
    """As where there is no memory to pack a gradient that lies otherwise."""

    def no_memory(*args):
        raise MemoryError

    for count in range(2):
        optimizer = Adam([np.ones(3, F32)])
        for _ in range(count):
            optimizer.step([np.ones(3, F32)])
        before = optimizer.state_dict()
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "adam", instead(no_memory))
            with pytest.raises(MemoryError):
                optimizer.step([np.ones(3, F32)])
        assert pickle.dumps(optimizer.state_dict()) == pickle.dumps(before)
        optimizer.load_state_dict(before)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(("rule", "kernel"), [("adam", "adam"), ("sgd, momentum", "sgd_momentum")])
def test_an_interrupted_step_is_counted(monkeypatch, rule, kernel, steps):
    """It is raised when the kernel has ended, and the next step goes on from there."""
    make = MAKE["adam"] if rule == "adam" else lambda p: SGD(p, lr=0.1, momentum=0.9)
    (one, other), run = (np.ones(3, F32) for _ in range(2)), getattr(cpu, kernel)
    ours, theirs = make([one]), make([other])
    gradients = [np.array([1, -2, 0.5], F32) * k for k in (1, 3, -2)]

    def interrupted(*args):
        run(*args)
        raise KeyboardInterrupt

    for k, g in enumerate(gradients):
        theirs.step([g])
        with monkeypatch.context() as patch:
            if k == steps:
                patch.setattr(cpu, kernel, instead(interrupted))
            with pytest.raises(KeyboardInterrupt) if k == steps else nullcontext():
                ours.step([g])
    assert_same(one, other)
    assert pickle.dumps(ours.state_dict()) == pickle.dumps(theirs.state_dict())


@pytest.mark.parametrize(("rule", "kernel"), [("adam", "adam"), ("sgd, momentum", "sgd_momentum")])
def test_a_step_that_is_interrupted_before_it_begins(monkeypatch, rule, kernel):
    """What it leaves can be saved, copied and loaded, and is gone on with."""
    value = np.ones(3, F32)
    optimizer = MAKE["adam"]([value]) if rule == "adam" else SGD([value], lr=0.1, momentum=0.9)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cpu, kernel, instead(interrupted))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step([np.ones(3, F32)])
    assert_same(value, np.ones(3, F32))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        optimizer.load_state_dict(other.state_dict())
    optimizer.step([np.ones(3, F32)])
    assert (value < 1).all()


KERNELS = ("sgd", "sgd_decayed", "sgd_momentum", "sgd_momentum_decayed", "adam", "adam_decayed",
           "adamw")  # fmt: skip


@pytest.fixture
def anew(monkeypatch):
    """The kernels that steps come to, by their names, as if nothing had been compiled."""
    found = {}
    for name in KERNELS:
        update = copy.copy(getattr(cpu, name))
        kernel = found[name] = update._kernel = again(update._kernel)
        monkeypatch.setattr(cpu, name, update)
        assert not kernel._code
    for name in ("gather", "scatter"):
        found[name] = again(getattr(strided, f"{name}_kernel"))
        monkeypatch.setattr(strided, f"{name}_kernel", found[name])
    return found


def again(kernel):
    return target.Kernel(kernel._made, kernel.name, kernel._signature, kernel.work)


@contextmanager
def interrupted_compiler(what):
    """An interrupt comes while what has `what` in its name or its types is compiled."""
    compile_ = target._compile

    def interrupted(function, signature, *rest):
        if what in f"{function.__name__}{signature}":
            raise KeyboardInterrupt
        return compile_(function, signature, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "_compile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


@by_rule
def test_an_interrupt_while_a_step_is_compiled(rule, anew):
    """Nothing has been counted: what comes next is the first step."""
    value, gradients = data(9)
    before, expected = value.copy(), by_hand(rule, value, gradients)
    optimizer = MAKE[rule]([value])
    with interrupted_compiler(""):
        optimizer.step([gradients[0]])
    assert_same(value, before)
    assert optimizer.state_dict()["state"] == {}
    for g in gradients:
        optimizer.step([g])
    assert_same(value, expected)


@pytest.mark.parametrize("rule", ["sgd, momentum", "adam"])
def test_an_interrupt_while_a_later_step_is_compiled(rule, anew):
    """As where an option has changed; all is as it was."""
    value, gradients = data(9)
    optimizer = MAKE[rule]([value])
    optimizer.step([gradients[0]])
    optimizer.weight_decay = 0.5
    before = pickle.dumps((value, optimizer.state_dict()))
    with interrupted_compiler(""):
        optimizer.step([gradients[1]])
    assert pickle.dumps((value, optimizer.state_dict())) == before


@by_rule
def test_an_interrupt_while_a_step_of_another_dtype_is_compiled(rule, anew):
    """Of the second parameter: the first has not moved."""
    values = [np.ones(3, F32), np.ones(3)]
    optimizer = MAKE[rule](values)
    gradients = [np.full_like(v, 0.5) for v in values]
    with interrupted_compiler("float64"):
        optimizer.step(gradients)
    assert_same(values, [np.ones(3, F32), np.ones(3)])
    assert optimizer.state_dict()["state"] == {}
    optimizer.step(gradients)
    assert_same(values, [by_hand(rule, np.ones_like(g), [g]) for g in gradients])


@pytest.mark.parametrize("what", ["gather", "scatter"])
@by_rule
def test_an_interrupt_while_what_packs_is_compiled(rule, what, anew):
    """A parameter that is taken in pieces: none has moved, nor have the means."""
    value, gradients = data((130, 131))
    v, expected = LAYOUTS["every second"](value), by_hand(rule, value, gradients)
    optimizer = MAKE[rule]([v])
    with interrupted_compiler(what):
        optimizer.step([gradients[0]])
    assert_same(v, value)
    assert optimizer.state_dict()["state"] == {}
    for g in gradients:
        optimizer.step([g])
    assert_same(v, expected)


@pytest.mark.parametrize("shape", [(0, 3), (5, 67), (130, 131), (520, 521)])
@pytest.mark.parametrize("layout", ["C", *LAYOUTS])
def test_what_is_compiled_before_a_step(layout, shape, anew):
    """All that it comes to, and nothing else: in one thread and in several, and what packs."""
    lay, kernels = LAYOUTS.get(layout, np.copy), anew.values()

    def nothing_compiled():
        for kernel in kernels:
            for entries in (kernel._code, kernel.serial, kernel.parallel):
                entries.clear()

    for lays, dtype in product(((lay, lay), (lay, np.copy), (np.copy, lay)), (F32, F64)):
        value, (gradient, buffer) = data(shape, 2, dtype)
        arrays = lays[0](value), lays[0](buffer)
        nothing_compiled()
        run, args = cpu.sgd_momentum.ready(lays[1](gradient), arrays, (0.1, 0.0, 0.9))
        assert_same(arrays, (value, buffer), "it has not begun")
        ready = [(set(k._code), set(k.parallel)) for k in kernels]
        if run not in anew["sgd_momentum"].serial.values():  # or it is what was compiled
            nothing_compiled()
        run(*args)
        assert [(set(k._code), set(k.parallel)) for k in kernels] == ready
        assert bool(value.size) is bool((arrays[0] != value).any())


@by_rule
def test_no_gradient_no_step(rule):
    """A parameter that was skipped is a step behind the other; so does PyTorch count."""
    value, gradients = data(5)
    a, b = value.copy(), value.copy()
    optimizer = MAKE[rule]([a, b])
    for t, g in enumerate(gradients):
        optimizer.step([g, None if t % 2 else g])
    assert_same(a, by_hand(rule, value, gradients))
    assert_same(b, by_hand(rule, value, gradients[::2]))


def test_infinite_values_without_decay():
    """0 * inf would be NaN."""
    value = np.array([np.inf, 1], F32)
    SGD([value], lr=0.5).step([np.ones(2, F32)])
    assert value.tolist() == [np.inf, 0.5]


def test_the_first_buffer_is_the_gradient():
    """Its bits, the sign of a zero included, as PyTorch copies it."""
    g = np.array([-0.0, 0.0, -1.5], F32)
    optimizer = SGD([np.ones(3, F32)], lr=0.5, momentum=0.9)
    optimizer.step([g])
    assert_same(optimizer.state_dict()["state"][0]["momentum_buffer"], g)


def test_no_elements():
    value = np.empty((0, 3), F32)
    Adam([value]).step([value.copy()])
    assert value.shape == (0, 3)


# --- state --------------------------------------------------------------------------------------


@by_rule
def test_state_is_restored(rule):
    value, gradients = data(9)
    expected = by_hand(rule, value, gradients)
    first = MAKE[rule]([value])
    for g in gradients[:2]:
        first.step([g])
    saved = first.state_dict()
    before = pickle.dumps(saved)
    value_then = value.copy()
    first.step([gradients[2]])
    assert pickle.dumps(saved) == before, "what was saved is a copy"
    value[:] = value_then
    second = (SGD if rule.startswith("sgd") else Adam)([value], lr=77)
    second.load_state_dict(pickle.loads(pickle.dumps(saved)))
    for g in gradients[2:]:
        second.step([g])
    assert_same(value, expected)
    assert second.state_dict()["param_groups"] == saved["param_groups"]


@by_rule
def test_pickle(rule):
    value, gradients = data(9)
    expected = by_hand(rule, value, gradients)
    optimizer = MAKE[rule]([value])
    for g in gradients[:2]:
        optimizer.step([g])
    again, copy = pickle.loads(pickle.dumps((optimizer, value)))
    for g in gradients[2:]:
        again.step([g])
    assert_same(again.params[0], expected)
    assert not np.array_equal(value, expected), "the first is another"
    assert copy is again.params[0]


def test_a_number_of_steps_of_numpy():
    optimizer, state = adam_state()
    for step in (np.int64(3), np.uint8(3)):
        optimizer.load_state_dict(changed(state, "state", 1, "step", to=step))
        assert optimizer.state_dict()["state"][1]["step"] == 3
        assert type(optimizer.state_dict()["state"][1]["step"]) is int
    for step in (np.float64(3.5), np.timedelta64(3), np.True_, True):
        with pytest.raises((TypeError, ValueError), match=r"step.* must be an integer"):
            optimizer.load_state_dict(changed(state, "state", 1, "step", to=step))


def test_a_number_of_steps_of_a_file():
    """In an npz file and in safetensors it is an array, and PyTorch counts in float32."""
    optimizer, state = adam_state()
    steps = np.array(3), np.array([3], ">u2"), 3.0, np.float32(3), np.array(3, np.float32)
    for step in (*steps, np.array([[3]])):
        optimizer.load_state_dict(changed(state, "state", 1, "step", to=step))
        assert optimizer.state_dict()["state"][1]["step"] == 3
        assert type(optimizer.state_dict()["state"][1]["step"]) is int
    for step, got in (
        (np.array(1.5), r"array\(1.5\)"),
        (np.array([1, 2]), r"an array of shape \(2,\) and dtype int64"),
        (np.array(True), r"array\(True\)"),
        (np.array(["1"]), "'1'"),
        (2.5, "2.5"),
        (np.nan, "nan"),
        (np.inf, "inf"),
        ("3", "'3'"),
    ):
        message = rf"state\[1\]\['step'\] must be an integer, got .*{got}"
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(changed(state, "state", 1, "step", to=step))
    with pytest.raises(ValueError, match=r"state\[1\]\['step'\] must lie within 1"):
        optimizer.load_state_dict(changed(state, "state", 1, "step", to=np.array(0)))


def adam_state():
    optimizer = Adam([np.ones(3, F32), np.ones(2, F64)])
    optimizer.step([np.ones(3, F32), np.ones(2)])
    return optimizer, optimizer.state_dict()


def changed(state, *path, to):
    """The state with one thing in it changed, or taken away."""
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return state


@pytest.mark.parametrize(
    ("path", "to", "error", "named"),
    [
        (("state",), None, ValueError, "state"),
        (("state",), [1], ValueError, "state"),
        (("state", 2), {}, ValueError, "state"),
        (("state", 1), [], ValueError, "state"),
        (("state", 1, "exp_avg"), None, ValueError, "exp_avg"),
        (("state", 1, "exp_avg"), np.ones(3), ValueError, "exp_avg"),
        (("state", 1, "exp_avg_sq"), np.ones(2, F32), ValueError, "exp_avg_sq"),
        (("state", 1, "exp_avg_sq"), [1.0, 2.0], ValueError, "exp_avg_sq"),
        (("state", 1, "step"), 0, ValueError, "step"),
        (("state", 1, "step"), 1.5, ValueError, "step"),
        (("state", 1, "more"), 1, ValueError, "more"),
        (("param_groups",), [], ValueError, "param_groups"),
        (("param_groups", 0, "lr"), None, ValueError, "lr"),
        (("param_groups", 0, "lr"), -1, ValueError, "lr"),
        (("param_groups", 0, "betas"), (0.5, 1.0), ValueError, "betas"),
        (("param_groups", 0, "params"), [0], ValueError, "params"),
        (("more",), 1, ValueError, "more"),
    ],
)
def test_nothing_is_half_loaded(path, to, error, named):
    optimizer, state = adam_state()
    state["param_groups"][0]["lr"] = 5.0
    state["state"][0]["step"] = 9
    before = pickle.dumps(optimizer.state_dict())
    with pytest.raises(error, match=named):
        optimizer.load_state_dict(changed(state, *path, to=to))
    assert pickle.dumps(optimizer.state_dict()) == before


def test_a_state_that_is_none():
    optimizer, _ = adam_state()
    for wrong in (None, [], "state"):
        with pytest.raises(ValueError, match="state_dict"):
            optimizer.load_state_dict(wrong)


# --- errors -------------------------------------------------------------------------------------


SHARED = np.ones(4, F32)


def read_only():
    x = np.ones(3, F32)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        (None, TypeError),
        (3, TypeError),
        ([], ValueError),
        (np.ones((3, 2), F32), TypeError),
        (np.ones((0, 2), F32), TypeError),
        (Parameter(np.ones((3, 2), F32)), TypeError),
        ({Parameter(np.ones(2, F32)), Parameter(np.ones(3, F32))}, TypeError),
        ("w", TypeError),
        ([1.0], TypeError),
        ([[1.0]], TypeError),
        ([SimpleNamespace(value=[1.0])], TypeError),
        ([np.ones(3, np.float16)], TypeError),
        ([np.ones(3, ml_dtypes.bfloat16)], TypeError),
        ([np.ones(3, int)], TypeError),
        ([np.ma.ones(3, F32)], TypeError),
        ([np.ones(3, ">f4")], TypeError),
        ([read_only()], ValueError),
        ([np.broadcast_to(np.ones(1, F32), 3)], ValueError),
        ([np.ones(3, F32)] * 2, ValueError),
        ([SHARED[:3], SHARED[1:]], ValueError),
    ],
)
def test_wrong_parameters(parameters, error):
    for make in (Adam, lambda parameters: SGD(parameters, 0.1)):
        with pytest.raises(error, match="params"):
            make(parameters)


def test_an_array_is_no_list_of_its_rows():
    """Neither as parameters nor as gradients, though its rows are arrays that could be trained."""
    w = np.ones((3, 2), F32)
    shown = r"got an array of shape \(3, 2\) and dtype float32$"
    with pytest.raises(TypeError, match=f"params must be a list of arrays .*{shown}"):
        Adam(w)
    optimizer = Adam(list(w))
    with pytest.raises(TypeError, match=f"gradients must be a list of arrays.*{shown}"):
        optimizer.step(w.copy())
    optimizer.step(list(w.copy()))
    assert (w < 1).all()


@pytest.mark.parametrize(
    ("make", "options"),
    [(SGD, ("lr", "momentum", "weight_decay")), (Adam, ("lr", "eps", "weight_decay"))],
)
def test_wrong_numbers(make, options):
    """Given or assigned."""
    for name in options:
        optimizer = make([np.ones(3, F32)], 0.1)
        before = getattr(optimizer, name)
        for value, error in ((-1, ValueError), (np.nan, ValueError), ("1", TypeError)):
            with pytest.raises(error, match=name):
                make([np.ones(3, F32)], **{"lr": 0.1, name: value})
            with pytest.raises(error, match=name):
                setattr(optimizer, name, value)
        assert getattr(optimizer, name) == before


def test_a_rate_of_a_schedule_in_float32():
    """It is the number that it stands for: no step is computed in float32 for it."""
    for make in (SGD, Adam):
        values = np.ones(3), np.ones(3)
        given, assigned = make(values[:1], np.float32(0.1)), make(values[1:], 0.5)
        assigned.lr = np.float32(0.1)
        assert type(assigned.lr) is float
        for optimizer in (given, assigned):
            optimizer.step([np.array([1.0, -0.3, 7])])
        assert_same(*values)


@pytest.mark.parametrize(
    ("betas", "error"),
    [(0.9, TypeError), ((0.9,), TypeError), ("ab", TypeError), (b"\0\0", TypeError),
     ((0.9, 1), ValueError), ((1, 0.9), ValueError),
     ((-0.1, 0.9), ValueError), ((0.9, None), TypeError)],
)  # fmt: skip
def test_wrong_betas(betas, error):
    with pytest.raises(error, match="betas"):
        Adam([np.ones(3, F32)], betas=betas)
    optimizer = Adam([np.ones(3, F32)])
    with pytest.raises(error, match="betas"):
        optimizer.betas = betas
    assert optimizer.betas == (0.9, 0.999)


@pytest.mark.parametrize(
    ("gradient", "error"),
    [
        (np.ones(2), ValueError),
        (np.ones((3, 1)), ValueError),
        (np.ones(3, F32), TypeError),
        (np.ones(3, int), TypeError),
        ([1.0, 1.0, 1.0], TypeError),
        (1.0, TypeError),
    ],
)
@by_rule
def test_a_wrong_gradient_changes_nothing(rule, gradient, error):
    """Not even the parameter before it."""
    values = np.ones(3, F32), np.ones(3)
    optimizer = MAKE[rule](values)
    with pytest.raises(error, match=r"gradients\[1\]"):
        optimizer.step([np.ones(3, F32), gradient])
    assert_same(values, (np.ones(3, F32), np.ones(3)))
    assert optimizer.state_dict()["state"] == {}


@by_rule
def test_a_gradient_that_overlaps_its_parameter(rule):
    memory = np.arange(1.0, 5.0)
    optimizer = MAKE[rule]([memory[1:]])
    with pytest.raises(ValueError, match=r"gradients\[0\] must be params\[0\] itself or not"):
        optimizer.step([memory[:-1]])
    assert_same(memory, np.arange(1.0, 5.0))
    same, apart = np.arange(1.0, 5.0), np.arange(1.0, 5.0)
    MAKE[rule]([same]).step([same])
    MAKE[rule]([apart]).step([apart.copy()])
    assert_same(same, apart)


@by_rule
def test_parameters_that_interleave(rule):
    """They lie apart, though between the same ends."""
    together, apart = np.arange(24.0).reshape(4, 6), np.arange(24.0).reshape(4, 6)
    left, right = apart[:, :3].copy(), apart[:, 3:].copy()
    gradients = [np.ones((4, 3)), np.full((4, 3), -2.0)]
    MAKE[rule]([together[:, :3], together[:, 3:]]).step(gradients)
    MAKE[rule]([left, right]).step(gradients)
    assert_same(together, np.hstack([left, right]))
    with pytest.raises(ValueError, match=r"params must lie apart, params\[1\] overlaps another"):
        MAKE[rule]([together[:, :4], together[:, 3:]])


def first_overlapping(values):
    """The place of the first that shares an element with one before it."""
    for i, v in enumerate(values):
        if any(np.shares_memory(v, other) for other in values[:i]):
            return i
    return None


def expect_overlap(values, i):
    """Nothing is refused where `i` is None, else params[i] is."""
    overlap = rf"params must lie apart, params\[{i}\] overlaps another"
    with nullcontext() if i is None else pytest.raises(ValueError, match=overlap):
        SGD(values)


def test_parameters_that_overlap_are_found_wherever_they_lie():
    """The first that overlaps one before it is named, as where all pairs are compared."""
    rng, found = np.random.default_rng(0), Counter()
    for _ in range(600):
        memory, values = np.zeros(40, F32), [np.zeros(3, F32)]
        for _ in range(rng.integers(1, 7)):
            begin, step = rng.integers(0, 38), rng.integers(1, 7)
            v = memory[begin : begin + rng.integers(0, 30) : step]
            values.append(v[:: rng.choice([1, -1])])
        if rng.random() < 0.3:
            square = memory[:36].reshape(6, 6)
            values.append(square[rng.integers(0, 6) :, rng.integers(0, 5) :])
        values = [values[i] for i in rng.permutation(len(values))]
        i = first_overlapping(values)
        found[i] += 1
        expect_overlap(values, i)
    assert min(found[i] for i in (None, 1, 2, 3, 4)) > 10


def test_a_parameter_that_spans_others():
    """It begins before them and ends after them, and lies between them."""
    memory = np.zeros(99, F32)
    large, small = memory[::2], [memory[i : i + 1] for i in range(1, 99, 2)]
    for values in ([large, *small], [*small, large], [*small[20:], large, *small[:20][::-1]]):
        expect_overlap(values, None)
        expect_overlap([*values, memory[4:5]], 50)
        expect_overlap([memory[94:95], *values], 1 + [v is large for v in values].index(True))
        expect_overlap([*values, memory[95:96], memory[4:5]], 50)
        expect_overlap([*values[:9], memory[98:99], *values[9:]], max(
            9, 1 + [v is large for v in values].index(True)))  # fmt: skip


@pytest.mark.parametrize("there", range(4))
@by_rule
def test_a_first_step_without_memory_changes_nothing(rule, there, monkeypatch):
    """The state of all is made before any is updated, however many arrays there is room for."""
    values, left, made = [np.ones(2), np.ones(2)], [there], optim.full_like

    def full_like(*args):
        left[0] -= 1
        if left[0] == -1:
            raise MemoryError
        return made(*args)

    monkeypatch.setattr(optim, "full_like", full_like)
    optimizer = MAKE[rule](values)
    needed = len(values) * (2 if "adam" in rule else 1 if optimizer.momentum else 0)
    if there < needed:
        with pytest.raises(MemoryError):
            optimizer.step([np.ones(2)] * 2)
        assert_same(values, [np.ones(2)] * 2)
        assert optimizer.state_dict()["state"] == {}
    monkeypatch.undo()
    optimizer.step([np.ones(2)] * 2)
    other = [np.ones(2), np.ones(2)]
    MAKE[rule](other).step([np.ones(2)] * 2)
    assert_same(values, other)


def test_a_state_of_adam_that_cannot_be():
    optimizer = Adam([np.ones(2)])
    optimizer.step([np.ones(2)])
    state = optimizer.state_dict()
    for change in ({"exp_avg_sq": np.array([1.0, -1.0])}, {"step": 2**63}, {"step": 10**400}):
        wrong = state | {"state": {0: state["state"][0] | change}}
        with pytest.raises(ValueError, match=f"state.*{next(iter(change))}"):
            Adam([np.ones(2)]).load_state_dict(wrong)


def test_wrong_gradients():
    optimizer = SGD([np.ones(3, F32)], lr=1)
    for wrong, error in (
        (None, TypeError), ([], ValueError), ([None, None], ValueError),
        (np.ones((1, 3), F32), TypeError), ("g", TypeError), ({None}, TypeError),
    ):  # fmt: skip
        with pytest.raises(error, match="gradients"):
            optimizer.step(wrong)


@pytest.mark.parametrize(
    ("make", "name", "options"),
    [
        (SGD, "lr", {"lr": 1e300}), (SGD, "weight_decay", {"lr": 0.1, "weight_decay": 1e39}),
        (Adam, "lr", {"lr": 1e300}), (SGD, "lr", {"lr": 1e39, "momentum": 0.9}),
        (SGD, "momentum", {"lr": 0.1, "momentum": 1e39}),
        (Adam, "weight_decay", {"weight_decay": 1e39}),
    ],
)  # fmt: skip
def test_options_that_no_float32_holds(make, name, options):
    """For parameters of float32, as in PyTorch; nothing is updated, nor what comes first."""
    one, other = np.ones(3), np.ones(2, F32)
    optimizer = make([one, other], **options)
    gradients = [np.ones(3), np.ones(2, F32)]
    with pytest.raises(ValueError, match=f"{name} must be finite in float32, got 1e"):
        optimizer.step(gradients)
    assert (one == 1).all()
    assert (other == 1).all()
    optimizer.step([gradients[0], None])
    assert (one < 1).all()


def test_a_step_of_adam_that_no_float32_holds():
    """Ten times the learning rate at first, and less and less of it."""
    p, q = np.ones(3, F32), np.ones(3)
    with pytest.raises(ValueError, match="eps must be finite in float32, got 1e"):
        Adam([p], eps=1e39).step([p])
    optimizer = Adam([p, q], lr=5e37)
    with pytest.raises(ValueError, match=r"lr / \(1 - betas\[0\]\*\*t\) must be finite in float32"):
        optimizer.step([np.ones(3, F32), np.ones(3)])
    assert (p == 1).all()
    assert (q == 1).all()
    optimizer.lr = 3e37
    optimizer.step([np.ones(3, F32), np.ones(3)])
    optimizer.lr = 5e37  # the second step is 2.6e38
    optimizer.step([np.ones(3, F32), np.ones(3)])
    assert np.isfinite(p).all()


def test_what_a_decay_keeps_that_no_float32_holds():
    """A product of two numbers that it holds; where it is added to gradients there is none."""
    p, q = np.ones(3, F32), np.ones(3)
    optimizer = Adam([p, q], lr=1e19, weight_decay=1e20, decoupled_weight_decay=True)
    message = "1 - lr * weight_decay must be finite in float32, got -1e+39"
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.step([np.ones(3, F32), np.ones(3)])
    assert (p == 1).all()
    assert (q == 1).all()
    optimizer.decoupled_weight_decay = False
    optimizer.step([np.ones(3, F32), np.ones(3)])
    assert (p < 1).all()


def test_a_decay_is_decoupled_or_not():
    """An option as others are, which is truncated as PyTorch's switches are."""
    value = np.ones(3, F32)
    for wrong in (None, "yes", [True]):
        with pytest.raises(TypeError, match="decoupled_weight_decay must be a bool or a number"):
            Adam([value], decoupled_weight_decay=wrong)
    optimizer = Adam([value], lr=0.5, weight_decay=0.5, decoupled_weight_decay=1)
    assert optimizer.decoupled_weight_decay is True
    optimizer.step([np.zeros(3, F32)])
    assert_same(value, np.full(3, 0.75, F32))
    optimizer.decoupled_weight_decay = False
    optimizer.step([np.zeros(3, F32)])
    assert (optimizer.state_dict()["state"][0]["exp_avg"] > 0).all()  # the decay is in the gradient
    other = Adam([np.ones(3, F32)], decoupled_weight_decay=True)
    other.load_state_dict(optimizer.state_dict())
    assert other.weight_decay == 0.5
    assert other.decoupled_weight_decay is False
    state = optimizer.state_dict()
    state["param_groups"][0]["decoupled_weight_decay"] = np.True_
    other.load_state_dict(state)
    assert other.decoupled_weight_decay is True


def test_parameters_that_were_added():
    optimizer = SGD([np.ones(2)])
    optimizer.params.append(np.ones(3))
    with pytest.raises(ValueError, match="params must stay the 1 that there were, got 2"):
        optimizer.step([np.ones(2), np.ones(3)])


def test_a_parameter_that_changed():
    parameter = SimpleNamespace(value=np.ones(3, F32))
    optimizer = Adam([parameter])
    optimizer.step([np.ones(3, F32)])
    parameter.value = np.ones(4, F32)
    with pytest.raises(ValueError, match=r"params\[0\]"):
        optimizer.step([np.ones(4, F32)])
    parameter.value = np.ones(3)
    with pytest.raises(ValueError, match=r"params\[0\]"):
        optimizer.step([np.ones(3)])


def test_repr():
    one, two = np.zeros(1), np.zeros(1)
    assert repr(SGD([one], 0.5)) == "SGD(1 parameter, lr=0.5, momentum=0.0, weight_decay=0.0)"
    assert repr(Adam([one, two])).startswith("Adam(2 parameters, lr=0.001, betas=(0.9, 0.999)")


@pytest.mark.parametrize("rule", ["sgd, momentum", "adam"])
def test_a_loaded_state_lies_as_its_parameter(rule):
    """Or each step would pack what lies otherwise."""
    values = [np.random.default_rng(1).normal(size=(3, 5, 7)).astype(F32)]
    values.append(values[0].transpose(2, 0, 1).copy().transpose(1, 2, 0))
    first, second = (MAKE[rule]([value]) for value in values)
    first.step([values[0].copy()])
    second.load_state_dict(first.state_dict())
    for optimizer in (second, copy.copy(second)):
        for name in second._arrays:
            assert_same(optimizer._state[0][name], first._state[0][name])
            assert optimizer._state[0][name].strides == values[1].strides
