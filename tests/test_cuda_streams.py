"""Streams: all that an op launches goes to that of its input, whatever library made the arrays.

Numba's arrays are made here as ever, but for their memory, which is the host's; launches are noted.
"""

from ctypes import c_void_p
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver
from numba.cuda.cudadrv.driver import Stream

import npquant as nq
import npquant.modules as npq
from calls import CALLS, DATA, WITH_OUT, arguments, axes, results
from every_kernel import shape_of
from npquant.adaround import AdaroundLoss
from npquant.arrays import beside
from npquant.checks.calls import forget
from npquant.cuda import arrays, target, to_device, to_host
from npquant.optim import Adam
from twins import Shown, elsewhere

#: The handles of two streams.
STREAM, OTHER = 0x5EED, 0xFEED


def memalloc(size):
    """Memory as Numba's arrays are given it."""
    held = np.empty(size, np.uint8)
    return SimpleNamespace(held=held, device_ctypes_pointer=c_void_p(held.ctypes.data))


def external_stream(handle):
    return Stream(driver.CUstream(handle), external=True)


@pytest.fixture(autouse=True)
def streams(monkeypatch, repeated_at_once):
    """(kernel, stream) of all that was to be launched."""
    found = []

    def note(kernel, blocks, threads, args, key, on):
        found.append((kernel.name, on))

    context = SimpleNamespace(memalloc=memalloc)
    monkeypatch.setattr(target.cuda.cudadrv.devices, "get_context", lambda: context)
    monkeypatch.setattr(target.cuda, "external_stream", external_stream)
    monkeypatch.setattr(target.Kernel, "__call__", note)
    monkeypatch.setattr(target.Kernel, "ready", lambda kernel, key: None)
    monkeypatch.setattr(target, "make_ready", lambda: None)
    forget()  # what calls have come to elsewhere
    yield found
    forget()


def on_stream(kwargs, which):
    """The arrays of a call: those that are named by `which` on the stream, the others on none."""
    return elsewhere(kwargs, lambda key, v: Shown(v, STREAM if key in which else None))


def every_second(x):
    """Data that must be packed first, as results must be unpacked."""
    return np.repeat(x, 2, axis=-1)[..., ::2]


LAYOUTS = (np.copy, every_second, np.asfortranarray)


def shape_and_axis(name):
    return shape_of(name), axes(name, shape_of(name))[-1]


@pytest.mark.parametrize("name", CALLS)
def test_all_of_an_op_is_on_the_stream_of_the_input(name, streams):
    """Whatever the others say, which are ready; and results say it too."""
    kwargs = arguments(name, *shape_and_axis(name))
    first = next(key for key in ("input", *DATA) if key in kwargs)
    calls = [(kwargs, lay) for lay in LAYOUTS]
    if "learnable" in name:  # which converts it, if it is an array
        z = np.asarray(kwargs["zero_point"]).astype(np.int32)
        calls.append((kwargs | {"zero_point": z}, np.copy))
    for kwargs, lay in calls:
        given = {k: lay(v) if isinstance(v, np.ndarray) and k in DATA else v
                 for k, v in kwargs.items()}  # fmt: skip
        given = on_stream(given, (first,))
        got = results(name, given)
        assert {on for _, on in streams} == {STREAM}, streams
        for y in got:
            made = not any(y is v for v in given.values())
            assert not made or y.__cuda_array_interface__["stream"] == STREAM
        streams.clear()


def test_the_address_of_what_is_made():
    """Of a repeated call's results it is all that is asked for."""
    x = arrays.device(Shown(np.zeros(3, np.float32), STREAM))
    y = x.library.empty(x, (5,), np.dtype(np.int8), (1,))
    assert x.library.address(y) == arrays.device(y).pointer != 0


