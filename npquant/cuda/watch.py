"""Who is told of new arrays and of launches, if anybody is: see again.py."""

from __future__ import annotations

import threading
from typing import Any


class _Watch(threading.local):
    """Of each thread."""

    recording: Any = None


watch = _Watch()
