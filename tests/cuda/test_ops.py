"""Public ops on arrays on a GPU: the CPU's bits, shapes, strides and errors."""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import npquant as nq
from calls import CALLS, DATA, ONE_AXIS, STATE, WITH_OUT, arguments, axes, every_call, fits, results
from cases import assert_same
from every_kernel import TRUTHS
from layouts import DENSE, LAYOUTS, relaid
from npquant import arrays, cuda
from npquant.checks.calls import forget
from npquant.cuda import loops, target
from npquant.cuda.arrays import device
from npquant.cuda.target import SIMULATED
from twins import elsewhere, given

pytestmark = pytest.mark.usefixtures("repeated_at_once")

#: A matrix, for groups and rows; an image, for every axis in every place; channels alone.
SHAPES = [(9, 28), (3, 5, 2, 4), (37,)]
if not SIMULATED:
    SHAPES += [(1025, 2052), (33, 65, 19, 24), (1_000_003,)]

PLACES = ("C", "Fortran", "first axis last", "reversed", "every second", "window", "unaligned")
LAY = LAYOUTS | {"C": np.copy}


def by_place(*usual):
    """Every place; those that are not usual take the simulator minutes."""
    marks = {place: () if place in usual else pytest.mark.full for place in PLACES}
    return pytest.mark.parametrize("place", [pytest.param(p, marks=m) for p, m in marks.items()])


#: Whole vectors, their tails, and more than a block.
#: The simulator takes seconds for a reduction of some hundred elements.
SLOW = ("fake_quantize_learnable", "fused")
LENGTHS = (5, 257) if SIMULATED else (1, 2, 3, 4, 5, 15, 16, 17, 33, 257)


def on_device(kwargs):
    """The arrays of a call on the device; switches are the host's."""
    return elsewhere(kwargs, lambda _, v: given(v))


def to_host(value):
    if isinstance(value, tuple):
        return tuple(map(to_host, value))
    return value if isinstance(value, (float, np.ndarray)) else cuda.to_host(value)


def strides(y):
    y = y if isinstance(y, np.ndarray) else device(y)
    return [s for s, n in zip(y.strides, y.shape, strict=True) if n > 1]


@by_place("every second")
@pytest.mark.parametrize("name", CALLS)
def test_bits(name, place):
    for shape, axis in every_call(name, SHAPES):
        kwargs = relaid(arguments(name, shape, axis), LAY[place], DATA)
        got = results(name, on_device(kwargs))
        expected = results(name, kwargs)
        assert_same(to_host(got), expected, (shape, axis))
        for y, z in zip(got, expected, strict=True):
            if z.shape == shape and place in ("C", *DENSE):
                assert strides(y) == strides(z), (shape, axis)


@contextmanager
def the_short_way(short=True):
    """What is called in here is what an equal call came to, or goes the long way."""
    launches = []
    with pytest.MonkeyPatch.context() as patch:
        launch = target.Kernel.__call__
        patch.setattr(target.Kernel, "__call__", lambda *args: launches.append(1) or launch(*args))
        yield
    assert bool(launches) != short


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_again(name):
    """With other data, at other addresses, as it lies and through strides."""
    calls = every_call(name, SHAPES[: 1 + (name in ONE_AXIS) * 2] if SIMULATED else SHAPES)
    for shape, axis in calls:
        for place in ("C",) if SIMULATED and axis else ("C", "every second"):
            kept = []  # or the next call would be given the same memory
            for seed in range(3):
                kwargs = relaid(arguments(name, shape, axis, seed), LAY[place], DATA)
                there, expected = on_device(kwargs), results(name, kwargs)
                with the_short_way() if seed else nullcontext():
                    got = results(name, there)
                kept.append((there, got))
                assert_same(to_host(got), expected, (shape, axis, place, seed))
                for y, z in zip(got, expected, strict=True):
                    assert place != "C" or strides(y) == strides(z), (shape, axis, seed)


FAKE = "fake_quantize_per_channel_affine"


def again(short, name=FAKE, lay=np.copy, **changes):
    """A call with new data whose bits are the CPU's; whether it went the short way."""
    kwargs = arguments(name, (9, 28), 0, again.seed) | changes
    again.seed += 1
    there = on_device(relaid(kwargs, lay, DATA))
    with the_short_way(short):
        got = results(name, there)
    assert_same(to_host(got), results(name, kwargs))


