"""What an argument means: its value, WRONG, or UNSURE. Written from the documents, not the checks.

These are the sentences of the documentation ("a number, or the one element of an array") once more,
so that a fuzzed argument which the library takes is one that it should take.
"""

import math
import warnings

import ml_dtypes
import numpy as np

from cases import BOUNDS, FLOAT8, FLOATS

WRONG, UNSURE = "wrong", "unsure"

FLOATS = frozenset(FLOATS)
INTEGERS = frozenset(map(np.dtype, ("i1", "u1", "i2", "u2", "i4", "u4", "i8")))
REALS = FLOATS | INTEGERS
BOOL = np.dtype(bool)
COMPLEX = frozenset(map(np.dtype, ("c8", "c16")))
CONVERTIBLE = REALS | frozenset(FLOAT8) | {BOOL}
TARGETS = frozenset(BOUNDS)
INTEGER_TARGETS = TARGETS - frozenset(FLOAT8)


def known(*values):
    """Whether these have been read without complaint."""
    return all(v is not WRONG and v is not UNSURE for v in values)


def native_order(dtype):
    """The dtype in this machine's order of bytes; strings of any length have no order."""
    return dtype if dtype.kind == "T" else dtype.newbyteorder("=")


def array(value, allowed):
    """A NumPy array, or scalar, of one of these dtypes in any byte order."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return WRONG
    if isinstance(value, (np.ma.MaskedArray, np.matrix)):
        return WRONG
    x = np.asarray(value)
    native = native_order(x.dtype)
    return np.array(x, native, order="C") if native in allowed else WRONG


def parameters(value, shapes, allowed=REALS):
    """An array of one of these shapes, or what NumPy makes one of: numbers, lists of them."""
    if not isinstance(value, (np.ndarray, np.generic)):
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, OverflowError):
            return WRONG
    p = array(value, allowed)
    return p if p is not WRONG and p.shape in shapes else WRONG


def learned(value, shapes):
    """As `parameters`, of floats alone; a number is a float32, or a float64 if it is NumPy's."""
    if not isinstance(value, np.ndarray) and known(n := number(value)):
        with np.errstate(over="ignore"):
            value = np.array([n], np.float64 if type(value) is np.float64 else np.float32)
    return parameters(value, shapes, FLOATS)


def learned_zero_point(value, shapes):
    """As `learned`, or integers, which stand for the float32 nearest to them."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64)):
        whole = -(2**63) <= value < 2**63
        value = np.array([value], np.int64) if whole else number(value)
    if not isinstance(value, np.ndarray) and known(number(value)):
        return learned(value, shapes)
    z = parameters(value, shapes)
    return z.astype(np.float32) if known(z) and z.dtype in INTEGERS else z


def _one(value):
    """The one element of an array of numbers."""
    if value.size != 1 or isinstance(value, (np.ma.MaskedArray, np.matrix)):
        return WRONG
    native = native_order(value.dtype)
    return value.item() if native in REALS else WRONG


def number(value):
    """A real number, or the one element of an array; no bool."""
    if isinstance(value, np.ndarray):
        n = _one(value)
        return float(n) if known(n) else n
    if isinstance(value, (bool, np.bool_, np.timedelta64)):
        return WRONG
    if not isinstance(value, (int, float, np.integer, np.floating, ml_dtypes.bfloat16)):
        return WRONG
    try:
        return float(value)
    except OverflowError:
        return WRONG


def single(value):
    """As `number`; an array has at most one axis."""
    if isinstance(value, np.ndarray) and value.shape not in ((), (1,)):
        return WRONG
    return number(value)


def truncated(value):
    """As `integer`, but of an array of floats what is whole in it."""
    if isinstance(value, np.ndarray):
        n = _one(value)
        return n if not known(n) else int(n) if math.isfinite(n) else WRONG
    return integer(value)


def integer(value):
    """An integer, or the one element of an array, which is one too: if it is a float, 3.0 is."""
    if isinstance(value, np.ndarray):
        n = _one(value)
        return n if not known(n) else int(n) if math.isfinite(n) and int(n) == n else WRONG
    if isinstance(value, (bool, np.bool_, np.timedelta64)):
        return WRONG
    return int(value) if isinstance(value, (int, np.integer)) else WRONG


def boxed(value):
    """One of NumPy's floats as the array that it stands for."""
    floating = isinstance(value, (np.floating, ml_dtypes.bfloat16))
    return np.asarray(value) if floating else value


def finite(value):
    n = number(value)
    return n if not known(n) or math.isfinite(n) else WRONG


def least_scale(value):
    """Not negative, and finite in float32."""
    n = number(value)
    if not known(n):
        return n
    with np.errstate(all="ignore"):
        return n if n >= 0 and np.isfinite(np.float32(n)) else WRONG


def switch(value):
    """A bool, or a number that is truncated to an integer."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, np.ndarray) and value.dtype == bool and value.size == 1:
        odd = isinstance(value, (np.ma.MaskedArray, np.matrix))
        return WRONG if odd else bool(value.item())
    n = finite(value)
    return int(n) != 0 if known(n) else n


def word(value, allowed):
    return str(value) if isinstance(value, str) and value in allowed else WRONG


def dtype(value, allowed):
    """What NumPy takes for one of these dtypes, in any byte order."""
    if value is None:
        return WRONG
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = native_order(np.dtype(value))
    except Exception:
        return WRONG
    return found if found in allowed else WRONG


def out(value, dtype, shape, input, *data, others=()):
    """Where to write: the `input` itself, or an array apart from all that is read."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or isinstance(value, (np.ma.MaskedArray, np.matrix)):
        return WRONG
    if value.dtype != dtype or value.shape != shape or not value.flags.writeable:
        return WRONG
    if not value.size:
        return None
    if _overlaps_itself(value):
        return WRONG
    if not same_elements(input, value) and _shared(input, value):
        return WRONG
    if any(_shared(x, value) for x in data):
        return WRONG
    if any(_shared(p, value) for p in others):
        return UNSURE  # numbers, which are read before anything is written
    return None


def same_elements(x, y):
    """Whether each element of one lies where that of the other does, whatever their dtypes.

    Axes of one may be elsewhere: a gradient takes those of its mask.
    """
    return (
        isinstance(x, np.ndarray)
        and (x.squeeze().shape, x.itemsize) == (y.squeeze().shape, y.itemsize)
        and np.array_equal(_places(x), _places(y))
    )


def _shared(x, y):
    return isinstance(x, np.ndarray) and np.shares_memory(x, y)


def _overlaps_itself(y):
    """Whether two of its elements share a byte."""
    return bool((np.diff(np.sort(_places(y))) < y.itemsize).any())


def _places(y):
    """The addresses of its elements, in C order."""
    places = np.array([y.__array_interface__["data"][0]], np.int64)
    for stride, n in zip(y.strides, y.shape, strict=True):
        places = np.add.outer(places, stride * np.arange(n)).reshape(-1)
    return places
