"""The demo: what it computes, what it prints, how the command ends, and the script that trained it.

The numbers are checked against theory and against literals measured once, not against npquant.
"""

import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import asdict, fields
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib import image

import npquant as nq
from npquant import cli
from npquant.demo import Report, Row, evaluate, run
from npquant.demo.digits import Layer, load_digits, load_network

WAYS = list(product([8, 4, 3, 2], ["tensor", "channel", "group"], ["symmetric", "affine"]))


@pytest.fixture(scope="module")
def report() -> Report:
    return run()


@pytest.fixture
def same_report(report: Report, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Make the command print this report, so that its outputs can be compared."""
    monkeypatch.setattr(cli, "run", lambda: report)
    return report


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if the demo gets to work: what is wrong must be found out before."""
    monkeypatch.setattr(cli, "run", lambda: pytest.fail("the demo ran"))


# Data


def test_digits_are_those_of_the_collection() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 64)
    assert (images.min(), images.max()) == (0, 1)
    # Measured once on sklearn.datasets.load_digits().
    assert (images * 16).sum() == 561718
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_network_has_the_shape_it_is_said_to_have() -> None:
    layers, test_index = load_network()
    assert [layer.weight.shape for layer in layers] == [(32, 64), (32, 32), (10, 32)]
    assert [layer.bias.shape for layer in layers] == [(32,), (32,), (10,)]
    assert {array.dtype for layer in layers for array in layer} == {np.dtype(np.float32)}
    assert len(np.unique(test_index)) == 500


# Numbers


def test_float_accuracy(report: Report) -> None:
    # The two best scores of an image differ by 0.037 or more: no BLAS can swap them.
    assert report.accuracy_float == 97.0


def test_every_combination_has_one_row(report: Report) -> None:
    assert [(row.bits, row.granularity, row.scheme) for row in report.rows] == WAYS


