"""What a CUDA thread does to its elements, compiled for the CPU: 10 M elements an op, every bit."""

import ctypes
from functools import cache

import numba
import numpy as np
import pytest
from numba.extending import overload, register_jitable

from calls import CALLS, axis_name, results
from npquant.cuda import loops, target, vectors
from twins import Both, install

NOT_ELEMENTWISE = ("choose", "determine", "fused", "adaround_regularizer")
OPS = [
    name
    for name in CALLS
    if not (name in NOT_ELEMENTWISE or name.startswith(NOT_ELEMENTWISE[:3]))
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


# --- vectors, as the CPU knows them ---------------------------------------------------------------


@cache
def taught(width, count):
    """Let the CPU's compiler know the loads and stores of a thread."""
    load, scratch, store = vectors.vectors(width, count)[2:]
    size = width * count

    @register_jitable
    def load_one(a, i, step):
        values = np.empty(size, a.dtype)
        for k in range(size):
            values[k] = a[i + k // width * step + k % width]
        return values

    @overload(load)
    def _load(arrays, i, step):
        if len(arrays) == 1:
            return lambda arrays, i, step: (load_one(arrays[0], i, step),)
        return lambda arrays, i, step: (
            load_one(arrays[0], i, step), *load(arrays[1:], i, step),
        )  # fmt: skip

    @overload(scratch)
    def _scratch(arrays):
        if len(arrays) == 1:
            return lambda arrays: (np.empty(size, arrays[0].dtype),)
        return lambda arrays: (np.empty(size, arrays[0].dtype), *scratch(arrays[1:]))

    @register_jitable
    def store_one(a, i, step, values):
        for k in range(size):
            a[i + k // width * step + k % width] = values[k]

    @overload(store)
    def _store(arrays, i, step, scratch):
        if len(arrays) == 1:
            return lambda arrays, i, step, scratch: store_one(arrays[0], i, step, scratch[0])

        def store_all(arrays, i, step, scratch):
            store_one(arrays[0], i, step, scratch[0])
            store(arrays[1:], i, step, scratch[1:])

        return store_all


# --- a launch -------------------------------------------------------------------------------------


@cache
def every_thread(kernel, width, count):
    """A loop over all threads of a launch."""
    taught(width, count)
    made = kernel._make.__self__
    walk = loops._walk(made._parameters, made._element, width, count)

    @numba.njit(error_model="numpy", nogil=True)
    def run(blocks, threads, n, skip, first, channels, inner, x, scale, zero_point, constants, y):
        for block in range(blocks):
            for thread in range(threads):
                walk(block, thread, n, skip, first, channels, inner, x, scale, zero_point,
                     constants, y)  # fmt: skip

    return run


def memory(address, count, dtype):
    held = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    a = np.frombuffer(held, dtype)
    return a.view(np.uint8) if dtype == np.bool_ else a


def launched(kernel, blocks, threads, args, key, on):
    """In place of Kernel.__call__: threads one after another."""
    assert isinstance(kernel._make.__self__, loops.Map), kernel.name
    n, skip, first, channels, inner, x, scale, zero_point, constants, y = args
    inputs, kinds, names, outputs, width, count = key
    qparams = [
        getattr(np, "float64" if kind == "wide" else kind)(p)
        if isinstance(kind, str)
        else memory(p, channels, kind)
        for p, kind in zip((scale, zero_point), kinds, strict=True)
    ]
    typed = tuple(
        getattr(np, "float64" if kind == "wide" else kind)(v)
        for v, kind in zip(constants, names, strict=True)
    )
    every_thread(kernel, width, count)(
        blocks, threads, *map(np.uint32, (n, skip, first, channels, inner)),
        tuple(memory(a, n, d) for a, d in zip(x, inputs, strict=True)), *qparams, typed,
        tuple(memory(a, n, d) for a, d in zip(y, outputs, strict=True)),
    )  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_bodies(name, monkeypatch):
    """The bits of the CPU kernels: `Both` compares."""
    both = Both()
    install(monkeypatch, both)
    monkeypatch.setattr(target.Kernel, "__call__", launched)
    rows = "group" in name or "token" in name
    for shape, axis in SHAPES["rows" if rows else "axis" if axis_name(name) else "tensor"]:
        with np.errstate(all="ignore"):
            kwargs = CALLS[name](data(shape), axis)
        results(name, kwargs)
    assert both.called
