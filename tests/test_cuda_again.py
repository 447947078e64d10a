"""Calls that come again: of an equal one what it came to is launched, and nothing is checked."""

import gc
import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
from npquant.cuda import again, arrays, loops, target
from npquant.cuda.watch import watch
from standins import (
    ALIKE,
    FIRST,
    STREAM,
    CuPyArray,
    Tensor,
    cupy,
    driven,
    read_only,
    streams,
    tensor,
    torch,
)
from twins import Shown


def gradients(n=6):
    """The arrays of a call, and its results."""
    x, g, s, z = (tensor(np.zeros(shape, "f4")) for shape in ((n, 4100), (n, 4100), n, n))
    op = nq.fake_quantize_learnable_per_channel_affine_backward
    return (g, x, s, z), op(g, x, s, z, 0, -8, 7)


def test_a_call_is_launched_again(driven):
    """With the addresses of its own arrays, and all else as it was."""
    calls = []
    for _ in range(3):
        given, results = gradients()
        calls.append([*given, *results])
    per_call = driven.long
    assert len(driven.launches) == 3 * per_call >= 6
    for k, arrays_of_call in enumerate(calls):
        mine = driven.launches[k * per_call : (k + 1) * per_call]
        for launch, first in zip(mine, driven.launches, strict=False):
            assert launch.what == first.what
            assert launch.on == STREAM
            for place, there in zip(launch.places, first.places, strict=True):
                which = [i for i, a in enumerate(calls[0]) if a.data_ptr() == there]
                assert which == [i for i, a in enumerate(arrays_of_call) if a.data_ptr() == place]
    own = {a.data_ptr() for a in calls[1]}
    scratch = {p for launch in driven.launches[per_call:-per_call] for p in launch.places} - own
    assert scratch


def test_scratch_says_its_dtype(torch):
    """Which is part of what tells a call from others, and not that of the memory."""
    x = arrays.device(Tensor(np.zeros(4, np.float32), "torch.float32"))
    one, other = (x.scratch((3,), np.dtype(d)) for d in (np.float16, ml_dtypes.bfloat16))
    assert (one.dtype, other.dtype) == (np.float16, ml_dtypes.bfloat16)
    assert again._key([one]) != again._key([other])
    assert again._key([one]) == again._key([x.scratch((3,), np.dtype(np.float16))])


def test_scratch_is_apart(driven, torch, monkeypatch):
    """All that is made on the way is one array, whose parts share no memory and lie as on a GPU."""
    made, empty = [], torch.empty_strided
    note = lambda *args, **kwargs: made.append(empty(*args, **kwargs)) or made[-1]
    monkeypatch.setattr(torch, "empty_strided", note)
    state = [tensor(np.zeros(1, t)) for t in ("f4", "f4", "f4", "i8")]
    for _ in range(2):
        made.clear()
        driven.launches.clear()
        x = tensor(np.zeros(1 << 16, "f4"))
        nq.fused_moving_avg_obs_fake_quant(x, 1, 1, *state, 0.1, -8, 7, 0)
        one = made[-1]
    assert (len(made), one.dtype) == (2, "torch.uint8")
    inside = {p - one.data_ptr() for launch in driven.launches for p in launch.places}
    parts = sorted(p for p in inside if 0 <= p < one.held.nbytes)
    assert len(parts) > 2
    assert {p % again.APART for p in parts} == {0}


def test_results_have_the_strides_of_the_first(driven):
    """Those along axes of one, too, of which kernels know nothing."""
    strides = set()
    for _ in range(2):
        x = tensor(np.zeros((2, 1, 4, 3), "f4"))
        x.held = x.held.transpose(0, 3, 1, 2)
        x.shape = x.held.shape
        strides.add(nq.fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7).stride())
    assert strides == {x.stride()}
    assert driven.long == 1


def test_parts_of_an_array_are_launched_again(driven, monkeypatch):
    """Where in it each begins is part of what is remembered."""
    monkeypatch.setattr(loops, "LONGEST", 32)
    found = []
    for _ in range(2):
        x = tensor(np.zeros(96, "f4"))
        y = nq.convert_element_type(x, np.int8)
        starts = [
            (a.places[0] - x.data_ptr(), a.places[-1] - y.data_ptr()) for a in driven.launches
        ]
        found.append(starts[-3:])
    assert found == [[(0, 0), (128, 32), (256, 64)]] * 2
    assert driven.long == 3


