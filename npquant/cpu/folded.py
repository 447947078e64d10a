"""Minima and maxima of rows that are not long, many of them together.

A loop over a row alone would end before it is in its stride. So a row becomes LANES keys, as whole
vectors, and of many rows four neighbours at a time are compared, until one is left of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.lowered import called, lowered
from npquant.cpu.memory import AHEAD, EverySecond, data_of, far, fetch, local
from npquant.formulas.base import extremes_of
from npquant.layout import LANES
from npquant.primitives import item, key

#: Rows of LANES up to LONGEST elements are folded. (Measured.)
LONGEST = 1024
#: MANY rows at a time at most, and AT_ONCE elements, or memory would wait for too long; of rows of
#: LANES, where less is done, MOST. (Measured.)
MANY, AT_ONCE, MOST = 32, 4096, 128
_LANES_OF_ALL, _FEWER = LANES * MANY, 4 * MOST


def folds(inner: int) -> bool:
    """Whether rows of `inner` elements are folded together."""
    return LANES <= inner <= LONGEST


def lanes_of_row(x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any) -> None:
    """The least and the greatest key of some of `n` elements from `at` on, LANES or more.

    There are LANES of each, written from the place `to` on, and each element is in one or more.
    """
    for lane in range(LANES):
        keys = [key(v) for v in (*x[at + lane : at + n : LANES], x[at + n - LANES + lane])]
        least[to + lane], greatest[to + lane] = min(keys), max(keys)


@lowered(lanes_of_row)
def _lanes_of_row(context: Any, x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any) -> Any:
    integer, step = isinstance(x.dtype, types.Integer), 1 + isinstance(x, EverySecond)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, at, n, lows, highs, to = args
        size = context.get_abi_sizeof(context.get_data_type(x.dtype))
        bits = ir.IntType(8 * size)
        row = ir.VectorType(bits, LANES)
        data = builder.bitcast(data_of(context, builder, x, array), bits.as_pointer())
        signed = not integer or x.dtype.signed
        compare = builder.icmp_signed if signed else builder.icmp_unsigned

        def keys(k: Any, back: int = 0) -> Any:
            place = builder.mul(builder.add(at, k), k.type(step))
            place = builder.gep(data, [builder.sub(place, k.type(back))])
            wide = ir.VectorType(bits, LANES * step)
            v = builder.load(builder.bitcast(place, wide.as_pointer()), align=size)
            if step > 1:
                order = ir.VectorType(ir.IntType(32), LANES)(list(range(back, wide.count, step)))
                v = builder.shuffle_vector(v, v, order)
            if integer:
                return v
            sign, rest = (row([m] * LANES) for m in (8 * size - 1, 2 ** (8 * size - 1) - 1))
            return builder.xor(v, builder.and_(builder.ashr(v, sign), rest))

        found = [cgutils.alloca_once_value(builder, keys(n.type(0))) for _ in range(2)]

        def see(v: Any) -> None:
            for below, place in zip("<>", found, strict=True):
                held = builder.load(place)
                builder.store(builder.select(compare(below, v, held), v, held), place)

        width = n.type(LANES)
        last = builder.sub(n, width)
        with cgutils.for_range_slice(builder, width, last, width, n.type) as (k, _):
            see(keys(k))
        # Some once more, which changes no extreme; nothing beyond the row, which may not be there.
        see(keys(last, step - 1))
        for kind, room, place in zip((least, greatest), (lows, highs), found, strict=True):
            to_all = builder.gep(data_of(context, builder, kind, room), [to])
            to_all = builder.bitcast(to_all, row.as_pointer())
            builder.store(builder.load(place), to_all, align=size)
        return context.get_dummy_value()

    index = types.intp
    return types.void(x, index, index, least, greatest, index), codegen


def ranges_by_folding(fetched: bool) -> Callable[..., Any]:
    """How ranges of rows are found; of arrays beyond the caches what comes next may be fetched."""

    def folded_ranges(
        x: Any, row: Any, rows: Any, inner: Any, least: Any, greatest: Any, to: Any
    ) -> None:
        """The least and the greatest of `rows` rows from `row` on, to the places from `to` on."""
        kind = key(x[0])
        u, v = local(_LANES_OF_ALL, kind), local(_LANES_OF_ALL, kind)
        lo, hi = local(_FEWER, kind), local(_FEWER, kind)
        one, two, three, four = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
        ahead = fetched and far(x)
        some = MOST if inner == LANES else min(MANY, AT_ONCE // inner)
        for begin in range(0, rows, some):
            n = min(some, rows - begin)
            if inner == LANES:  # which are the lanes already
                base = np.uintp((row + begin) * inner)
                for k in range(np.uintp(4 * n)):
                    i = base + four * k
                    p, q, r, s = x[i], x[i + one], x[i + two], x[i + three]
                    lo[k] = min(min(key(p), key(q)), min(key(r), key(s)))
                    hi[k] = max(max(key(p), key(q)), max(key(r), key(s)))
            else:
                for m in range(n):
                    at = (row + begin + m) * inner
                    if ahead:
                        fetch(x, at + AHEAD, inner)
                    lanes_of_row(x, at, inner, u, v, m * LANES)
                for k in range(np.uintp(4 * n)):
                    i = four * k
                    lo[k] = min(min(u[i], u[i + one]), min(u[i + two], u[i + three]))
                    hi[k] = max(max(v[i], v[i + one]), max(v[i + two], v[i + three]))
            base = np.uintp(to + begin)
            for k in range(np.uintp(n)):
                i = four * k
                a = min(min(lo[i], lo[i + one]), min(lo[i + two], lo[i + three]))
                b = max(max(hi[i], hi[i + one]), max(hi[i + two], hi[i + three]))
                least[base + k], greatest[base + k] = extremes_of(a, b, item(x))

    return called(folded_ranges)  # type: ignore[no-any-return]