@pytest.mark.parametrize("way", WAYS)
def test_sqnr_is_what_theory_says(report: Report, way: tuple[int, str, str]) -> None:
    """Rounding to a grid of step s makes noise of power s^2 / 12, when s is small."""
    bits, granularity, scheme = way
    signal = noise = 0.0
    for layer in load_network().layers:
        weight = layer.weight.astype(np.float64)
        outputs, inputs = weight.shape
        sets = weight.reshape(
            {"tensor": 1, "channel": outputs, "group": outputs * inputs // 16}[granularity], -1
        )
        low, high = np.minimum(sets.min(axis=1), 0), np.maximum(sets.max(axis=1), 0)
        span = high - low if scheme == "affine" else 2 * np.maximum(-low, high)
        step = span / (2**bits - 1)
        noise += sets.shape[1] * float(np.sum(step**2)) / 12
        if scheme == "symmetric":
            # An odd number of steps in all: the largest weight of a set lies between two codes,
            # so its error is s / 2, not uniform.
            noise += float(np.sum(step**2)) * (1 / 4 - 1 / 12)
        signal += float(np.sum(weight**2))
    expected_db = 10 * math.log10(signal / noise)
    assert row_of(report, way).sqnr_db == pytest.approx(expected_db, abs=0.3)


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
def test_more_bits_less_noise(report: Report, granularity: str, scheme: str) -> None:
    sqnr = [row_of(report, (bits, granularity, scheme)).sqnr_db for bits in (8, 4, 3, 2)]
    # A range has 2^bits - 1 steps, and noise goes with the step: 24.6, 6.6 and 7.4 dB.
    steps = [255, 15, 7, 3]
    assert [more - less for more, less in pairwise(sqnr)] == pytest.approx(
        [20 * math.log10(more / less) for more, less in pairwise(steps)], abs=0.4
    )


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_finer_scales_less_noise(report: Report, bits: int, scheme: str) -> None:
    # The range of a part lies in the range of the whole, so no step is larger.
    tensor, channel, group = (
        row_of(report, (bits, granularity, scheme)).sqnr_db
        for granularity in ("tensor", "channel", "group")
    )
    assert tensor + 2 < channel
    assert channel + 0.5 < group


@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_affine_less_noise(report: Report, bits: int, granularity: str) -> None:
    # An affine step covers the range, a symmetric one twice its larger half.
    assert (
        row_of(report, (bits, granularity, "affine")).sqnr_db
        > row_of(report, (bits, granularity, "symmetric")).sqnr_db
    )


def test_eight_bits_cost_nothing_and_two_bits_much(report: Report) -> None:
    for row in report.rows:
        for accuracy in (row.accuracy_weights, row.accuracy_weights_activations):
            if row.bits == 8:
                assert accuracy == pytest.approx(97.0, abs=0.6)
            if row.bits == 2:
                assert 30 < accuracy < 92


def test_activations_are_quantized_too(report: Report) -> None:
    different = [r for r in report.rows if r.accuracy_weights != r.accuracy_weights_activations]
    assert different
    for row in different:  # 8 bits change few answers
        assert row.accuracy_weights_activations == pytest.approx(row.accuracy_weights, abs=1)


def test_times_are_sane(report: Report) -> None:
    for microseconds in (report.activations_us, *(row.quantize_us for row in report.rows)):
        assert 0 < microseconds < 1e6 * report.total_s
    assert 0 < report.first_pass_s < report.total_s


@pytest.mark.parametrize("way", evaluate.WAYS)
def test_a_weight_comes_back_within_half_a_step(way: evaluate.Way) -> None:
    for layer in load_network().layers:
        quantized = evaluate.quantize_weight(layer.weight, way)
        restored = evaluate.dequantize_weight(quantized, way)
        assert restored.dtype == np.float32
        codes = quantized.codes.astype(np.int64)
        assert codes.min() >= -(2 ** (way.bits - 1))
        assert codes.max() < 2 ** (way.bits - 1)
        if way.scheme == "symmetric":
            assert not quantized.zero_point.any()

        # A row for each scale.
        error = np.abs(restored - layer.weight).reshape(quantized.scale.size, -1)
        assert np.all(error <= quantized.scale.reshape(-1, 1) * (0.5 + 1e-4))


def test_codes_have_the_narrowest_dtype_used() -> None:
    weight = load_network().layers[0].weight
    names = {
        bits: evaluate.quantize_weight(weight, evaluate.Way(bits, "tensor", "affine")).codes.dtype
        for bits in (8, 4, 3, 2)
    }
    assert {bits: dtype.name for bits, dtype in names.items()} == {
        8: "int8",
        4: "int4",
        3: "int4",
        2: "int4",
    }


# The command


def test_json_holds_every_field(same_report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == asdict(same_report)
    assert {field.name for field in fields(Row)} == set(json.loads(out)["rows"][0])
    assert err == ""


def test_text_and_json_say_the_same(
    same_report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert cli.main(["demo"]) == 0
    text = capsys.readouterr().out

    lines = [line.split() for line in text.splitlines()]
    assert ["float", f"{measured['accuracy_float']:.1f}"] in lines
    table = [words for words in lines if words and words[0] in {"8", "4", "3", "2"}]
    assert table == [
        [
            str(row["bits"]),
            row["granularity"],
            row["scheme"],
            f"{row['sqnr_db']:.1f}",
            f"{row['accuracy_weights']:.1f}",
            f"{row['accuracy_weights_activations']:.1f}",
            f"{row['quantize_us']:.0f}",
        ]
        for row in measured["rows"]
    ]
    assert f"takes {measured['activations_us']:.0f} us" in text
    assert f"In all: {measured['total_s']:.1f} s" in text
    assert f"median of {measured['repeats']} runs" in text
    here = measured["environment"]
    header = text.split("\n\n")[0]
    for name in ("npquant", "Python", "NumPy", "Numba"):
        assert f"{name} {here[name.lower()]}" in header
    assert here["cpu"] in header
    assert f"threads: {here['threads']}" in header


def test_text_fits_100_columns_and_is_aligned(
    same_report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["demo"])
    lines = capsys.readouterr().out.splitlines()
    # The name of the processor is not ours to shorten.
    assert all(len(line) <= 100 for line in lines if same_report.environment.cpu not in line)
    assert len({len(line) for line in lines if line.split()[1:2] in (["group"], ["tensor"])}) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"npquant {nq.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "COMMAND"),
        (["dance"], "'dance'"),
        (["demo", "--bits", "8"], "--bits"),
        (["demo", "--plot"], "--plot"),
    ],
)
@pytest.mark.usefixtures("no_run")
def test_wrong_arguments(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_plot_writes_a_picture(
    same_report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "accuracy.png"
    assert cli.main(["demo", "--json", "--plot", str(path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == asdict(same_report)  # still pure
    assert str(path) in err
    picture = image.imread(path)[..., :3]
    assert picture.shape == (675, 1500, 3)
    # The colours of the three granularities are there.
    for colour in ("d55e00", "0072b2", "009e73"):
        rgb = np.frombuffer(bytes.fromhex(colour), np.uint8) / 255
        assert np.sum(np.all(np.abs(picture - rgb) < 0.01, axis=-1)) > 1000


@pytest.mark.usefixtures("no_run")
def test_plot_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "npquant.demo.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it raises ImportError
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "accuracy.png"
    assert cli.main(["demo", "--plot", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "pip install matplotlib" in err
    assert not path.exists()


@pytest.mark.parametrize("name", ["missing/accuracy.png", ".", "accuracy.doc"])
@pytest.mark.usefixtures("no_run")
def test_plot_that_cannot_be_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert cli.main(["demo", "--plot", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"npquant demo: --plot cannot write {path}: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
@pytest.mark.usefixtures("same_report")
def test_plot_on_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--plot", "/dev/full"]) == 2
    assert "No space left" in capsys.readouterr().err


def test_the_command_imports_nothing_optional() -> None:
    code = "import sys, npquant.cli; print({'matplotlib', 'sklearn', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# The script that trained the network


@pytest.fixture(scope="module")
def train_digits() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "train_digits.py"
    spec = importlib.util.spec_from_file_location("train_digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gradients_are_those_of_the_loss(train_digits: ModuleType) -> None:
    rng: Any = np.random.default_rng(5)  # Any: layers are float32, this check needs float64
    layers = [
        Layer(rng.standard_normal((6, 4)), rng.standard_normal(6)),
        Layer(rng.standard_normal((3, 6)), rng.standard_normal(3)),
    ]
    x, labels = rng.standard_normal((7, 4)), rng.integers(3, size=7)

    def loss() -> float:
        hidden = np.maximum(x @ layers[0].weight.T + layers[0].bias, 0)
        scores = hidden @ layers[1].weight.T + layers[1].bias
        probability = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return float(-np.log(probability[np.arange(7), labels]).mean())

    found = train_digits.gradients(layers, x, labels)
    for array, grad in zip([a for layer in layers for a in layer], found, strict=True):
        for index in np.ndindex(array.shape):
            here = array[index]
            array[index] = here + 1e-5
            above = loss()
            array[index] = here - 1e-5
            below = loss()
            array[index] = here
            assert grad[index] == pytest.approx((above - below) / 2e-5, abs=1e-6)


def test_training_reaches_the_shipped_accuracy(
    train_digits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.npz"
    assert train_digits.main(["--write", str(path)]) == 0
    percent = float(capsys.readouterr().out.splitlines()[1].split()[3])
    assert percent == pytest.approx(97.0, abs=1.5)  # another BLAS, another network

    layers, test_index = load_network()
    with np.load(path) as written:
        assert np.array_equal(written["test_index"], test_index)
        assert {name: array.shape for name, array in written.items()} == {
            "test_index": (500,),
            **{f"weight{i}": layer.weight.shape for i, layer in enumerate(layers)},
            **{f"bias{i}": layer.bias.shape for i, layer in enumerate(layers)},
        }


def row_of(report: Report, way: tuple[int, str, str]) -> Row:
    (row,) = (r for r in report.rows if (r.bits, r.granularity, r.scheme) == way)
    return row
