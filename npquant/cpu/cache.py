"""Compiled kernels on disk, such that no disk fails a call and no stale or damaged code is run.

It stands where Numba's cache would, and differs in four ways:

- The user's folder comes before the package's own. What lies there pip leaves behind, and Python
  takes the folder that is left for a package.
- What goes wrong with the disk is a warning, once, and kernels are compiled in memory. Numba
  raises it.
- An entry has a digest of itself, of its key and of the package's sources. Numba looks at the file
  of a kernel alone, so that an edited formula is not seen, and runs whatever it finds.
- There is a file for each key, and no index. Numba's index, when two processes save at once, can
  give one of them the code of the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import uuid
import warnings
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numba.core.runtime._nrt_python as runtime
from llvmlite.binding import add_symbol
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.serialize import dumps


def fingerprint(package: Path) -> str:
    """A digest of the sources that kernels are made of: names and contents."""
    digest = hashlib.sha256()
    folders = [package / folder for folder in ("", "cpu", "formulas")]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    for file in files:
        source = file.read_bytes()
        digest.update(f"{file.relative_to(package)} {len(source)}\n".encode())
        digest.update(source)
    # Where there are no files, as in a zip archive, one process cannot trust another's code.
    return digest.hexdigest() if files else uuid.uuid4().hex


#: What compiled code depends on, beside its key. The sources are read now: a process that goes on
#: while they are replaced still compiles what it has imported.
STAMP = f"{fingerprint(Path(__file__).parent.parent)} {numba.__version__} {llvmlite.__version__}"

_warned = False


def _warn(error: BaseException) -> None:
    """Say once what is wrong with the disk."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"kernels are compiled anew in every process, since they cannot be kept ({error}); set "
            "NUMBA_CACHE_DIR to a folder that can be written to",
            RuntimeWarning,
            stacklevel=2,
        )


class _Entries:
    """The files of one function, in place of Numba's index and data files."""

    def __init__(self, folder: str, base: str) -> None:
        self._folder, self._base = folder, base

    def _path(self, key: str) -> str:
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        return os.path.join(self._folder, f"{self._base}-{name}.nbc")

    def load(self, key: Any) -> Any:
        try:
            with open(self._path(str(key)), "rb") as file:
                digest, data = file.read(32), file.read()
        except FileNotFoundError:
            return None
        return pickle.loads(data) if digest == _digest(str(key), data) else None

    def save(self, key: Any, value: Any) -> None:
        data, path = dumps(value), self._path(str(key))
        own = f"{path}.{uuid.uuid4().hex[:8]}"
        try:
            with open(own, "wb") as file:
                file.write(_digest(str(key), data))
                file.write(data)
            os.replace(own, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(own)
            raise


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{STAMP}\n{key}\n".encode() + data).digest()


@cache
def _name_the_runtime() -> None:
    """Tell LLVM where Numba's runtime is: the one thing beside Python that compiled code calls."""
    for name, address in runtime.c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _told(value: Any) -> str:
    """What tells a member of a closure from others: a function by its place and its own closure.

    Numba pickles them, and what an intrinsic is pickled to is another in every process.
    """
    if isinstance(value, FunctionType):
        cells = [_told(cell.cell_contents) for cell in value.__closure__ or ()]
        line = value.__code__.co_firstlineno
        return f"{value.__module__}.{value.__qualname__}:{line}({', '.join(cells)})"
    return f"{type(value).__name__}:{value!r}"


class _Folders(CompileResultCacheImpl):
    """Numba's, of which the first that can be written to is taken."""

    _locator_classes = sorted(
        CompileResultCacheImpl._locator_classes, key=lambda kind: "InTree" in kind.__name__
    )


class _KernelCache(FunctionCache):
    """Numba's cache of one function, with entries of our own and without exceptions."""

    _impl_class = _Folders

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file: Any = _Entries(self._cache_path, self._impl.filename_base)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), _told(self._py_func)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Without Numba's refresh(), in a tenth of a second of which it learns what compiling needs.
        try:
            _name_the_runtime()
            return self._load_overload(sig, target_context)
        except Exception as error:
            _warn(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _warn(error)


def of(function: Any) -> Any:
    """The cache of a function, for Numba's dispatcher; one that keeps nothing, if need be."""
    try:
        return _KernelCache(function)
    except Exception as error:
        _warn(error)
        return NullCache()
