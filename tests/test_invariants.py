"""What holds for every input: the grid, idempotence, order, distance, symmetry of the channels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npquant as nq
from cases import assert_same

LO, HI = -8, 7
ROWS, COLUMNS = 3, 8

# Each fake quantizer takes x of (ROWS, COLUMNS) and qparams of (ROWS, 2), one for each half of a
# row; it uses those of the first half of the row, or of the first row, where it has fewer.


def _groups(x, s, z):
    return nq.fake_quantize_learnable_per_channel_group_affine(x, s, z, LO, HI, COLUMNS // 2)


def _tokens(x, s, z):
    return nq.fake_quantize_learnable_per_token_affine(x, s[:, :1], z[:, :1], LO, HI)


def _channels(x, s, z):
    return nq.fake_quantize_per_channel_affine(x, s[:, 0], z[:, 0], 0, LO, HI)


def _learned_channels(x, s, z):
    return nq.fake_quantize_learnable_per_channel_affine(
        x, s[:, 0], z[:, 0].astype(np.float32), 0, LO, HI
    )


def _decomposed(x, s, z):
    return nq.fake_quant_per_channel(x, s[:, 0], z[:, 0], 0, LO, HI)


def _tensor(x, s, z):
    return nq.fake_quantize_per_tensor_affine(x, s[0, :1], z[0, :1], LO, HI)


#: name -> (the op, its qparams (ROWS, 2) as they apply to the two halves of each row).
FAKE = {
    "per tensor": (_tensor, lambda p: np.full_like(p, p[0, 0])),
    "per channel": (_channels, lambda p: np.repeat(p[:, :1], 2, axis=1)),
    "decomposed": (_decomposed, lambda p: np.repeat(p[:, :1], 2, axis=1)),
    "learned per channel": (_learned_channels, lambda p: np.repeat(p[:, :1], 2, axis=1)),
    "learned per token": (_tokens, lambda p: np.repeat(p[:, :1], 2, axis=1)),
    "learned per group": (_groups, lambda p: p),
}

every_fake = pytest.mark.parametrize("name", FAKE)

numbers = st.floats(-100, 100, width=32)


@st.composite
def calls(draw):
    """Return x, scales and zero points: some values ties, some exact, some anywhere."""
    s = draw(st.lists(st.floats(2**-10, 4, width=32), min_size=2 * ROWS, max_size=2 * ROWS))
    z = draw(st.lists(st.integers(LO, HI), min_size=2 * ROWS, max_size=2 * ROWS))
    s, z = np.array(s, np.float32).reshape(ROWS, 2), np.array(z, np.int32).reshape(ROWS, 2)
    halves = st.integers(2 * LO - 16, 2 * HI + 16).map(lambda n: n / 2)
    steps = draw(st.lists(halves | numbers, min_size=ROWS * COLUMNS, max_size=ROWS * COLUMNS))
    x = np.array(steps, np.float32).reshape(ROWS, COLUMNS)
    return (x * np.repeat(s, COLUMNS // 2, axis=1)).astype(np.float32), s, z


def spread(name, p):
    """Return the qparams of every element, in float64."""
    return np.repeat(FAKE[name][1](p), COLUMNS // 2, axis=1).astype(np.float64)


@every_fake
@given(calls())
def test_output_is_on_the_grid(name, call):
    x, s, z = call
    y = FAKE[name][0](x, s, z)
    s, z = spread(name, s), spread(name, z)
    code = np.rint(y / s) + z  # the quotient is within 1e-6 of an integer
    assert ((code >= LO) & (code <= HI)).all()
    assert_same(y, ((code - z) * s).astype(np.float32) + np.float32(0) * y)


@every_fake
@given(calls())
def test_idempotent(name, call):
    x, s, z = call
    once = FAKE[name][0](x, s, z)
    np.testing.assert_array_equal(FAKE[name][0](once, s, z), once)


@every_fake
@given(calls())
def test_monotone(name, call):
    x, s, z = call
    if name == "learned per group":
        x = np.sort(x.reshape(ROWS, 2, -1)).reshape(x.shape)
        y = FAKE[name][0](x, s, z).reshape(ROWS, 2, -1)
    else:
        y = FAKE[name][0](np.sort(x), s, z)
    assert (np.diff(y) >= 0).all()


@every_fake
@given(calls())
def test_error_is_half_a_step(name, call):
    """Inside the range; beyond it, the output is the end of the range.

    The code is that of x * (1 / s), which is x / s with two roundings, each a part of 2**-24; so
    the tie may move by 2 * 2**-24 * |x| and a little, and the output is rounded once more.
    """
    x, s, z = call
    y = FAKE[name][0](x, s, z).astype(np.float64)
    s, z, x = spread(name, s), spread(name, z), x.astype(np.float64)
    low, high = (LO - z) * s, (HI - z) * s
    slack = 4 * 2.0**-24 * (np.abs(x) + s)
    nearest = np.clip(x, low, high)
    assert (np.abs(nearest - y) <= s / 2 + slack).all()
    assert (np.abs(np.clip(y, low, high) - y) <= slack).all()


@every_fake
@given(calls(), st.permutations(range(ROWS)))
def test_permuted_channels(name, call, order):
    x, s, z = call
    if name == "per tensor":
        s, z = np.full_like(s, s[0, 0]), np.full_like(z, z[0, 0])
    fake = FAKE[name][0]
    assert_same(fake(x[order], s[order], z[order]), fake(x, s, z)[order])


@given(calls(), st.permutations(range(ROWS)))
def test_permuted_channels_permute_gradients(call, order):
    x, s, z = call
    s, z = s[:, 0], z[:, 0].astype(np.float32)
    backward = nq.fake_quantize_learnable_per_channel_affine_backward
    g = np.cos(x)
    got = backward(g[order], x[order], s[order], z[order], 0, LO, HI)
    assert_same(got, tuple(y[order] for y in backward(g, x, s, z, 0, LO, HI)))


@given(calls())
def test_quantize_and_dequantize_are_fake_quantize(call):
    """The decomposed ops are the two halves of the decomposed fake quantize."""
    x, s, z = call
    s, z = s[:, 0], z[:, 0]
    q = nq.quantize_per_channel(x, s, z, 0, LO, HI, np.int8)
    y = nq.dequantize_per_channel(q, s, z, 0, LO, HI, np.int8)
    assert_same(y, nq.fake_quant_per_channel(x, s, z, 0, LO, HI))


@given(calls())
def test_codes_survive_the_round_trip(call):
    """Dequantized codes quantize to themselves, by channel and by group."""
    x, s, z = call
    bounds = LO, HI, np.int8
    q = nq.quantize_per_channel(x, s[:, 0], z[:, 0], 0, *bounds)
    again = nq.dequantize_per_channel(q, s[:, 0], z[:, 0], 0, *bounds)
    assert_same(nq.quantize_per_channel(again, s[:, 0], z[:, 0], 0, *bounds), q)
    q = nq.quantize_per_channel_group(x, s, z, *bounds, COLUMNS // 2)
    again = nq.dequantize_per_channel_group(q, s, z, *bounds, COLUMNS // 2)
    assert_same(nq.quantize_per_channel_group(again, s, z, *bounds, COLUMNS // 2), q)


@given(calls())
def test_masked_gradient(call):
    """The gradient passes where the mask is true, and is zero elsewhere."""
    x, s, z = call
    _, mask = nq.fake_quantize_per_channel_affine_cachemask(x, s[:, 0], z[:, 0], 0, LO, HI)
    grad = nq.fake_quantize_per_channel_affine_cachemask_backward(x, mask)
    np.testing.assert_array_equal(grad, np.where(mask, x, 0))
    code = np.rint(x.astype(np.float64) / spread("per channel", s)) + spread("per channel", z)
    inside = (code >= LO) & (code <= HI)
    edge = np.abs(np.abs(code - (LO + HI) / 2) - (HI - LO + 1) / 2) < 1  # a tie at a bound
    assert (mask == inside)[~edge].all()


@given(calls())
def test_chosen_qparams_cover_the_data(call):
    """What is quantized with the qparams chosen from it is at most one step from itself."""
    x = call[0]
    scale, zero_point = nq.choose_qparams(x, -128, 127, 1e-5, np.int8)
    q = nq.quantize_per_tensor(x, scale, zero_point, -128, 127, np.int8)
    y = nq.dequantize_per_tensor(q, scale, zero_point, -128, 127, np.int8)
    assert (np.abs(y - x) <= scale * (1 + 1e-5)).all()
