"""Granularities: every one of them is the array seen as (outer, channels, inner).

One scale and one zero point belong to each channel; docs/architecture.md has a table of them.

A dense array whose axes are permuted in memory (channels-last, Fortran order) is processed as it
lies: the same, of its axes in memory order. `Granularity` says what belongs
together; `Granularity.layout` gives (channels, inner) for an order of the axes, and
`Granularity.spans` what becomes of runs that it tears apart.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np


class Layout(NamedTuple):
    """How the flat data is cut: `channels` runs of `inner` elements, again and again."""

    channels: int
    inner: int


class Spans(NamedTuple):
    """Runs that memory tears apart, seen as (outer, run, beside): see `Granularity.spans`."""

    outer: int
    run: int
    beside: int


class Granularity(NamedTuple):
    """Which elements share a scale: the axis of the channels, or a fixed run of elements.

    `axis` None means runs of `inner` elements in C order: per token and per group.
    """

    channels: int
    inner: int
    axis: int | None

    def layout(self, shape: tuple[int, ...], order: tuple[int, ...] | None) -> Layout | None:
        """The layout of data that lies in memory with its axes in `order` (None: C order).

        None if that order tears the runs apart.
        """
        if order is None or self.channels == 1:
            return Layout(self.channels, self.inner)
        if self.axis is None:
            # Whole rows along the last axis, of an array of two: the other axis is the channel's.
            if len(shape) != 2 or self.inner != shape[1]:
                return None
            return Layout(shape[0], prod(shape[i] for i in order[order.index(0) + 1 :]))
        after = order[order.index(self.axis) + 1 :]
        return Layout(self.channels, prod(shape[i] for i in after))

    def spans(self, shape: tuple[int, ...], order: tuple[int, ...]) -> Spans | None:
        """Runs along the last axis, in data that lies in memory with its axes in `order`.

        Element (a, i, b) of (outer, run, beside) has scale a * beside + b, once the scales lie in
        that order too: as an array of shape[:-1] and the runs of a row. None of other runs.
        """
        if self.axis is not None or not self.inner or shape[-1] % self.inner:
            return None
        place = order.index(len(shape) - 1)
        outer = prod(shape[i] for i in order[:place]) * (shape[-1] // self.inner)
        return Spans(outer, self.inner, prod(shape[i] for i in order[place + 1 :]))

    def reorders(self, order: tuple[int, ...] | None) -> bool:
        """Whether `order` changes the order of the elements within a channel."""
        if order is None:
            return False
        within = [i for i in order if i != self.axis]
        return within != sorted(within)


# The tree of a sum (docs/numerics.md, "Sums").
#: Elements that are summed by themselves, the lanes that these are summed in, and tiles that are
#: added one after another.
TILE, LANES, GROUP = 4096, 16, 256
#: Elements of a row at least, of the rows that a tensor's sums are made of.
ROW = 256

#: One scale for everything: a run of whatever length the array has, which 0 stands for.
PER_TENSOR = Granularity(1, 0, None)


@lru_cache(maxsize=256)
def whole(size: int) -> Granularity:
    """One scale for everything, with the length of the run."""
    return Granularity(1, size, None)


@lru_cache(maxsize=256)
def per_channel(shape: tuple[int, ...], axis: int) -> Granularity:
    if shape[axis] == 1:  # which is one run
        return Granularity(1, max(1, prod(shape)), axis)
    return Granularity(shape[axis], prod(shape[axis + 1 :]), axis)


@lru_cache(maxsize=256)
def per_token(shape: tuple[int, ...]) -> Granularity:
    return Granularity(prod(shape[:-1]), shape[-1] if shape else 1, None)


@lru_cache(maxsize=256)
def per_channel_group(shape: tuple[int, ...], group_size: int) -> Granularity:
    return Granularity(prod(shape) // group_size, group_size, None)


@lru_cache(maxsize=256)
def rows_of_tensor(shape: tuple[int, ...]) -> Granularity:
    """The rows that a tensor's sums are made of: its last axes, as few as hold ROW elements."""
    size, inner = prod(shape), 1
    if size <= TILE:
        return Granularity(1, size, None)
    for n in reversed(shape):
        inner *= n
        if inner >= ROW:
            break
    return Granularity(size // inner, inner, None)


def memory_order(x: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """The axes of a dense array from the slowest to the fastest; None if it is not dense."""
    return order_of_strides(x.shape, x.strides, x.itemsize)


@lru_cache(maxsize=256)
def order_of_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    """As `memory_order`, of an array that is described by numbers."""
    order = tuple(sorted(range(len(shape)), key=lambda i: -strides[i]))
    step = itemsize
    for i in reversed(order):
        if shape[i] > 1 and strides[i] != step:
            return None
        step *= max(shape[i], 1)
    return order


def dense_strides(shape: tuple[int, ...], order: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of a dense array whose axes lie in `order`, in bytes."""
    strides, step = [0] * len(shape), itemsize
    for i in reversed(order):
        strides[i] = step
        step *= max(shape[i], 1)
    return tuple(strides)