def test_a_call_goes_to_the_stream_of_its_input_again(driven, torch):
    gradients()
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=STREAM + 1)
    driven.launches.clear()
    gradients()
    assert {launch.on for launch in driven.launches} == {STREAM + 1}


def test_qparams_of_another_library_are_another_call(driven, cupy):
    """What is made for it is of the library of the input, also when it comes again."""
    x, z = tensor(np.zeros((6, 8), "f4")), tensor(np.zeros(6, "i4"))
    for s in (tensor(np.ones(6, "f4")), CuPyArray(6, np.float32)):
        for long in (1, 0):
            before = driven.long
            y = nq.quantize_per_channel(x, s, z, 0, -128, 127, np.int8)
            assert (type(y), driven.long - before) == (Tensor, long)
            place = s.data.ptr if type(s) is CuPyArray else s.data_ptr()
            assert place in driven.launches[-1].places


def test_a_call_that_fails_leaves_nothing(driven, torch, monkeypatch):
    """Neither on the long way nor later; the next one is as if it had not been."""
    empty, count = torch.empty_strided, []

    def no_memory(*args, **kwargs):
        count.append(1)
        if len(count) == 2:
            raise MemoryError
        return empty(*args, **kwargs)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty_strided", no_memory)
            count.clear()
            before = len(driven.launches)
            with pytest.raises(MemoryError):
                gradients()
        assert watch.recording is None
        gradients()
        assert len(driven.launches) == before + driven.long
    assert driven.long == 2  # all others are what the first came to


def test_threads_note_what_they_launch_themselves(driven, monkeypatch):
    """One waits within its first call until another has had its own."""
    launch, entered, left = target.Kernel.__call__, threading.Event(), threading.Event()

    def late(*args):
        if threading.current_thread() is first:
            entered.set()
            left.wait(10)
        launch(*args)

    def call():
        nq.convert_element_type(tensor(np.zeros(8, "f4")), np.int8)

    monkeypatch.setattr(target.Kernel, "__call__", late)
    first = threading.Thread(target=call)
    first.start()
    assert entered.wait(10)
    assert watch.recording is None
    for _ in range(2):
        gradients()
    left.set()
    first.join()
    call()
    assert len(driven.launches) == 2 * 2 + 2
    assert driven.long == 3


def convert(x, y):
    loops.mapped(lambda x, y: x[0], "copy")(x, y)


ELSEWHERE = []


def to_an_array_of_its_own(x):
    ELSEWHERE.append(tensor(np.zeros(8, "f4")))
    convert(x, arrays.device(ELSEWHERE[-1]))
    return x.new_alike(x.dtype).owner


def on_another_stream(x):
    y = x.new_alike(x.dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays.DeviceArray, "stream", lambda a: STREAM + 1)
        convert(x, y)
    return y.owner


def by_another_library(x):
    y = arrays.device(CuPyArray(8, np.float32)).new((8,), x.dtype)
    convert(x, y)
    return x.new_alike(x.dtype).owner


def what_it_has_not_made(x):
    convert(x, x.new_alike(x.dtype))
    return ELSEWHERE


def nothing_launched(x):
    return x.new_alike(x.dtype).owner


UNFIT = (
    to_an_array_of_its_own, on_another_stream, by_another_library, what_it_has_not_made,
    nothing_launched,
)  # fmt: skip


@pytest.mark.parametrize("op", UNFIT)
def test_what_cannot_be_repeated(driven, cupy, op):
    """It is called once, and the caller goes the long way from then on."""
    call = again.repeated(op)
    x = arrays.device(tensor(np.zeros(8, "f4")))
    assert call(x) is not None
    assert call(x) is None


def test_memory_that_is_not_aligned(driven, torch, monkeypatch):
    """Kernels that read whole vectors are not given it."""
    gradients()
    before = driven.long
    empty = torch.empty_strided

    def shifted(*args, **kwargs):
        y = empty(*args, **kwargs)
        y.shift = 8
        return y

    monkeypatch.setattr(torch, "empty_strided", shifted)
    gradients()
    assert driven.long == 2 * before


def test_zeros_have_signs(driven):
    x = tensor(np.zeros(8, "f4"))
    for weight in (0.0, -0.0, 0.0, -0.0):
        nq.adaround_regularizer_backward(x, 2.0, weight)
        (weight_of_it,) = [v for v in driven.launches[-1].what[2] if v == 0 and type(v) is float]
        assert str(weight_of_it) == str(weight)
    assert (driven.long, len(driven.launches)) == (2, 4)


