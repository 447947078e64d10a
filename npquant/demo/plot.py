"""The report as a picture. The only module that needs matplotlib."""

from pathlib import Path

from matplotlib.figure import Figure

from npquant.demo.evaluate import CODES, GRANULARITIES, SCHEMES, Report

COLOURS = {"tensor": "#d55e00", "channel": "#0072b2", "group": "#009e73"}  # safe if colour-blind
LINES = {"symmetric": "--", "affine": "-"}


def file_format(path: Path) -> str:
    """Return the format that the file's name asks for: "png" if it has no suffix.

    Raises
    ------
    ValueError
        If matplotlib cannot write it.
    """
    name = path.suffix.removeprefix(".").lower() or "png"
    known = Figure().canvas.get_supported_filetypes()
    if name not in known:
        raise ValueError(f"{name!r} is not a picture format; known are {', '.join(sorted(known))}")
    return name


def save(report: Report, path: Path) -> None:
    """Draw accuracy against bits, a line for each granularity and scheme, and write it."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    columns = {
        "weights only": "accuracy_weights",
        "weights, and activations in 8 bits": "accuracy_weights_activations",
    }
    bits = sorted(CODES)
    for axes, (title, column) in zip(panels, columns.items(), strict=True):
        for granularity in GRANULARITIES:
            for scheme in SCHEMES:
                accuracy = {
                    row.bits: getattr(row, column)
                    for row in report.rows
                    if (row.granularity, row.scheme) == (granularity, scheme)
                }
                axes.plot(
                    [str(b) for b in bits],
                    [accuracy[b] for b in bits],
                    LINES[scheme],
                    color=COLOURS[granularity],
                    marker="o",
                    label=f"per {granularity}, {scheme}",
                )
        axes.axhline(report.accuracy_float, color="0.6", linewidth=1, zorder=0, label="float")
        axes.set(title=title, xlabel="bits of a weight")
    panels[0].set_ylabel(f"right, % of {report.test_images} test images")
    panels[1].legend(loc="lower right")
    figure.suptitle(f"MLP 64-32-32-10 on handwritten digits, npquant {report.environment.npquant}")
    figure.savefig(path, format=file_format(path), dpi=150)
