"""What a thread does that has some elements of flat data, each of a channel with qparams.

It takes a few vectors: a product and a shift for each tell where in which channel it begins; how
its elements share qparams is known when it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from npquant.cuda.division import quotient
from npquant.cuda.target import COUNT, SIMULATED
from npquant.cuda.vectors import unrolled, vectors
from npquant.formulas.base import formula
from npquant.primitives import at, each, put, store

#: Threads of a block. (Measured: of twice as many, what memory limits takes 2 % longer.)
BLOCK = 32 if SIMULATED else 128

#: How the elements of a vector share qparams: all of them, each its own ones, or as it comes.
WHOLE, BESIDE, ANY = "whole", "beside", "any"


class Shortcut(NamedTuple):
    """Another way to one result, where zero points are integers of each channel.

    Attributes
    ----------
    of : callable
        ``of(x, scale)``: whether dtypes are those that it is for.
    parameters, element : callable
        As of `Formula`; the element's result is (result, doubt). If any of its elements is in
        doubt, a vector is done by the formula itself.
    """

    of: Callable[[Any, Any], bool]
    parameters: Callable[..., Any]
    element: Callable[..., Any]


class Formula(NamedTuple):
    """What an op makes of its elements; x and y are tuples of arrays.

    Attributes
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(values, p, constants, y) -> results``, one for each array of y.
    shortcuts : tuple of Shortcut
        Which cost less, for some dtypes.
    """

    parameters: Callable[..., Any]
    element: Callable[..., Any]
    shortcuts: tuple[Shortcut, ...] = ()


class Told(NamedTuple):
    """What a thread knows of its launch, what it has loaded, and its room for what it computes."""

    channels: Any
    inner: Any
    x: Any
    values: Any
    scale: Any
    zero_point: Any
    constants: Any
    y: Any
    room: Any


def _fill(of: Formula, width: int, share: str) -> Callable[..., None]:
    """What computes a vector, for one size, and for how its elements share qparams.

    ``(c, left, s, z, (u, told))``: it begins in channel `c`, of which so many elements are `left`
    there; s and z are what that channel has, or of `BESIDE` all that it touches. It is vector `u`
    of the values.
    """
    element = of.element

    @formula
    def by_rule(k: Any, p: Any, doubt: Any, own: Any) -> Any:
        u, told = own
        i = u * width + k
        put(told.room, i, element(each(told.values, i), p, told.constants, told.y))
        return doubt

    rule = _computed(of.parameters, by_rule, width, share)
    if not of.shortcuts:
        return rule
    (_, split, guess), *_ = of.shortcuts

    @formula
    def by_guess(k: Any, p: Any, doubt: Any, own: Any) -> Any:
        u, told = own
        i = u * width + k
        result, one = guess(each(told.values, i), p, told.constants, told.y)
        store(told.room[0], i, result)
        return doubt | one

    guessed = _computed(split, by_guess, width, share)

    @formula
    def checked(c: Any, left: Any, s: Any, z: Any, own: Any) -> Any:
        if guessed(c, left, s, z, own):
            rule(c, left, s, z, own)

    return checked  # type: ignore[no-any-return]


def _computed(
    parameters: Callable[..., Any], compute: Callable[..., Any], width: int, share: str
) -> Callable[..., Any]:
    """`_fill` by one formula: the doubt of ``compute(k, p, doubt, own)``, of one after another."""

    @formula
    def made(s: Any, z: Any, own: Any) -> Any:
        _, told = own
        return parameters(told.x, s, z, told.constants, told.y)

    @formula
    def of_one(k: Any, state: Any, own: Any) -> Any:
        p, doubt = state
        return p, compute(k, p, doubt, own)

    @formula
    def of_its_own(k: Any, state: Any, own: Any) -> Any:
        s, z, doubt = state
        return s, z, compute(k, made(s[k], z[k], own), doubt, own)

    @formula
    def of_any(k: Any, state: Any, own: Any) -> Any:
        _, told = own
        c, left, p, doubt = state
        if left == 0:
            left = told.inner[0]
            c = COUNT(c + COUNT(1))
            c = COUNT(0) if c == told.channels[0] else c
            p = made(at(told.scale, c), at(told.zero_point, c), own)
        return c, COUNT(left - COUNT(1)), p, compute(k, p, doubt, own)

    one, its_own, walked = (unrolled(step, 0, width) for step in (of_one, of_its_own, of_any))

    @formula
    def whole(c: Any, left: Any, s: Any, z: Any, own: Any) -> Any:
        return one((made(s, z, own), False), own)[1]

    @formula
    def beside(c: Any, left: Any, s: Any, z: Any, own: Any) -> Any:
        return its_own((s, z, False), own)[2]

    @formula
    def as_it_comes(c: Any, left: Any, s: Any, z: Any, own: Any) -> Any:
        return walked((c, left, made(s, z, own), False), own)[3]

    return {WHOLE: whole, BESIDE: beside, ANY: as_it_comes}[share]  # type: ignore[no-any-return]


def body(of: Formula, width: int, count: int, share: str) -> Callable[..., None]:
    """What a thread does, by the numbers of its block and in it: `count` vectors of `width`.

    It is also compiled for the CPU, by a test.
    """
    load, scratch, store = vectors(width, count)
    parameters, element = of.parameters, of.element
    begin, qparams, channel = (rows if share == BESIDE else runs)(width, count)
    fill, beside = _fill(of, width, share), share == BESIDE

    @formula
    def ask_one(u: Any, found: Any, told: Any) -> Any:
        i, step, place, scale, zero_point = told
        e = COUNT(i + COUNT(COUNT(u) * step))
        return *found, qparams(e, *place, scale, zero_point)

    @formula
    def fill_one(u: Any, found: Any, told: Any) -> Any:
        where = found[0] if beside else found[u]
        fill(*where, (u, told))
        return found

    ask_all, fill_all = unrolled(ask_one, 0, 1 if beside else count), unrolled(fill_one, 0, count)

    @formula
    def walk(
        block: Any, thread: Any, n: Any, skip: Any, first: Any, channels: Any, inner: Any, x: Any,
        scale: Any, zero_point: Any, constants: Any, y: Any,
    ) -> None:  # fmt: skip
        place = skip, first, channels, inner
        i, step = begin(COUNT(block), COUNT(thread), channels, inner)
        if COUNT(COUNT(i + COUNT(COUNT(count - 1) * step)) + COUNT(width)) <= n:
            values, room = load(x, i, step), scratch(y)
            told = Told(channels, inner, x, values, scale, zero_point, constants, y, room)
            # All that is loaded is asked for before anything is computed.
            fill_all(ask_all((), (i, step, place, scale, zero_point)), told)
            store(y, i, step, room)
            return
        for u in range(count):
            for k in range(width):
                e = COUNT(COUNT(i + COUNT(COUNT(u) * step)) + COUNT(k))
                if e < n:
                    own, _ = channel(e, *place)
                    p = parameters(x, at(scale, own), at(zero_point, own), constants, y)
                    put(y, e, element(each(x, e), p, constants, y))

    return walk


class _Places(NamedTuple):
    """Where the vectors of a thread lie, and what their channels have.

    Attributes
    ----------
    begin : callable
        ``begin(block, thread, channels, inner)``: where the first begins, and how far apart they
        are.
    qparams : callable
        ``qparams(i, skip, first, channels, inner, scale, zero_point)``: what `_fill` wants to know
        of the vector that begins at `i`.
    channel : callable
        ``channel(i, skip, first, channels, inner)``: that of an element, and what is left of it.
    """

    begin: Callable[..., Any]
    qparams: Callable[..., Any]
    channel: Callable[..., Any]


def runs(width: int, count: int) -> _Places:
    """A block has vectors one behind the other."""
    ahead = width * BLOCK

    @formula
    def begin(block: Any, thread: Any, channels: Any, inner: Any) -> Any:
        i = COUNT(COUNT(block * COUNT(ahead * count)) + COUNT(thread * COUNT(width)))
        return i, COUNT(ahead)

    @formula
    def channel(i: Any, skip: Any, first: Any, channels: Any, inner: Any) -> Any:
        place = COUNT(skip + i)
        row = quotient(place, inner)
        c = COUNT(first + row)
        c = COUNT(c - COUNT(quotient(c, channels) * channels[0]))
        return c, COUNT(inner[0] - COUNT(place - COUNT(row * inner[0])))

    @formula
    def qparams(
        i: Any, skip: Any, first: Any, channels: Any, inner: Any, scale: Any, zero_point: Any
    ) -> Any:
        c, left = channel(i, skip, first, channels, inner)
        return c, left, at(scale, c), at(zero_point, c)

    return _Places(begin, qparams, channel)


def rows(width: int, count: int) -> _Places:
    """Of channels side by side a thread has a few rows: what their qparams come to is found once.

    `inner` is how many vectors a row has.
    """
    load = vectors(width, 1).load

    @formula
    def begin(block: Any, thread: Any, channels: Any, inner: Any) -> Any:
        v = COUNT(COUNT(block * COUNT(BLOCK)) + thread)
        row = quotient(v, inner)
        beside = COUNT(COUNT(v - COUNT(row * inner[0])) * COUNT(width))
        return COUNT(COUNT(COUNT(row * COUNT(count)) * channels[0]) + beside), channels[0]

    @formula
    def channel(i: Any, skip: Any, first: Any, channels: Any, inner: Any) -> Any:
        c = COUNT(first + i)
        return COUNT(c - COUNT(quotient(c, channels) * channels[0])), COUNT(1)

    @formula
    def qparams(
        i: Any, skip: Any, first: Any, channels: Any, inner: Any, scale: Any, zero_point: Any
    ) -> Any:
        c, left = channel(i, skip, first, channels, inner)
        return c, left, *load((scale, zero_point), c, COUNT(0))

    return _Places(begin, qparams, channel)
