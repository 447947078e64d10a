"""What a CUDA thread does to its elements, compiled for the CPU: 10 M elements an op, every bit.

And what it does instead of divisions, and of float64.
"""

from functools import cache

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic, overload

from calls import CALLS, axis_name, results
from npquant.cuda import division, elements, loops, primitives, target, vectors
from npquant.formulas import guesses
from npquant.primitives import SQRT_HALF
from twins import Both, installed, twin

NOT_ELEMENTWISE = (
    "choose", "determine", "fused", "quantize_per_token_dynamic", "adaround_regularizer",
)  # fmt: skip
OPS = [
    name
    for name in CALLS
    if not (name in NOT_ELEMENTWISE or name.startswith(NOT_ELEMENTWISE[:4]))
    and not ("learnable" in name and name.endswith("backward"))
]

#: Lengths that no vector divides; runs longer, shorter and much longer than what a thread does.
SHAPES = {
    "tensor": [((10_000_019,), 0)],
    "axis": [((97, 211, 123), 0), ((97, 211, 123), 1), ((97, 211, 123), 2), ((5, 500_003), 0)],
    "rows": [((20_011, 332), 0), ((3, 1_000_004), 0)],
}


def data(shape):
    """Floats of every size, infinities and NaN among them, and as many near the codes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, shape, np.uint32).view(np.float32)
    return np.where(rng.random(shape) < 0.5, x, rng.normal(0, 3, shape).astype(np.float32))


# --- a launch -------------------------------------------------------------------------------------


@cache
def vectors_for_cpu(width, count):
    """The very instructions of a thread's loads and stores, taught to the CPU's compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "intrinsic", intrinsic)
        patch.setattr(vectors, "overload", overload)
        return vectors.vectors.__wrapped__(width, count)


def pointers_to(kinds):
    """What makes pointers of addresses."""

    @intrinsic
    def pointers(context, addresses):
        def codegen(context, builder, sig, args):
            found = [
                builder.inttoptr(builder.extract_value(args[0], i), context.get_value_type(kind))
                for i, kind in enumerate(kinds)
            ]
            return context.make_tuple(builder, sig.return_type, found)

        return types.Tuple(kinds)(addresses), codegen

    return pointers


@numba.njit
def given(numbers):
    return numbers


@cache
def every_thread(kernel, key):
    """A loop over all threads of a launch."""
    made, (inputs, qparams, _, outputs, *shape) = kernel._make.__self__, key
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "vectors", vectors_for_cpu)
        walk = elements.body(made.formula_of(inputs, qparams, outputs), *shape)
    data, results = (pointers_to([target.pointer(d) for d in some]) for some in (inputs, outputs))
    scales, zero_points = (
        given if isinstance(kind, str) else pointers_to([target.pointer(kind)]) for kind in qparams
    )

    @numba.njit(error_model="numpy", nogil=True)
    def run(blocks, threads, n, skip, first, channels, inner, x, scale, zero_point, constants, y):
        u, v, s, z = data(x), results(y), scales(scale)[0], zero_points(zero_point)[0]
        for block in range(blocks):
            for thread in range(threads):
                walk(block, thread, n, skip, first, channels, inner, u, s, z, constants, v)

    return run


def number(kind, value):
    return getattr(np, "float64" if kind == "wide" else kind)(value)


def launched(kernel, blocks, threads, args, key, on):
    """In place of Kernel.__call__: threads one after another."""
    assert isinstance(kernel._make.__self__, loops.Map), kernel.name
    n, skip, first, channels, inner, x, *qparams, constants, y = args
    scale, zero_point = (
        (number(kind, p) if isinstance(kind, str) else p,)
        for p, kind in zip(qparams, key[1], strict=True)
    )
    typed = tuple(number(kind, v) for v, kind in zip(constants, key[2], strict=True))
    divisors = (tuple(map(np.uint32, by)) for by in (channels, inner))
    counts = *map(np.uint32, (n, skip, first)), *divisors
    every_thread(kernel, key)(blocks, threads, *counts, x, scale, zero_point, typed, y)


@pytest.mark.full
@pytest.mark.parametrize("name", OPS)
def test_bodies(name, monkeypatch):
    """The bits of the CPU kernels: `Both` compares."""
    both = Both()
    monkeypatch.setattr(target.Kernel, "__call__", launched)
    rows = "group" in name or "token" in name
    with installed(both):
        for shape, axis in SHAPES["rows" if rows else "axis" if axis_name(name) else "tensor"]:
            with np.errstate(all="ignore"):
                kwargs = CALLS[name](data(shape), axis)
            results(name, kwargs)
    assert both.called


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("quantize_per_channel", (5, 97, 48), 1), ("quantize_per_channel", (301, 64), 1),
        ("quantize_per_channel", (7, 64), 1), ("quantize_per_token", (97, 30), 0),
    ],
)  # fmt: skip
def test_bodies_that_guess(name, shape, axis, kind, monkeypatch):
    """Of whole vectors, of channels side by side in many rows and in few, and of any others.

    One element of ten is a NaN, of which nobody is sure.
    """
    both, keys = Both(), []

    def noted(kernel, blocks, threads, args, key, on):
        keys.append(key)
        launched(kernel, blocks, threads, args, key, on)

    monkeypatch.setattr(target.Kernel, "__call__", noted)
    x = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    x.ravel()[::10] = np.nan
    with installed(both), np.errstate(all="ignore"):
        kwargs = CALLS[name](x, axis)
        results(name, kwargs | {"scales": kwargs["scales"].astype(kind)})
    made = twin(name).map
    assert [key[1][0] for key in keys] == [kind]
    assert all(made.formula_of(key[0], key[1], key[3]).shortcuts for key in keys)


