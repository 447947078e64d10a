"""The command ``npquant``."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import npquant as nq
from npquant.demo import run, run_training
from npquant.demo.report import as_json, as_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process by default.

    Returns
    -------
    int
        The exit status: 0, 2 if what was asked for cannot be done, or 1 if who reads the table
        has stopped reading.

    Raises
    ------
    SystemExit
        From argparse: after ``--help`` and ``--version``, and with status 2 for arguments that it
        does not know.
    """
    parser = argparse.ArgumentParser(
        prog="npquant", description="Quantization numerics for NumPy.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"npquant {nq.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="quantize a trained network in many ways and print what that costs",
        description="Quantize a network that reads handwritten digits: 8, 4, 3 and 2 bits; a "
        "scale per tensor, channel or group; symmetric and affine; weights alone and with "
        "activations. Print accuracy, noise and time. With --train: learn to quantize it.",
        allow_abbrev=False,
    )
    demo.add_argument("--json", action="store_true", help="print JSON instead of a table")
    demo.add_argument(
        "--train",
        action="store_true",
        help="rounding to nearest, AdaRound, GPTQ and LSQ at 4, 3 and 2 bits, over 5 seeds; "
        "less than a minute",
    )
    demo.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help="also draw accuracy against bits (png, svg, pdf, ...); needs matplotlib",
    )
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        demo.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _demo(args.train, args.json, args.plot)


def _demo(train: bool, json: bool, plot: Path | None) -> int:
    if plot is not None:
        # Everything that can be wrong with the picture is found before the work.
        try:
            from npquant.demo.plot import check, picture
        except ImportError as error:
            return _refuse(f"--plot needs matplotlib ({error}): pip install matplotlib")
        except ValueError as error:  # its settings
            return _refuse(f"--plot: {error}")
        try:
            check(plot)
        except (ValueError, OSError) as error:
            return _cannot_write(plot, error)

    report = run_training() if train else run()
    try:
        print(as_json(report) if json else as_text(report), flush=True)
    except OSError as error:
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # who reads has read enough
            return 1
        return _refuse(f"cannot write: {error.strerror}")

    if plot is not None:
        drawn = picture(report, plot)
        try:
            plot.write_bytes(drawn)
        except OSError as error:  # a full disk
            if plot.is_file():
                with suppress(OSError):
                    plot.unlink()  # a part of a picture is none
            return _cannot_write(plot, error)
        _say(f"\nwrote {plot}")
    return 0


def _cannot_write(plot: Path, error: Exception) -> int:
    return _refuse(f"--plot cannot write {plot}: {getattr(error, 'strerror', None) or error}")


def _refuse(reason: str) -> int:
    _say(f"npquant demo: {reason}")
    return 2


def _say(text: str) -> None:
    """To stderr; not to stdout, which may have to be pure JSON, where there is no stderr."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
