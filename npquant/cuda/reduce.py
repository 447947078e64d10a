"""How reductions see flat data, and how they divide it among blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from npquant.cuda.arrays import DeviceArray
from npquant.cuda.division import divisor, quotient
from npquant.cuda.target import COUNT, MOST_BLOCKS, SIMULATED
from npquant.cuda.vectors import ACCESS
from npquant.formulas.base import formula
from npquant.layout import LANES, Layout

#: Channels of a block where they lie side by side: a warp reads 32 of them at once.
BESIDE = 4 if SIMULATED else 32
#: Channels of a block where they are short, and what is: one would not keep a block busy. Where
#: there are so MANY, longer ones are, too; how long they may be each kernel says.
SEVERAL, SHORT, MANY = 2 if SIMULATED else 16, 512, 4 if SIMULATED else 2048
#: Elements that a thread asks for, where it is a lane, before it computes, and of one or two bytes:
#: see `Shape.batch`.
BATCH, BATCH_OF_SMALL = 4, 8
#: Blocks that minima and maxima are divided among, if each then has a tile or so: some times what a
#: large device runs at once.
BLOCKS = 4 if SIMULATED else 4096


#: The length of a run as a kernel is told of it, with how to divide by it where there are several.
RUNS = types.Tuple((types.int64, types.uint32, types.uint32))


class Shape(NamedTuple):
    """Flat data as kernels are told of it."""

    channels: int
    inner: int
    length: int

    @staticmethod
    def of(layout: Layout, size: int) -> Shape:
        if layout.channels == 1:  # all of it is one run, however it is cut
            return Shape(1, size, size)
        inner, length = layout.inner or size, size // layout.channels
        if 1 < inner < length and length >= 1 << 32:
            raise ValueError(f"a channel of several runs must have fewer than 2**32 elements, got "
                             f"{length} in runs of {inner}")  # fmt: skip
        if 1 < inner < length and layout.channels > MOST_BLOCKS:
            raise ValueError(f"channels of several runs must be at most {MOST_BLOCKS}, got "
                             f"{layout.channels}")  # fmt: skip
        return Shape(layout.channels, inner, length)

    @property
    def told(self) -> tuple[int, tuple[int, int, int], int]:
        """The same for a kernel, the second one of RUNS."""
        _, factor, shift = divisor(1 if self.single else self.inner)
        return self.channels, (self.inner, factor, shift), self.length

    @property
    def single(self) -> bool:
        """Whether a channel is one run."""
        return self.inner == self.length

    @property
    def beside(self) -> bool:
        """Whether the channels lie side by side."""
        return self.inner == 1 and self.channels > 1

    def short(self, longest: int) -> bool:
        """Whether a block takes several channels, each of one run."""
        longest = longest if self.channels >= MANY else min(longest, SHORT)
        return self.single and self.channels > 1 and self.length < longest

    def width(self, *arrays: DeviceArray) -> int:
        """How many elements are accessed at once."""
        width = ACCESS // max(a.dtype.itemsize for a in arrays)
        whole = self.channels == 1 or self.inner % width == 0
        return width if whole and all(a.pointer % ACCESS == 0 for a in arrays) else 1

    def across(self) -> tuple[int, int, int, int]:
        """For threads that are lanes: the channels of a block, the blocks, pitch and jump.

        Elements of a channel are `pitch` apart, and channels `jump`.
        """
        if self.beside:
            wide = min(BESIDE, 1 << (self.channels - 1).bit_length())
            return wide, -(-self.channels // wide), self.channels, 1
        return SEVERAL, -(-self.channels // SEVERAL), 1, self.length

    def batch(self, itemsize: int) -> int:
        """How many elements such a thread asks for at once: 32 bits must hold how far they lie."""
        pitch, most = self.across()[2], BATCH_OF_SMALL if itemsize <= 2 else BATCH
        if (most - 1) * LANES * pitch >= 1 << 32:
            return 1
        return max(1, min(most, self.length // LANES))


@formula
def divided(n: Any, by: Any) -> Any:
    """The quotient and the rest, by a division of 32 bits."""
    quotient = np.int64(COUNT(n) // COUNT(by))
    return quotient, np.int64(n) - quotient * by


@formula
def run(c: Any, first: Any, channels: Any, inner: Any) -> Any:
    """Where the run begins that element `first` of a channel is in, and its place in it."""
    row, length = np.int64(quotient(COUNT(first), inner)), inner[0]
    return (row * channels + c) * length, COUNT(first - row * length)


@formula
def place_of(e: Any, channels: Any, inner: Any) -> Any:
    """How far from the beginning of the first run element `e` from there lies."""
    row, length = quotient(e, inner), inner[0]
    return np.int64(row) * (channels * length) + np.int64(COUNT(e - COUNT(row * COUNT(length))))


def walked(single: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`run` and `place_of`, of a channel that is one run if `single`; `inner` is one of RUNS."""

    @formula
    def all_of_it(c: Any, first: Any, channels: Any, inner: Any) -> Any:
        return c * inner[0] + first, COUNT(0)

    @formula
    def as_it_is(e: Any, channels: Any, inner: Any) -> Any:
        return np.int64(e)

    return (all_of_it, as_it_is) if single else (run, place_of)


def parts_of(count: int, blocks: int, least: int) -> tuple[int, int]:
    """Parts of each channel, and their elements: at least `least`, and for BLOCKS blocks or so."""
    parts = max(1, min(-(-count // least), BLOCKS // blocks))
    span = -(-count // parts)
    span += -span % 64
    return -(-count // span), span