@numba.njit(error_model="numpy")
def corrected(a, b, near, y):
    for i in range(a.size):
        y[i] = primitives.corrected(a[i], b[i], near[i])


def test_quotients_of_every_mantissa():
    """They are correctly rounded, by whichever reciprocal that NVIDIA allows.

    It is off by 2**-23 at most for 1 <= b < 2, and else by as much of the power of two of b.
    """
    m = (np.float32(SQRT_HALF).view(np.int32) + np.arange(2**23, dtype=np.int32)).view(np.float32)
    a, b = m - np.float32(1), m + np.float32(1)
    y, quotient = np.empty_like(m), (a / b).view(np.int32)
    exact = 1 / b.astype(np.float64)
    nearest = exact.astype(np.float32)
    most, tried = np.where(b < 2, 2.0**-23, 2.0**-24), 0
    for steps in range(-5, 6):
        near = (nearest.view(np.int32) + np.int32(steps)).view(np.float32)
        corrected(a, b, near, y)
        meant = np.abs(near - exact) <= most
        tried += np.count_nonzero(meant)
        assert not m[meant & (y.view(np.int32) != quotient)].size, steps
    assert tried > 3.9 * m.size


# --- divisions ------------------------------------------------------------------------------------


@numba.njit
def quotients(n, by, found):
    for i in range(n.size):
        found[i] = division.quotient(n[i], by)


