"""Draws: choices from a seeded generator, arrays that lie anyhow in memory, and odd things.

NumPy and ml_dtypes only: nothing here knows the library.
"""

import datetime
import fractions
import functools
import math
import tempfile

import ml_dtypes
import numpy as np

#: Bytes on either side of an array that nobody may touch.
GUARD = 64

#: Bytes at most that an array with gaps reaches over.
REACH = 1 << 24

#: Random bits, to lie where no array of a case is.
_NOISE = np.random.default_rng(0).integers(0, 256, 1 << 18, dtype=np.uint8)


class Draw:
    """NumPy's generator, seeded by a seed and the number of a case."""

    def __init__(self, seed, index, *, long=False):
        self.rng = np.random.default_rng([seed, index])
        #: Whether arrays are as long as those in use.
        self.long = long
        self._random = self.rng.random
        #: Whether memory that is a file was given away; there is one file.
        self.mapped = False

    def chance(self, probability):
        return self._random() < probability

    def below(self, n):
        return int(self._random() * n)

    def of(self, options):
        return options[int(self._random() * len(options))]


class Subclass(np.ndarray):
    """A subclass that changes nothing."""


# --- memory -------------------------------------------------------------------------------------


@functools.cache
def _file():
    """Memory that is a file."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_NOISE.size)
        return np.memmap(file, np.uint8, "r+", shape=_NOISE.shape)


def _noise(draw, size):
    start = draw.below(_NOISE.size // 2)
    return np.resize(_NOISE[start : start + size], size)


def placed(draw, x, *, written=False):
    """Return an array that equals `x` and lies anyhow, its bytes and those round it, and `x`.

    Some of its elements may share a place unless it is to be `written`; then the `x` that comes
    back is another.
    """
    x = np.asarray(x)
    if not x.size:
        return x, np.zeros(0, np.uint8), x
    if not draw.mapped and draw.chance(0.01) and x.nbytes < _NOISE.size // 2:
        draw.mapped = True
        base = _file()[: x.nbytes + 2 * GUARD]
        base[...] = _noise(draw, base.size)
        y = base[GUARD:-GUARD].view(x.dtype).reshape(x.shape)
        y[...] = x
        return y, base, x
    size, ndim, dtype = x.itemsize, x.ndim, x.dtype
    order, steps, shift, shared = list(range(ndim)), [1] * ndim, 0, False
    if not (plain := draw.chance(0.4)):
        if draw.chance(0.5):
            order = [int(i) for i in draw.rng.permutation(ndim)]
        if draw.chance(0.5):
            steps = [draw.of((1, 1, 1, -1, -1, 2, -2, 3)) for _ in order]
            if x.nbytes * abs(math.prod(steps)) > REACH:
                steps = [step // abs(step) for step in steps]
        if draw.chance(0.2):
            shift = 1 + draw.below(7)
        if draw.chance(0.1):
            dtype = dtype.newbyteorder()
        shared = not written and ndim > 0 and draw.chance(0.15)
    strides, reach = [0] * ndim, size
    for i in reversed(order):
        strides[i] = reach * steps[i]
        reach *= abs(steps[i]) * x.shape[i]
    if not plain and 1 in x.shape and draw.chance(0.3):  # to which NumPy pays no heed
        step = draw.of((1, 3, -7, 0, 2**40))
        strides = [step if n == 1 else s for n, s in zip(x.shape, strides, strict=True)]
    if shared:  # all of an axis in one place, or sliding along another
        strides[draw.below(ndim)] = draw.of((0, 0, size))
    base = _noise(draw, reach + 2 * GUARD + 8)
    first = sum(-s * (n - 1) for s, n in zip(strides, x.shape, strict=True) if s < 0)
    y = np.ndarray(x.shape, dtype, base.data, GUARD + first + shift, strides)
    y[...] = x
    if shared:
        x = y.astype(x.dtype, order="C")
    if not plain and draw.chance(0.1):
        y = y.view(Subclass)
    if not written and draw.chance(0.1):
        y.flags.writeable = False
    return y, base, x


def described(value):
    """A line that tells how an argument looks."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if not isinstance(value, np.ndarray):
        return f"{value!r}"
    return (
        f"{type(value).__name__}({value.reshape(-1).tolist()[:64]}, shape={value.shape}, "
        f"dtype={value.dtype.str} {value.dtype}, strides={value.strides}, "
        f"writeable={value.flags.writeable}, aligned={value.flags.aligned})"
    )


