"""Rows that are quantized with qparams chosen from them, by one kernel: memory is read once.

A block takes a row. When it has its qparams, the row is still in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.loops import NUMBER_TYPES
from npquant.cuda.arrays import DeviceArray
from npquant.cuda.extremes import kinds, of_a_run
from npquant.cuda.loops import Elementwise
from npquant.cuda.qparams import Choose, choose_per_token, choose_per_token_asymmetric
from npquant.cuda.quantize import quantize_per_token
from npquant.cuda.target import COUNT, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS, moved, vectors
from npquant.formulas.base import extremes_of
from npquant.primitives import at, each, item, key, like, put

#: Bytes of a row at most: of longer ones several blocks had better find the extremes.
LONGEST = 1 << 17
#: Blocks of a launch at most.
MOST = (1 << 31) - 1


class Dynamic:
    """x -> the scale and the zero point of each row, and its codes."""

    def __init__(self, choose: Choose, quantize: Elementwise) -> None:
        self._choose, self._quantize = choose.formula, quantize.map
        self.kernel = Kernel(self._make, f"dynamic_{choose.formula.__name__}")

    def __call__(
        self, x: DeviceArray, bounds: tuple[int, int], eps: float, constants: tuple[Any, ...],
        code: str, scale: DeviceArray, zero_point: DeviceArray, y: DeviceArray,
    ) -> None:  # fmt: skip
        """Run over rows that lie one behind the other; `code` names the type of `constants`."""
        inner, width = x.shape[-1] if x.shape else 1, min(ACCESS // x.dtype.itemsize, 8)
        if inner % width or x.pointer % ACCESS or y.pointer % ACCESS:
            width = 1
        # A thread takes two vectors or more, if there are so many.
        threads = max(32, min(THREADS, 1 << (inner // (2 * width)).bit_length()))
        key = (x.dtype, scale.dtype, zero_point.dtype, "float64", code, y.dtype, width, threads)
        args = (
            inner, x.argument(), *bounds, eps, constants, scale.argument(), zero_point.argument(),
            y.argument(),
        )  # fmt: skip
        self.kernel(x.size // inner, threads, args, key, x.stream())

    def _make(
        self, x: Any, scale: Any, zero_point: Any, eps: str, code: str, y: Any, width: int,
        threads: int,
    ) -> tuple[Callable[..., None], Types]:  # fmt: skip
        choose, parameters, element = self._choose, *self._quantize.formula
        load, scratch, store = vectors(width, 1)
        kind, number = kinds(x)
        shared = getattr(types, np.dtype(number).name)
        extremes = of_a_run(key, key, number, width, threads, True)

        def kernel(
            inner: Any, x: Any, bottom: Any, top: Any, eps: Any, constants: Any, scale: Any,
            zero_point: Any, y: Any,
        ) -> None:  # fmt: skip
            """A block for each row."""
            lows = cuda.shared.array(threads, shared)
            highs = cuda.shared.array(threads, shared)
            t, c = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)
            data, codes = moved((x,), c * inner), moved((y,), c * inner)
            lows[t], highs[t] = extremes(t, inner, COUNT(0), data[0], 1, inner)
            h = threads // 2
            while h > 0:  # by halves, to the first
                cuda.syncthreads()
                if t < h:
                    lows[t], highs[t] = min(lows[t], lows[t + h]), max(highs[t], highs[t + h])
                h //= 2
            if t == 0:
                s, z = item(scale), item(zero_point)
                least, greatest = extremes_of(kind(lows[0]), kind(highs[0]), item(x))
                chosen = choose(least, greatest, bottom, top, eps, np.int64(0), s)
                scale[c] = like(chosen[0], s)
                zero_point[c] = like(chosen[1], z)
            cuda.syncthreads()
            p = parameters(data, at(scale, c), at(zero_point, c), constants, codes)
            for e in range(t * width, inner, width * threads):
                if e + width <= inner:
                    values, room = load(data, COUNT(e), COUNT(0)), scratch(codes)
                    for k in range(width):
                        put(room, k, element(each(values, k), p, constants, codes))
                    store(codes, COUNT(e), COUNT(0), room)

        integer, numbers = types.int64, types.UniTuple(NUMBER_TYPES[code], 3)
        return kernel, (
            integer, pointer(x), integer, integer, types.float64, numbers, pointer(scale),
            pointer(zero_point), pointer(y),
        )  # fmt: skip


dynamic_per_token = Dynamic(choose_per_token, quantize_per_token)
dynamic_per_token_asymmetric = Dynamic(choose_per_token_asymmetric, quantize_per_token)


def fast_path(
    kernel: str, shape: tuple[int, ...], dtype: np.dtype[Any], bounds: tuple[int, int], eps: float,
    results: tuple[int, ...], kinds: tuple[Any, Any], constants: tuple[Any, ...], code: str,
    target: np.dtype[Any],
) -> Callable[[DeviceArray], tuple[Any, Any, Any] | None] | None:  # fmt: skip
    """A function of rows of this shape and dtype, as `fast_dynamic` of ops/fast_path.py makes."""
    n, inner = prod(shape), shape[-1] if shape else 1
    if n == 0 or inner * dtype.itemsize > LONGEST or n // inner > MOST:
        return None
    run = {
        "dynamic_per_token": dynamic_per_token,
        "dynamic_per_token_asymmetric": dynamic_per_token_asymmetric,
    }[kernel]

    def call(x: DeviceArray) -> tuple[Any, Any, Any] | None:
        if not x.contiguous:
            return None
        y, scale, zero_point = (
            x.new(shape, target), x.new(results, kinds[0]), x.new(results, kinds[1]),
        )  # fmt: skip
        run(x, bounds, eps, constants, code, scale, zero_point, y)
        return y.owner, scale.owner, zero_point.owner

    return call
