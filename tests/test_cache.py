"""Compiled kernels on disk: whatever is wrong with it, calls are right, and warn once at most."""

import errno
import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba import config, types

import npquant as nq
from npquant.cpu import cache
from npquant.cpu.target import Kernel, array_type

PACKAGE = Path(nq.__file__).parent

# --- one kernel, in this process --------------------------------------------------------------


def _segment(begin, end, x, factor, y):
    for i in range(begin, end):
        y[i] = x[i] * factor


def scaled(dtype=np.float64):
    """Compile a kernel as a new process would, and return what it makes of 0, 1, 2 ..."""
    dtype = np.dtype(dtype)
    array = array_type(dtype)
    kernel = Kernel(_segment, "scaled", lambda: (array, types.float64, array))
    x, y = np.arange(10, dtype=dtype), np.empty(10, dtype)
    kernel(10, 10, (x, 3.0, y), ())
    return y


EXPECTED = np.arange(10) * 3.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own, and a process that has not warned yet."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_warned", False)
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that were compiled, and not found on disk."""
    names, save = [], cache._KernelCache.save_overload

    def watched(self, sig, data):
        names.append(data.fndesc.qualname)
        save(self, sig, data)

    monkeypatch.setattr(cache._KernelCache, "save_overload", watched)
    return names


def assert_warns_once(why):
    """Two kernels are right, and there is one warning, of this."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        results = scaled(), scaled(np.float32)
    assert (results == EXPECTED).all()
    (warning,) = warned
    assert warning.category is RuntimeWarning
    assert re.search(f"cannot be kept .*({why}).* set NUMBA_CACHE_DIR", str(warning.message))