def test_quotients_of_32_bits():
    """Next to multiples of the divisor, and anywhere, for divisors of every length."""
    rng, top = np.random.default_rng(0), 2**32
    lengths = [int(v) for e in range(33) for v in rng.integers(2**e // 2, 2**e, 8, endpoint=True)]
    powers = [2**e + d for e in range(33) for d in (-1, 0, 1)]
    for by in {d for d in (*lengths, *powers, 3, 7, 641, top - 1) if 0 < d < top}:
        edges = np.minimum(rng.integers(0, top // by, 100, endpoint=True) * by, top - 1)
        n = np.concatenate([edges, edges - 1, edges + 1, rng.integers(0, top, 100), [0, top - 1]])
        n = np.clip(n, 0, top - 1).astype(np.uint32)
        found = np.zeros_like(n)
        quotients(n, tuple(map(np.uint32, division.divisor(by))), found)
        assert np.array_equal(found, n // np.uint32(by)), by


# --- codes that are guessed -----------------------------------------------------------------------

LIMITS = {np.int8: (-128, 127), np.uint8: (0, 255), np.int16: (-32768, 32767)}


def guesser(parameters, element):
    @numba.njit(error_model="numpy")
    def guess(x, scale, zero_point, constants, codes, doubts):
        for i in range(x.size):
            p = parameters(x, scale[i], zero_point[i], constants, codes)
            codes[i], doubts[i] = element(x[i], p, constants, codes)

    return guess


IN_TWO = guesser(guesses.split_inverse_by_bits, guesses.guess_or_doubt)
ZERO_LAST = guesser(guesses.inverse_in_float32, guesses.zero_last)
ZERO_FIRST = guesser(guesses.inverse_in_float32, guesses.zero_first)
GUESSES = (IN_TWO, np.float64), (ZERO_LAST, np.float32), (ZERO_FIRST, np.float32)
NAMES = ("float64", "zero last", "zero first")


def guessed(guess, x, scale, zero_point, lo, hi):
    """The codes that are guessed, and which of them are in doubt."""
    codes, doubts = np.zeros(x.size, np.int32), np.zeros(x.size, np.bool_)
    guess(x, scale, zero_point, tuple(map(np.float32, (lo, hi, lo))), codes, doubts)
    return codes, doubts


def of_some_size(rng, n, lo, hi):
    """Scales, and zero points that are small or among the codes."""
    scale = rng.uniform(1, 2, n) * 2.0 ** rng.integers(-40, 40, n)
    zero_point, far = rng.integers(lo, hi, n, endpoint=True), rng.random(n) < 0.2
    return scale, np.where(far, rng.integers(-(2**19), 2**19, n), zero_point)


def rules(x, scale, zero_point, kind):
    """What is rounded to a code, by both ways to quantize."""
    inverse = 1 / scale.astype(kind)
    quotient, z = x.astype(kind) * inverse, zero_point.astype(kind)
    return {ZERO_LAST: np.rint(quotient) + z, ZERO_FIRST: np.rint(quotient + z)}


@pytest.mark.parametrize("target", LIMITS)
@pytest.mark.parametrize(("guess", "kind"), GUESSES, ids=NAMES)
def test_guesses_are_those_of_the_rules(guess, kind, target):
    """Next to ties and to the ends of the codes, and of floats of every size."""
    (lo, hi), n, rng = LIMITS[target], 1_000_000, np.random.default_rng(1)
    scale, zero_point = of_some_size(rng, n, lo, hi)
    scale = scale.astype(kind)
    codes = np.where(rng.random(n) < 0.2, rng.choice([lo, hi], n), rng.integers(lo, hi + 1, n))
    off = rng.choice([-1, 0, 1], n) * 2.0 ** rng.integers(-24, 0, n)
    with np.errstate(all="ignore"):
        x = ((codes - zero_point + 0.5 + off) * scale).astype(np.float32)
        x = np.where(rng.random(n) < 0.1, data((n,)), x)
        by_rule = rules(x, scale, zero_point, kind)
    found, doubts = guessed(guess, x, scale, zero_point, lo, hi)
    for rule in by_rule.values() if guess is IN_TWO else [by_rule[guess]]:
        clipped = np.clip(rule, lo, hi)[~doubts].astype(np.int32)
        assert np.array_equal(found[~doubts], clipped)
    assert doubts[np.isnan(x)].all()
    assert not doubts[np.isinf(x)].any()
    # Ties alone are in doubt, and those of float64 alone.
    assert (np.count_nonzero(doubts & ~np.isnan(x)) > n // 100) == (guess is IN_TWO)


def test_few_guesses_are_in_doubt():
    """Of data that is next to no tie on purpose: a thread that doubts takes ten times as long."""
    n, rng = 1_000_000, np.random.default_rng(2)
    x, scale = rng.normal(size=n).astype(np.float32), rng.uniform(0.01, 0.02, n)
    _, doubts = guessed(IN_TWO, x, scale, rng.integers(-128, 128, n), -128, 127)
    assert np.count_nonzero(doubts) <= 10  # 2**-20 of a million are so near


@pytest.mark.parametrize(("guess", "kind"), GUESSES, ids=NAMES)
def test_nothing_is_guessed_of_other_qparams(guess, kind):
    """Scales that are not positive, not finite or far from 1, and zero points far from 0."""
    tiny, huge, inf, nan = kind(2.0**-100), kind(2.0**100), np.inf, np.nan
    none = (0.0, -0.0, -0.5, inf, -inf, nan, 1e-45, np.nextafter(tiny, kind(0)), huge, 1e38)
    far = (2**19, -(2**19) - 1, 2**32, -(2**32), 2**63 - 1, -(2**63))
    for s, z, doubted in (
        *((s, 0, True) for s in none),
        *((s, 0, False) for s in (tiny, kind(0.75) * huge, 0.5)),
        *((0.5, z, True) for z in far),
        *((0.5, z, False) for z in (2**19 - 1, -(2**19))),
    ):
        qparams = np.full(1, s, kind), np.full(1, z, np.int64)
        codes, doubts = guessed(guess, np.zeros(1, np.float32), *qparams, -128, 127)
        assert doubts[0] == doubted, (s, z)
        assert doubted or codes[0] == np.clip(z, -128, 127)


@numba.njit(error_model="numpy")
def halves_of(high, low, near, inverse, rest):
    for i in range(high.size):
        inverse[i], rest[i] = guesses.halves(high[i], low[i], near[i])


def test_reciprocals_in_two_parts():
    """They are off by 2**-42, by whichever reciprocal that NVIDIA allows."""
    n, rng = 1_000_000, np.random.default_rng(3)
    high = rng.uniform(1, 2, n).astype(np.float32)
    low = (rng.integers(0, 2**23, n) * 2.0**-46).astype(np.float32)
    whole = high.astype(np.longdouble) + low
    assert np.finfo(np.longdouble).nmant >= 63
    for steps in range(-2, 3):
        near = ((1 / high).view(np.int32) + np.int32(steps)).view(np.float32)
        inverse, rest = np.empty_like(high), np.empty_like(high)
        halves_of(high, low, near, inverse, rest)
        assert abs((inverse.astype(np.longdouble) + rest) * whole - 1).max() < 2.0**-42, steps


@numba.njit(error_model="numpy")
def reciprocals_of(scale, near, found):
    for i in range(scale.size):
        found[i] = guesses.rounded_reciprocal(scale[i], near[i])


def test_reciprocals_of_every_mantissa():
    """They are correctly rounded, by whichever reciprocal that NVIDIA allows."""
    scale = (np.int32(127 << 23) + np.arange(2**23 - 1, dtype=np.int32)).view(np.float32)
    exact, found = 1 / scale, np.empty_like(scale)
    for steps in range(-2, 3):
        reciprocals_of(scale, (exact.view(np.int32) + np.int32(steps)).view(np.float32), found)
        assert np.array_equal(found, exact), steps
    last = np.nextafter(np.float32(2), np.float32(0))
    assert last not in scale
    for guess in (ZERO_LAST, ZERO_FIRST):
        zero = np.zeros(1, np.int32)
        assert guessed(guess, np.ones(1, np.float32), np.full(1, last), zero, -128, 127)[1]
