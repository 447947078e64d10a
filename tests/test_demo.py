"""The demo: what it computes, what it prints, how the command ends, and the script that trained it.

The numbers are checked against theory and against literals measured once, not against npquant.
"""

import errno
import importlib.util
import json
import math
import os
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
from npquant.demo import (
    Report,
    Row,
    TrainReport,
    TrainRow,
    evaluate,
    plot,
    run,
    run_training,
    train,
)
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
    for name in ("run", "run_training"):
        monkeypatch.setattr(cli, name, lambda: pytest.fail("the demo ran"))


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
        (["demo", "--trian"], "--train"),
    ],
)
@pytest.mark.usefixtures("no_run")
def test_wrong_arguments(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


DEMO = """
import sys
from npquant import cli
cli.run = lambda: None
cli.as_text = lambda report: "row\\n" * 100_000
sys.exit(cli.main(["demo"]))
"""


def test_a_reader_that_has_read_enough() -> None:
    """It ends in silence, as in `npquant demo | head`."""
    with subprocess.Popen(
        [sys.executable, "-c", DEMO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "row\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_for_the_table() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", DEMO], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        2,
        "npquant demo: cannot write: No space left on device\n",
    )


def test_module_is_the_command() -> None:
    command = [sys.executable, "-m", "npquant", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"npquant {nq.__version__}\n"


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


def test_plot_with_settings_that_matplotlib_refuses(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npquant", "demo", "--plot", str(tmp_path / "accuracy.png")],
        env={**os.environ, "MPLBACKEND": "nope"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("npquant demo: --plot: ")
    assert "'nope'" in done.stderr.splitlines()[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_run")
def test_plot_with_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pgf is measured by LaTeX."""
    monkeypatch.setenv("PATH", "")
    path = tmp_path / "accuracy.pgf"
    assert cli.main(["demo", "--plot", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"npquant demo: --plot cannot write {path}: matplotlib cannot draw 'pgf'")
    assert not path.exists()


@pytest.mark.usefixtures("same_report")
def test_plot_that_is_not_drawn_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, new = tmp_path / "there.png", tmp_path / "new.png"
    there.write_bytes(b"a picture")
    monkeypatch.setattr(cli, "as_text", lambda report: 1 / 0)
    for path in (there, new):
        with pytest.raises(ZeroDivisionError):
            cli.main(["demo", "--plot", str(path)])
    assert there.read_bytes() == b"a picture"
    assert not new.exists()


def test_a_trial_leaves_a_link_to_nothing_as_it_is(tmp_path: Path) -> None:
    link, missing = tmp_path / "link.png", tmp_path / "accuracy.png"
    link.symlink_to(missing)
    plot.check(link)
    assert link.is_symlink()
    assert not missing.exists()


@pytest.mark.usefixtures("same_report")
def test_plot_of_which_a_part_is_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half)
    path = tmp_path / "accuracy.png"
    assert cli.main(["demo", "--plot", str(path)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert not path.exists()


def test_json_is_pure_without_stderr(
    same_report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python's `sys.stderr` is None where it was closed, as by `2>&-`."""
    path = tmp_path / "accuracy.svg"
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["demo", "--json", "--plot", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(same_report)
    assert path.stat().st_size > 1000


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


# Learning to quantize: npquant demo --train


@pytest.fixture(scope="module")
def trained() -> TrainReport:
    ways = [train.Way(2, "tensor", "absmax"), train.Way(3, "channel", "mse")]
    return run_training(ways=ways, seeds=(0, 1), steps=300, epochs=2)


@pytest.fixture
def same_trained(trained: TrainReport, monkeypatch: pytest.MonkeyPatch) -> TrainReport:
    monkeypatch.setattr(cli, "run_training", lambda: trained)
    return trained


def test_training_ways() -> None:
    assert {way.bits for way in train.WAYS} == {4, 3, 2}
    assert {way[1:] for way in train.WAYS} == {
        ("tensor", "absmax"),
        ("tensor", "mse"),
        ("channel", "mse"),
    }
    assert len(train.WAYS) == len(set(train.WAYS)) == 9
    assert len(set(train.SEEDS)) == 5


def test_learning_is_better_than_nearest(trained: TrainReport) -> None:
    """Even so little of it; by far more than seeds differ."""
    assert trained.accuracy_float == 97.0
    two_bits, three_bits = trained.rows
    # Measured once with plain NumPy: rounding to s = max / 1.5, or the best of 81 shares of it.
    assert two_bits.nearest.seeds == [pytest.approx(42.0, abs=0.4)] * 2
    assert three_bits.nearest.seeds == [pytest.approx(95.8, abs=0.4)] * 2
    for row, margin in ((two_bits, 30), (three_bits, -1)):
        for name in ("adaround", "gptq", "lsq"):
            assert min(getattr(row, name).seeds) > row.nearest.mean + margin


def test_mean_and_deviation(trained: TrainReport) -> None:
    for row in trained.rows:
        for name in train.METHODS:
            found = getattr(row, name)
            one, two = found.seeds
            assert found.mean == pytest.approx((one + two) / 2, abs=1e-9)
            assert found.deviation == pytest.approx(abs(one - two) / math.sqrt(2), abs=1e-9)
        assert row.nearest.deviation == 0
    assert train._accuracy([93.0]) == train.Accuracy(93.0, 0.0, [93.0])


def test_seeds_change_what_is_learned_and_a_seed_repeats_it(trained: TrainReport) -> None:
    again = run_training(ways=[train.WAYS[6]], seeds=(1,), steps=300, epochs=2).rows[0]
    first = trained.rows[0]
    assert (again.bits, again.granularity, again.scales) == (2, "tensor", "absmax")
    for name in train.METHODS:
        assert getattr(again, name).seeds == getattr(first, name).seeds[1:]
    assert first.lsq.seeds[0] != first.lsq.seeds[1]
    assert first.adaround.seeds[0] != first.adaround.seeds[1]


def test_nothing_learns_from_the_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = load_digits()
    _, test_index = load_network()
    hidden = {row.tobytes() for row in images[test_index]}
    seen: list[train.Task] = []

    def look(task: train.Task) -> list[Layer]:
        seen.append(task)
        return task.layers

    monkeypatch.setattr(train, "METHODS", dict.fromkeys(train.METHODS, look))
    run_training(ways=train.WAYS[:1], seeds=(0,))
    assert len(seen) == 4
    for task in seen:
        assert (len(task.images), len(task.calibration)) == (1297, 512)
        training = {row.tobytes() for row in task.images}
        assert {row.tobytes() for row in task.calibration} <= training
        assert not training & hidden
    assert len(labels) == len(seen[0].images) + len(hidden)


@pytest.mark.parametrize("way", train.WAYS)
def test_grids(way: train.Way) -> None:
    weight = load_network().layers[0].weight
    grid = train.grid_of(weight, way)
    lo, hi = -(2 ** (way.bits - 1)), 2 ** (way.bits - 1) - 1
    assert (grid.quant_min, grid.quant_max) == (lo, hi)
    sets = weight.reshape(1 if way.granularity == "tensor" else 32, -1).astype(np.float64)
    scale = np.atleast_1d(np.asarray(grid.scale, np.float64))[:, None]
    assert scale.shape == (len(sets), 1)
    widest = np.abs(sets).max(axis=1, keepdims=True) * 2 / (hi - lo)
    if way.scales == "absmax":
        np.testing.assert_allclose(scale, widest, rtol=2.0**-22)  # float32, rounded twice
        return

    def noise(s: Any) -> Any:
        return np.sum((np.clip(np.rint(sets / s), lo, hi) * s - sets) ** 2, axis=1)

    # No share is better, but by what float32 makes of its own sums.
    for share in np.linspace(0.2, 1, 81):
        assert np.all(noise(scale) <= noise(share * widest) * (1 + 1e-4))


@pytest.mark.parametrize("name", list(train.METHODS))
@pytest.mark.parametrize("way", [train.Way(2, "tensor", "mse"), train.Way(3, "channel", "mse")])
def test_every_method_ends_on_its_grid(name: str, way: train.Way) -> None:
    images, labels = load_digits()
    layers, _ = load_network()
    grids = [train.grid_of(layer.weight, way) for layer in layers]
    task = train.Task(layers, grids, images[:128], labels[:128], images[:128], 0, 20, 1, [])
    for layer, grid in zip(train.METHODS[name](task), grids, strict=True):
        assert layer.weight.dtype == np.float32
        scales = np.atleast_1d(np.asarray(grid.scale, np.float32))
        channels = layer.weight.reshape(len(scales), -1)
        for row, scale in zip(channels, scales, strict=True):
            assert len(np.unique(row)) <= 2**way.bits
            if name != "lsq":  # whose scales are its own
                np.testing.assert_array_equal(row, np.rint(row / scale) * scale)


def test_lsq_learns_its_scales_and_leaves_the_network_alone() -> None:
    images, labels = load_digits()
    layers, _ = load_network()
    grids = [train.grid_of(layer.weight, train.Way(2, "channel", "mse")) for layer in layers]
    before = [a.copy() for layer in layers for a in layer]
    network = train.LearnedNetwork(layers, grids)
    task = train.Task(layers, grids, images[:256], labels[:256], images[:8], 0, 20, 2, [])
    learned = train.lsq(task)
    for a, b in zip(before, (a for layer in layers for a in layer), strict=True):
        np.testing.assert_array_equal(a, b)
    for grid, first, last in zip(grids, network.quantized(), learned, strict=True):
        largest = [np.abs(layer.weight).max(axis=1) for layer in (first, last)]
        steps = [m / np.maximum(np.rint(m / grid.scale), 1) for m in largest]
        assert np.max(np.abs(steps[1] / steps[0] - 1)) > 1e-3
        assert not np.array_equal(first.bias, last.bias)


def test_train_json_holds_every_field(
    same_trained: TrainReport, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--train", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == asdict(same_trained)
    assert {field.name for field in fields(TrainRow)} == set(json.loads(out)["rows"][0])
    assert err == ""


def test_train_text_says_the_same(
    same_trained: TrainReport, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--train"]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["float", "97.0"] in lines
    table = [words for words in lines if words and words[0] in {"4", "3", "2"}]
    assert table == [
        [str(row.bits), row.granularity, row.scales]
        + [
            f"{number:.1f}"
            for name in ("nearest", "adaround", "gptq", "lsq")
            for number in (getattr(row, name).mean, getattr(row, name).deviation)
        ]
        for row in same_trained.rows
    ]
    assert "over 2 seeds" in text
    assert "300 steps a layer" in text
    assert "2 epochs on 1,297 training images" in text
    assert f"In all: {same_trained.total_s:.1f} s" in text
    assert same_trained.environment.cpu in text
    known = same_trained.environment.cpu
    assert all(len(line) <= 100 for line in text.splitlines() if known not in line)


def test_train_plot(
    same_trained: TrainReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "learned.png"
    assert cli.main(["demo", "--train", "--json", "--plot", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(same_trained)
    picture = image.imread(path)[..., :3]
    assert picture.shape == (675, 1500, 3)
    for colour in ("d55e00", "0072b2", "009e73"):  # AdaRound, GPTQ, LSQ
        rgb = np.frombuffer(bytes.fromhex(colour), np.uint8) / 255
        assert np.sum(np.all(np.abs(picture - rgb) < 0.01, axis=-1)) > 200


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


def test_weights_are_written_to_the_name_that_is_given(
    train_digits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights"
    assert train_digits.main(["--epochs", "0", "--write", str(path)]) == 0
    assert f"wrote {path}\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]
    with np.load(path) as written:
        assert len(written.files) == 7


@pytest.mark.parametrize(
    "args", [["--epochs", "-1"], ["--write", "missing/weights.npz"], ["--write", "."]]
)
def test_training_refuses(
    args: list[str],
    train_digits: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before it begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_digits, "train", lambda epochs: 1 / 0)
    with pytest.raises(SystemExit) as stop:
        train_digits.main(args)
    assert stop.value.code == 2
    assert args[0] in capsys.readouterr().err


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
