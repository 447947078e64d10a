"""Settings of the test run: the peers are tested where they are installed."""

from importlib.util import find_spec
from pathlib import Path

from hypothesis import settings

settings.register_profile("npquant", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("npquant")

#: What tests/peers imports. The extra `peers` installs them; .ci/run fails if one is missing.
PEERS = ("torch", "onnx", "onnxruntime")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave tests/peers alone where a peer is missing; the report's header says so."""
    return True if collection_path.name == "peers" and _missing() else None


def pytest_report_header() -> str:
    """Say whether the peers are there."""
    missing = ", ".join(_missing())
    return f"peers: {'not tested, missing ' + missing if missing else 'tested'}"


def _missing() -> list[str]:
    return [name for name in PEERS if find_spec(name) is None]
