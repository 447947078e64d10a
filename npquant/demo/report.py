"""What the demo measured, as text for people and as JSON for machines."""

import json
from dataclasses import asdict
from itertools import groupby

from npquant.demo.environment import Environment
from npquant.demo.evaluate import Report, Row
from npquant.demo.train import METHODS, NAMES, Accuracy, TrainReport, TrainRow

TABLE_HEAD = """\
                            SQNR    accuracy, %     accuracy, %    quantizing
 bits  scale per  scheme      dB   weights only    + activations  weights, us"""


TRAIN_TABLE_HEAD = """\
 bits  scale per  scales       nearest     AdaRound         GPTQ          LSQ"""


def as_json(report: Report | TrainReport) -> str:
    """Return every field of the report, under its own name."""
    return json.dumps(asdict(report), indent=2)


def as_text(report: Report | TrainReport) -> str:
    """Return a header, a table with one line for each row, and what the columns mean."""
    blocks = _of_training(report) if isinstance(report, TrainReport) else _of_ways(report)
    return "\n\n".join([_header(report.environment), *blocks])


def _header(here: Environment) -> str:
    return (
        f"npquant {here.npquant}, Python {here.python}, NumPy {here.numpy}, Numba {here.numba}\n"
        f"{here.cpu}, {here.cores} cores; Numba threads: {here.threads}"
    )


def _of_ways(report: Report) -> list[str]:
    return [
        f"An MLP 64-32-32-10 with {report.weights:,} weights, on {report.test_images} images of "
        "handwritten digits\nthat it was not trained on.",
        TABLE_HEAD,
        f"float{report.accuracy_float:42.1f}",
        *(
            "\n".join(_table_line(row) for row in rows)
            for _, rows in groupby(report.rows, key=lambda row: row.bits)
        ),
        "SQNR          signal-to-quantization-noise ratio over all weights\n"
        f"group         {report.group_size} neighbouring inputs of one output channel\n"
        "activations   the input of every layer in 8 bits, affine, a scale for each image (per "
        "token);\n"
        f"              quantizing those of all images takes {report.activations_us:.0f} us\n"
        f"times         median of {report.repeats} runs; with choosing scales, without compiling",
        f"First pass, in which Numba compiled or loaded the kernels: {report.first_pass_s:.1f} s. "
        f"In all: {report.total_s:.1f} s.",
    ]


def _of_training(report: TrainReport) -> list[str]:
    kept = sum(row.adaround_kept_nearest for row in report.rows)
    times = ", ".join(f"{NAMES[name]} {report.seconds[name]:.1f}" for name in METHODS)
    return [
        f"An MLP 64-32-32-10 with {report.weights:,} weights; right among {report.test_images} "
        "images of handwritten digits\nthat nothing was trained on, in %: mean and "
        f"standard deviation over {len(report.seeds)} seeds.",
        TRAIN_TABLE_HEAD,
        f"float{report.accuracy_float:27.1f}",
        *(
            "\n".join(_train_line(row) for row in rows)
            for _, rows in groupby(report.rows, key=lambda row: row.bits)
        ),
        "scales     absmax: the range reaches to the largest weight; mse: to the share of it with "
        "the least\n           squared error of the weights\n"
        f"AdaRound   {report.adaround_steps} steps a layer; it and GPTQ see "
        f"{report.calibration_images} training images without labels, drawn by the seed;\n"
        f"           layers that kept nearest, which held-out images found better: {kept}\n"
        f"LSQ        weights, biases and scales, {report.lsq_epochs} epochs on "
        f"{report.training_images:,} training images with labels",
        f"Seconds, with compiling: {times}. In all: {report.total_s:.1f} s.",
    ]


def _train_line(row: TrainRow) -> str:
    found: list[Accuracy] = [getattr(row, name) for name in METHODS]
    cells = "".join(f"{a.mean:9.1f} {a.deviation:3.1f}" for a in found)
    return f"{row.bits:5}  {row.granularity:9}  {row.scales:6}{cells}"


def _table_line(row: Row) -> str:
    return (
        f"{row.bits:5}  {row.granularity:9}  {row.scheme:9}  {row.sqnr_db:4.1f}"
        f"{row.accuracy_weights:15.1f}{row.accuracy_weights_activations:17.1f}"
        f"{row.quantize_us:13.0f}"
    )