def entries(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_kernel_is_compiled_once(folder, compiled):
    for _ in range(3):
        assert (scaled() == EXPECTED).all()
    assert (len(compiled), len(entries(folder))) == (1, 1)
    scaled(np.float32)
    assert (len(compiled), len(entries(folder))) == (2, 2)


def _garbage(data, at):
    """The same with 64 other bytes in the middle of it."""
    return data[:at] + bytes(b ^ 0xA5 for b in data[at : at + 64]) + data[at + 64 :]


DAMAGES = {
    "nothing": lambda data: b"",
    "a few bytes": lambda data: data[:20],
    "half": lambda data: data[: len(data) // 2],
    "all but a byte": lambda data: data[:-1],
    "one more byte": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "other bytes in the digest": lambda data: _garbage(data, 0),
    "other bytes in the pickle": lambda data: _garbage(data, 40),
    # Somewhere in the machine code or its symbols: it would load, and run, or end the process.
    **{f"other bytes at {n}/8": lambda data, n=n: _garbage(data, n * len(data) // 8)
       for n in range(1, 8)},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_compiled_anew(folder, compiled, damage):
    scaled()
    (path,) = entries(folder)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert (scaled() == EXPECTED).all()
    assert len(compiled) == 2
    assert (scaled() == EXPECTED).all()
    assert len(compiled) == 2, "the entry was not mended"


def test_the_entry_of_another_key_is_not_taken(folder, compiled):
    """As after two processes that wrote Numba's index at once."""
    scaled(np.float32)
    (one,) = entries(folder)
    scaled()
    (other,) = {*entries(folder)} - {one}
    other.write_bytes(one.read_bytes())
    assert (scaled() == EXPECTED).all()
    assert len(compiled) == 3


@pytest.mark.parametrize("part", range(3))
def test_other_sources_or_compilers_have_other_entries(folder, compiled, monkeypatch, part):
    scaled()
    parts = cache.STAMP.split(" ")
    parts[part] += "1"
    monkeypatch.setattr(cache, "STAMP", " ".join(parts))
    assert (scaled() == EXPECTED).all()
    assert len(compiled) == 2
    assert len(entries(folder)) == 1, "what is stale was not replaced"


def test_sources_that_cannot_be_read_are_never_the_same(tmp_path):
    assert cache.fingerprint(PACKAGE) == cache.fingerprint(PACKAGE) == cache.STAMP.split(" ")[0]
    assert cache.fingerprint(tmp_path) != cache.fingerprint(tmp_path)


def test_an_entry_that_cannot_be_read(folder):
    scaled()
    (path,) = entries(folder)
    path.unlink()
    path.mkdir()
    assert_warns_once("Is a directory")
    assert len(entries(folder)) == 1  # of the other kernel


def test_a_full_disk(folder):
    """No file may grow beyond 100 bytes: the same error as of a full disk, at the same place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert_warns_once("File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert entries(folder) == []


@pytest.mark.parametrize("name", ["replace", "makedirs"])
def test_a_disk_that_refuses(folder, monkeypatch, name):
    def refuse(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, refuse)
    assert_warns_once("No space left|no locator")
    assert entries(folder) == []


def test_an_interrupt_leaves_no_part_of_a_file(folder, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scaled()
    assert entries(folder) == []
    assert (scaled() == EXPECTED).all()
    assert len(entries(folder)) == 1


# --- the package, in processes of its own -----------------------------------------------------

#: Prints the result of an op, and how many kernels were compiled.
CALL = """
import warnings, sys
import numpy as np
import npquant as nq
from npquant.cpu import cache

save, compiled = cache._KernelCache.save_overload, []
def watched(self, sig, data):
    compiled.append(sig)
    save(self, sig, data)
cache._KernelCache.save_overload = watched
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for dtype in sys.argv[1:] or ["float32"]:
        x = np.array([-0.3, 0.25, 0.44, 9], dtype)
        got = nq.quantize_per_tensor(x, 0.1, 2, -8, 7, np.int8)
print(got.tolist(), len(compiled), *(w.category.__name__ for w in warned))
"""


def package(folder):
    """A copy of the package whose sources can be edited, and that keeps no byte code."""
    skip = shutil.ignore_patterns("__pycache__", "demo")
    return shutil.copytree(PACKAGE, folder / "npquant", ignore=skip)


def start(folder, *dtypes, **env):
    names = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "NUMBA_DISABLE_JIT")
    env = {k: v for k, v in os.environ.items() if k not in names} | env
    env |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", CALL, *dtypes], env=env, text=True, cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def end(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out.strip()


def test_an_edited_formula_is_seen(tmp_path):
    """Though it lies in another file than the kernel, and has the old size and time."""
    file = package(tmp_path) / "formulas" / "quantize.py"
    source, stat = file.read_text(), file.stat()
    edited = source.replace("times(widen(x), inverse)", "plus(widen(x), -inverse)")
    assert edited != source
    got = []
    for text in (source, edited, edited):
        file.write_text(text)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        got.append(end(start(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))))
    assert got == ["[-1, 4, 6, 7] 1", "[-8, -8, -8, 1] 1", "[-8, -8, -8, 1] 0"]


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("home", [True, False])
def test_folders_that_cannot_be_written_to(tmp_path, home, beside):
    """Root may write to whatever is read-only: so a file lies where a folder would be.

    The home comes before the package, in which pip would leave what it did not install.
    """
    folder = package(tmp_path) / "cpu" / "__pycache__"
    if not beside:
        folder.touch()
    nowhere, place = tmp_path / "file", tmp_path / "home"
    nowhere.touch()
    place.mkdir()
    env = {"HOME": str(place if home else nowhere), "NUMBA_CACHE_DIR": str(nowhere / "cache")}
    got = end(start(tmp_path, "float32", "float64", **env))
    assert got == "[-1, 4, 6, 7] " + ("2" if home or beside else "0 RuntimeWarning")
    assert len(entries(place)) == 2 * home
    if home:
        assert not folder.is_dir()
    elif beside:
        assert len(entries(folder)) == 2


def test_processes_that_compile_at_once(tmp_path):
    dtypes = ["float16", "float32", "float64"]
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    package(tmp_path)
    processes = [start(tmp_path, *dtypes[:: 1 - 2 * i], **env) for i in range(2)]
    for process in processes:
        assert end(process).startswith("[-1, 4, 6, 7]")
    assert len(entries(tmp_path / "cache")) == len(dtypes)
    assert end(start(tmp_path, *dtypes, **env)) == "[-1, 4, 6, 7] 0"


def test_no_warning_without_a_reason(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled()
    assert not cache._warned


PARTS = """
import sys
import numpy as np
from numba import types
from numba.extending import register_jitable
from npquant.cpu import machine_code, target

add = machine_code._Part.add_ir_module

def kept_apart(self, module):
    for function in module.functions:
        set.add(function.attributes, "noinline")
    add(self, module)

machine_code._Part.add_ir_module = kept_apart

def times(factor):
    @register_jitable
    def part(x):
        return x * factor

    def segment(begin, end, y):
        for i in range(begin, end):
            y[i] = part(i)

    return segment

for factor in map(int, sys.argv[1:]):
    array = target.array_type(np.dtype(np.int64))
    kernel = target.Kernel(times(factor), f"times_{factor}", lambda: (array,))
    y = np.empty(10, np.int64)
    kernel(10, 10, (y,), ())
    print(*y, sep=",")
"""


def test_no_kernel_calls_a_part_of_another(tmp_path):
    """Parts that are not inlined have names that are others' in another process."""
    program = tmp_path / "program.py"
    program.write_text(PARTS)
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def times(*factors):
        command = [sys.executable, program, *map(str, factors)]
        run = subprocess.run(command, env=env, text=True, capture_output=True, check=True)
        return run.stdout.split()

    two, three = (",".join(map(str, factor * np.arange(10))) for factor in (2, 3))
    assert [*times(2), *times(3)] == [two, three]  # of one name, each in a process of its own
    assert times(2, 3) == [two, three]


#: Prints how many kernels there are, their keys, and the names of all compiled functions.
KERNELS = """
import gc, json
import npquant
from npquant.cpu import cache, target
there = gc.get_objects()
segments = [k._segment for k in there if type(k) in (target.Kernel, target.Later)]
functions = segments + [c.function for c in there if type(c) is target.Compiled and c.function]
names = [f.__qualname__ for f in functions]
print(json.dumps([len(segments), sorted({cache._told(s) for s in segments}), names]))
"""


@functools.cache
def kernels(seed):
    """What a process prints, in which hashes are of this seed."""
    env = os.environ | {"PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", KERNELS]
    return json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)


def test_every_compiled_function_has_a_name_of_its_own():
    """Machine code of one process may be loaded beside that of another: it is known by the name."""
    *_, names = kernels("1")
    assert len(names) == len(set(names)) > 400


def test_every_kernel_has_a_key_of_its_own_and_the_same_in_every_process():
    """Numba's pickles of what a kernel is made of differ from process to process."""
    count, keys, _ = kernels("1")
    assert kernels("2")[:2] == [count, keys]
    assert count == len(keys) > 250
