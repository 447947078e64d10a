"""Tensors of PyTorch and arrays of CuPy on a GPU: their memory, streams and graphs."""

from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
from calls import CALLS, DATA, arguments, axes, fits, results
from cases import assert_same
from npquant.cuda import target, to_device, to_host
from npquant.modules import FakeQuantize, PerChannelMinMaxObserver
from twins import elsewhere

pytestmark = pytest.mark.usefixtures("repeated_at_once")


class PyTorch:
    """Tensors of PyTorch."""

    def __init__(self):
        import torch

        self.torch, self.array = torch, torch.Tensor

    def put(self, x):
        """A copy on the GPU that lies as `x` does, if that has no negative strides."""
        low, high = np.lib.array_utils.byte_bounds(x)
        held = np.zeros((high - low) // x.itemsize, x.dtype)
        np.ndarray(x.shape, x.dtype, held, 0, x.strides)[...] = x
        kind = getattr(self.torch, x.dtype.name)
        there = self.torch.from_numpy(held.view(np.uint8)).cuda().view(kind)
        return there.as_strided(x.shape, [s // x.itemsize for s in x.strides])

    def dtype(self, y):
        return str(y.dtype).removeprefix("torch.")

    def strides(self, y):
        return tuple(s * y.element_size() for s in y.stride())

    def stream(self):
        return self.torch.cuda.stream(self.torch.cuda.Stream())

    def occupied(self, x):
        """What the current stream makes of `x`, the same, but late."""
        self.torch.cuda._sleep(100_000_000)
        return x.clone()


class CuPy:
    """Arrays of CuPy."""

    def __init__(self):
        import cupy

        self.cupy, self.array = cupy, cupy.ndarray
        self.noise = cupy.ones((4096, 4096), np.float32)

    def put(self, x):
        low, high = np.lib.array_utils.byte_bounds(x)
        held = np.zeros((high - low) // x.itemsize, x.dtype)
        np.ndarray(x.shape, x.dtype, held, 0, x.strides)[...] = x
        there = self.cupy.cuda.alloc(max(held.nbytes, 1))
        there.copy_from_host(held.ctypes.data, held.nbytes)
        return self.cupy.ndarray(x.shape, x.dtype, there, x.strides)

    def dtype(self, y):
        return y.dtype.name

    def strides(self, y):
        return y.strides

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def occupied(self, x):
        for _ in range(20):
            self.noise @ self.noise
        return x.copy()


FOUND = [kind for kind, name in ((PyTorch, "torch"), (CuPy, "cupy")) if find_spec(name)]


@pytest.fixture(scope="module", params=FOUND, ids=lambda kind: kind.__name__)
def library(request):
    return request.param()


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def on(library, kwargs):
    return elsewhere(kwargs, lambda _, v: library.put(v))


def same(library, got, expected, note=""):
    for y, z in zip(got, expected, strict=True):
        if isinstance(z, float):
            assert y == z
            continue
        assert isinstance(y, library.array), note
        assert library.dtype(y) == z.dtype.name, note
        assert_same(to_host(y), z, note)


@pytest.mark.parametrize("name", CALLS)
def test_bits(library, name):
    """What comes back is the library's own, with the bits of NumPy's."""
    for shape in ((9, 28), (1025, 2052), (33, 16, 19, 24), (100_003,)):
        for axis in axes(name, shape) if fits(name, shape) else ():
            got = results(name, on(library, arguments(name, shape, axis)))
            same(library, got, results(name, arguments(name, shape, axis)), (shape, axis))


@pytest.mark.parametrize("name", ["fake_quantize_per_channel_affine_cachemask",
                                  "quantize_per_tensor", "adaround_soft_backward"])  # fmt: skip
def test_results_lie_as_the_input_does(library, name):
    shape = (4, 6, 8, 10)
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
        kwargs = arguments(name, shape, 1)
        for key in ("input", "grad", "V"):
            if key in kwargs:
                x = np.ascontiguousarray(kwargs[key].transpose(order))
                kwargs[key] = x.transpose(np.argsort(order))
        expected = results(name, kwargs)
        for y, z in zip(results(name, on(library, kwargs)), expected, strict=True):
            assert_same(to_host(y), z, order)
            assert library.strides(y) == z.strides, order


def test_gaps_and_broadcasts(library):
    """Copied first, whatever lies between."""
    x = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    s, z = np.linspace(0.1, 0.3, 40).astype(np.float32), np.zeros(40, np.int32)
    for view in (lambda a: a[:, ::2], lambda a: a[3:17, 5:41].T):
        there = view(library.put(x))
        got = nq.quantize_per_tensor(there, 0.1, 3, -128, 127, np.int8)
        assert_same(to_host(got), nq.quantize_per_tensor(view(x), 0.1, 3, -128, 127, np.int8))
    one = library.put(np.full(1, 0.25, np.float32))
    many = one.expand(40) if hasattr(one, "expand") else library.cupy.broadcast_to(one, (40,))
    got = nq.quantize_per_channel(library.put(x), many, library.put(z), 0, -128, 127, np.int8)
    assert_same(
        to_host(got), nq.quantize_per_channel(x, np.full_like(s, 0.25), z, 0, -128, 127, np.int8)
    )


#: Ops of one launch, and of several, that hand each other arrays of their own.
STREAMED = (
    "quantize_per_channel",
    "choose_qparams",
    "quantize_per_token_dynamic",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "fake_quantize_learnable_per_channel_affine_backward",
    "fused_moving_avg_obs_fake_quant",
    "adaround_regularizer",
)


@contextmanager
def again():
    """What is called in here must be what an equal call came to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target.Kernel, "__call__", lambda *args: pytest.fail("the long way"))
        yield


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_again(library, name):
    """With other data at other addresses, on a stream of its own, behind what is computed there."""
    shape = next(s for s in ((257, 4100), (100_003,)) if fits(name, s))
    for axis in axes(name, shape):
        kept = []  # or the next call would be given the same memory
        for seed in range(3):
            kwargs = arguments(name, shape, axis, seed)
            expected = results(name, {k: np.copy(v) if isinstance(v, np.ndarray) else v
                                      for k, v in kwargs.items()})  # fmt: skip
            with library.stream():
                there = on(library, kwargs)
                data = next(k for k in DATA if k in there)
                there[data] = library.occupied(there[data])
                with again() if seed else nullcontext():
                    got = results(name, there)
                same(library, got, expected, (axis, seed))
                kept.append((there, got))


@pytest.mark.parametrize("name", STREAMED)
def test_the_current_stream(library, name):
    """All of an op goes to it, behind what is still being computed there."""
    for seed in range(3):
        kwargs = arguments(name, (257, 4100), 0, seed)
        expected = results(name, {k: np.copy(v) if isinstance(v, np.ndarray) else v
                                  for k, v in kwargs.items()})  # fmt: skip
        with library.stream():
            there = on(library, kwargs)
            data = next(k for k in ("input", "V") if k in there)
            there[data] = library.occupied(there[data])
            same(library, results(name, there), expected, seed)


def test_temporaries_are_not_reused_too_soon(library):
    """They are freed while kernels may run, in the order of the stream."""
    name = "fake_quantize_learnable_per_channel_affine_backward"
    kwargs = [arguments(name, (257, 4100), 0, seed) for seed in range(8)]
    expected = [results(name, one) for one in kwargs]
    with library.stream():
        there = [on(library, one) for one in kwargs]
        there[0]["input"] = library.occupied(there[0]["input"])
        got = [results(name, one) for one in there]
        for some, others in zip(got, expected, strict=True):
            same(library, some, others)


@pytest.mark.parametrize("name", STREAMED)
def test_a_graph_of_pytorch(torch, name):
    """Captured with its allocations: what waited for the GPU, or the host, would break it."""
    library = PyTorch()
    kwargs = arguments(name, (257, 4100), 0)
    there = on(library, kwargs)
    results(name, there)  # compiles
    there = on(library, kwargs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), again():
        got = results(name, there)
    data = next(k for k in ("input", "V") if k in kwargs)
    for seed in (1, 2):
        for key, value in on(library, kwargs).items():  # with what it updates as it was
            if isinstance(value, torch.Tensor):
                there[key].copy_(value)
        other = arguments(name, (257, 4100), 0, seed)[data]
        there[data].copy_(torch.from_numpy(other))
        graph.replay()
        torch.cuda.synchronize()
        same(library, got, results(name, arguments(name, (257, 4100), 0) | {data: other}), seed)


FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
CODES = ("int8", "uint8", "int16", "int32", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("kind", FLOATS)
def test_dtypes_of_pytorch(torch, kind):
    """Every bit pattern of two bytes and fewer, to every dtype of codes, and back."""
    library, dtype = PyTorch(), nq.dtypes.canonical(kind, "dtype")
    if dtype.itemsize <= 2:
        x = np.arange(256**dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype)
    else:
        x = np.random.default_rng(0).normal(0, 9, 70_000).astype(dtype)
    s, z = np.full(1, 0.37, np.float32), np.full(1, 3, np.int32)
    for codes in CODES if "8" not in kind else ():
        to = nq.dtypes.canonical(codes, "dtype")
        bounds = (-100, 100) if codes != "uint8" else (0, 200)
        q = nq.quantize_per_channel(x[None], s, z, 0, *bounds, to)
        there = on(library, {"x": x[None], "s": s, "z": z})
        got = nq.quantize_per_channel(*there.values(), 0, *bounds, to)
        assert library.dtype(got) == codes
        assert_same(to_host(got), q, codes)
        y = nq.dequantize_per_channel(q, s, z, 0, *bounds, to, out_dtype=dtype)
        there = on(library, {"q": q, "s": s, "z": z})
        got = nq.dequantize_per_channel(*there.values(), 0, *bounds, to, out_dtype=dtype)
        assert_same(to_host(got), y, codes)
    for other in (*FLOATS, "int8", "int32", "bool"):
        to = nq.dtypes.canonical(other, "dtype")
        with np.errstate(all="ignore"):
            expected = nq.convert_element_type(x, to)
        assert_same(to_host(nq.convert_element_type(library.put(x), to)), expected, other)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_nan_that_the_gpu_makes(torch, kind):
    """Nothing times infinity, and an infinity less itself."""
    library = PyTorch()
    q = np.array([[-3, -1, 0, 1, 2, 0]] * 3, np.int8)
    s = np.array([[np.inf], [1], [np.nan]], np.float32)
    z = np.zeros((3, 1), np.float32)
    z[1] = np.inf
    args = -128, 127, np.int8, np.dtype(kind)
    got = nq.dequantize_per_token(*map(library.put, (q, s, z)), *args)
    with np.errstate(all="ignore"):
        wide = (q.astype(np.float64) - z) * s
        assert_same(to_host(got), wide.astype(kind))


def test_a_module_of_tensors(torch):
    library, x = PyTorch(), np.random.default_rng(0).normal(size=(64, 100)).astype(np.float32)
    ours, theirs = (FakeQuantize(lambda: PerChannelMinMaxObserver(ch_axis=0)) for _ in range(2))
    for factor in (1, 3):
        y = ours(library.put(x * factor))
        assert y.is_cuda
        assert_same(to_host(y), theirs(x * factor))
    assert isinstance(ours.scale, torch.Tensor)
    for key, value in theirs.state_dict().items():
        assert_same(ours.state_dict()[key], value)


def test_dlpack(torch):
    """Of a library that has nothing else; what it computes late on its stream is waited for."""

    class Packed:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    library = PyTorch()
    x = np.random.default_rng(0).normal(size=(257, 4100)).astype(np.float32)
    for view in (lambda a: a, lambda a: a[::2, 1:]):
        with library.stream():
            there = Packed(view(library.occupied(library.put(x))))
            got = nq.quantize_per_tensor(there, 0.1, 3, -128, 127, np.int8)
        assert_same(to_host(got), nq.quantize_per_tensor(view(x), 0.1, 3, -128, 127, np.int8))


def test_qparams_of_another_library(torch):
    """All of it goes to the stream of the input, and the result is of its library."""
    x = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    s, z = np.linspace(0.1, 0.3, 40).astype(np.float32), np.zeros(40, np.int32)
    there = PyTorch().put(x)
    got = nq.quantize_per_channel(there, to_device(s), to_device(z), 0, -128, 127, np.int8)
    assert isinstance(got, torch.Tensor)
    assert_same(to_host(got), nq.quantize_per_channel(x, s, z, 0, -128, 127, np.int8))