@pytest.mark.filterwarnings("ignore:__int__ returned non-int")  # by Numba, of its default stream
def test_a_result_keeps_the_stream_of_numba_that_it_is_made_on():
    """Numba destroys one to which there are no more references, while kernels may still run."""
    on = external_stream(STREAM)
    x = arrays.device(arrays.OWN.empty(None, (4,), np.dtype(np.float32), (4,)).bind(on))
    y = nq.quantize_per_tensor(x.owner, 0.1, 0, -8, 7, np.int8)
    assert y.stream is on
    assert nq.dequantize_per_tensor(y, 0.1, 0, -8, 7, np.int8).stream is on
    of_default = x.owner.bind(Stream(driver.CUstream(0)))  # the default one, which has no name
    y = nq.quantize_per_tensor(of_default, 0.1, 0, -8, 7, np.int8)
    assert y.__cuda_array_interface__["stream"] is None


@pytest.mark.parametrize("handle", [STREAM, 0])
def test_arrays_of_numba_on_a_stream_of_another_library(handle, streams):
    """As one of cuda.core, which is no number; what is made of its handle keeps it alive."""
    on = SimpleNamespace(__cuda_stream__=lambda: (0, handle))
    made = arrays.OWN.empty(None, (4,), np.dtype(np.float32), (4,)).bind(on)
    with pytest.raises(TypeError):
        made.__cuda_array_interface__  # noqa: B018
    y = nq.quantize_per_tensor(made, 0.1, 0, -8, 7, np.int8)
    assert [found for _, found in streams] == [handle]
    assert y.__cuda_array_interface__["stream"] == (handle or None)
    assert not handle or y.stream.given is on


def test_what_an_observer_of_the_user_chooses_is_on_the_stream_of_the_data(streams):
    class Own(npq.MinMaxObserver):
        def calculate_qparams(self):
            return Shown(np.ones(1), OTHER), Shown(np.zeros(1, np.int64), OTHER)

    npq.FakeQuantize(Own)(Shown(np.ones((9, 28), np.float32), STREAM))
    assert {on for _, on in streams} == {STREAM}, streams


def test_no_gradient_while_there_is_no_regularizer_is_on_the_stream_of_V(streams):
    v, out = Shown(np.ones(8, np.float32), STREAM), Shown(np.ones(8, np.float32), OTHER)
    assert AdaroundLoss(10).regularizer_backward(0, v, out=out) is out
    assert streams == [("fill", STREAM)]


@pytest.mark.parametrize("name", WITH_OUT)
def test_an_out_of_no_stream(name, streams):
    """Where it is not flat, results are copied to it on the stream that they were made on."""
    kwargs = arguments(name, *shape_and_axis(name))
    (expected,) = results(name, kwargs)
    first = next(key for key in ("input", *DATA) if key in kwargs)
    out = Shown(every_second(np.zeros_like(expected)))
    results(name, on_stream(kwargs, (first,)) | {"out": out})
    assert {on for _, on in streams} == {STREAM}, streams
    assert len(streams) > 1


def learned(**kwargs):
    """A module whose qparams are learned: it observes no more."""
    module = npq.LearnableFakeQuantize(npq.MinMaxObserver, -8, 7, dtype=np.int8, **kwargs)
    module.enable_param_learning()
    return module


MODULES = {
    "MinMaxObserver": npq.MinMaxObserver,
    "MovingAverageMinMaxObserver": npq.MovingAverageMinMaxObserver,
    "PerChannelMinMaxObserver": npq.PerChannelMinMaxObserver,
    "MovingAveragePerChannelMinMaxObserver": npq.MovingAveragePerChannelMinMaxObserver,
    "FakeQuantize": npq.FakeQuantize,
    "FakeQuantize, per channel": lambda: npq.FakeQuantize(npq.PerChannelMinMaxObserver),
    "FusedMovingAvgObsFakeQuantize": npq.FusedMovingAvgObsFakeQuantize,
    "FusedMovingAvgObsFakeQuantize, per channel": lambda: npq.FusedMovingAvgObsFakeQuantize(
        npq.MovingAveragePerChannelMinMaxObserver, qscheme="per_channel_affine"
    ),
    "LearnableFakeQuantize": learned,
    "LearnableFakeQuantize, symmetric": lambda: learned(qscheme="per_tensor_symmetric"),
    "AdaroundFakeQuantizer": lambda: npq.AdaroundFakeQuantizer(dtype=np.int8),
}


