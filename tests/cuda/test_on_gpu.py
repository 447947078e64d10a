"""What only a GPU can show: many elements, streams, and graphs, in which nothing may wait."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda.bindings import driver

import npquant as nq
from calls import DATA, arguments, results
from cases import assert_same
from npquant.cuda import minmax, to_device, to_host
from npquant.cuda.arrays import Interface, device
from npquant.layout import per_channel

#: More than 31 bits count, and no multiple of a vector.
MANY = 2**31 + 7
INT8 = (0.5, 3, -128, 127, np.int8)
HOST = np.arange(-128, 128).astype(np.int8)


def checked(result):
    """What the driver returns; an error of it is one here."""
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


def put(address, x):
    """Copy to the device, and wait: of memory that is not pinned the copy may return before."""
    checked(driver.cuMemcpyHtoD(address, x.ctypes.data, x.nbytes))
    checked(driver.cuStreamSynchronize(0))


def filled(n, pattern):
    """A pattern, over and over, on the device: `n` elements."""
    y = Interface().empty(None, (n,), pattern.dtype, (pattern.itemsize,))
    for start in range(0, n, 1 << 28):
        some = np.resize(np.roll(pattern, -start), min(1 << 28, n - start))
        put(device(y).pointer + start * pattern.itemsize, some)
    return y


@pytest.mark.parametrize("axis", [None, 0], ids=["per tensor", "per channel"])
def test_many_elements(axis):
    """Codes to values and back: both indices go beyond 31 bits."""
    codes = filled(MANY, HOST)
    if axis is None:
        values = nq.dequantize_per_tensor(codes, *INT8, out_dtype=np.float16)
        got = nq.quantize_per_tensor(values, *INT8)
    else:
        s, z = (to_device(np.array([v], t)) for v, t in ((0.5, np.float32), (3, np.int32)))
        rows = device(codes).viewed((1, MANY))
        values = nq.dequantize_per_channel(rows, s, z, 0, *INT8[2:], out_dtype=np.float16)
        got = nq.quantize_per_channel(values, s, z, 0, *INT8[2:])
    got = to_host(got).reshape(-1)
    for start in range(0, MANY, 1 << 28):
        part = got[start : start + (1 << 28)]
        assert_same(part, np.resize(np.roll(HOST, -start), part.size), str(start))


def test_many_channels():
    """Rows so long that 32 bits do not hold how far the elements of a thread lie."""
    rows, channels = 51, 2**32 // 48 + 1
    x = Interface().empty(None, (rows, channels), np.dtype(np.int8), (channels, 1))
    for row in range(rows):
        put(device(x).pointer + row * channels, np.full(channels, row, np.int8))
    least, greatest = minmax(per_channel((rows, channels), 1), x)
    assert (to_host(least) == 0).all()
    assert (to_host(greatest) == rows - 1).all()


class OnStream:
    """A device array whose library works on a stream of its own."""

    def __init__(self, array, stream):
        self.array, self.dtype = array, array.dtype
        interface = dict(array.__cuda_array_interface__)
        self.__cuda_array_interface__ = interface | {"stream": int(stream)}


@pytest.fixture
def streams():
    to_device(np.zeros(1))  # makes the context that streams are of
    made = [
        checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        for _ in range(2)
    ]
    yield made
    for stream in made:
        checked(driver.cuStreamDestroy(stream))


def test_two_streams(streams):
    """Calls in turn on two streams, each of which sees its own data only."""
    name, hosts, given, outs = "fake_quantize_per_channel_affine", [], [], []
    for seed, stream in enumerate(streams):
        kwargs = arguments(name, (257, 4100), 0, seed)
        hosts.append(kwargs)
        on = {k: OnStream(to_device(v), stream) if isinstance(v, np.ndarray) else v
              for k, v in kwargs.items()}  # fmt: skip
        given.append(on)
        outs.append(OnStream(to_device(np.zeros_like(kwargs["input"])), stream))
    for _ in range(20):
        for on, out in zip(given, outs, strict=True):
            results(name, on | {"out": out})
    for stream in streams:
        checked(driver.cuStreamSynchronize(stream))
    for kwargs, out in zip(hosts, outs, strict=True):
        assert_same(to_host(out.array), results(name, kwargs)[0])


@pytest.fixture
def occupy():
    """What gives a stream so much to do that what follows on it is late."""
    array = to_device(np.zeros(1 << 26, np.float32))

    def call(stream):
        x = OnStream(array, stream)
        for _ in range(50):
            nq.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127, out=x)

    return call


def test_a_new_thread():
    """It has no context: not to launch what is compiled already, nor to copy."""
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    given, out = to_device(x), to_device(np.zeros_like(x))
    call = lambda x, **out: nq.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7, **out)
    call(given, out=out)
    for first in (lambda: call(given, out=out), lambda: to_host(out), lambda: to_device(x)):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(first).result()
            assert_same(thread.submit(lambda: to_host(call(given))).result(), call(x))


def test_data_are_there_for_every_stream(streams):
    """The copy to the device, of memory that is not pinned, is complete when it returns."""
    for seed in range(10):
        x = np.random.default_rng(seed).normal(size=1 << 24).astype(np.float32)
        y = nq.quantize_per_tensor(OnStream(to_device(x), streams[seed % 2]), *INT8)
        assert_same(to_host(y), nq.quantize_per_tensor(x, *INT8), str(seed))


#: Ops of several launches, that hand each other arrays of their own.
SEVERAL = (
    "choose_qparams",
    "choose_qparams_per_token",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "fake_quantize_learnable_per_channel_affine_backward",
    "fused_moving_avg_obs_fake_quant",
    "adaround_regularizer",
)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_launches_on_a_busy_stream(name, streams, occupy):
    """None of them is ahead of those before it, nor is a copy of the results to the host."""
    for seed, stream in enumerate((*streams, *streams)):  # other data than lies there already
        kwargs = arguments(name, (257, 4100), 0, seed)
        data = [key for key in DATA if key in kwargs]
        on = {k: OnStream(to_device(v), stream) if k in data
              else to_device(v) if isinstance(v, np.ndarray) and not k.endswith("_on") else v
              for k, v in kwargs.items()}  # fmt: skip
        occupy(stream)
        got, expected = results(name, on), results(name, kwargs)
        checked(driver.cuStreamSynchronize(stream))  # for what is updated in place
        for y, z in zip(got, expected, strict=True):
            assert_same(to_host(y), z, str(seed))


@pytest.mark.parametrize("name", SEVERAL[:4])
def test_copies_wait_for_a_busy_stream(name, streams, occupy):
    """Nobody waits but the copy of each result, for the stream that the result names."""
    for seed, stream in enumerate((*streams, *streams)):
        kwargs = arguments(name, (257, 4100), 0, seed)
        on = {k: OnStream(to_device(v), stream) if isinstance(v, np.ndarray) else v
              for k, v in kwargs.items()}  # fmt: skip
        occupy(stream)
        for y, z in zip(results(name, on), results(name, kwargs), strict=True):
            assert_same(to_host(y), z, str(seed))


def test_a_strided_out_on_a_busy_stream(streams, occupy):
    """Results are made elsewhere and copied to it, on the stream of the input."""
    name = "fake_quantize_per_channel_affine"
    for seed, stream in enumerate((*streams, *streams)):
        kwargs = arguments(name, (257, 4100), 0, seed)
        on = {k: OnStream(to_device(v), stream) if k == "input" else v for k, v in kwargs.items()}
        on |= {k: to_device(v) for k, v in on.items() if isinstance(v, np.ndarray)}
        out = to_device(np.zeros((257, 8200), np.float32))[:, ::2]
        occupy(stream)
        results(name, on | {"out": out})
        checked(driver.cuStreamSynchronize(stream))
        assert_same(to_host(out), results(name, kwargs)[0], str(seed))


GRAPHED = ("quantize_per_channel", "fake_quantize_per_tensor_affine", "adaround_soft_backward")


@pytest.mark.parametrize("name", GRAPHED)
def test_captured_graph(name, streams):
    """A call is captured, and gives the bits of new data each time the graph is launched.

    What waits for the device, or allocates by the driver, would break the capture.
    """
    stream = streams[0]
    kwargs = arguments(name, (257, 4100), 0)
    on = {k: OnStream(to_device(v), stream) if isinstance(v, np.ndarray) else v
          for k, v in kwargs.items()}  # fmt: skip
    (expected,) = results(name, kwargs)
    out = OnStream(to_device(np.zeros_like(expected)), stream)
    results(name, on | {"out": out})  # compiles
    checked(driver.cuStreamSynchronize(stream))
    checked(driver.cuStreamBeginCapture(
        stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    ))  # fmt: skip
    results(name, on | {"out": out})
    graph = checked(driver.cuStreamEndCapture(stream))
    executable = checked(driver.cuGraphInstantiate(graph, 0))
    for seed in (1, 2):
        kwargs = arguments(name, (257, 4100), 0, seed)
        x = np.ascontiguousarray(kwargs["input"])
        put(device(on["input"]).pointer, x)
        only = arguments(name, (257, 4100), 0, 0) | {"input": x}
        checked(driver.cuGraphLaunch(executable, stream))
        checked(driver.cuStreamSynchronize(stream))
        assert_same(to_host(out.array), results(name, only)[0], str(seed))
    checked(driver.cuGraphExecDestroy(executable))
    checked(driver.cuGraphDestroy(graph))


def test_the_regularizer_of_many_floats():
    """Its sum and its gradient have the CPU's bits: quotients are made in another way there."""
    V = np.arange(0, 2**32, 61, np.uint32).view(np.float32)
    there = to_device(V)
    for beta in (1.5, 20.0):
        got = nq.adaround_regularizer_backward(there, beta, 0.37)
        assert_same(to_host(got), nq.adaround_regularizer_backward(V, beta, 0.37))
    some = V[np.abs(V) < 9]  # a NaN would be the sum of all
    got = nq.adaround_regularizer(to_device(some), 1.5)
    assert_same(to_host(got), nq.adaround_regularizer(some, 1.5))
