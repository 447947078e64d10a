"""GPTQ: the textbook loop, written plainly; better than nearest; what is refused."""

from contextlib import nullcontext

import numpy as np
import pytest

from cases import assert_same
from npquant import ArraySpec, dequantize_per_tensor
from npquant.gptq import gptq

F32, F64 = np.float32, np.float64
BITS = (-4, 3)


def problem(rows=6, columns=40, seed=0, dtype=F32):
    """A weight, and the Gram matrix of inputs that go together."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(400, columns)) @ rng.normal(size=(columns, columns))
    inputs = mixed + 0.3 * rng.normal(size=(400, columns))
    weight = rng.normal(size=(rows, columns)).astype(dtype)
    return weight, (inputs.T @ inputs / 400).astype(F64)


def scales(weight, axis=1):
    return (np.abs(weight).max(axis=axis) / 3.5).astype(F32)


def textbook(weight, gram, scale, zero_point, damping, order):
    """Frantar et al., equations 2 and 3: no Cholesky factor, no blocks.

    After each column its row and column are taken out of the inverse by one step of elimination.
    """
    w, h = weight.astype(F64), gram.copy()
    dead = np.diag(h) == 0
    mean = np.mean(np.diag(h))
    h[dead, dead] = mean
    w[:, dead] = 0
    inverse = np.linalg.inv(h + damping * mean * np.eye(len(h)))
    codes = np.zeros(w.shape, np.int32)
    for j in order:
        q = np.clip(np.rint(w[:, j] / scale[:, j]) + zero_point[:, j], *BITS)
        codes[:, j] = q
        error = (w[:, j] - (q - zero_point[:, j]) * scale[:, j]) / inverse[j, j]
        w = w - np.outer(error, inverse[j])
        inverse = inverse - np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return codes


def change(weight, values, gram):
    """The mean squared change of the outputs."""
    d = values.astype(F64) - weight
    return np.trace(d @ gram @ d.T)


@pytest.mark.parametrize("order", ["natural", "activation"])
@pytest.mark.parametrize("block", [1, 7, 128])
@pytest.mark.parametrize("layout", ["rows", "columns", "groups", "one"])
def test_textbook(layout, block, order, monkeypatch):
    """A rounding error decides a code only next to a tie; there is none in these data."""
    monkeypatch.setattr("npquant.gptq.ROWS", 4)  # some of these, then the rest
    weight, gram = problem()
    gram[:, 5] = gram[5] = 0  # a dead column
    rng = np.random.default_rng(1)
    shape, where = {
        "rows": ((6, 1), {}),
        "columns": ((1, 40), {"axis": 1}),
        "groups": ((6, 5), {"group_size": 8}),
        "one": ((1, 1), {"axis": None}),
    }[layout]
    s = rng.uniform(0.4, 0.8, shape).astype(F32)
    z = rng.integers(-2, 2, shape).astype(np.int32)
    scale, zero_point = (
        np.repeat(p, 8, axis=1) if layout == "groups" else np.broadcast_to(p, weight.shape)
        for p in (s.astype(F64), z)
    )
    diagonal = np.where(np.diag(gram) == 0, np.mean(np.diag(gram)), np.diag(gram))
    columns = range(40) if order == "natural" else np.argsort(-diagonal, kind="stable")
    expected = textbook(weight, gram, scale, zero_point, 0.01, columns)
    if layout != "groups":
        s, z = (s.reshape(-1), z.reshape(-1)) if layout != "one" else (float(s[0, 0]), int(z[0, 0]))
    values, codes = gptq(weight, gram, s, z, *BITS, **where, block=block, order=order)
    assert_same(codes, expected)
    assert_same(values, ((codes - zero_point) * scale).astype(F32))
    assert (codes[:, 5] == np.clip(zero_point[:, 5], *BITS)).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("order", ["natural", "activation"])
def test_better_than_nearest(order, seed):
    weight, gram = problem(20, 60, seed)
    s = scales(weight)
    values, _ = gptq(weight, gram, s, np.zeros(20, int), *BITS, order=order)
    nearest = np.clip(np.rint(weight / s[:, None]), *BITS) * s[:, None]
    # About half of it in these data; rounding to nearest in another order would be all of it.
    assert change(weight, values, gram) < 0.7 * change(weight, nearest, gram)


def test_inputs_that_have_nothing_in_common():
    """Then there is nothing to make up for: GPTQ is rounding to nearest."""
    weight, _ = problem()
    s = scales(weight)
    values, codes = gptq(weight, np.eye(40), s, np.zeros(6, int), *BITS)
    assert_same(codes, np.clip(np.rint(weight / s[:, None].astype(F64)), *BITS).astype(np.int32))
    assert values.dtype == F32


def test_arguments_are_only_read_and_repeat():
    weight, gram = problem()
    s, z = scales(weight), np.zeros(6, int)
    before = weight.copy(), gram.copy()
    first = gptq(weight, gram, s, z, *BITS, order="activation")
    assert_same((weight, gram), before)
    laid = np.asfortranarray(weight), np.asfortranarray(gram)
    assert_same(gptq(*laid, s, z, *BITS, order="activation"), first)
    big = gptq(weight, gram * 1024, s, z, *BITS, order="activation")
    assert_same(big, first, "the size of the Gram matrix makes no difference")
    gram[:, 5] = gram[5] = 0  # a dead column
    first = gptq(weight, gram, s, z, *BITS)
    assert_same(gptq(weight, gram / 2**40, s, z, *BITS), first, "nor where a column is dead")
    alone = gptq(weight, np.eye(40), s, z, *BITS)
    for size in (1e-310, 1e308):  # beyond which float64 ends, as does the inverse
        assert_same(gptq(weight, np.eye(40) * size, s, z, *BITS), alone, size)


def test_dtypes_and_no_elements():
    weight, gram = problem(dtype=F64)
    values, codes = gptq(weight, gram.astype(F32), 0.5, 0, *BITS, axis=None)
    assert (values.dtype, codes.dtype) == (F64, np.int32)
    values, codes = gptq(weight, gram, 0.1, 0, *BITS, axis=None)
    assert_same(values, codes * F64(F32(0.1)), "one scale is a float32, as many are")
    values, codes = gptq(weight[:0], gram, 0.5, 0, *BITS, axis=None)
    assert values.shape == codes.shape == (0, 40)


@pytest.mark.parametrize("order", ["natural", "activation"])
@pytest.mark.parametrize("memory", ["C", "F"])
def test_results_lie_as_the_weight_does(memory, order):
    weight, gram = problem()
    kwargs = {"axis": None, "order": order}
    wanted = gptq(weight, gram, 0.5, 0, *BITS, **kwargs)
    got = gptq(np.asarray(weight, order=memory), gram, 0.5, 0, *BITS, **kwargs)
    assert_same(got, wanted)
    assert all(a.flags[f"{memory}_CONTIGUOUS"] for a in got)


@pytest.mark.parametrize("name", ["scale", "zero_point"])
def test_one_number_has_a_value(name):
    numbers = {"scale": 0.5, "zero_point": 0, name: ArraySpec((1,), F32)}
    with pytest.raises(TypeError, match=f"{name} must not be an ArraySpec"):
        gptq(WEIGHT, GRAM, quant_min=-4, quant_max=3, axis=None, **numbers)


def test_inputs_that_were_never_there():
    weight, gram = problem()
    values, codes = gptq(weight, 0 * gram, 0.5, 2, *BITS, axis=None)
    assert_same((values, codes), (np.zeros_like(weight), np.full(weight.shape, 2, np.int32)))


def test_no_inputs_have_nothing_in_common_with_others():
    """Sums of squares that are 0 beside sums of products that are not: no inputs have these."""
    gram = np.array([[1, 0.6], [0.6, 0]])
    words = "gram must be positive semidefinite, got a 0 on its diagonal beside others"
    for order in ("natural", "activation"):
        with pytest.raises(ValueError, match=words):
            gptq(F32([[0.5, 0.4]]), gram, 1.0, 0, -8, 7, axis=None, damping=0.0, order=order)


def test_squares_that_float32_loses_are_those_of_no_inputs():
    """Their products with others are not lost: of a feature that is 0 but for 1e-25."""
    x = F32([[1e-25, 1, 0], [-2e-25, 0, 1], [1e-25, 1, 1]])
    gram = x.T @ x
    assert gram[0, 0] == 0
    assert gram[0, 1] != 0
    weight = F32([[0.5, 0.4, -0.3]])
    values, codes = gptq(weight, gram, 0.25, 0, -8, 7, axis=None, damping=0.0)
    assert values[0, 0] == codes[0, 0] == 0
    rest = gptq(weight[:, 1:], gram[1:, 1:], 0.25, 0, -8, 7, axis=None, damping=0.0)
    assert_same((values[:, 1:], codes[:, 1:]), rest)


@pytest.mark.parametrize(("off", "accepted"), [(0.99e-3, True), (1.01e-3, False)])
def test_symmetric_to_a_relative_1e_3(off, accepted):
    weight, gram = problem()
    gram[0, 1] += off * gram.max()
    with nullcontext() if accepted else pytest.raises(ValueError, match="gram must be symmetric"):
        gptq(weight, gram, scales(weight), np.zeros(6, int), *BITS)


def test_the_symmetric_part_of_a_gram_matrix_counts():
    """As in ``trace((Q - W) @ G @ (Q - W).T)``: its lower half alone would give other codes."""
    differ = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(200, 12)) * 10.0 ** rng.uniform(-1.2, 0, 12)
        gram, w = x.T @ x, rng.normal(size=(6, 12)).astype(F32)
        off = np.tril(rng.uniform(-4e-4, 4e-4, (12, 12)), -1) * abs(gram).max()
        args = np.full(6, 0.25), np.zeros(6, int), -8, 7
        expected = gptq(w, gram, *args, damping=0.001)
        for skew in (off - off.T, off.T - off):
            assert_same(gptq(w, gram + skew, *args, damping=0.001)[1], expected[1])
        lower = np.tril(gram + 2 * off) + np.tril(gram + 2 * off, -1).T
        differ += (gptq(w, lower, *args, damping=0.001)[1] != expected[1]).any()
    assert differ > 0


WEIGHT, GRAM = problem(4, 8)


@pytest.mark.parametrize("rows", [0, 4])
def test_a_negative_square_is_refused(rows):
    """Though damping would make up for it; -0.0 is a 0."""
    for square, accepted in ((-1e-6, False), (-0.0, True)):
        gram = np.diag(np.full(8, 1.0))
        gram[5, 5] = square
        words = "gram must have sums of squares on its diagonal, got -1e-06"
        with nullcontext() if accepted else pytest.raises(ValueError, match=words):
            gptq(WEIGHT[:rows], gram, 0.5, 0, *BITS, axis=None)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("weight", [[1.0]], TypeError),
        ("weight", WEIGHT.astype(np.float16), TypeError),
        ("weight", WEIGHT[0], ValueError),
        ("weight", np.full((4, 8), np.nan), ValueError),
        ("weight", np.full((4, 8), 3.5e38), ValueError),
        ("gram", None, TypeError),
        ("gram", GRAM[:4], ValueError),
        ("gram", GRAM.astype(complex), TypeError),
        ("gram", np.full((8, 8), np.inf), ValueError),
        ("gram", GRAM + np.triu(np.full((8, 8), 9.0)), ValueError),
        ("gram", -GRAM, ValueError),
        ("gram", np.ones((8, 8)) - 2 * np.eye(8), ValueError),
        ("gram", np.ones((8, 8)) - 0.5 * np.eye(8), ValueError),
        ("scale", np.ones(8, F32), ValueError),
        ("scale", np.array([1, 1, 1, -1], F32), ValueError),
        ("zero_point", np.array([0, 0, 0, 9]), ValueError),
        ("zero_point", None, TypeError),
        ("quant_min", 5, ValueError),
        ("quant_max", 2**24, ValueError),
        ("axis", 2, ValueError),
        ("axis", 0.5, TypeError),
        ("group_size", 3, ValueError),
        ("block", 0, ValueError),
        ("block", 1.5, TypeError),
        ("damping", -1, ValueError),
        ("damping", "1", TypeError),
        ("order", "random", ValueError),
        ("order", None, TypeError),
        ("scale", ArraySpec((4,), F32), TypeError),
        ("zero_point", ArraySpec((4,), np.int32), TypeError),
        ("quant_min", ArraySpec((), np.int32), TypeError),
        ("damping", ArraySpec((), F32), TypeError),
    ],
)
def test_wrong_arguments(name, value, error):
    qparams = {"scale": np.ones(4, F32), "zero_point": np.zeros(4, int)}
    kwargs = {"weight": WEIGHT, "gram": GRAM, **qparams, "quant_min": -4, "quant_max": 3}
    with pytest.raises(error, match=name):
        gptq(**kwargs | {name: value})


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_that_compute_otherwise():
    for wrong in (np.matrix(WEIGHT), np.ma.asarray(WEIGHT)):
        kind = type(wrong).__name__
        with pytest.raises(TypeError, match=f"weight must be a NumPy array, got {kind}, "):
            gptq(wrong, GRAM, 1.0, 0, *BITS, axis=None)


def test_the_weight_is_named_where_it_has_no_such_axis():
    with pytest.raises(ValueError, match="axis must be an axis of weight, of shape"):
        gptq(WEIGHT, GRAM, np.ones(4, F32), np.zeros(4, int), *BITS, axis=5)


def test_groups_stand_in_place_of_an_axis():
    s, z = np.ones((4, 2), F32), np.zeros((4, 2), int)
    gptq(WEIGHT, GRAM, s, z, *BITS, axis=None, group_size=4)
    for wrong in (1, -2, np.array([0, 1])):
        with pytest.raises((TypeError, ValueError), match="axis"):
            gptq(WEIGHT, GRAM, s, z, *BITS, axis=wrong, group_size=4)


def test_fractional_zero_points_are_truncated_first():
    """And then held against the bounds, as of one number."""
    w, gram = problem()
    whole = gptq(w, gram, scales(w), np.full(6, 3), *BITS)
    for got, expected in zip(gptq(w, gram, scales(w), np.full(6, 3.9), *BITS), whole, strict=True):
        assert_same(got, expected)
    with pytest.raises(ValueError, match=r"zero_point must lie within -4\.\.3"):
        gptq(w, gram, scales(w), np.full(6, 4.0), *BITS)


def test_the_size_of_gram_makes_no_difference():
    """Not beside a damping that is large, nor where another square is so small that it is lost."""
    weight, gram = problem()
    args = (0.5, 0, *BITS)
    exponent = int(np.frexp(np.abs(gram).max())[1])
    for damping in (0.01, 1e160):
        expected = gptq(weight, gram, *args, axis=None, damping=damping)
        for size in (2.0**-600, 2.0 ** (498 - exponent), 2.0**600):
            got = gptq(weight, gram * np.float64(size), *args, axis=None, damping=damping)
            assert_same(got, expected)
    far = np.diag([2.0**600, 2.0**-500])
    weight = np.array([[1.6, 1.6]], F32)
    assert gptq(weight, far, 1.0, 0, *BITS, axis=None)[1].tolist() == [[2, 2]]
    lost = np.diag([1e200, 1e-300])
    assert gptq(weight, lost, 1.0, 0, *BITS, axis=None, damping=0)[1].tolist() == [[2, 0]]


def test_what_is_next_to_nothing_is_no_error():
    """Where NumPy raises what it ignores otherwise."""
    weight = np.array([[1.6, 1e-38]], F32)
    for far in (np.diag([2.0**600, 5e-324]), np.diag([1.0, 1e-300])):
        with np.errstate(all="raise"):
            got = gptq(weight, far, 1.0, 0, *BITS, axis=None)
        assert_same(got, gptq(weight, far, 1.0, 0, *BITS, axis=None))
        assert got[1].tolist() == [[2, 0]]


def test_a_value_that_no_float32_holds_is_infinite_as_dequantized():
    """What the first column misses carries the second one's code beyond."""
    weight, gram = np.array([[1.4e38, 3.3e38]], F32), np.array([[1.0, 0.9], [0.9, 1.0]])
    with np.errstate(all="raise"):
        values, codes = gptq(weight, gram, 1e38, 0, -8, 7, axis=None)
    assert codes.tolist() == [[1, 4]]
    assert_same(values, dequantize_per_tensor(codes, 1e38, 0, -8, 7, np.int32))
    assert values[0, 1] == np.inf


def test_without_damping_a_singular_matrix_is_refused():
    """Not silently helped along."""
    gram = np.ones((8, 8))
    args = WEIGHT, gram, np.ones(4, F32), np.zeros(4, int), *BITS
    gptq(*args, damping=0.01)
    with pytest.raises(ValueError, match="gram"):
        gptq(*args, damping=0)


def test_a_gram_whose_inverse_overflows():
    """Its numbers are the squares of those that are computed with."""
    gram = np.diag([1e-300, 1e300, 1, 1e-10, 1e10, 0.0])
    w = np.full((1, 6), 0.3)
    values, codes = gptq(w, gram, [0.1], [0], -128, 127, damping=0.0)
    assert codes.tolist() == [[0, 3, 3, 3, 3, 0]]
    np.testing.assert_array_equal(values, codes * np.float64(np.float32(0.1)))
