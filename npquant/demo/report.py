"""What the demo measured, as text for people and as JSON for machines."""

import json
from dataclasses import asdict
from itertools import groupby

from npquant.demo.evaluate import Report, Row

TABLE_HEAD = """\
                            SQNR    accuracy, %     accuracy, %    quantizing
 bits  scale per  scheme      dB   weights only    + activations  weights, us"""


def as_json(report: Report) -> str:
    """Return every field of the report, under its own name."""
    return json.dumps(asdict(report), indent=2)


def as_text(report: Report) -> str:
    """Return a header, a table with one line for each `Row`, and what the columns mean."""
    here = report.environment
    blocks = [
        f"npquant {here.npquant}, Python {here.python}, NumPy {here.numpy}, Numba {here.numba}\n"
        f"{here.cpu}, {here.cores} cores; Numba threads: {here.threads}",
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
    return "\n\n".join(blocks)


def _table_line(row: Row) -> str:
    return (
        f"{row.bits:5}  {row.granularity:9}  {row.scheme:9}  {row.sqnr_db:4.1f}"
        f"{row.accuracy_weights:15.1f}{row.accuracy_weights_activations:17.1f}"
        f"{row.quantize_us:13.0f}"
    )