@pytest.mark.parametrize("name", MODULES)
def test_all_of_a_module_is_on_the_stream_of_its_data(name, streams, monkeypatch):
    """Also what it does to a state that it has from data of another stream, or from its making."""
    monkeypatch.setattr(arrays.Interface, "upload", lambda self, like, a: Shown(a))
    module, x = MODULES[name](), np.ones((9, 28), np.float32)
    for stream in (STREAM, OTHER, OTHER, STREAM):
        module(Shown(x, stream))
        assert streams
        assert {on for _, on in streams} == {stream}, streams
        streams.clear()


@pytest.mark.parametrize("scheme", ["per_tensor_affine", "per_tensor_symmetric"])
def test_learned_qparams_of_float64_are_converted_on_the_stream_of_the_data(scheme, streams):
    """They become float32 with a call, whatever stream an optimizer has made them on."""
    module, x = learned(qscheme=scheme), Shown(np.ones((9, 28), np.float32), STREAM)
    for parameter in (module.scale, module.zero_point):
        parameter.value = Shown(np.ones(1), OTHER)
    module(x)
    assert {on for _, on in streams} == {STREAM}, streams
    assert [p.value.dtype for p in (module.scale, module.zero_point)] == [np.float32] * 2


def test_a_state_lies_as_its_parameter(streams):
    """Or it would be packed at every step, in memory that may not be there by then."""
    value, gradient = (Shown(np.asfortranarray(np.ones((9, 28), np.float32))) for _ in range(2))
    optimizer = Adam([value])
    for _ in range(2):
        optimizer.step([gradient])
    assert [name for name, _ in streams] == ["fill", "fill", "adam", "adam"]


class Driver:
    """What the driver is asked for, in the order in which it is."""

    def __init__(self, calls):
        self._calls = calls

    def __getattr__(self, name):
        def call(*args):
            self._calls.append((name, int(args[-1])))
            return (0,)

        return call


def test_a_copy_to_the_device_is_waited_for(monkeypatch, streams):
    """Of memory that is not pinned it may return before; other streams would not wait for it."""
    monkeypatch.setattr(target, "driver", Driver(streams))
    to_device(np.ones(8, np.float32))
    assert streams == [("cuMemcpyHtoD", 32), ("cuStreamSynchronize", 0)]


@pytest.mark.parametrize("stream", [None, STREAM, OTHER])
def test_what_is_brought_beside_an_array_is_on_its_stream(monkeypatch, streams, stream):
    """Or an optimizer's step, which goes to that of the parameter, would not wait for gradients."""
    monkeypatch.setattr(target, "driver", Driver(streams))
    there = beside(Shown(np.ones(8, np.float32), stream), np.ones(3, np.float32))
    assert arrays.device(there).stream() == (stream or 0)
    assert streams == [("cuMemcpyHtoD", 12), ("cuStreamSynchronize", 0)]


def test_copies_to_the_host(monkeypatch, streams):
    """Of a result, and of what must be packed first: on its stream, which is waited for."""
    monkeypatch.setattr(target, "driver", Driver(streams))
    copied = [("cuMemcpyDtoHAsync", STREAM), ("cuStreamSynchronize", STREAM)]
    to_host(nq.quantize_per_tensor(Shown(np.ones(8, np.float32), STREAM), 0.1, 0, -8, 7, np.int8))
    assert streams[1:] == copied
    streams.clear()
    to_host(Shown(every_second(np.ones((3, 4), np.float32)), STREAM))
    assert streams == [("copy_strided", STREAM), *copied]
