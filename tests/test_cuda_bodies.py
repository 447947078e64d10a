"""What a CUDA thread does to its elements, compiled for the CPU: 10 M elements an op, every bit."""

import ctypes
from functools import cache

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic, overload

from calls import CALLS, axis_name, results
from npquant.cuda import loops, primitives, target, vectors
from npquant.primitives import SQRT_HALF
from twins import Both, installed

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


@cache
def every_thread(kernel, key):
    """A loop over all threads of a launch."""
    made, (inputs, _, _, outputs, *shape) = kernel._make.__self__, key
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "vectors", vectors_for_cpu)
        walk = loops._walk(*made.formula, *shape)
    data, results = (pointers_to([target.pointer(d) for d in some]) for some in (inputs, outputs))

    @numba.njit(error_model="numpy", nogil=True)
    def run(blocks, threads, n, skip, first, channels, inner, x, scale, zero_point, constants, y):
        u, v = data(x), results(y)
        for block in range(blocks):
            for thread in range(threads):
                walk(block, thread, n, skip, first, channels, inner, u, scale, zero_point,
                     constants, v)  # fmt: skip

    return run


def number(kind, value):
    return getattr(np, "float64" if kind == "wide" else kind)(value)


def channels_at(address, count, dtype):
    held = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(held, dtype)


def launched(kernel, blocks, threads, args, key, on):
    """In place of Kernel.__call__: threads one after another."""
    assert isinstance(kernel._make.__self__, loops.Map), kernel.name
    n, skip, first, channels, inner, x, *qparams, constants, y = args
    scale, zero_point = (
        number(kind, p) if isinstance(kind, str) else channels_at(p, channels, kind)
        for p, kind in zip(qparams, key[1], strict=True)
    )
    typed = tuple(number(kind, v) for v, kind in zip(constants, key[2], strict=True))
    counts = map(np.uint32, (n, skip, first, channels, inner))
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
