"""Arrays that no cache of a core holds, of which what comes next is fetched: the same bits."""

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
from cases import assert_same
from npquant.cpu.extremes import Extremes
from npquant.cpu.lines import AHEAD, FAR, FETCHED, FETCHED_FAR
from npquant.formulas.histogram import finite_key_above, finite_key_below
from npquant.layout import Granularity
from npquant.primitives import key

#: Rows of an array; two of them are small enough to be done without.
ROWS = 6
INT8 = -128, 127, np.int8


def data(columns, dtype=np.float32):
    x = np.random.default_rng(3).normal(0, 3, (ROWS, columns)).astype(np.float32)
    assert x.size > FAR > 2 * columns
    return x.astype(dtype)


def qparams(shape, kind=np.float32):
    rng = np.random.default_rng(4)
    wide = np.int64 if kind is np.float64 else np.int32
    return rng.uniform(0.01, 0.1, shape).astype(kind), rng.integers(-9, 9, shape).astype(wide)


def in_parts(op, x, *args):
    """The op of the whole, and of two rows at a time, with what of `args` belongs to them."""

    def some(a, part):
        return a[part] if isinstance(a, np.ndarray) and len(a) == ROWS else a

    parts = [slice(i, i + 2) for i in range(0, ROWS, 2)]
    each = [op(x[part], *(some(a, part) for a in args)) for part in parts]
    assert_same(op(x, *args), np.concatenate(each), op.__name__)


COLUMNS = 999_000


@pytest.mark.parametrize("dtype", [np.int8, np.int16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_quantize_per_tensor(dtype):
    in_parts(nq.quantize_per_tensor, data(COLUMNS), 0.05, 3, -8, 7, np.dtype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_quantize_of_other_dtypes(dtype):
    in_parts(nq.quantize_per_tensor, data(COLUMNS, dtype), 0.05, 3, *INT8)


def test_quantize_rows_with_gaps():
    """What lies between them is fetched too, and belongs to nobody."""
    x = data(COLUMNS)
    for lie in (lambda a: a[:, 10:-20], lambda a: a.reshape(ROWS, -1, 9000)[..., 7:-9]):
        rows, v = lie(x), lie(np.roll(x, 1))
        in_parts(nq.quantize_per_tensor, rows, 0.05, 3, *INT8)
        in_parts(nq.quantize_per_channel, rows, *qparams(ROWS), 0, *INT8)
        in_parts(nq.quantize_per_token, rows, *qparams((*rows.shape[:-1], 1)), *INT8)
        parts = [nq.adaround_codes(rows[i], v[i], 0.05, 0, *INT8) for i in range(ROWS)]
        assert_same(nq.adaround_codes(rows, v, 0.05, 0, *INT8), np.stack(parts))


def test_quantize_per_channel():
    x = data(COLUMNS)
    in_parts(nq.quantize_per_channel, x, *qparams(ROWS), 0, *INT8)
    in_parts(nq.quantize_per_channel, x.reshape(ROWS, 37, -1), *qparams(37), 1, *INT8)


@pytest.mark.parametrize("channels", [3, 100, 9000, 37_000])
def test_quantize_with_channels_last(channels):
    x = data(COLUMNS).reshape(ROWS, -1, channels)
    in_parts(nq.quantize_per_channel, x, *qparams(channels), 2, *INT8)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("length", [40, 999])
def test_quantize_per_token(kind, length):
    x = data(COLUMNS).reshape(ROWS, -1, length)
    in_parts(nq.quantize_per_token, x, *qparams((ROWS, x.shape[1], 1), kind), *INT8)


@pytest.mark.parametrize("group", [16, 32, 48, 128])
def test_quantize_per_group(group):
    x = data(999_936)
    in_parts(nq.quantize_per_channel_group, x, *qparams((ROWS, 999_936 // group)), *INT8, group)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16]
)
def test_convert(dtype):
    in_parts(nq.convert_element_type, data(COLUMNS), np.dtype(dtype))


def test_dequantize_of_codes_that_are_wider():
    q = (data(COLUMNS) * 9).astype(np.int32)

    def to_float16(q):
        return nq.dequantize_per_tensor(q, 0.05, 3, -128, 127, np.int32, out_dtype=np.float16)

    in_parts(to_float16, q)


def test_quantize_per_token_dynamic():
    x = data(COLUMNS).reshape(ROWS, -1, 1000)
    codes, scale, zero_point = nq.quantize_per_token_dynamic(x, np.int8)
    found = nq.choose_qparams_per_token_asymmetric(x[:2], np.int8)
    assert_same((scale[:2], zero_point[:2]), found)
    assert_same(codes, nq.quantize_per_token(x, scale, zero_point, *INT8))


def test_adaround_codes():
    x = data(COLUMNS)
    v = np.roll(x, 1)

    def codes(x, v):
        return nq.adaround_codes(x, v, 0.05, 0, *INT8)

    in_parts(codes, x, v)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize("keys", [(key, key), (finite_key_above, finite_key_below)])
def test_extremes_are_found_wherever_they_are(keys, fetched, dtype):
    """By a processor for which what comes next is fetched, and by another."""
    find, x = Extremes(*keys, fetched, fetched), np.zeros(FAR + 3 * FETCHED + 5, dtype)
    edges = (0, FETCHED_FAR, FETCHED, AHEAD, 1 << 14, 1 << 16, FAR, x.size - 1)
    for at in sorted({min(max(e + d, 0), x.size - 1) for e in edges for d in (-1, 0, 1)}):
        x[at], x[-1 - at] = -100, 155
        assert find(Granularity(1, x.size, None), x) == (-100, 155), at
        x[at] = x[-1 - at] = 0
    rows = x[: x.size // 100 * 100].reshape(-1, 100)
    rows[:, 7], rows[:, 98] = -np.arange(1, 1 + len(rows)) % 1000, np.arange(len(rows)) % 999
    found = find(Granularity(len(rows), 100, None), rows)
    assert_same(found, (np.minimum(rows[:, 7], 0), np.maximum(rows.max(1), 0)))