again.seed = 0


@pytest.mark.parametrize("number", [np.float64, np.float32])
def test_numbers_of_numpy_again(number):
    """They are numbers as Python's are, and each is its own."""
    x = np.linspace(-1, 1, 43, dtype=np.float32)  # a length of no other test
    there = cuda.to_device(x)
    for scale, z in ((0.1, np.int64(1)), (0.25, np.int64(1)), (0.25, np.int32(-2))):
        args = number(scale), z, -8, 7
        for k in range(3):
            with the_short_way(short=k > 0):
                y = nq.fake_quantize_per_tensor_affine(there, *args)
            assert_same(to_host((y,)), (nq.fake_quantize_per_tensor_affine(x, *args),))


def test_again_in_another_way():
    """Each call that differs in what may matter is looked at anew, the first time it comes."""
    by = {"quant_min": -5, "quant_max": 6}  # in no other test
    scale, zero_point = (np.arange(9) % 3 + 1).astype(np.float32) / 4, np.arange(-4, 5)
    for change in (
        {},
        {"scale": scale.astype(np.float16)},
        {"zero_point": zero_point.astype(np.float32) / 2},
        {"quant_max": 7},
        {"rounding": "divide"},
    ):
        again(False, **(by | change))
    again(True, **by)
    for lay in ("every second", "Fortran"):
        again(False, lay=LAY[lay], **by)
    again(True, lay=LAY["Fortran"], **by)
    again(True, lay=LAY["every second"], **by)  # copied first, each time


def test_what_is_converted_is_converted_again():
    """And what has gaps is copied again."""
    for i, end in enumerate((1, 2)):
        apart = np.repeat(np.linspace(0.1, end, 9, dtype=np.float32), 2)[::2]
        again(i == 1, scale=apart, quant_min=-4)
    for i, scale in enumerate((np.linspace(0.1, 1, 9), np.linspace(0.5, 2, 9))):
        again(i == 1, scale=scale, quant_min=-4)
    for i, zero_point in enumerate((np.arange(9) - 4, np.arange(9) - 3)):
        again(i == 1, zero_point=zero_point, quant_min=-4, quant_max=6)


def test_numbers_are_known_by_their_bits():
    """Zeros by their signs, too."""
    for known in (False, True):
        again(known, "quantize_per_tensor", scale=np.float32(0.5), zero_point=0)
        for weight in (0.0, -0.0):
            again(known, "adaround_regularizer_backward", weight=weight)


def test_numbers_are_told_apart():
    name = "quantize_per_tensor"
    for scale, zero_point in ((0.5, 0), (0.25, 0), (0.5, 1), (0.5, np.int8(1)), (1, 0), (1.0, 0)):
        again(False, name, scale=scale, zero_point=zero_point, quant_max=100)
    again(True, name, scale=0.25, zero_point=0, quant_max=100)
    again(True, name, scale=1.0, zero_point=0, quant_max=100)


def test_a_call_that_failed_is_not_remembered():
    """Nor is what its arrays are given to then taken for it."""
    kwargs = arguments(FAKE, (9, 28), 0) | {"quant_min": -7}
    there = on_device(kwargs)
    for _ in range(2):
        with pytest.raises(TypeError, match="out must have the dtype float32"):
            results(FAKE, there | {"out": given(np.zeros((9, 28), np.int8))})
        nq.convert_element_type(there["input"], np.float16)
    assert_same(to_host(results(FAKE, there)), results(FAKE, kwargs))


def test_out_again():
    """It is held against the input and the qparams each time, and is what comes back."""
    for seed in range(2):
        kwargs = arguments(FAKE, (9, 28), 0, seed) | {"quant_max": 5}
        (expected,) = results(FAKE, kwargs)
        for itself in (False, True):
            there = on_device(kwargs)
            out = there["input"] if itself else given(np.zeros_like(kwargs["input"]))
            with the_short_way(seed == 1):
                (got,) = results(FAKE, there | {"out": out})
            assert got is out
            assert_same(to_host(out), expected)


STEP = "fused_moving_avg_obs_fake_quant"


