"""What many elements become one of: minima and maxima, and the sums of the learnable gradients.

A channel's elements, in C order of (outer, inner), are cut into tiles of TILE; a *task* is one tile
of one channel, or of a block of channels that lie side by side. Minima and maxima do not depend on
order. Sums do, so theirs is fixed (docs/numerics.md, "Sums"): element e of a tile goes to lane
e % LANES, a lane adds in order in float64, the lanes are folded by halves, and tiles are added in
order. Every walk below adds in this order, so layouts and threads do not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from npquant.cpu.storage import TYPES
from npquant.cpu.target import Kernel, Types, array_type
from npquant.cpu.walk import channel_pieces, plain
from npquant.formulas import finite_key_above, finite_key_below
from npquant.layout import Granularity, Layout
from npquant.primitives import (
    at,
    bits,
    item,
    key,
    keys_between,
    like,
    masked,
    store,
    unsigned,
    value,
    widen,
)

Array = np.ndarray[Any, Any]

TILE = 4096
LANES = 64
#: Terms that wait to be added: enough to run long loops, few enough to stay in cache.
STRIP = 1024
#: Channels of a block, where they lie side by side: its lanes fit a second-level cache.
BLOCK = 64


# --- minima and maxima ------------------------------------------------------------------------


@register_jitable
def _run_of_bits(x: Any, begin: Any, n: Any, low: Any, high: Any) -> Any:
    base = np.uintp(begin)
    most = least = bits(x[base])
    farthest = unsigned(most)
    for k in range(np.uintp(n)):
        i = bits(x[base + k])
        most, least, farthest = max(most, i), min(least, i), max(farthest, unsigned(i))
    a, b = keys_between(most, least, farthest, x[base])
    return min(low, a), max(high, b)


@register_jitable
def _run_of_finite(x: Any, begin: Any, n: Any, low: Any, high: Any) -> Any:
    base = np.uintp(begin)
    for k in range(np.uintp(n)):
        low = min(low, finite_key_above(x[base + k]))
        high = max(high, finite_key_below(x[base + k]))
    return low, high


class Extremes:
    """x -> the least and the greatest element of each channel, in one pass.

    Parameters
    ----------
    low, high : callable
        ``low(x) -> key`` to find the least, and ``high(x) -> key`` to find the greatest of.
    run : callable
        ``run(x, begin, n, low, high) -> (low, high)``, the keys after a run of `n` more elements.
    """

    def __init__(
        self, low: Callable[..., Any], high: Callable[..., Any], run: Callable[..., Any]
    ) -> None:
        def runs(
            begin: Any, end: Any, channels: Any, inner: Any, count: Any, x: Any,
            least: Any, greatest: Any,
        ) -> None:  # fmt: skip
            """Tasks (channel, tile): the least and the greatest key of each."""
            tiles = least.shape[1]
            for task in range(begin, end):
                c = task // tiles
                tile = task - c * tiles
                left = min(count - tile * TILE, TILE)
                row = tile * TILE // inner
                i = tile * TILE - row * inner
                v = x[(row * channels + c) * inner + i]
                lo, hi = low(v), high(v)
                while left > 0:
                    m = min(inner - i, left)
                    lo, hi = run(x, (row * channels + c) * inner + i, m, lo, hi)
                    left -= m
                    row += 1
                    i = 0
                least[c, tile] = lo
                greatest[c, tile] = hi

        def beside(
            begin: Any, end: Any, channels: Any, inner: Any, count: Any, x: Any,
            least: Any, greatest: Any,
        ) -> None:  # fmt: skip
            """Tasks (tile): the least and the greatest key of every channel, row after row."""
            for tile in range(begin, end):
                e = tile * TILE
                lo, hi = np.empty(channels, least.dtype), np.empty(channels, least.dtype)
                for c in range(channels):
                    lo[c], hi[c] = low(x[e * channels + c]), high(x[e * channels + c])
                for row in range(e + 1, min(count, e + TILE)):
                    base = np.uintp(row * channels)
                    for c in range(np.uintp(channels)):
                        lo[c] = min(lo[c], low(x[base + c]))
                        hi[c] = max(hi[c], high(x[base + c]))
                least[:, tile] = lo
                greatest[:, tile] = hi

        self._runs = Kernel(runs, f"extremes_{low.__name__}_runs", _extremes_signature)
        self._beside = Kernel(beside, f"extremes_{low.__name__}_beside", _extremes_signature)

    def __call__(self, granularity: Granularity, x: Array) -> tuple[Array, Array]:
        dtype: Any = x.dtype
        kind = dtype if dtype.kind in "iu" else _KEYS[dtype.itemsize]
        if x.size == 0:
            return np.empty(0, dtype), np.empty(0, dtype)
        shape = granularity.channels, -(-(x.size // granularity.channels) // TILE)
        least, greatest = np.empty(shape, kind), np.empty(shape, kind)
        for layout, channels, tiles, (flat,) in channel_pieces(
            granularity, (x,), (), TILE, ordered=False
        ):
            lo, hi = least[channels, tiles], greatest[channels, tiles]
            args = (*layout, flat.size // layout.channels, flat, lo, hi)
            beside = layout.inner == 1 and layout.channels > 1
            kernel, n = (self._beside, lo.shape[1]) if beside else (self._runs, lo.size)
            kernel(n, flat.size, args, (dtype, kind))
        lo, hi = np.empty(shape[0], dtype), np.empty(shape[0], dtype)
        _of_tiles(shape[0], least.size, (least, greatest, lo, hi), (dtype, kind))
        return lo, hi


def _extremes_signature(dtype: Any, kind: Any) -> Types:
    keys = types.Array(TYPES[kind], 2, "A")
    return types.intp, types.intp, types.intp, array_type(dtype), keys, keys


_KEYS = {2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}

#: NaN where there is one.
minmax = Extremes(key, key, _run_of_bits)

#: Of what is finite in float32; +inf and -inf where nothing is.
minmax_finite = Extremes(finite_key_above, finite_key_below, _run_of_finite)


def _extremes_of_tiles(begin: Any, end: Any, least: Any, greatest: Any, lo: Any, hi: Any) -> None:
    """The keys of the tiles of a channel -> its two values."""
    for c in range(begin, end):
        a, b = least[c, 0], greatest[c, 0]
        for tile in range(1, least.shape[1]):
            a, b = min(a, least[c, tile]), max(b, greatest[c, tile])
        u, v = value(a, item(lo)), value(b, item(lo))
        # A NaN of either sign lies outside the infinities, so it shows; both become NaN then.
        lo[c] = u if widen(v) == widen(v) else v
        hi[c] = v if widen(u) == widen(u) else u


def _tiles_signature(dtype: Any, kind: Any) -> Types:
    keys = types.Array(TYPES[kind], 2, "C")
    return keys, keys, array_type(dtype), array_type(dtype)


_of_tiles = Kernel(_extremes_of_tiles, "extremes_of_tiles", _tiles_signature)


# --- learnable gradients ----------------------------------------------------------------------


@register_jitable
def _add_to_lanes(lanes: Any, terms: Any, n: Any) -> None:
    """Add the first `n` terms, term k to lane k % LANES."""
    whole = n // LANES * LANES
    for row in range(0, whole, LANES):
        base = np.uintp(row)
        for lane in range(np.uintp(LANES)):
            lanes[lane] += terms[base + lane]
    base = np.uintp(whole)
    for lane in range(np.uintp(n - whole)):
        lanes[lane] += terms[base + lane]


@register_jitable
def _fold(lanes: Any, width: Any) -> None:
    """Add LANES rows of `width` by halves: row i takes row i + h."""
    h = LANES // 2 * width
    while h >= width:
        half = np.uintp(h)
        for k in range(half):
            lanes[k] += lanes[half + k]
        h //= 2


class Gradients:
    """grad, x, qparams -> grad_input and the sums for scale and zero point, in one pass.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, lo, hi, factor, y) -> p``, once a channel; it begins
        with the inverse, the scale and the zero point, and all else is the same everywhere.
    element : callable
        ``element(g, x, p) -> (inside, slope, shift)``.
    """

    def __init__(self, parameters: Callable[..., Any], element: Callable[..., Any]) -> None:
        def runs(
            begin: Any, end: Any, channels: Any, inner: Any, count: Any, g: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any,
            y: Any, slopes: Any, shifts: Any,
        ) -> None:  # fmt: skip
            """Tasks (channel, tile)."""
            tiles = slopes.shape[1]
            slope, shift = np.empty(LANES), np.empty(LANES)
            zero = like(np.float32(0), factor)
            us, ws = np.full(STRIP, zero), np.full(STRIP, zero)
            for task in range(begin, end):
                c = task // tiles
                tile = task - c * tiles
                p = parameters(x, at(scale, c), at(zero_point, c), lo, hi, factor, y)
                slope[:] = 0
                shift[:] = 0
                left = min(count - tile * TILE, TILE)
                row = tile * TILE // inner
                i = tile * TILE - row * inner
                filled = 0
                while left > 0:
                    m = min(inner - i, left, STRIP - filled)
                    base = np.uintp((row * channels + c) * inner + i)
                    at_term = np.uintp(filled)
                    for k in range(np.uintp(m)):
                        v = g[base + k]
                        inside, u, w = element(v, x[base + k], p)
                        store(y, base + k, masked(v, inside))
                        us[at_term + k] = u
                        ws[at_term + k] = w
                    left -= m
                    filled += m
                    i += m
                    if i == inner:
                        row += 1
                        i = 0
                    if filled == STRIP or left == 0:
                        _add_to_lanes(slope, us, filled)
                        _add_to_lanes(shift, ws, filled)
                        filled = 0
                _fold(slope, 1)
                _fold(shift, 1)
                slopes[c, tile] = slope[0]
                shifts[c, tile] = shift[0]

        def beside(
            begin: Any, end: Any, channels: Any, inner: Any, count: Any, g: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any,
            y: Any, slopes: Any, shifts: Any,
        ) -> None:  # fmt: skip
            """Tasks (tile, block of channels), the channels side by side; inner is 1."""
            blocks = (channels + BLOCK - 1) // BLOCK
            slope, shift = np.empty(LANES * BLOCK), np.empty(LANES * BLOCK)
            for task in range(begin, end):
                tile = task // blocks
                c = (task - tile * blocks) * BLOCK
                width = min(BLOCK, channels - c)
                p = parameters(x, scale[c], zero_point[c], lo, hi, factor, y)
                inverses, scales, zeros = (
                    np.full(width, p[0]), np.full(width, p[1]), np.full(width, p[2]),
                )  # fmt: skip
                for k in range(1, width):
                    p = parameters(x, scale[c + k], zero_point[c + k], lo, hi, factor, y)
                    inverses[k], scales[k], zeros[k] = p[0], p[1], p[2]
                slope[: LANES * width] = 0
                shift[: LANES * width] = 0
                start = tile * TILE
                for row in range(start, min(count, start + TILE)):
                    lane = np.uintp((row - start) % LANES * width)
                    base = np.uintp(row * channels + c)
                    for k in range(np.uintp(width)):
                        v = g[base + k]
                        p = inverses[k], scales[k], zeros[k], lo, hi, factor
                        inside, u, w = element(v, x[base + k], p)
                        store(y, base + k, masked(v, inside))
                        slope[lane + k] += u
                        shift[lane + k] += w
                _fold(slope, width)
                _fold(shift, width)
                slopes[c : c + width, tile] = slope[:width]
                shifts[c : c + width, tile] = shift[:width]

        name = f"{parameters.__name__}_{element.__name__}"
        self._runs = Kernel(runs, f"{name}_runs", _gradients_signature)
        self._beside = Kernel(beside, f"{name}_beside", _gradients_signature)

    def __call__(
        self, granularity: Granularity, grad: Array, x: Array, scale: Array, zero_point: Array,
        constants: tuple[Any, Any, Any], code: str, y: Array,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Write grad_input to `y`; return the float64 sums of each channel.

        `constants` are lo, hi and grad_factor; `code` names the type of lo and hi.
        """
        channels, inner, _ = granularity
        shape = channels, -(-(x.size // channels) // TILE)
        slopes, shifts = np.empty(shape), np.empty(shape)
        if plain(grad) and plain(x) and plain(y):
            n = x.size
            flat = grad.reshape(n), x.reshape(n), y.reshape(n)
            layout = Layout(channels, inner)
            self._piece(layout, *flat, scale, zero_point, constants, code, slopes, shifts)
            return _in_order(slopes), _in_order(shifts)
        for layout, some, tiles, (g, u, v) in channel_pieces(
            granularity, (grad, x), (y,), TILE, ordered=True
        ):
            part = slopes[some, tiles], shifts[some, tiles]
            self._piece(layout, g, u, v, scale[some], zero_point[some], constants, code, *part)
        return _in_order(slopes), _in_order(shifts)

    def _piece(
        self, layout: Layout, grad: Array, x: Array, y: Array, scale: Array, zero_point: Array,
        constants: tuple[Any, Any, Any], code: str, slopes: Array, shifts: Array,
    ) -> None:  # fmt: skip
        channels, inner = layout
        n = x.size
        args = (channels, inner, n // channels, grad, x, scale, zero_point, *constants, y,
                slopes, shifts)  # fmt: skip
        key = (x.dtype, scale.dtype, zero_point.dtype, code)
        if inner == 1 and channels > 1:
            self._beside(-(-channels // BLOCK) * slopes.shape[1], n, args, key)
        else:
            self._runs(slopes.size, n, args, key)


def _gradients_signature(x: Any, scale: Any, zero_point: Any, code: Any) -> Types:
    data, sums = array_type(x), types.Array(types.float64, 2, "A")
    bound, number = (
        types.float32 if code == "float32" else types.float64,
        types.float64 if x == np.float64 else types.float32,
    )
    return (
        types.intp, types.intp, types.intp, data, data, array_type(scale), array_type(zero_point),
        bound, bound, number, data, sums, sums,
    )  # fmt: skip


def _in_order(sums: Array) -> Array:
    """The tiles of each channel added one after another."""
    return sums[:, 0] if sums.shape[1] == 1 else np.add.accumulate(sums, axis=1)[:, -1]
