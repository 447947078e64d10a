"""The caches, in numbers: their lines, what they hold, and how far ahead they are filled."""

from __future__ import annotations

import re

from llvmlite.binding import get_host_cpu_name
from numba import config

#: Bytes of a line of the cache. A vector that lies in two of them takes twice as long to load, and
#: NumPy's large arrays begin 16 bytes behind one.
LINE = 64

#: No cache of a core holds an array of FAR elements: where rows lie side by side, or with gaps, it
#: is gone through otherwise.
FAR = 1 << 22

#: Elements that are done at a time where a run is longer.
LONG = 512

#: Bytes that are written past the caches at a time. Of more, those that are read meanwhile wait
#: for those that are written; of a line at a time, what takes long to compute. (Measured.)
WAIT = 8 * LINE

_PROCESSOR: str = config.CPU_NAME or get_host_cpu_name()  # type: ignore[attr-defined]
#: The generation of a Zen.
_ZEN = int(_PROCESSOR[5:]) if re.fullmatch(r"znver\d+", _PROCESSOR) else 0
_FETCHES_ITSELF = 0 < _ZEN < 5
#: No second cache holds an array of so many bytes. What is read of it is fetched, so many elements
#: AHEAD of where they are used, FETCHED of them at a time; or FETCHED_FAR, which is faster, where a
#: loop does not take long to begin, and half of that beside a table. It pays where most of what
#: moves is read; of half as many bytes, which the cache may hold, it took a fifth longer. On a
#: Zen 3, whose vectors have 256 bits, 128 at a time took less than 64. (Measured.)
BEYOND_SECOND = 1 << 22
AHEAD, FETCHED, FETCHED_FAR = 1024, 256, 128 if _ZEN == 3 else 64
#: Whether what is only read is fetched, too: Zen up to the fourth is faster by itself there, and
#: any with rows that are short or have gaps. (Measured.)
FETCHED_TO_READ, FETCHED_SHORT = not _FETCHES_ITSELF, not _ZEN
#: What is read is fetched so many bytes ahead where results go past the caches, and by a search for
#: extremes: half a page, since a whole one ahead it took longer than without, but on a Zen 5, where
#: it took less. On a Zen 4 long runs took up to a tenth less when fetched, and channels on the last
#: axis a sixth to two fifths more. (Measured.)
FETCHED_PAST, PAST_AHEAD = not _FETCHES_ITSELF, 4096 if _ZEN > 4 else 2048
#: Lines that are fetched at a time meanwhile: where an element takes little, where it takes more,
#: and where it is made in steps. (Measured.)
FEW_LINES, LINES, LINES_OF_STEPS = 2, 4, 8 if _ZEN > 4 else 4
#: Whether a function has a frame where it needs none: what is read is then addressed by another
#: register than the stack's. On a Zen 5 it takes two or three hundredths longer. (Measured.)
FRAMED = not _ZEN