def test_a_step_that_shares_memory_is_refused_again():
    """Whether an equal step has been done or not."""
    kwargs = on_device(arguments(STEP, (3, 8), 0) | {"quant_max": 5})
    for _ in range(2):
        for one, other in (("running_min", "running_max"), ("running_max", "scale")):
            with pytest.raises(ValueError, match=f"{other} must be apart from {one}"):
                results(STEP, kwargs | {other: kwargs[one]})
        results(STEP, kwargs)
    with the_short_way():
        results(STEP, kwargs)


def test_a_gradient_that_is_the_input():
    """Addresses of one array, given twice, do not say which of the two a kernel is given."""
    name = "fake_quantize_learnable_per_tensor_affine_backward"
    for twice in (True, False, True):
        kwargs = arguments(name, (2, 9), 0) | {"quant_max": 6}
        there = on_device(kwargs)
        if twice:
            there["grad"], kwargs["grad"] = there["input"], kwargs["input"]
        else:
            kwargs["grad"] = kwargs["grad"].astype(np.float32)
            there["grad"] = given(kwargs["grad"])
        assert_same(to_host(results(name, there)), results(name, kwargs))


@by_place("reversed")
@pytest.mark.parametrize("name", CALLS)
def test_qparams_lie_anywhere(name, place):
    shape, axis = every_call(name, SHAPES)[0]
    kwargs = arguments(name, shape, axis)
    others = [k for k, v in kwargs.items() if isinstance(v, np.ndarray) and k not in DATA]
    got = results(name, on_device(relaid(kwargs, LAY[place], others)))
    assert_same(to_host(got), results(name, kwargs))


@pytest.mark.parametrize("scale", [1e39, 1e-46])
def test_a_scale_beside_a_zero_point(scale):
    """A number that float32 does not hold is refused where the op uses it as a float32."""
    x, q, z = (
        given(np.ones(3, np.float32)),
        given(np.ones(3, np.int8)),
        given(np.zeros(1, np.int32)),
    )
    for call in (
        lambda: nq.fake_quantize_per_tensor_affine(x, scale, z, -8, 7),
        lambda: nq.dequantize_per_tensor(q, scale, z, -8, 7, np.int8),
        lambda: nq.quantize_per_tensor(x, scale, z, -8, 7, np.int8, rounding="divide"),
    ):
        with pytest.raises(ValueError, match="scale must be positive and finite in float32"):
            call()
    y = nq.dequantize_per_tensor(q, scale, z, -8, 7, np.int8, out_dtype=np.float64)
    assert_same(to_host(y), np.full(3, scale))


@pytest.mark.parametrize("name", CALLS)
def test_every_length(name):
    for n in LENGTHS[: 1 if SIMULATED and name.startswith(SLOW) else None]:
        shape = (2, 4 * n) if "group" in name else (n,) if fits(name, (n,)) else (2, n)
        axis = axes(name, shape)[-1]
        got = results(name, on_device(arguments(name, shape, axis)))
        assert_same(to_host(got), results(name, arguments(name, shape, axis)), shape)


#: Of one element, shorter and longer than a block takes at once, which no vector divides.
ROWS = ((3, 1), (2, 3, 64), (2, 331))
#: Several of a block, the last with fewer; of warps that halves do not make; of vectors of one, and
#: of threads that find nothing of their own.
HELD = ((17, 16), (1, 1400), (1, 2048), (2, 331))
if not SIMULATED:
    ROWS += ((3, 5), (2, 3, 264), (300, 4096), (33, 5, 1000), (5, 32768), (2, 40000), (70_001, 32))
    HELD += ((5, 11008), (999, 128), (3, 2047), (3, 16384), (3, 32767), (3, 32768))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
def test_rows_with_qparams_of_their_own(dtype, symmetric):
    """Whether one kernel does all of it, or they are too long or not contiguous."""
    dtype = nq.dtypes.canonical(dtype, "dtype")
    for seed, shape in enumerate(ROWS):
        x = (np.random.default_rng(seed).normal(size=shape) * 20).astype(dtype)
        x[0] = 0
        for lay in (np.copy, LAY["every second"]):
            x = lay(x)
            expected = nq.quantize_per_token_dynamic(x, np.int8, symmetric=symmetric)
            got = nq.quantize_per_token_dynamic(given(x), np.int8, symmetric=symmetric)
            assert_same(to_host(got), expected, shape)