def test_state_that_shares_memory(driven):
    """Of arrays without gaps, wherever one begins in the other."""
    held = tensor(np.zeros(9, "f4")).held
    rows, scale, zero_point = (tensor(np.zeros(*v)) for v in (((3, 8), "f4"), (3, "f4"), (3, "i4")))

    def observe(low, high):
        low, high = (Tensor(a, "torch.float32") for a in (low, high))
        nq.fused_moving_avg_obs_fake_quant(
            rows, 1, 1, low, high, scale, zero_point, 0.1, -8, 7, 0, per_row_fake_quant=True
        )

    for low, high in ((held[:3], held[2:5]), (held[:3], held[:3]), (held[3:6], held[1:4])):
        with pytest.raises(ValueError, match="running_max must be apart from running_min"):
            observe(low, high)
    assert not driven.launches
    observe(held[:3], held[3:6])
    assert driven.launches


def test_read_only_arrays_are_not_written_to_again(driven, monkeypatch):
    fake, out = nq.fake_quantize_per_tensor_affine, np.ones(8, np.float32)
    x = tensor(np.zeros(8, "f4"))
    for _ in range(2):
        fake(x, 0.1, 0, -8, 7, out=Shown(out))
    with pytest.raises(ValueError, match="out must be writeable, got a read-only array"):
        fake(x, 0.1, 0, -8, 7, out=read_only(out))
    assert (len(driven.launches), driven.long) == (2, 1)


def test_what_is_given_twice_is_not_noted(driven):
    """Of its address nobody could tell which of the two a kernel was given."""
    x, s, z = (tensor(np.zeros(shape, "f4")) for shape in ((6, 8), 6, 6))
    op = nq.fake_quantize_learnable_per_channel_affine_backward
    op(x, x, s, z, 0, -8, 5)
    g = tensor(np.zeros((6, 8), "f4"))
    for long in (True, False, False):
        before = driven.long
        op(g, x, s, z, 0, -8, 5)
        assert (driven.long > before) == long
        assert {g.data_ptr(), x.data_ptr()} <= set(driven.launches[-2].places)
    before = driven.long
    op(x, x, s, z, 0, -8, 5)  # and then it is repeated: a kernel reads where it is told to
    assert driven.long == before


@pytest.mark.parametrize("how", ["packed first", "refused", "launched", "again"])
def test_a_call_keeps_no_array_alive(driven, how):
    """Memory of a GPU is dear: when the call is over, nobody holds its input or what it made."""
    for _ in range(2 if how == "again" else 1):
        x = tensor(np.zeros((6, 24), "f4"))
        if how == "packed first":
            x.held = x.held[:, ::2]
            x.shape = x.held.shape
        out = tensor(np.zeros(x.shape, "i1")) if how == "refused" else None
        with nullcontext() if how != "refused" else pytest.raises(TypeError):
            out = nq.fake_quantize_per_tensor_affine(x, 0.5, 1, -9, 3, out=out)
        held = weakref.ref(x), weakref.ref(out)
        del x, out
        gc.collect()
        assert [a() for a in held] == [None, None]


def test_numbers_are_not_taken_for_others(driven):
    """Numbers are part of what is remembered."""
    for scale, zero_point in ((0.5, 1), (0.25, 1), (0.5, 2), (0.5, 1)):
        nq.dequantize_per_tensor(tensor(np.zeros(32, "i1")), scale, zero_point, -8, 8, np.int8)
        assert driven.launches[-1].what[2][9:11] == [scale, zero_point]
    assert driven.long == 3


def test_calls_that_fail_push_no_others_out(driven):
    x = tensor(np.zeros(48, "f4"))
    scales = [0.5 + k for k in range(again.MOST)]
    for scale in scales:
        nq.fake_quantize_per_tensor_affine(x, scale, 0, -9, 3)
    with pytest.raises(ValueError, match="zero_point"):
        nq.fake_quantize_per_tensor_affine(x, 0.5, 4, -9, 3)
    for scale in scales:
        nq.fake_quantize_per_tensor_affine(x, scale, 0, -9, 3)
    assert (len(driven.launches), driven.long) == (2 * again.MOST, again.MOST)
    nq.fake_quantize_per_tensor_affine(x, 0.25, 0, -9, 3)  # one more than are remembered
    nq.fake_quantize_per_tensor_affine(x, 0.5, 0, -9, 3)
    assert driven.long == again.MOST + 2


