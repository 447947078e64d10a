"""The report as a picture. The only module that needs matplotlib."""

from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from npquant.demo.evaluate import CODES, GRANULARITIES, SCHEMES, Report
from npquant.demo.train import METHODS, NAMES, TrainReport

COLOURS = {"tensor": "#d55e00", "channel": "#0072b2", "group": "#009e73"}  # safe if colour-blind
LINES = {"symmetric": "--", "affine": "-"}
METHOD_COLOURS = {"nearest": "0.5", "adaround": "#d55e00", "gptq": "#0072b2", "lsq": "#009e73"}


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


def check(path: Path) -> None:
    """Look whether a picture can be drawn and written, without leaving a file.

    Raises
    ------
    ValueError
        If matplotlib cannot draw in that format, or lacks what it draws with.
    OSError
        If the file cannot be written.
    """
    trial = Figure()
    trial.text(0, 0, "1")  # of which some formats ask other programs how large it is
    kind = file_format(path)
    try:
        trial.savefig(BytesIO(), format=kind)
    except (RuntimeError, OSError, ImportError) as error:
        raise ValueError(f"matplotlib cannot draw {kind!r} here: {error}") from error
    path = path.resolve()  # not a link to it
    new = not path.exists()
    path.open("ab").close()
    if new:
        path.unlink()


def picture(report: Report | TrainReport, path: Path) -> bytes:
    """Draw accuracy against bits, in the format that the file's name asks for."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    draw = _draw_training if isinstance(report, TrainReport) else _draw_ways
    draw(figure, report)  # type: ignore[arg-type]
    figure.suptitle(f"MLP 64-32-32-10 on handwritten digits, npquant {report.environment.npquant}")
    drawn = BytesIO()
    figure.savefig(drawn, format=file_format(path), dpi=150)
    return drawn.getvalue()


def _draw_ways(figure: Figure, report: Report) -> None:
    """A panel with and without activations, a line for each granularity and scheme."""
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


def _draw_training(figure: Figure, report: TrainReport) -> None:
    """A panel for each way to choose scales, a line for each method, bars for deviations."""
    ways = list(dict.fromkeys((row.granularity, row.scales) for row in report.rows))
    panels = figure.subplots(1, len(ways), sharey=True, squeeze=False)[0]
    for axes, way in zip(panels, ways, strict=True):
        rows = sorted(
            (row for row in report.rows if (row.granularity, row.scales) == way),
            key=lambda row: row.bits,
        )
        for name in METHODS:
            found = [getattr(row, name) for row in rows]
            axes.errorbar(
                [str(row.bits) for row in rows],
                [a.mean for a in found],
                [a.deviation for a in found],
                color=METHOD_COLOURS[name],
                marker="o",
                capsize=3,
                label=NAMES[name],
            )
        axes.axhline(report.accuracy_float, color="0.6", linewidth=1, zorder=0, label="float")
        axes.set(title=f"per {way[0]}, {way[1]} scales", xlabel="bits of a weight")
    panels[0].set_ylabel(f"right, % of {report.test_images} test images")
    panels[-1].legend(loc="lower right")
