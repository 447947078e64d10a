"""Which npquant is measured: its version, and the commit where it is a checkout."""

import subprocess
from pathlib import Path

import npquant


def revision() -> str:
    """As ``0.1.0 (1a2b3c4)``, or ``(1a2b3c4-dirty)`` where that commit has been edited."""
    folder = Path(npquant.__file__).parent

    def git(*args: str) -> str:
        try:
            run = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True)
        except OSError:  # there is no git
            return ""
        return run.stdout.strip() if run.returncode == 0 else ""

    # What is installed may lie in a checkout of something else.
    commit = git("ls-files", "__init__.py") and git(
        "describe", "--always", "--dirty", "--exclude=*"
    )
    return f"{npquant.__version__} ({commit})" if commit else npquant.__version__