def test_numbers_that_differ_each_time(driven, monkeypatch):
    """Calls are recorded when they come again, and done again when two recordings are alike."""
    recorded, record = [], again._Recording
    monkeypatch.setattr(again, "_Recording", lambda *args: recorded.append(1) or record(*args))
    monkeypatch.setattr(again, "FIRST", FIRST)
    monkeypatch.setattr(again, "ALIKE", ALIKE)
    x = tensor(np.zeros(48, "f4"))
    for k in range(3 * again.MOST):
        nq.fake_quantize_per_tensor_affine(x, 0.5 + k, 0, -9, 2)
    assert recorded == []
    for long, recordings in ((1, 0), (1, 1), (1, 2), (0, 2), (0, 2)):
        before = driven.long
        nq.fake_quantize_per_tensor_affine(x, 0.25, 0, -9, 2)
        assert (driven.long - before, len(recorded)) == (long, recordings)
    assert len(driven.launches) == 3 * again.MOST + 5


def test_what_another_launches_meanwhile(driven, monkeypatch):
    """A finalizer, say: it is recorded, too, but not done again, as it is not there each time."""
    monkeypatch.setattr(again, "ALIKE", ALIKE)
    others, copying = [True, False, False], loops.mapped(lambda x, y: x[0], "copy")

    def op(x, out):
        y = x.new_alike(x.dtype)
        copying(x, y)
        if others.pop(0):
            copying(x, arrays.device(out))
        return y.owner

    call = again.repeated(op, 0, (1,))
    x, out = arrays.device(tensor(np.zeros(8, "f4"))), tensor(np.zeros(8, "f4"))
    for launches in (2, 1, 1, 1, 1):
        before = len(driven.launches)
        assert call(x, out) is not None
        assert len(driven.launches) - before == launches
    assert others == []


def test_rows_that_cannot_be_repeated_are_one_kernel(torch, streams):
    """As here, where what is launched is not seen."""
    for _ in range(3):
        nq.quantize_per_token_dynamic(tensor(np.zeros((4, 8), "f4")), np.int8)
    assert streams == [STREAM] * 3


def test_an_op_of_others_is_repeated_as_a_whole(driven):
    for _ in range(3):
        nq.quantize_per_token_dynamic(tensor(np.zeros((4, 8), "i1")), np.int8)
    assert len(driven.launches) == 3 * driven.long > 6


def test_a_step_whose_state_shares_memory(driven):
    """It is refused, whether an equal one was done before or not."""
    x = tensor(np.zeros((4, 8), "f4"))
    for rows in (1, 4):
        low, high, scale = (tensor(np.zeros(rows, "f4")) for _ in range(3))
        z = tensor(np.zeros(rows, "i4"))

        def step(*state):
            nq.fused_moving_avg_obs_fake_quant(
                x, 1, 1, *state, 0.1, -8, 7, 0, state[0].shape[0] > 1
            )

        for _ in range(2):
            with pytest.raises(ValueError, match="running_max must be apart from running_min"):
                step(low, low, scale, z)
            step(low, high, scale, z)
    assert len(driven.launches) == 2 * driven.long


def test_an_out_that_overlaps(driven, torch):
    held = np.zeros(12, np.float32)
    x, later = (Tensor(held[i : i + 8], torch.float32) for i in (0, 4))  # aligned alike
    apart = Tensor(np.zeros(8, np.float32), torch.float32)
    one = Tensor(np.broadcast_to(np.zeros(1, np.float32), 8), torch.float32)
    scale, other = (Tensor(a[:1], torch.float32) for a in (apart.held, np.ones(1, np.float32)))
    for once_more in (False, True):  # what is remembered is held against them, too
        for out, s, message in (
            (later, 0.1, "not overlap it"),
            (one, 0.1, "must not repeat its elements"),
            (apart, scale, "apart from scale"),
        ):
            with pytest.raises(ValueError, match=message):
                nq.fake_quantize_per_tensor_affine(x, s, 0, -8, 7, out=out)
        assert len(driven.launches) == 2 * once_more
        for s in (0.1, other):
            nq.fake_quantize_per_tensor_affine(x, s, 0, -8, 7, out=apart)
    assert driven.long == 2