# --- what is wrong somewhere ----------------------------------------------------------------------

HUGE = 10**400

#: Of which an op that takes an array takes few, and one that takes a number few others.
ODD = (
    None, "x", "1", b"1", "", [], {}, (), set(), range(3), object(), object, len, slice(1), ...,
    NotImplemented, 1j, True, False, fractions.Fraction(1, 2), datetime.timedelta(1),
    [1.0], [1], [[1.0], [1.0, 2.0]], ["a"], [None], [1j], [True], [HUGE], [2**63], [2**70], (1, 2),
    HUGE, -HUGE, 10**5000, 2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**31, -(2**31) - 1, 2**24 + 1,
    0, 1, -1, 2, 3, 7, 100, -100, 0.0, -0.0, 0.5, 1.5, -2.5, 1e-320, 1e-46, 1e39, 1e300, -1e300,
    float("nan"), float("inf"), -float("inf"),
    np.True_, np.str_("a"), np.bytes_(b"a"), np.int8(3), np.uint64(7), np.float16(0.3),
    np.float32(0.3), np.float64(2), np.float32("nan"), np.longdouble(1.5), np.complex64(1),
    np.datetime64("2000-01-01"), np.timedelta64(3, "ms"), np.timedelta64(3, "s"),
    np.timedelta64("NaT", "s"),
    ml_dtypes.bfloat16(1.5), ml_dtypes.float8_e4m3fn(1), ml_dtypes.int4(1), np.void(b"ab"),
)  # fmt: skip


def odd_arrays():
    """Arrays of which few ops take any; new ones, since somebody may write to them."""
    one = np.ones(1)
    record = np.zeros(2, [("a", np.float32), ("b", np.int8)])
    return (
        one, np.ones(()), np.ones(2), np.ones((1, 1)), np.zeros(0), np.zeros((0, 3)), np.zeros(1),
        -one, one * np.nan, one * np.inf, one * 1e300, np.array([1.7]), np.array(2**62),
        np.ones(1, np.int32), np.ones(1, bool), np.ones(1, complex), np.ones(1, np.longdouble),
        np.ones(1, np.uint64), np.ones(1, ">f4"), np.ones(1, ">i4"),
        np.ones(1, object), np.array([None]), np.array([HUGE]), np.array(["1"]), np.array([b"1"]),
        np.array(["a"], np.dtypes.StringDType()), record, record[:1], np.rec.array(record),
        np.zeros(1, "V4"), np.zeros(1, "M8[s]"), np.zeros(1, "m8[s]"), np.zeros(2, "m8[ms]"),
        np.zeros(1, ml_dtypes.int4), np.zeros(1, ml_dtypes.float8_e5m2),
        np.ma.masked_array(one, [True]), np.ma.masked_array(one.astype(np.float32)),
        np.ones((1, 1)).view(np.matrix), np.broadcast_to(np.float32(1), (2, 1 << 40))[:0],
    )  # fmt: skip


#: No dtypes, and dtypes of nothing that is taken anywhere.
ODD_DTYPES = (
    None, "", "x", ",", "f4, (2,", "(2", "i4,", "V3", "m8[xx]", "(1,2)f4", "\0", b"\xff", 3, 1.5,
    float("nan"), HUGE, object, complex, str, bytes, np.longdouble, np.complex64, "M8[s]", "m8",
    [("a", "f4")], [("a", "f4"), ("a", "f4")], {"names": 3}, {}, [], [1], (1, 2), ("f4", 2),
    ("f4", -1), ("f4", (1 << 40, 1 << 40)), slice(1), ..., len, ml_dtypes.float8_e4m3b11fnuz,
    np.dtypes.StringDType(), np.uint64, np.ones(2, np.int8), np.void,
)  # fmt: skip
