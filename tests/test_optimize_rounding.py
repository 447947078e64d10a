"""AdaRound to the end: what is learned, what it ends with, what it reports, what it refuses."""

import re
import sys
import tracemalloc
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest

import npquant as nq
import npquant.autograd as ag
from cases import assert_same
from npquant.adaround import (
    AdaroundLoss,
    Conv2d,
    Gram,
    Grid,
    Linear,
    RoundingReport,
    optimize,
    optimize_rounding,
)
from npquant.adaround.optimize import UNDECIDED, _Moments, _Rows
from npquant.modules import FakeQuantize, LearnableFakeQuantize, MinMaxObserver, Module
from npquant.optim import Adam

F32 = np.dtype(np.float32)
U = 2.0**-24

#: Learning that is quick, where its quality is not the question.
QUICK = {"steps": 40, "rng": 0}


def normal(seed, *shape):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(F32)


def correlated(seed, rows, columns):
    """Rows of a quarter as many independent numbers, and a little noise."""
    mixed = normal(seed, rows, columns // 4) @ normal(99, columns // 4, columns)
    return mixed + np.float32(0.1) * normal(seed + 50, rows, columns)


def per_channel(w, lo=-4, hi=3):
    scale = np.abs(w).reshape(len(w), -1).max(axis=1) / hi
    return Grid(scale, np.zeros(len(w), np.int32), lo, hi, axis=0)


def per_tensor(w, lo=-4, hi=3):
    return Grid(float(np.abs(w).max()) / hi, 0, lo, hi)


def affine_groups(w, lo=0, hi=7, size=4):
    sets = w.reshape(-1, size)
    low, high = np.minimum(sets.min(axis=1), 0), np.maximum(sets.max(axis=1), 0)
    scale = ((high - low) / (hi - lo)).astype(F32)
    zero_point = np.clip(np.rint(lo - low / scale), lo, hi).astype(np.int32)
    shape = len(w), -1
    return Grid(scale.reshape(shape), zero_point.reshape(shape), lo, hi, group_size=size)


GRIDS = {"per tensor": per_tensor, "per channel": per_channel, "per group": affine_groups}


def qparams_of_elements(grid, w):
    """The scale and the zero point of every weight."""
    s, z = np.asarray(grid.scale, F32), np.asarray(grid.zero_point)
    if grid.group_size:
        return np.repeat(s, grid.group_size, axis=1), np.repeat(z, grid.group_size, axis=1)
    if grid.axis is None:
        return np.broadcast_to(s, w.shape), np.broadcast_to(z, w.shape)
    shape = [-1 if a == grid.axis else 1 for a in range(w.ndim)]
    return s.reshape(shape), z.reshape(shape)


def nearest(w, grid):
    """Codes by rounding to nearest; no weight of the tests lies between two."""
    s, z = qparams_of_elements(grid, w)
    return np.clip(np.rint(w / s) + z, grid.quant_min, grid.quant_max)


def values(codes, grid, w):
    s, z = qparams_of_elements(grid, w)
    return (codes - z).astype(F32) * s


def relative(actual, reference):
    a, b = (v.astype(np.float64) for v in (actual, reference))
    return np.mean((a - b) ** 2) / np.mean(b**2)


# --- what is learned ------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, ag.relu], ids=["gram", "batches"])
@pytest.mark.parametrize("grid_of", GRIDS.values(), ids=GRIDS)
def test_better_than_nearest_where_inputs_are_correlated(grid_of, activation):
    x, w, b = correlated(0, 600, 32), normal(1, 12, 32), normal(2, 12)
    grid = grid_of(w)
    got = optimize_rounding(Linear(w, b, activation), grid, x, steps=300, rng=0)
    assert got.report.kept == "adaround"
    assert got.report.held_out_adaround < got.report.held_out_nearest / 3
    assert 0.02 < got.report.flipped < 0.5


@pytest.mark.parametrize("grid_of", GRIDS.values(), ids=GRIDS)
def test_hard_weights_lie_on_the_grid(grid_of):
    """Whatever is still undecided: after a few steps nearly all is."""
    x, w = correlated(0, 100, 32), normal(1, 12, 32)
    grid = grid_of(w)
    for keep in optimize.KEEP:
        got = optimize_rounding(Linear(w), grid, x, steps=5, lr=0.5, rng=0, keep=keep)
        assert (got.weight.dtype, got.codes.dtype) == (F32, np.int32)
        assert got.codes.min() >= grid.quant_min
        assert got.codes.max() <= grid.quant_max
        np.testing.assert_array_equal(got.weight, values(got.codes, grid, w))
    assert got.report.undecided > 0.5
    # up or down, and nothing else
    s, z = qparams_of_elements(grid, w)
    floor = np.floor(w / s) + z
    ends = [np.clip(floor + up, grid.quant_min, grid.quant_max) for up in (0, 1)]
    assert np.all((got.codes == ends[0]) | (got.codes == ends[1]))
    assert np.any(got.codes != nearest(w, grid))


def test_learns_on_the_outputs_of_quantized_predecessors():
    """The second layer is told by the float outputs what the first one, quantized, has lost."""
    x, f = correlated(0, 500, 16), correlated(0, 500, 16)
    x[:, :8] += np.float32(0.5) * f[:, 8:]
    w = normal(1, 8, 16)
    grid, layer = per_channel(w, -8, 7), Linear(w)
    held_out = np.arange(400, 500)
    told, untold = (
        optimize_rounding(layer, grid, x, float_inputs=g, held_out=held_out, steps=400, rng=0)
        for g in (f, x)
    )
    target = f[held_out] @ w.T
    errors = [relative(x[held_out] @ r.weight.T, target) for r in (told, untold)]
    assert errors[0] < 0.8 * errors[1]
    assert told.report.held_out_adaround == pytest.approx(errors[0], rel=1e-4)


def test_a_chain_is_its_layers_one_by_one():
    """Each with what the quantized and the float ones before it give; functions stand between."""
    x = normal(0, 60, 2, 6, 6)
    k, b, w = normal(1, 4, 2, 3, 3), normal(2, 4), normal(3, 5, 16)
    conv, linear = Conv2d(k, b, padding=1, activation=ag.relu), Linear(w)

    def between(y):
        return ag.flatten(ag.max_pool2d(y, 3))

    grids, held_out = [per_channel(k), per_tensor(w)], np.arange(50, 60)
    options = {"held_out": held_out, "batch_size": 1000, "steps": 60, "rng": 0, "keep": "adaround"}
    both = optimize_rounding([conv, between, linear], grids, x, **options)
    first = optimize_rounding(conv, grids[0], x, **options)
    quantized = between(ag.call(replace(conv, weight=first.weight), x))
    second = optimize_rounding(
        linear, grids[1], quantized, float_inputs=between(ag.call(conv, x)), **options
    )
    for got, alone in zip(both, (first, second), strict=True):
        np.testing.assert_array_equal(got.codes, alone.codes)
        assert asdict(got.report) == asdict(alone.report)


@pytest.mark.parametrize("activation", [None, ag.sigmoid], ids=["gram", "batches"])
def test_a_convolution_is_a_linear_layer_of_its_places(activation):
    """Unfolded here, place by place; both see the same sums of float32, in another order."""
    x, k, b = normal(0, 8, 2, 5, 6), normal(1, 6, 2, 3, 2), normal(2, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    rows = np.stack([
        padded[n, :, i : i + 3, j : j + 2].reshape(-1)
        for n in range(8) for i in range(0, 5, 2) for j in range(5)
    ])  # fmt: skip
    grid = per_channel(k)
    options = {"held_out": 0.0, "batch_size": 10_000, "steps": 60, "rng": 0}
    conv = Conv2d(k, b, stride=(2, 1), padding=(1, 0), activation=activation)
    got = optimize_rounding(conv, grid, x, **options)
    flat = optimize_rounding(Linear(k.reshape(6, -1), b, activation), grid, rows, **options)
    np.testing.assert_array_equal(got.codes.reshape(6, -1), flat.codes)
    assert got.report.loss_adaround == pytest.approx(flat.report.loss_adaround, rel=1e-4)


@pytest.mark.parametrize("activation", [None, ag.relu])
def test_many_images_take_little_memory(activation):
    """Unfolded, all of them take nine times their memory; beside outputs, little may stay."""
    x, k = normal(0, 128, 4, 128, 128), normal(1, 1, 4, 3, 3)
    layer, options = Conv2d(k, padding=1, activation=activation), {"held_out": 0.0, "rng": 0}
    tracemalloc.start()
    try:
        optimize_rounding(layer, per_tensor(k), x, steps=1, batch_size=1, **options)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5 * x.nbytes


def test_groups_of_a_convolution_learn_for_themselves():
    x, k = correlated(0, 40 * 9, 16).reshape(40, 9, 4, 4).swapaxes(1, 2), normal(1, 6, 2, 2, 2)
    x = np.ascontiguousarray(x.reshape(40, 4, 9, 4))
    grid, options = per_channel(k), {"held_out": 0.0, "steps": 100, "rng": 0}
    got = optimize_rounding(Conv2d(k, groups=2), grid, x, **options)
    for g in range(2):
        own = slice(3 * g, 3 * g + 3)
        # Each part is normalised by its own mean square, and by its number of elements.
        alone = _Rows(Conv2d(k[own]), x[:, 2 * g : 2 * g + 2], x[:, 2 * g : 2 * g + 2])
        soft = values(nearest(k, grid), grid, k)
        together = _Rows(Conv2d(k, groups=2), x, x)
        of_all = _Moments.of_rows(together, x, "layer")
        of_part = _Moments.of_rows(alone, alone.x, "layer")
        share = (k.size / together.power / 2) / (k[own].size / alone.power)
        np.testing.assert_allclose(
            of_all.gradient(soft, None)[own], share * of_part.gradient(soft[own].copy(), None),
            rtol=1e-3, atol=1e-5,
        )  # fmt: skip
    assert got.report.loss_adaround < got.report.loss_nearest


# --- two ways to one gradient ---------------------------------------------------------------------


@pytest.mark.parametrize("asymmetric", [False, True])
def test_batches_of_all_rows_and_the_gram_form_have_one_gradient(asymmetric):
    """2 size / (n outputs power) * E'X, with E = X Q' - F W', and the same from G and C.

    In float32 a sum of k products is off by at most (k + 2) u times the sum of their sizes. By way
    of rows E is off by (2 c + 4) u A with A = |X||Q|' + |F||W|', c columns, and the sum over n rows
    follows. By way of G, each element of it is off by (n + 2) u |X|'|X| and rounded twice, the
    shift likewise with |X - F|; the sum over c columns follows.
    """
    n, columns, rows = 300, 24, 6
    x, w = correlated(0, n, columns), normal(1, rows, columns)
    f = x + np.float32(0.2) * normal(3, n, columns) if asymmetric else x
    soft = w + np.float32(0.1) * normal(2, rows, columns)
    data = _Rows(Linear(w), x, f)
    by_rows = data.gradient(soft, slice(None))
    by_gram = _Moments.of_rows(data, f, "layer").gradient(soft, None)
    pairs = ((x, x), (x, f), (f, f))
    given = Gram(*(a.T.astype(np.float64) @ b.astype(np.float64) for a, b in pairs))
    by_matrices = _Moments.of_gram(w, given, "gram").gradient(soft, None)

    X, W, F, Q = (np.abs(a).astype(np.float64) for a in (x, w, f, soft))
    change = np.abs(soft.astype(np.float64) - w)
    share = 2 * w.size / (n * rows * data.power)
    bound = (n + 2 * columns + 8) * U * (X @ Q.T + F @ W.T).T @ X
    bound += (n + columns + 8) * U * (change @ (X.T @ X) + W @ (np.abs(x - f).T @ X))
    # the power is a sum of squares of outputs, each off by (c + 2) u of its terms
    bound += np.abs(by_rows / share) * 4 * (columns + 2) * U * np.mean((F @ W.T) ** 2) / data.power
    exact = share * ((x @ soft.T.astype(np.float64) - f @ w.T.astype(np.float64)).T @ x)
    for found in (by_rows, by_gram, by_matrices):
        assert np.all(np.abs(found - exact) <= share * bound)
    # and the bound is no wide one: a gradient that takes F for X is beyond it
    if asymmetric:
        wrong = _Moments.of_rows(_Rows(Linear(w), x, x), x, "layer").gradient(soft, None)
        assert np.abs(wrong - exact).max() > 10 * share * bound.max()


def test_gram_matrices_in_place_of_rows():
    x, w = correlated(0, 400, 16), normal(1, 8, 16)
    f = x + np.float32(0.2) * normal(2, 400, 16)
    d, e = x.astype(np.float64), f.astype(np.float64)
    layer, grid = Linear(w, normal(3, 8)), per_channel(w)
    rows = optimize_rounding(layer, grid, x, float_inputs=f, held_out=np.arange(300, 400), **QUICK)
    parts = [(d[r], e[r]) for r in (slice(300), slice(300, 400))]
    given = [Gram(d.T @ d, d.T @ e, e.T @ e) for d, e in parts]
    got = optimize_rounding(layer, grid, given[0], held_out=given[1], **QUICK)
    np.testing.assert_array_equal(got.codes, rows.codes)
    for name, value in asdict(got.report).items():
        if isinstance(value, float):  # of float32 outputs, and of float64 matrices
            assert value == pytest.approx(getattr(rows.report, name), rel=1e-4), name
    alone = optimize_rounding(layer, grid, given[0], **QUICK).report
    assert alone.held_out_adaround == alone.loss_adaround
    # the size of the matrices makes no difference: by a power of two, to the bit
    scaled = Gram(*(g * 4 for g in (given[0].inputs, given[0].cross, given[0].floats)))
    again = optimize_rounding(layer, grid, scaled, **QUICK)
    np.testing.assert_array_equal(again.codes, got.codes)


def test_no_rounding_makes_a_loss_negative():
    """0.15 times 1 is 0.3 times 0.5, and a sum of their squares in float64 -1.7e-18."""
    x, f, w = np.array([[0.15]]), np.array([[0.3]]), np.array([[0.5]], F32)
    given = Gram(x * x, x * f, f * f)
    got = optimize_rounding(Linear(w), Grid(1.0, 0, -8, 7), given, **QUICK)
    assert got.report.loss_nearest == 0


@pytest.mark.parametrize(("off", "accepted"), [(0.99e-3, True), (1.01e-3, False)])
def test_gram_matrices_are_symmetric_to_a_relative_1e_3(off, accepted):
    gram = np.diag([1.0, 2, 3, 4])
    gram[0, 1] = off * 4
    with nullcontext() if accepted else pytest.raises(ValueError, match="inputs must be symmetric"):
        optimize_rounding(Linear(W), GRID, Gram(gram), **QUICK)


def test_loss_does_not_depend_on_the_size_of_values():
    """By powers of two, which are exact: the same roundings, and the same report."""
    x, w = correlated(0, 200, 16), normal(1, 8, 16)
    for activation in (None, ag.relu):
        found = [
            optimize_rounding(
                Linear(w * np.float32(a), activation=activation),
                Grid(per_channel(w).scale * np.float32(a), [0] * 8, -4, 3, axis=0),
                x * np.float32(b), **QUICK,
            )
            for a, b in ((1, 1), (2.0**-10, 1), (1, 2.0**12))
        ]  # fmt: skip
        assert len({r.codes.tobytes() for r in found}) == 1
        assert len({str(r.report) for r in found}) == 1


@pytest.mark.parametrize("activation", [None, ag.relu])
def test_outputs_whose_squares_leave_float32(activation):
    """Nothing would be learned from infinities, nor from products that are zero."""
    x, w = correlated(0, 100, 8), normal(1, 8, 8)
    layer = Linear(w, activation=activation)
    for size in (1e-20, 1e-25, 1e20):
        with pytest.raises(ValueError, match=r"layers\[0\] must give outputs whose mean square"):
            optimize_rounding(layer, per_channel(w), x * np.float32(size), **QUICK)
    optimize_rounding(layer, per_channel(w), x * 0, **QUICK)  # but of zeros there is nothing to say


@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_inputs_whose_squares_leave_float32(size):
    """Where they do, and outputs do not, neither is a slope of 0 or of infinity learned from."""
    x, w, s = correlated(0, 100, 8), normal(1, 8, 8), np.float32(size)
    grid = Grid(float(0.5 / s), 0, -8, 7)
    with pytest.raises(ValueError, match=r"the inputs of layers\[0\] must have squares"):
        optimize_rounding(Linear(w / s), grid, x * s, **QUICK)
    gram = (x.astype(np.float64).T @ x) * size**2
    with pytest.raises(ValueError, match=r"^inputs must have squares"):
        optimize_rounding(Linear(w / s), grid, Gram(gram), **QUICK)


class Block(Module):
    """A module of the user's that has one of npquant's."""

    _modules = ("quantizer",)

    def __init__(self):
        self.quantizer = FakeQuantize()

    def forward(self, call, x):
        return self.quantizer.forward(call, x)


class Nothing:
    """An activation that is none."""

    def forward(self, apply, x):
        return x


def test_without_gram_a_layer_learns_from_batches():
    """As one whose activation does nothing."""
    x, w = correlated(0, 60, 16), normal(1, 4, 16)
    batches, plain, gram = (
        optimize_rounding(
            Linear(w, None, step), per_channel(w), x, batch_size=4, gram=gram, **QUICK
        )
        for step, gram in ((Nothing(), True), (None, False), (None, True))
    )
    assert asdict(plain.report) == asdict(batches.report)
    assert asdict(plain.report) != asdict(gram.report)


def test_batches_are_rows_and_all_of_them_in_turn():
    rows = _Rows(Linear(normal(0, 2, 3)), normal(1, 10, 3), normal(1, 10, 3))
    batches = rows.batches(4, np.random.default_rng(0))
    for _ in range(3):
        pair = [next(batches) for _ in range(2)]
        assert len(np.unique(np.concatenate(pair))) == 8
    assert next(rows.batches(10, np.random.default_rng(0))) == slice(None)


# --- reproducible, and never worse ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "rows", "count"), [(0.07, 100, 7), (0.55, 100, 55), (0.2, 7, 2), (0.001, 7, 1)]
)
def test_how_many_rows_judge(share, rows, count):
    """A share that is no float is not rounded up to one row more."""
    learned, judging = optimize._split(rows, share, np.random.default_rng(0))
    assert len(judging) == count
    assert sorted([*learned, *judging]) == list(range(rows))


def test_a_loss_that_is_no_number_is_worse():
    """Of a grid whose values no float32 holds."""
    layer, grid = Linear(np.array([[3.3e38, 1]], F32)), Grid(1.2e38, 0, -4, 3)
    with np.errstate(all="ignore"):
        report = optimize_rounding(layer, grid, Gram(np.diag([1e-80, 1.0])), steps=1).report
    assert np.isnan(report.loss_nearest)
    assert report.worse


def test_no_rows_judge():
    """As with an empty array of integers: what is learned is held against the same rows."""
    args, options = (Linear(W), GRID, X), {"steps": 3, "rng": 0}
    expected = optimize_rounding(*args, held_out=np.empty(0, int), **options)
    assert optimize_rounding(*args, held_out=[], **options).report == expected.report


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_rows_that_judge_are_what_numpy_indexes_by(dtype):
    held_out, options = np.array([1, 7, 7]), {"steps": 3, "rng": 0}
    args = Linear(W), GRID, X
    expected = optimize_rounding(*args, held_out=held_out, **options)
    from_end, mask = held_out - len(args[2]), np.isin(np.arange(len(args[2])), held_out)
    ways = (from_end, from_end.tolist(), [1, -13], mask, mask.tolist())
    for given in (held_out.astype(dtype), held_out.tolist(), range(1, 8, 6), *ways):
        got = optimize_rounding(*args, held_out=given, **options)
        assert got.weight.tobytes() == expected.weight.tobytes()
        assert got.report == expected.report


def test_a_seed_gives_the_same_bits():
    x, w = correlated(0, 200, 16), normal(1, 8, 16)
    layer, grid = Linear(w, activation=ag.relu), per_channel(w)

    def run(rng):
        return optimize_rounding(layer, grid, x, batch_size=16, steps=60, rng=rng)

    one, two, three = (run(r) for r in (3, np.random.default_rng(3), 4))
    np.testing.assert_array_equal(one.codes, two.codes)
    assert asdict(one.report) == asdict(two.report)
    assert asdict(one.report) != asdict(three.report)


def overfitted():
    """A few rows of noise for many columns: what fits them is wrong for all others."""
    x, w = normal(0, 200, 64), normal(1, 8, 64)
    return Linear(w), per_channel(w), x, {"held_out": np.arange(6, 200), "steps": 300, "rng": 0}


def test_nearest_is_kept_where_learning_made_it_worse():
    layer, grid, x, options = overfitted()
    got = optimize_rounding(layer, grid, x, **options)
    report = got.report
    assert report.worse
    assert report.loss_adaround < report.loss_nearest / 4
    assert report.held_out_adaround > 1.02 * report.held_out_nearest
    assert report.kept == "nearest"
    assert report.flipped > 0.05  # of what was learned, though it was not kept
    np.testing.assert_array_equal(got.codes, nearest(layer.weight, grid))
    np.testing.assert_array_equal(got.weight, values(got.codes, grid, layer.weight))


def test_the_learned_rounding_is_kept_if_asked_for():
    layer, grid, x, options = overfitted()
    got = optimize_rounding(layer, grid, x, keep="adaround", **options)
    assert (got.report.kept, got.report.worse) == ("adaround", True)
    assert np.any(got.codes != nearest(layer.weight, grid))


def test_what_is_kept_is_what_the_next_layer_sees():
    layer, grid, x, options = overfitted()
    w = normal(2, 4, 8)
    _, second = optimize_rounding([layer, Linear(w)], [grid, per_tensor(w)], x, **options)
    kept = values(nearest(layer.weight, grid), grid, layer.weight)
    alone = optimize_rounding(
        Linear(w), per_tensor(w), ag.linear(x, kept),
        float_inputs=ag.linear(x, layer.weight), **options,
    )  # fmt: skip
    assert asdict(second.report) == asdict(alone.report)


# --- the report -----------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, ag.relu])
def test_the_report_says_what_is_so(activation):
    x, w, b = correlated(0, 300, 16), normal(1, 8, 16), normal(2, 8)
    f = x + np.float32(0.1) * normal(4, 300, 16)
    grid, held_out = per_channel(w), np.arange(0, 300, 5)
    layer = Linear(w, b, activation)
    got = optimize_rounding(layer, grid, x, float_inputs=f, held_out=held_out, **QUICK)
    learned = np.setdiff1d(np.arange(300), held_out)

    def error(rows, codes):
        q, x64, f64 = (a.astype(np.float64) for a in (values(codes, grid, w), x[rows], f[rows]))
        y, target = x64 @ q.T, f64 @ w.T.astype(np.float64)
        if activation:
            y, target = np.maximum(y + b, 0), np.maximum(target + b, 0)
        return relative(y, target)

    assert got.report.kept == "adaround"
    near = nearest(w, grid)
    r = got.report
    # float32 against float64: each output is off by (c + 3) u of its terms, far less than 1e-4
    assert r.loss_nearest == pytest.approx(error(learned, near), rel=1e-4)
    assert r.loss_adaround == pytest.approx(error(learned, got.codes), rel=1e-4)
    assert r.held_out_nearest == pytest.approx(error(held_out, near), rel=1e-4)
    assert r.held_out_adaround == pytest.approx(error(held_out, got.codes), rel=1e-4)
    assert r.flipped == np.mean(near != got.codes)
    assert r.steps == 40
    assert r.worse == (r.held_out_adaround > r.held_out_nearest)


def test_a_share_in_an_array_of_no_axes():
    x, w = correlated(0, 60, 16), normal(1, 4, 16)
    a, b = (
        optimize_rounding(Linear(w), per_channel(w), x, held_out=share, **QUICK)
        for share in (0.25, np.array(0.25))
    )
    assert asdict(a.report) == asdict(b.report)


def test_a_loss_that_is_nan_is_worse():
    assert RoundingReport(1.0, 0.5, 1.0, np.nan, "nearest", 0.0, 0.1, 10).worse


def test_share_of_held_out_rows():
    learned, judging = optimize._split(10, 0.25, np.random.default_rng(0))
    assert len(judging) == 3
    assert sorted([*learned, *judging]) == list(range(10))
    others = optimize._split(10, 0.25, np.random.default_rng(1))[1]
    assert judging.tolist() != others.tolist()
    assert [len(p) for p in optimize._split(10, 0.0, np.random.default_rng(0))] == [10, 0]


def test_early_stop_and_what_is_undecided():
    x, w = correlated(0, 200, 16), normal(1, 8, 16)
    layer, grid = Linear(w), per_channel(w)
    options = {"steps": 400, "rng": 0, "reg_param": 3.0}
    full = optimize_rounding(layer, grid, x, stop_undecided=0.0, **options)
    early = optimize_rounding(layer, grid, x, stop_undecided=0.3, **options)
    at_once = optimize_rounding(layer, grid, x, stop_undecided=1.0, **options)
    assert at_once.report.steps == 80  # where the warm start ends: there is no regularizer before
    assert 80 < early.report.steps < full.report.steps
    assert early.report.undecided <= 0.3
    assert full.report.undecided < early.report.undecided
    # h at the limit is 0.99
    h = 1.2 / (1 + np.exp(-UNDECIDED)) - 0.1
    assert h == pytest.approx(0.99, abs=1e-12)


@pytest.mark.parametrize(("steps", "warm_start", "begin"), [(15, 0.2, 3), (50, 0.5, 25)])
def test_the_first_look_is_where_the_regularizer_begins(steps, warm_start, begin):
    x, w = correlated(0, 200, 16), normal(1, 8, 16)
    options = {"steps": steps, "warm_start": warm_start, "rng": 0}
    done = optimize_rounding(Linear(w), per_channel(w), x, stop_undecided=1.0, **options)
    assert done.report.steps == begin


def test_a_function_that_changes_what_it_is_given():
    """It has the rows of nobody else."""
    x, w = correlated(0, 200, 16), normal(1, 8, 16)
    given = x.copy()

    def shifted(rows):
        rows -= 0.5
        return rows

    optimize_rounding([shifted, Linear(w)], [per_channel(w)], given, rng=0, steps=20)
    assert np.array_equal(given, x)


def test_undecided_of_the_first_look():
    """Before any learning, V is that of the fractions: undecided between 0.01 and 0.99."""
    fractions = np.array([[0.0, 0.005, 0.02, 0.5, 0.98, 0.995]], F32)
    V = nq.adaround_init(fractions, 1.0)
    assert optimize._undecided(V, np.empty_like(V)) == 0.5


def test_learning_is_that_of_the_formulas():
    """Three steps, with the public ops alone: autograd's gradient, Adam's step."""
    x, w = correlated(0, 50, 8), normal(1, 4, 8)
    grid = per_channel(w)
    V = ag.Parameter(nq.adaround_init(w, grid.scale, axis=0))
    adam = Adam([V], lr=0.03)
    target = ag.linear(x, w)
    power = np.mean(target.astype(np.float64) ** 2)
    for _ in range(3):
        with ag.Tape() as tape:
            soft = tape.apply(nq.adaround_soft, w, V, **vars(grid))
            loss = tape.apply(ag.mse_loss, tape.apply(ag.linear, x, soft), target)
        adam.step([tape.gradient(loss, V, np.array(w.size / power, F32))])
    layer, found = Linear(w, activation=ag.sigmoid), nq.adaround_init(w, grid.scale, axis=0)
    rows = _Rows(replace(layer, activation=None), x, x)
    options = optimize._Options(
        gram=False, batch_size=50, lr=0.03, loss=optimize.AdaroundLoss(3, 0.99), keep="best",
        stop_undecided=0.0, rng=np.random.default_rng(0), bar=optimize._no_bar,
    )  # fmt: skip
    optimize._descend(w, found, rows, grid, options, "")
    np.testing.assert_array_equal(found, V.value)


def test_the_regularizer_decides():
    """With nothing else to do: inputs of zeros, and each V goes to the side where it is."""
    w = normal(1, 4, 8)
    grid = per_channel(w)
    got = optimize_rounding(Linear(w), grid, np.zeros((10, 8), F32), steps=600, rng=0)
    assert got.report.undecided == 0
    assert got.report.flipped == 0
    assert got.report.loss_adaround == got.report.loss_nearest == 0
    assert got.report.steps in range(120, 600, 20)  # it is done when all are decided
    assert (got.report.kept, got.report.worse) == ("adaround", False)  # though it is no better


@pytest.mark.parametrize(
    "change", [{}, {"warm_start": 0.5}, {"beta_range": (5, 1)}, {"reg_param": 0.0}, {"lr": 0.02}]
)
def test_the_options_are_those_of_the_regularizer(change):
    """V moves as by the public loss and Adam alone: inputs of zeros have no gradient."""
    w = normal(1, 32, 32)
    grid = per_channel(w)
    options = {"lr": 0.03, "reg_param": 0.3} | change
    got = optimize_rounding(Linear(w), grid, np.zeros((10, 32), F32), steps=100, **options)
    V = nq.adaround_init(w, grid.scale, axis=0)
    adam, loss = Adam([V], lr=options.pop("lr")), AdaroundLoss(100, **options)
    for step in range(100):
        adam.step([loss.regularizer_backward(step, V)])
    assert got.report.undecided == np.mean(np.abs(V) < UNDECIDED)
    assert 0 < got.report.undecided < 1


# --- progress -------------------------------------------------------------------------------------


def test_without_progress_nothing_is_printed(capfd):
    optimize_rounding(Linear(normal(0, 2, 4)), Grid(0.5, 0, -8, 7), normal(1, 20, 4), **QUICK)
    assert capfd.readouterr() == ("", "")


def test_progress_shows_a_bar_for_each_layer(capfd):
    w = normal(0, 4, 4)
    chain = [Linear(w), ag.relu, Linear(w)]
    optimize_rounding(chain, [Grid(0.5, 0, -8, 7)] * 2, normal(1, 20, 4), progress=True, **QUICK)
    out, err = capfd.readouterr()
    assert out == ""
    assert "layers[0]: 100%" in err
    assert "layers[2]: 100%" in err
    assert "40/40" in err


def test_progress_without_tqdm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        optimize_rounding(
            Linear(normal(0, 2, 4)), Grid(0.5, 0, -8, 7), normal(1, 20, 4), progress=True
        )


# --- errors ---------------------------------------------------------------------------------------

W, X, B = normal(0, 2, 4), normal(1, 20, 4), normal(2, 2)
GRID, GRAM = Grid(0.5, 0, -8, 7), X.T @ X
NAN = np.full((2, 4), np.nan, F32)

#: Of three inputs, each two of which may be so, but not all.
INDEFINITE = np.diag([2, 2, 2, 1]) - np.pad(np.ones((3, 3)), (0, 1))

ERRORS = {
    "layers of nothing": ({"layers": []}, ValueError, "layers must have a Linear or a Conv2d"),
    "layers of functions": ({"layers": [ag.relu]}, ValueError, "layers must have a Linear"),
    "layers no sequence": ({"layers": 3}, TypeError, "layers must be a Linear, a Conv2d or a"),
    "a layer that is none": ({"layers": [3]}, TypeError, "layers[0] must be a Linear, a Conv2d"),
    "weight no array": ({"layers": Linear([[1.0]])}, TypeError, "layers[0].weight must be a NumPy"),
    "weight float64": (
        {"layers": Linear(W.astype(np.float64))}, TypeError,
        "layers[0].weight must have the dtype float32, got float64"),
    "an activation that observes": (
        {"layers": Linear(W, activation=FakeQuantize())}, ValueError, "its observer_enabled is on"),
    "an activation that estimates": (
        {"layers": Linear(W, activation=LearnableFakeQuantize(MinMaxObserver))},
        ValueError,
        "layers[0].activation must give the same for the same rows, got a module that observes"),
    "a method that observes": (
        {"layers": [FakeQuantize().forward, Linear(W)]}, ValueError, "layers[0] must give the"),
    "a module in an activation that observes": (
        {"layers": Linear(W, activation=Block())}, ValueError, "its observer_enabled is on"),
    "a function that observes": (
        {"layers": [FakeQuantize(), Linear(W)]}, ValueError, "layers[0] must give the same for"),
    "weight of a vector": ({"layers": Linear(B)}, ValueError, "must have the shape (outputs, inp"),
    "kernel of two axes": ({"layers": Conv2d(W)}, ValueError, "must have the shape (K, C, h, w)"),
    "weight empty": ({"layers": Linear(W[:0])}, ValueError, "with elements, got (0, 4)"),
    "weight NaN": ({"layers": Linear(NAN)}, ValueError, "layers[0].weight must be finite"),
    "bias of another length": (
        {"layers": Linear(W, X[0])}, ValueError, "layers[0].bias must have the shape (2,), got (4"),
    "bias float64": ({"layers": Linear(W, B.astype(float))}, TypeError, "layers[0].bias must have"),
    "an activation that is none": (
        {"layers": Linear(W, activation=np.tanh)}, TypeError,
        "layers[0].activation must be a step of npquant.autograd"),
    "a function that drops rows": (
        {"layers": [lambda v: v[:1], Linear(W)]}, ValueError,
        "layers[0] must give as many rows as it takes, 20, got 1"),
    "a function that gives a sum": (
        {"layers": [lambda v: np.array(v.sum()), Linear(W)]}, ValueError,
        "layers[0] must give as many rows as it takes, 1, got no axis"),
    "a function that gives nothing": (
        {"layers": [lambda v: None, Linear(W)]}, TypeError,
        "what layers[0] gives must be a NumPy array, got None"),
    "a function that gives float64": (
        {"layers": [lambda v: v.astype(float), Linear(W)]}, TypeError,
        "what layers[0] gives must have the dtype float32, got float64"),
    "an activation without a hash": (
        {"layers": Linear(W, activation=(1, [2]))}, TypeError,
        "layers[0].activation must be a step of npquant.autograd"),
    "grids too many": ({"grids": [GRID, GRID]}, ValueError, "grids must be 1, one for each layer"),
    "grids no sequence": ({"grids": 3}, TypeError, "grids must be a Grid or a sequence, got 3"),
    "a grid that is none": ({"grids": [3]}, TypeError, "grids[0] must be a Grid, got 3"),
    "scale of zero": (
        {"grids": Grid(0.0, 0, -8, 7)}, ValueError, "grids[0]: scale must be positive and finite"),
    "scales too few": (
        {"grids": Grid([1.0], [0], -8, 7, axis=0)}, ValueError,
        "grids[0]: scale must have the shape (2,), got (1,)"),
    "a scale of zero": (
        {"grids": Grid([1.0, 0.0], [0, 0], -8, 7, axis=0)}, ValueError, "grids[0]: scale must be"),
    "a grid of specs": (
        {"grids": Grid(nq.ArraySpec((2,), np.float32), [0, 0], -8, 7, axis=0)}, TypeError,
        "grids[0]: scale must be numbers, got an ArraySpec"),
    "zero point outside": ({"grids": Grid(1.0, 9, -8, 7)}, ValueError, "grids[0]: zero_point must"),
    "bounds": ({"grids": Grid(1.0, 0, 7, -8)}, ValueError, "grids[0]: quant_min must not exceed"),
    "group size": (
        {"grids": Grid([[1.0]], [[0]], -8, 7, group_size=3)}, ValueError,
        "grids[0]: group_size must be at least 2, and divide or exceed the last axis of weight,"),
    "an axis that the weight lacks": (
        {"grids": Grid([1.0], [0], -8, 7, axis=2)}, ValueError,
        "grids[0]: axis must be an axis of weight, of shape"),
    "inputs no array": ({"inputs": [[1.0]]}, TypeError, "inputs must be a NumPy array"),
    "inputs float64": ({"inputs": X.astype(float)}, TypeError, "inputs must have the dtype fl"),
    "inputs of a vector": ({"inputs": B}, ValueError, "inputs must have rows and columns"),
    "inputs empty": ({"inputs": X[:0]}, ValueError, "inputs must have rows and columns"),
    "inputs infinite": ({"inputs": np.full_like(X, np.inf)}, ValueError, "inputs must be finite"),
    "inputs too narrow": (
        {"inputs": X[:, :3].copy()}, ValueError,
        "layers[0] must fit rows of shape (3,): input must have the shape (..., 4) for weight of"),
    "a layer too wide": (
        {"layers": [Linear(W), Linear(W)], "grids": [GRID, GRID]}, ValueError,
        "layers[1] must fit rows of shape (2,): input must have the shape (..., 4) for weight of"),
    "images too small": (
        {"layers": Conv2d(normal(0, 1, 1, 3, 3)), "inputs": normal(1, 2, 1, 2, 2)}, ValueError,
        "layers[0] must fit rows of shape (1, 2, 2): weight must have a kernel within the padded"),
    "float_inputs of another shape": (
        {"float_inputs": X[:9]}, ValueError, "float_inputs must have the shape (20, 4), got"),
    "held_out of all": ({"held_out": 1.0}, ValueError, "held_out must be less than 1, got 1.0"),
    "held_out negative": ({"held_out": -0.1}, ValueError, "held_out must be at least 0.0"),
    "held_out leaves nothing": (
        {"held_out": np.arange(20)}, ValueError, "held_out must leave rows to learn from, of 20"),
    "held_out of one row": (
        {"inputs": X[:1]}, ValueError, "held_out must leave rows to learn from, of 1, got a fifth"),
    "held_out beyond": (
        {"held_out": np.array([20])}, ValueError, "held_out must lie within -20..19, got 20..20"),
    "held_out from the end": (
        {"held_out": np.array([3, -21])}, ValueError,
        "held_out must lie within -20..19, got -21..3"),
    "held_out a mask of other rows": (
        {"held_out": np.ones(19, bool)}, ValueError,
        "held_out must have an element for each of 20 rows where it is a mask, got 19"),
    "held_out a mask of all": (
        {"held_out": np.ones(20, bool)}, ValueError, "held_out must leave rows to learn from"),
    "held_out floats": ({"held_out": np.array([1.0, 2])}, TypeError, "held_out must have a dtype"),
    "held_out masked": (
        {"held_out": np.ma.array([0, 99], mask=[0, 1])}, TypeError,
        "held_out must be a NumPy array, got MaskedArray"),
    "held_out a list of floats": (
        {"held_out": [0, 0.5]}, TypeError, "held_out must have a dtype among"),
    "held_out a list of words": (
        {"held_out": ["a"]}, TypeError, "held_out must have a dtype among"),
    "held_out a list beyond": (
        {"held_out": [3, 20]}, ValueError, "held_out must lie within -20..19, got 3..20"),
    "held_out a word": ({"held_out": "some"}, TypeError, "held_out must be a number or an array"),
    "held_out a share beside a Gram": (
        {"inputs": Gram(GRAM), "held_out": 0.2}, TypeError, "held_out must be a Gram or None"),
    "held_out a Gram": ({"held_out": Gram(GRAM)}, TypeError, "held_out must be a share or indices"),
    "held_out rows beside a Gram": (
        {"inputs": Gram(GRAM), "held_out": np.arange(3)}, TypeError, "held_out must be a Gram"),
    "a Gram and float_inputs": (
        {"inputs": Gram(GRAM), "float_inputs": X}, TypeError, "float_inputs must be None beside a"),
    "a Gram and an activation": (
        {"inputs": Gram(GRAM), "layers": Linear(W, activation=ag.relu)}, TypeError,
        "layers must be one Linear without an activation"),
    "a Gram and a convolution": (
        {"inputs": Gram(GRAM), "layers": Conv2d(normal(0, 1, 1, 2, 2))}, TypeError,
        "layers must be one Linear without an activation"),
    "a Gram of another size": (
        {"inputs": Gram(GRAM[:3, :3])}, ValueError, "inputs.inputs must have the shape (4, 4)"),
    "a Gram of integers": (
        {"inputs": Gram(np.eye(4, dtype=int))}, TypeError, "inputs.inputs must have a dtype among"),
    "a Gram with one of two": (
        {"inputs": Gram(GRAM, GRAM)}, ValueError, "inputs must have both cross and floats"),
    "a Gram that is not symmetric": (
        {"inputs": Gram(np.triu(GRAM))}, ValueError, "inputs.inputs must be symmetric"),
    "a Gram with a negative square": (
        {"inputs": Gram(np.diag(np.array([1, 2, -0.5, 3], F32)))}, ValueError,
        "inputs.inputs must have sums of squares on its diagonal, got -0.5"),
    "a Gram of floats with a negative square": (
        {"inputs": Gram(GRAM, GRAM, np.diag(np.array([1, 2, 3, -0.5])))}, ValueError,
        "inputs.floats must have sums of squares on its diagonal, got -0.5"),
    "a Gram of no inputs": (
        {"layers": Linear(np.array([[1, 1, 1, 0]], F32)), "inputs": Gram(1.0 * INDEFINITE)},
        ValueError, "inputs must be sums of products of inputs, which have no negative eigenvalue"),
    "a Gram of no inputs that judges": (
        {"layers": Linear(np.array([[1, 1, 1, 0]], F32)), "inputs": Gram(np.eye(4)),
         "held_out": Gram(1.0 * INDEFINITE)},
        ValueError, "held_out must be sums of products of inputs"),
    "an activation that takes more": (
        {"layers": Linear(W, B, ag.max_pool2d)}, TypeError,
        "layers[0].activation must take what the layer gives: max_pool2d() missing"),
    "a Gram that judges with a negative square": (
        {"inputs": Gram(GRAM), "held_out": Gram(-GRAM)}, ValueError,
        "held_out.inputs must have sums of squares on its diagonal"),
    "a Gram that judges with NaN": (
        {"inputs": Gram(GRAM), "held_out": Gram(GRAM * np.float32(np.nan))}, ValueError,
        "held_out.inputs must be finite"),
    "a Gram with an infinite cross": (
        {"inputs": Gram(GRAM, GRAM * np.float32(np.inf), GRAM)}, ValueError,
        "inputs.cross must be finite"),
    "a Gram with NaN": (
        {"inputs": Gram(GRAM * np.float32(np.nan))}, ValueError, "inputs.inputs must be finite"),
    "gram a word": ({"gram": "yes"}, TypeError, "gram must be a bool or a number, got 'yes'"),
    "batch_size": ({"batch_size": 0}, ValueError, "batch_size must lie within 1.."),
    "steps": ({"steps": 0}, ValueError, "steps must lie within 1.."),
    "steps by far": ({"steps": 10**400}, ValueError, "steps must lie within 1.."),
    "steps half": ({"steps": 1.5}, TypeError, "steps must be an integer, got 1.5"),
    "lr": ({"lr": -1}, ValueError, "lr must be at least 0.0, got -1.0"),
    "lr beyond": ({"lr": 1e39}, ValueError, "lr must be finite in float32, got 1e+39"),
    "lr of a first step beyond": (
        {"lr": 1e38}, ValueError,
        "lr / (1 - 0.9), Adam's first step, must be finite in float32, got 1.00",
    ),
    "lr unknown": ({"lr": nq.ArraySpec((), F32)}, TypeError, "lr must not be an ArraySpec"),
    "reg_param": ({"reg_param": np.nan}, ValueError, "reg_param must be finite"),
    "reg_param beyond": ({"reg_param": 1e39}, ValueError, "reg_param must be finite in float32"),
    "beta_range beyond": ({"beta_range": (1e39, 2)}, ValueError, "beta_range[0] must be finite in"),
    "warm_start": ({"warm_start": 1.0}, ValueError, "warm_start must be less than 1"),
    "beta_range": ({"beta_range": (20, 0.5)}, ValueError, "beta_range[1] must be at least 1.0"),
    "stop_undecided": (
        {"stop_undecided": -1}, ValueError, "stop_undecided must be at least 0.0, got -1.0"),
    "stop_undecided in percent": (
        {"stop_undecided": 1.5}, ValueError, "stop_undecided must be at most 1, got 1.5"),
    "stop_undecided NaN": (
        {"stop_undecided": np.nan}, ValueError, "stop_undecided must be finite, got nan"),
    "keep": ({"keep": "worst"}, ValueError, "keep must be one of best, adaround, got 'worst'"),
    "rng": ({"rng": "seed"}, TypeError, "rng must be a Generator of NumPy, an integer or None"),
    "rng a switch": ({"rng": True}, TypeError, "rng must be a Generator of NumPy, an integer or"),
    "rng negative": ({"rng": -1}, ValueError, "rng must not be negative, got -1"),
    "progress": ({"progress": "bar"}, TypeError, "progress must be a bool or a number, got 'bar'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_argument(case):
    change, error, words = ERRORS[case]
    arguments = {"layers": Linear(W, B), "grids": GRID, "inputs": X, "rng": 0} | change
    with pytest.raises(error, match=re.escape(words)):
        optimize_rounding(**arguments)


def test_arguments_are_not_written_to():
    x, w, b = correlated(0, 50, 8), normal(1, 4, 8), normal(2, 4)
    for array in (x, w, b):
        array.flags.writeable = False
    got = optimize_rounding(Linear(w, b, ag.relu), per_channel(w), x, **QUICK)
    assert not any(np.shares_memory(got.weight, a) for a in (x, w, b))


def test_a_weight_that_no_input_reaches():
    """Its outputs are 0; what is rounded of them is no negative square."""
    rng = np.random.default_rng(0)
    w = np.cross(rng.normal(size=3), rng.normal(size=3))[None].astype(F32)
    u = np.cross(w[0].astype(np.float64), rng.normal(size=3))
    gram = np.outer(u, u)
    assert np.vdot(w[0] @ gram, w[0].astype(np.float64)) < 0
    got = optimize_rounding(Linear(w), per_tensor(w), Gram(gram), **QUICK)
    assert np.isfinite(got.report.loss_adaround)


def test_the_symmetric_part_of_a_gram_matrix_counts():
    """So what is added to one half of it and taken from the other makes no difference."""
    gram = (X.T @ X).astype(np.float64)
    off = np.tril(np.random.default_rng(0).uniform(-4e-4, 4e-4, gram.shape), -1) * abs(gram).max()
    off = np.ldexp(np.rint(np.ldexp(off, 30)), -30)  # so that sums with it are exact
    expected = optimize_rounding(Linear(W), GRID, Gram(gram), **QUICK)
    got = optimize_rounding(Linear(W), GRID, Gram(gram + off - off.T), **QUICK)
    assert_same((got.weight, got.codes), (expected.weight, expected.codes))
    assert got.report == expected.report


def test_rows_held_out_that_overflow():
    x = np.ones((9, 2), F32)
    x[4] = 3e38
    layer, grid = Linear(np.ones((1, 2), F32)), Grid(0.7, 0, -8, 7)
    with pytest.raises(ValueError, match=r"held_out must be of rows of which layers\[0\] gives"):
        optimize_rounding(layer, grid, x, held_out=np.array([4]), **QUICK)


@pytest.mark.parametrize("held_out", [0.0, np.arange(5)])
def test_a_power_that_no_float32_holds_is_compared_in_silence(held_out):
    """NumPy makes a float32 of a Python float beside one, and warns of what overflows."""
    w, x = np.ones((16, 8), F32), np.full((9, 8), 1e19, F32)
    if len(np.atleast_1d(held_out)) > 1:
        x[5:] = 1
    with pytest.raises(ValueError, match=r"mean square is within float32, got 6\.39\d*e\+39"):
        optimize_rounding(Linear(w), Grid(0.7, 0, -8, 7), x, held_out=held_out, **QUICK)


@pytest.mark.parametrize("gram", [False, True])
def test_what_is_next_to_nothing_is_no_error(gram):
    """Of a saturated sigmoid, and of small inputs, as NumPy is told to take it."""
    w, x = normal(0, 6, 8), normal(1, 40, 8)
    saturated = Linear(w * 5, np.full(6, -50, F32), ag.sigmoid)
    with np.errstate(all="raise"):
        optimize_rounding(saturated, Grid(2.0, 0, -20, 20), x, gram=gram, **QUICK)
        optimize_rounding(Linear(w), Grid(0.5, 0, -8, 7), x * np.float32(1e-15), gram=gram, **QUICK)


def test_squares_of_a_batch_that_no_float32_holds():
    """The gradient is that of the differences, and no other number is read."""
    w, x = normal(0, 6, 8), normal(1, 40, 8)
    x[0] *= 1e19
    done = optimize_rounding(
        Linear(w), Grid(5.0, 0, -1, 1), x, gram=False, batch_size=1, held_out=0.0, **QUICK
    )
    assert np.isfinite(done.report.loss_adaround)


def test_what_earlier_layers_put_out_is_refused_in_silence():
    chain = [Linear(normal(0, 6, 8), activation=ag.relu), Linear(normal(2, 6, 6))]
    grids = [Grid(1e25, 0, -8, 7), Grid(0.5, 0, -8, 7)]
    with pytest.raises(ValueError, match=r"the inputs of layers\[1\] must have squares"):
        optimize_rounding(chain, grids, normal(1, 40, 8), keep="adaround", **QUICK)


@pytest.mark.parametrize("wrong", ["inputs", "cross", "floats"])
def test_a_gram_that_no_inputs_have(wrong):
    """A squared error of it may be negative."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    f = x @ (np.eye(6) + 0.4 * rng.normal(size=(6, 6)))
    found = {"inputs": x.T @ x, "cross": x.T @ f, "floats": f.T @ f}
    w, grid = rng.normal(size=(4, 6)).astype(np.float32), Grid(0.5, 0, -4, 3)
    optimize_rounding(Linear(w), grid, Gram(**found), rng=0, steps=2)
    found[wrong] = 10 * found[wrong] if wrong == "cross" else 2 * np.ones((6, 6)) - np.eye(6)
    with pytest.raises(ValueError, match=rf"inputs.{wrong} must be sums of products of inputs"):
        optimize_rounding(Linear(w), grid, Gram(**found), rng=0, steps=2)


@pytest.mark.parametrize("key", ["scale", "zero_point", "quant_min", "quant_max"])
def test_a_grid_of_specs(key):
    kwargs = {"scale": 0.5, "zero_point": 0, "quant_min": -4, "quant_max": 3}
    kwargs[key] = nq.ArraySpec((), np.float32 if key == "scale" else np.int64)
    w = np.ones((4, 6), np.float32)
    with pytest.raises(TypeError, match=rf"{key} must be numbers, got an ArraySpec"):
        optimize_rounding(Linear(w), Grid(**kwargs), w, rng=0, steps=2)
