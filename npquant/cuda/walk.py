"""From device arrays as they come to flat ones that a kernel takes.

Arrays without gaps that lie alike are taken as they lie. Anything else is copied to C order first,
by a kernel that reads and writes through strides, and results are copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import types

from npquant.cuda.arrays import DeviceArray
from npquant.cuda.target import THREADS, Kernel, Types, cuda
from npquant.layout import Granularity, Layout

#: Axes of an array that is copied through strides, after those that can be are joined.
AXES = 8


def pieces(
    granularity: Granularity,
    inputs: tuple[DeviceArray, ...],
    outputs: tuple[DeviceArray, ...],
    ordered: bool = False,
) -> Iterator[tuple[Layout, list[DeviceArray]]]:
    """Yield (layout, flat arrays) once; what is written to the outputs is in place thereafter.

    With `ordered`, the elements of a channel keep their logical order; without, any order in
    memory will do.
    """
    arrays = [*inputs, *outputs]
    layout = in_memory_order(granularity, arrays)
    if ordered and not arrays[0].contiguous and layout is not None:
        layout = None if granularity.reorders(arrays[0].lying.order) else layout
    if layout is not None:
        yield layout, arrays
        return
    on = arrays[0].stream()
    packed = [a if a.contiguous else arrays[0].scratch(a.shape, a.dtype) for a in arrays]
    for a, p in zip(inputs, packed, strict=False):
        copy(a, p, on)
    yield Layout(granularity.channels, granularity.inner), packed
    for a, p in zip(outputs, packed[len(inputs) :], strict=True):
        copy(p, a, on)


def ready_to_copy(a: DeviceArray) -> None:
    """Compile what copies `a` to C order, or back; or refuse it, before anything is written."""
    a = in_words(a)
    _axes_of_copy(a, DeviceArray(a.owner, a.library, a.pointer, a.shape, a.dtype))
    _copy.ready((a.dtype.itemsize,))


def in_memory_order(granularity: Granularity, arrays: list[DeviceArray]) -> Layout | None:
    """The layout of arrays that all lie alike in memory, without gaps; else None."""
    if not [a for a in arrays if not a.contiguous]:
        return Layout(granularity.channels, granularity.inner)
    orders = {a.lying.order for a in arrays}
    order = orders.pop()
    if orders or order is None:
        return None
    return granularity.layout(arrays[0].shape, order)


def packed(a: DeviceArray) -> DeviceArray:
    """`a` in C order, copied if it is in another."""
    if a.contiguous:
        return a
    p = a.new(a.shape, a.dtype)
    copy(a, p)
    return p


def copy(x: DeviceArray, y: DeviceArray, on: int | None = None) -> None:
    """The elements of `x` to `y`, of the same shape and dtype, on a stream or on that of `x`."""
    if x.pointer == y.pointer or not x.size:
        return
    stream = x.stream() if on is None else on
    x, y = in_words(x), in_words(y)
    shape, strides = _axes_of_copy(x, y)
    itemsize = x.dtype.itemsize
    read, written = (
        tuple([s // itemsize for s in which] + [0] * (AXES - len(shape))) for which in strides
    )
    lengths = (*shape, *[1] * (AXES - len(shape)))
    args = (
        x.size, lengths, x.argument(), x.lying.lowest[0], read, y.argument(), y.lying.lowest[0],
        written,
    )  # fmt: skip
    _copy(-(-x.size // THREADS), THREADS, args, (itemsize,), stream)


def _axes_of_copy(x: DeviceArray, y: DeviceArray) -> tuple[list[int], list[tuple[int, ...]]]:
    """The lengths of axes that are left when those side by side are joined, and steps of both."""
    # Neighbouring threads are to write to neighbours.
    order = sorted(range(x.ndim), key=lambda axis: -abs(y.strides[axis]))
    seen = ([v[axis] for axis in order] for v in (x.shape, x.strides, y.strides))
    shape, strides = joined(*map(tuple, seen))
    if len(shape) > AXES:
        gaps = y if x.contiguous else x
        raise ValueError(f"an array on a GPU must have at most {AXES} axes that are not side by "
                         f"side, got shape {gaps.shape} with strides {gaps.strides}")  # fmt: skip
    return shape, strides


def in_words(a: DeviceArray) -> DeviceArray:
    """`a`, or of elements of an odd size the words that they are made of, along one more axis."""
    size = a.dtype.itemsize
    if size in (1, 2, 4, 8):
        return a
    word = min(a.dtype.alignment, 8)
    shape, strides = (*a.shape, size // word), (*a.strides, word)
    return DeviceArray(a.owner, a.library, a.pointer, shape, f"u{word}", strides)


def joined(
    shape: tuple[int, ...], *strides: tuple[int, ...]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Fewer axes for the same elements: the fastest first, side by side ones joined."""
    lengths: list[int] = []
    steps: list[tuple[int, ...]] = []
    for n, *s in reversed(list(zip(shape, *strides, strict=True))):
        if n == 1:
            continue
        if lengths and all(a == b * lengths[-1] for a, b in zip(s, steps[-1], strict=True)):
            lengths[-1] *= n
        else:
            lengths.append(n)
            steps.append(tuple(s))
    return lengths, [tuple([s[k] for s in steps]) for k in range(len(strides))]


def _make_copy(itemsize: int) -> tuple[Callable[..., None], Types]:
    def kernel(
        n: Any, shape: Any, x: Any, first: Any, read: Any, y: Any, into: Any, written: Any
    ) -> None:
        i = np.int64(cuda.blockIdx.x) * np.int64(THREADS) + np.int64(cuda.threadIdx.x)
        if i < n:
            a, b = first, into
            for k in range(AXES):
                rest = i // shape[k]
                place = i - rest * shape[k]
                a += place * read[k]
                b += place * written[k]
                i = rest
            y[b] = x[a]

    word = types.CPointer(getattr(types, f"uint{8 * itemsize}"))
    axes = types.UniTuple(types.int64, AXES)
    return kernel, (types.int64, axes, word, types.int64, axes, word, types.int64, axes)


_copy = Kernel(_make_copy, "copy_strided")
