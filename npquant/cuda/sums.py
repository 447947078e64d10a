"""Sums in a fixed order: of the learnable gradients, and of everything.

They are added in the order of npquant.cpu.sums, so they have its bits for any launch. The kernels
of lanes.py sum tiles; those of a channel are added in order by others, as are the sums of a
tensor's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.loops import NUMBER_TYPES, number_type
from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.lanes import TEAMS, Strips, lanes_of, runs_of, teams_of, total_of
from npquant.cuda.reduce import RUNS, Shape, divided
from npquant.cuda.target import COUNT, SIMULATED, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import moved
from npquant.cuda.walk import pieces
from npquant.layout import GROUP, LANES, TILE, Granularity, rows_of_tensor, whole
from npquant.primitives import store

#: Bytes of a channel from which on a team is slower than lanes, and its elements from which on they
#: are slower than a block is. (Measured.)
SHORTEST, LONGEST = 1024, 2048
#: Tiles of a channel that a block adds, and not a thread; and the threads of that block.
TILES_OF_A_BLOCK, ADDERS = 32, 64 if SIMULATED else 256
#: Tiles that it adds at once.
AT_ONCE = ADDERS // 32 * GROUP


# --- learnable gradients ------------------------------------------------------------------


class Gradients:
    """grad, x, qparams -> grad_input and the sums for scale and zero point, in one pass.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(g, x, p, constants) -> (inside, slope, shift)``.
    wide : callable, optional
        The element where float32 does not hold codes or data.
    """

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Callable[..., Any] | None = None,
    ) -> None:
        self._parameters, self._element = parameters, element
        self._wide = None if wide is None else Gradients(parameters, wide)
        name = f"{parameters.__name__}_{element.__name__}"
        self.runs = Kernel(self._make_runs, f"{name}_runs")
        self.teams = Kernel(self._make_teams, f"{name}_teams")
        self.lanes = Kernel(self._make_lanes, f"{name}_lanes")

    def __call__(
        self, granularity: Granularity, grad: Any, x: Any, scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], code: str, y: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> None:  # fmt: skip
        """Write grad_input to `y`, and the sums of each channel to the last two.

        `constants` are lo, hi and grad_factor; `code` names the type of lo and hi. Sums are
        rounded to the dtype of their arrays, float32 or float64.
        """
        if code != "float32" and self._wide is not None:
            self._wide(granularity, grad, x, scale, zero_point, constants, code, y, grad_scale,
                       grad_zero_point)  # fmt: skip
            return
        g, x, y, s, z = map(device, (grad, x, y, scale, zero_point))
        to = device(grad_scale), device(grad_zero_point)
        tensor = granularity.axis is None and granularity.channels == 1
        if tensor:
            granularity = rows_of_tensor(x.shape)
        channels, on = granularity.channels, x.stream()
        tiles, apart = -(-(x.size // channels) // TILE), int(not tensor)
        rows = tensor and channels > 1  # whose sums are added as tiles are
        in_parts, by, found = rows or tiles > 1, (1, 1), to
        if in_parts:
            sums, by = _partial_sums(x, 2, channels, tiles)
            found = _both(sums)
        key = (x.dtype, s.dtype, z.dtype, code, *[a.dtype for a in found])
        for layout, flat in pieces(granularity, (g, x), (y,), ordered=True):
            shape = Shape.of(layout, x.size)
            data = [a.argument() for a in flat]
            rest = (
                *data[:2],
                s.argument(),
                z.argument(),
                *constants,
                data[2],
                *[a.argument() for a in found],
                *by,
            )
            width = shape.width(*flat)
            count = _vectors_of_teams(shape, width, x.dtype.itemsize)
            if count:
                blocks = -(-channels * LANES // (TEAMS * width))
                args: Any = (channels, shape.length, apart, *rest[:-2])
                self.teams(blocks, TEAMS, args, (*key, width, count), on)
            elif shape.beside or shape.short(LONGEST):
                wide, blocks, pitch, jump = shape.across()
                args = (channels, blocks, pitch, jump, shape.length, tiles, apart, *rest)
                form: tuple[Any, ...] = (wide, shape.beside, shape.batch(x.dtype.itemsize))
                self.lanes(blocks * tiles, wide * LANES, args, (*key, *form), on)
            else:
                args = (*shape.told, tiles, apart, *rest)
                form = width, shape.single
                self.runs(channels * tiles, Strips(width).threads, args, (*key, *form), on)
        if rows:
            if tiles > 1:
                of_rows = x.new((2, channels), np.float64)
                _add_tiles(sums, channels, tiles, _both(of_rows))
                sums = of_rows
            channels, tiles = 1, channels
        if in_parts:
            _add_tiles(sums, channels, tiles, to)

    def _make_runs(
        self, x: Any, scale: Any, zero_point: Any, code: str, first: Any, last: Any, width: int,
        single: bool,
    ) -> tuple[Callable[..., None], Types]:  # fmt: skip
        rest = _gradient_types(x, scale, zero_point, code, first, last)
        kernel = runs_of(self._parameters, self._element, rest[6], width, single)
        return kernel, (types.int64, RUNS, *[types.int64] * 3, *rest)

    def _make_teams(
        self, x: Any, scale: Any, zero_point: Any, code: str, first: Any, last: Any, width: int,
        count: int,
    ) -> tuple[Callable[..., None], Types]:  # fmt: skip
        rest = _gradient_types(x, scale, zero_point, code, first, last)
        kernel = teams_of(self._parameters, self._element, width, count)
        return kernel, (*[types.int64] * 3, *rest[:-2])

    def _make_lanes(
        self, x: Any, scale: Any, zero_point: Any, code: str, first: Any, last: Any, wide: int,
        beside: bool, batch: int,
    ) -> tuple[Callable[..., None], Types]:  # fmt: skip
        rest = _gradient_types(x, scale, zero_point, code, first, last)
        kernel = lanes_of(self._parameters, self._element, wide, beside, batch)
        return kernel, (*[types.int64] * 7, *rest)


def _vectors_of_teams(shape: Shape, width: int, itemsize: int) -> int:
    """How many a thread of a team takes at once, as registers hold; 0 where teams do not fit."""
    if width == 1 or not shape.short(SHORTEST // itemsize):
        return 0
    counts = [n for n in (4, 2, 1) if n * width <= LANES and shape.length % (n * LANES) == 0]
    return counts[0] if counts else 0


def _gradient_types(x: Any, scale: Any, zero_point: Any, code: Any, first: Any, last: Any) -> Types:
    data, bound, number = pointer(x), NUMBER_TYPES[code], number_type(x)
    return (
        data, data, pointer(scale), pointer(zero_point), bound, bound, number, data,
        pointer(first), pointer(last), types.int64, types.int64,
    )  # fmt: skip


# --- their tiles added --------------------------------------------------------------------


def _partial_sums(
    like: DeviceArray, sums: int, channels: int, tiles: int
) -> tuple[DeviceArray, tuple[int, int]]:
    """Room for the tiles of sums, and how far apart channels and tiles are in it.

    What a thread adds lies beside what the next one does; what a block adds lies together.
    """
    by = (tiles, 1) if tiles >= TILES_OF_A_BLOCK else (1, channels)
    return like.new((sums, channels * tiles), np.float64), by


def _both(sums: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """The two rows of an array that was made for them."""
    _, n = sums.shape
    first, last = (sums.pointer + k * n * sums.dtype.itemsize for k in range(2))
    return (
        DeviceArray(sums.owner, sums.library, first, (n,), sums.dtype),
        DeviceArray(sums.owner, sums.library, last, (n,), sums.dtype),
    )


def _make_few(*outputs: Any) -> tuple[Callable[..., None], Types]:
    """A thread for each channel of each sum."""
    several = len(outputs)

    def kernel(channels: Any, tiles: Any, sums: Any, first: Any, last: Any) -> None:
        k = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < channels * several:
            s = np.int64(k >= channels)
            c = k - s * channels
            place = s * channels * tiles + c
            total = np.float64(0)
            for tile in range(tiles):
                total += sums[place + tile * channels]
            if s == 0:
                store(first, c, total)
            else:
                store(last, c, total)

    return kernel, _sum_types(outputs)


def _make_groups() -> tuple[Callable[..., None], Types]:
    """A block for each group of tiles: one adds them when all have been brought."""

    def kernel(tiles: Any, groups: Any, sums: Any, found: Any) -> None:
        terms = cuda.shared.array(GROUP, types.float64)
        t, (row, group) = cuda.threadIdx.x, divided(cuda.blockIdx.x, groups)
        here = moved(sums, row * tiles + group * GROUP)
        left = min(tiles - group * GROUP, GROUP)
        for i in range(t, left, ADDERS):
            terms[COUNT(i)] = here[i]
        cuda.syncthreads()
        if t == 0:
            total = np.float64(0)
            for i in range(left):
                total += terms[COUNT(i)]
            found[row * groups + group] = total

    data = types.CPointer(types.float64)
    return kernel, (types.int64, types.int64, data, data)


def _make_many(*outputs: Any) -> tuple[Callable[..., None], Types]:
    """A block for each channel of each sum: a warp adds a group, until one is left."""
    room = AT_ONCE

    def kernel(channels: Any, tiles: Any, sums: Any, first: Any, last: Any) -> None:
        groups = cuda.shared.array(room, types.float64)
        t, (s, c) = cuda.threadIdx.x, divided(cuda.blockIdx.x, channels)
        here, n = moved(sums, (s * channels + c) * tiles), tiles
        while n > 1:
            for start in range(0, n, room):
                for i in range(t, min(room, n - start), ADDERS):
                    groups[COUNT(i)] = here[start + i]
                cuda.syncthreads()
                base = t // 32 * GROUP
                if t % 32 == 0 and start + base < n:
                    total = np.float64(0)
                    for i in range(base, min(base + GROUP, n - start)):
                        total += groups[COUNT(i)]
                    here[(start + base) // GROUP] = total  # what was there has been read
                cuda.syncthreads()
            n = (n + GROUP - 1) // GROUP
        if t == 0:
            if s == 0:
                store(first, c, here[0])
            else:
                store(last, c, here[0])

    return kernel, _sum_types(outputs)


def _sum_types(outputs: tuple[Any, ...]) -> Types:
    first, last = outputs[0], outputs[-1]
    return (types.int64, types.int64, types.CPointer(types.float64), pointer(first), pointer(last))


_few, _many = Kernel(_make_few, "sums_of_few_tiles"), Kernel(_make_many, "sums_of_many_tiles")
_groups = Kernel(_make_groups, "sums_of_groups_of_tiles")


def _add_tiles(
    sums: DeviceArray, channels: int, tiles: int, outputs: tuple[DeviceArray, ...]
) -> None:
    """The tiles of each channel in order, GROUP at a time, to one output for each sum."""
    n, key, on = channels * len(outputs), tuple([a.dtype for a in outputs]), sums.stream()
    by_block = tiles >= TILES_OF_A_BLOCK
    if tiles > AT_ONCE:  # or one block would add for long while all others wait
        groups = -(-tiles // GROUP)
        found = sums.new((n, groups), np.float64)
        args: Any = (tiles, groups, sums.argument(), found.argument())
        _groups(n * groups, ADDERS, args, (), on)
        sums, tiles = found, groups
    args = (channels, tiles, sums.argument(), outputs[0].argument(), outputs[-1].argument())
    if by_block:
        _many(n, ADDERS, args, key, on)
    else:
        _few(-(-n // THREADS), THREADS, args, key, on)


# --- sums of everything -------------------------------------------------------------------------


class Total:
    """The sum of one term for each element of some arrays of one shape.

    Parameters
    ----------
    element : callable
        ``element(values, number) -> term``: one element of every array, and what all share.
    """

    def __init__(self, element: Callable[..., Any]) -> None:
        self._element = element
        self.kernel = Kernel(self._make, f"{element.__name__}_total")

    def __call__(self, inputs: tuple[Any, ...], number: float = 0.0) -> DeviceArray:
        """The sum, float64 of shape () on the device: a float would have to be waited for.

        `number` becomes a float32, or a float64 beside a first array of float64.
        """
        x = tuple(map(device, inputs))
        n, on = x[0].size, x[0].stream()
        tiles = -(-n // TILE)
        total = x[0].new((), np.float64)
        sums, _ = _partial_sums(x[0], 1, 1, tiles)
        if n:
            for layout, flat in pieces(whole(n), x, (), ordered=True):
                width = Shape.of(layout, n).width(*flat)
                args = (n, tuple([a.argument() for a in flat]), number, sums.argument())
                key = (width, *[a.dtype for a in x])
                self.kernel(tiles, Strips(width).threads, args, key, on)
        _add_tiles(sums, 1, tiles, (total,))
        return total

    def _make(self, width: int, *dtypes: Any) -> tuple[Callable[..., None], Types]:
        kernel = total_of(self._element, width)
        data, number = types.Tuple(list(map(pointer, dtypes))), number_type(dtypes[0])
        return kernel, (types.int64, data, number, types.CPointer(types.float64))