@pytest.mark.parametrize("shape", HELD, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_teams(dtype, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(nq.dtypes.canonical(dtype, "dtype"))
    x *= np.arange(1, len(x) + 1, dtype=x.dtype)[:, None]  # no row has the range of another
    for part in (x, np.roll(x, 1, 1)):
        expected = nq.quantize_per_token_dynamic(part, np.int8)
        assert_same(to_host(nq.quantize_per_token_dynamic(given(part), np.int8)), expected)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_that_are_not_finite(dtype, symmetric):
    """Nobody looks: they have what the two ops give that do the same one after the other."""
    dtype = nq.dtypes.canonical(dtype, "dtype")
    x = np.random.default_rng(0).normal(size=(5, 24)).astype(dtype)
    x[0, 3], x[1, 5], x[2, 7] = np.nan, np.inf, -np.inf
    x[3, ::2] = 0
    q, *qparams = nq.quantize_per_token_dynamic(given(x), np.int8, symmetric=symmetric)
    bounds = -127 if symmetric else -128, 127
    assert_same(to_host(q), to_host(nq.quantize_per_token(given(x), *qparams, *bounds, np.int8)))


@pytest.mark.parametrize(
    ("shape", "axis", "longest"),
    [((3, 70), 0, 32), ((3, 72), 0, 32), ((12, 8), 1, 76), ((80, 8), 1, 516)],
)
def test_runs_in_parts(monkeypatch, shape, axis, longest):
    """Those too long for one launch; on a GPU, a vector that begins anywhere is an error.

    A launch of channels side by side may begin in the middle of a row, and end there.
    """
    monkeypatch.setattr(loops, "LONGEST", longest)
    forget()  # what equal calls have come to
    name = "fake_quantize_per_channel_affine_cachemask"
    kwargs = arguments(name, shape, axis)
    assert_same(to_host(results(name, on_device(kwargs))), results(name, kwargs))


@pytest.mark.parametrize("dtype", TRUTHS)
def test_bools(dtype):
    with np.errstate(all="ignore"):
        x = np.array(TRUTHS[dtype]).astype(nq.dtypes.canonical(dtype, "dtype"))
    assert_same(to_host(nq.convert_element_type(given(x), bool)), nq.convert_element_type(x, bool))


def result_or_error(name, kwargs):
    try:
        return to_host(results(name, kwargs))
    except ValueError as error:
        found = str(error)
    return found


def assert_same_or_error(name, kwargs, there, note=""):
    """The same results of the same call on the device, or the same error."""
    expected, got = (result_or_error(name, given) for given in (kwargs, there))
    if isinstance(expected, str):
        assert got == expected
    else:
        assert_same(got, expected, note)


@pytest.mark.parametrize("name", CALLS)
def test_no_elements(name):
    for shape, axis in every_call(name, ((0,), (0, 4), (4, 0), (2, 0, 4))):
        for _ in range(2):
            kwargs = arguments(name, shape, axis)
            assert_same_or_error(name, kwargs, on_device(kwargs), (shape, axis))


@by_place("unaligned")
@pytest.mark.parametrize("name", WITH_OUT)
def test_out(name, place):
    shape, axis = every_call(name, SHAPES)[0]
    (expected,) = results(name, arguments(name, shape, axis))
    out = given(LAY[place](np.zeros_like(expected)))
    (got,) = results(name, on_device(arguments(name, shape, axis)) | {"out": out})
    assert got is out
    assert_same(to_host(out), expected)


@pytest.mark.parametrize(
    "name", [n for n in WITH_OUT if n.startswith("fake") or n == "adaround_hard"]
)
def test_in_place(name):
    shape, axis = every_call(name, SHAPES)[0]
    kwargs = arguments(name, shape, axis)
    (expected,) = results(name, kwargs)
    kwargs = on_device(kwargs)
    x = next(kwargs[key] for key in DATA if key in kwargs)
    (got,) = results(name, kwargs | {"out": x})
    assert got is x
    assert_same(to_host(x), expected)


@pytest.mark.parametrize("name", CALLS)
def test_host_and_device_do_not_mix(name):
    """One array on the other side: a TypeError that names it and says which is where."""
    shape, axis = every_call(name, SHAPES)[0]
    kwargs = arguments(name, shape, axis)
    everywhere = on_device(kwargs)
    arrays = [key for key in kwargs if kwargs[key] is not everywhere[key]]
    for key in arrays[1:]:
        if not (name.startswith("fused") and key in STATE) and np.size(kwargs[key]) == 1:
            continue  # one number may come from anywhere
        with pytest.raises(TypeError, match=key) as error:
            results(name, everywhere | {key: kwargs[key]})
        assert "NumPy array" in str(error.value)
        assert "GPU" in str(error.value)


def test_transfer():
    for dtype in ("float32", "bfloat16", "int4", "bool"):
        x = np.arange(24).reshape(2, 3, 4).astype(nq.dtypes.canonical(dtype, "dtype"))
        y = cuda.to_device(x.transpose(2, 0, 1))
        assert_same(cuda.to_host(y), x.transpose(2, 0, 1))
        assert_same(cuda.to_host(given(x[:, ::-1, ::2])), x[:, ::-1, ::2])
    for dtype in ("S5", "V12", [("a", "f4"), ("b", "f8")]):
        x = np.arange(3 * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)
        assert cuda.to_host(given(x)).tobytes() == x.tobytes()
    for wrong in (np.ones(3).tolist(), given(np.ones(3, np.float32))):
        with pytest.raises(TypeError, match="array must be a NumPy array"):
            cuda.to_device(wrong)
    with pytest.raises(TypeError, match="array must be an array on a GPU"):
        cuda.to_host(np.ones(3))
    swapped = np.arange(5, dtype=">f4")
    assert_same(cuda.to_host(cuda.to_device(swapped)), swapped.astype("=f4"))
    for wrong in (np.array([object()]), np.ones(3, np.complex64), np.array(["a"]), np.ones(2, "g")):
        with pytest.raises(TypeError, match="array must have a dtype among bfloat16, bool"):
            cuda.to_device(wrong)


#: Of sizes that no word has, with and without fields that are aligned.
ODD = (
    np.complex128, "S3", "V5", "V12", np.longdouble, [("a", "f4"), ("b", "i1")],
    np.dtype([("a", "f8"), ("b", "c16")], align=True),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ODD, ids=str)
def test_copies_of_elements_of_odd_sizes(dtype):
    """What no op takes, and a module of the user's may keep."""
    dtype = np.dtype(dtype)
    base = np.frombuffer(np.random.default_rng(0).bytes(60 * dtype.itemsize), np.uint8)
    base = base.view(dtype).reshape(4, 3, 5)
    for x in (
        base, base[:, ::2], base[::-1, :, ::-1], base.transpose(2, 0, 1), base[1, 2, 3:4][0:1],
        base[:0], np.broadcast_to(base[:, :1], (4, 6, 5)),
    ):  # fmt: skip
        got = cuda.to_host(arrays.copy(given(x)))
        assert (got.shape, got.dtype) == (x.shape, x.dtype)
        assert got.tobytes() == x.tobytes()
        assert cuda.to_host(given(x)).tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "name",
    [
        "quantize_per_tensor", "dequantize_per_tensor", "fake_quantize_per_tensor_affine",
        "fake_quantize_per_tensor_affine_cachemask", "adaround_init", "adaround_codes",
        "adaround_soft", "adaround_hard",
    ],
)  # fmt: skip
def test_one_element_whatever_its_axes(name):
    """As PyTorch's `keepdim` leaves them."""
    kwargs = arguments(name, (6,))
    keys = [key for key in kwargs if key in ("scale", "zero_point")]
    kwargs |= {key: np.full((1, 1), np.ravel(kwargs[key])[0]) for key in keys}
    kwargs |= {"axis": None} if "axis" in kwargs else {}
    assert_same(to_host(results(name, on_device(kwargs))), results(name, kwargs))


@pytest.mark.parametrize("scale", [2**24 + 1, 2**53 + 1, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_integer_scales(scale, kind):
    """They are the numbers that they would be on the host, also where float32 holds less."""
    names = ("quantize_per_tensor", "fake_quantize_per_tensor_affine", "adaround_hard")
    for name in (*names, "dequantize_per_tensor"):
        kwargs = arguments(name, (6,)) | {"scale": np.array([scale], np.int64)}
        if "axis" in kwargs:
            kwargs |= {"axis": None, "zero_point": 1}
        for key in ("input", "V"):
            if key in kwargs and kwargs[key].dtype.kind == "f":
                kwargs[key] = (kwargs[key] * (scale if key == "input" else 1)).astype(kind)
        if name == "dequantize_per_tensor":
            kwargs["out_dtype"] = kind
        got = results(name, on_device(kwargs))
        assert_same(to_host(got), results(name, kwargs), name)


@pytest.mark.parametrize("name", [n for n in CALLS if "learnable_per_tensor" in n])
def test_learned_numbers(name):
    """A number is an array of one float32, wherever the data are and the other parameter is."""
    for scale in (0.25, np.float32(0.3), np.array([0.3], np.float32)):
        for zero_point in (2.5, np.float32(-1.5), 1e9):
            kwargs = arguments(name, (6, 8)) | {"scale": scale, "zero_point": zero_point}
            expected = results(name, kwargs)
            there = on_device({k: v for k, v in kwargs.items() if k in DATA})
            for also in ((), ("scale",), ("zero_point",)):
                one = {k: given(np.atleast_1d(np.asarray(kwargs[k], np.float32))) for k in also}
                assert_same(to_host(results(name, kwargs | there | one)), expected)


MASK_SHAPES = [
    ((4, 5), (1, 4, 5)), ((1, 1, 4, 5), (4, 5)), ((4, 5), (4, 5, 1)), ((4, 5), (4, 1, 5)),
    ((1,), ()), ((), (1, 1)), ((4, 1, 5), (1, 4, 1, 5)), ((0, 3), (1, 0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "other"), MASK_SHAPES, ids=str)
def test_a_mask_with_other_axes_of_one(shape, other):
    op = nq.fake_quantize_per_channel_affine_cachemask_backward
    for lay in (np.copy, np.asfortranarray, LAY["every second"] if shape else np.copy):
        g = lay(np.asarray(np.random.default_rng(0).normal(size=shape), np.float32))
        m = np.array(g > 0).reshape(other)
        kwargs = {"grad": g, "mask": m}
        assert_same_or_error(op.__name__, kwargs, on_device(kwargs))
        if lay is not LAY["every second"] and shape not in ((4, 5), (0, 3)):
            assert strides(op(given(g), given(m))) == strides(op(g, m))


@pytest.mark.parametrize("z", [8, -9, 2**40, np.array([9], np.int8), np.array([np.inf])])
def test_a_zero_point_of_the_host_beside_a_scale(z):
    """It is held against the bounds as beside a scale that is a number."""
    x = np.ones(3, np.float32)
    for scale in (0.5, given(np.array([0.5], np.float32))):
        with pytest.raises(ValueError, match=r"^zero_point must (lie|be finite)"):
            nq.fake_quantize_per_tensor_affine(given(x), scale, z, -8, 7)


@pytest.mark.parametrize("z", [-8.6, 2.0**31, np.nan, 2**31])
def test_a_zero_point_of_the_host_that_is_truncated(z):
    """As beside a scale of the host, or the same error."""
    op = nq.fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    x, z, scale = np.linspace(-9, 9, 7, dtype=np.float32), np.array([z]), np.ones(1, np.float32)
    kwargs = {"input": x, "scale": scale, "zero_point": z, "fake_quant_enabled": 1,
              "quant_min": -8, "quant_max": 7}  # fmt: skip
    there = kwargs | {"input": given(x), "scale": given(scale)}
    assert_same_or_error(op.__name__, kwargs, there)


#: More than float32, float64 and int32 hold, and what cancels in them.
LARGE = (2**20 + 1, 2**23 + 1, 2**24 + 1, -(2**24) - 3, 2**30 + 1, 2**31 - 2, -(2**31), 2**52 + 1)


OF_CODES = [
    name
    for name in CALLS
    if {"zero_point", "zero_points"} & arguments(name, (2, 8)).keys()
    and name.startswith(("quantize", "dequantize", "fake_quant"))
    and "learnable" not in name
]


@pytest.mark.parametrize("scale_kind", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("name", OF_CODES)
def test_large_zero_points(name, kind, scale_kind):
    """On a GPU nobody looks how large they are, and the bits are those of the CPU."""
    in_int32 = name.startswith(("fake_quant_", "fake_quantize_per_ch")) or name.endswith("qparams")
    for z in (z for z in LARGE if abs(z) <= 2**31 or not (in_int32 or kind == np.int32)):
        kwargs = arguments(name, (2, 8), 0)
        scale, zero_point = (next(k for k in kwargs if k.startswith(p)) for p in ("scale", "zero"))
        shape = np.shape(kwargs[scale]) or (1,)
        kwargs |= {scale: np.full(shape, 0.3, scale_kind), zero_point: np.full(shape, z, kind)}
        data = next(key for key in DATA if key in kwargs)
        if kwargs[data].dtype == np.float32:
            kwargs[data][0, :4] = [-z * 0.3, (-z - 3) * 0.3, (3 - z) * 0.3, -z * 0.29]
        if name.endswith(("_affine", "_cachemask")):  # which hold it against the bounds
            kwargs |= {"quant_min": min(z, 0) - 8, "quant_max": max(z, 0) + 7}
        assert_same_or_error(name, kwargs, on_device(kwargs))


def test_every_int32_code_and_zero_point_has_a_difference():
    q = np.array([[-(2**31), 2**31 - 1]] * 2, np.int32)
    s, z = np.ones((2, 1), np.float64), np.array([[2**31 - 1], [-(2**31)]], np.int32)
    args = -(2**31), 2**31 - 1, np.int32, np.float64
    got = nq.dequantize_per_token(given(q), given(s), given(z), *args)
    assert_same(to_host(got), np.array([[1 - 2.0**32, 0], [0, 2.0**32 - 1]]))


@pytest.mark.parametrize("rounding", [{}, {"rounding": "divide"}], ids=str)
@pytest.mark.parametrize("z", [0.99999999, 1.99999995, 11.9999996, -1.00000001, 0.5])
def test_a_zero_point_of_float64_is_used_in_float32(z, rounding):
    """1.99999995 is 2 then, and beside -1 the code is 1; of the float64 less would be left."""
    x = np.array([0, 1, 0.5, -1, -11, -3], np.float32)
    scale, zero_point = np.ones(1, np.float32), np.array([z])
    args = -128, 127, np.int8
    expected = nq.quantize_per_tensor(x, scale, zero_point, *args, **rounding)
    got = nq.quantize_per_tensor(given(x), given(scale), given(zero_point), *args, **rounding)
    assert_same(to_host(got), expected)
    assert expected[0] == int(np.float32(z))


def test_a_step_whose_zero_point_no_int32_holds():
    """2**31 - 1 is 2**31 in float32."""
    x, op = np.array([-1, -0.5], np.float32), nq.fused_moving_avg_obs_fake_quant_cachemask
    state = [np.array([v], np.float32) for v in (np.inf, -np.inf, 1, 0)]
    there = [given(v.copy()) for v in state]
    args = 0.01, -(2**31), 2**31 - 1, 0
    expected = op(x, 1, 1, *state, *args)
    for found, right in zip(op(given(x), 1, 1, *there, *args), expected, strict=True):
        assert_same(to_host(found), right)
    assert state[3] == 2.0**31
    assert expected[1].all()


def test_a_zero_point_that_no_float64_holds():
    """It is rounded once, to float32, wherever it comes from."""
    x = -np.array([2.0**60, 2.0**60 + 2.0**37, 0], np.float32)
    for z in (2**60 + 2**36 + 1, given(np.array([2**60 + 2**36 + 1]))):
        for scale in (1.0, given(np.ones(1, np.float32))):
            q = nq.quantize_per_tensor(given(x), scale, z, -128, 127, np.int8)
            assert_same(to_host(q), np.array([127, 0, 127], np.int8))


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("name", ["scale", "zero_point"])
def test_learned_qparams_of_two_bytes_are_refused_before_anything_is_made(name, size, monkeypatch):
    """A sum of float64 is rounded to them once, for which there is no kernel."""
    x = cuda.to_device(np.ones(size, np.float32))
    qparams = {n: cuda.to_device(np.ones(1, np.float32)) for n in ("scale", "zero_point")}
    qparams[name] = cuda.to_device(np.ones(1, np.float16))
    made = []
    monkeypatch.setattr(target.Kernel, "__call__", lambda *args: made.append(args))
    message = f"{name} must be float32 or float64 where it has a gradient on a GPU, got float16"
    with pytest.raises(TypeError, match=message):
        nq.fake_quantize_learnable_per_tensor_affine_backward(
            x, x, **qparams, quant_min=-8, quant_max=7
        )
    assert not made
