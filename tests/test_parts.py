"""Machine code is made of kernels alone, and others may still call what they are made of."""

import gc
import os
import platform
import re
import subprocess
import sys
from functools import cache
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
import pytest
from numba import config, njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.typing.templates import _OverloadFunctionTemplate
from numba.extending import overload, register_jitable

from cases import SUB_BYTE
from npquant.cpu import bfloat16, packs, together
from npquant.cpu.borrowed import lent
from npquant.cpu.checks import usual
from npquant.cpu.codes import codes_of
from npquant.cpu.dynamic import dynamic_per_token
from npquant.cpu.fetching import beyond_second, far, fetch, fetch_to_second
from npquant.cpu.instructions import compiled_for as processor_has
from npquant.cpu.lines import AHEAD, BEYOND_SECOND, FAR, LONG
from npquant.cpu.lowered import called, inlined
from npquant.cpu.passes import needed_work
from npquant.cpu.strided import shared
from npquant.cpu.target import Kernel, _compile, array_type
from npquant.formulas.quantize import quantize, quantize_by_division, quantize_zero_first
from npquant.primitives import at, each, fma, like, over, plus, rint, store, times, widen

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")

FLOAT64, FLOAT32, INT8 = (array_type(np.dtype(t)) for t in (np.float64, np.float32, np.int8))


@register_jitable
def squared(v):
    return v * v


@register_jitable
def fourth(v):
    return squared(squared(v))


def _segment(begin, end, x, y):
    for i in range(begin, end):
        y[i] = fourth(x[i]) + np.float64(np.hypot(x[i], 0.0))


def _in_vectors(begin, end, x, y):
    for i in range(np.uintp(end)):
        y[i] = fourth(x[i])


def _wrong(begin, end, x, y):
    y[0] = fourth(x)


@pytest.fixture(autouse=True)
def _nothing_on_disk(monkeypatch, tmp_path):
    """What is loaded from there is not compiled, and tells nothing of its code."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))


@pytest.fixture
def made(monkeypatch):
    """The names of what machine code is made of."""
    names, finalize = [], JITCodeLibrary._finalize_specific
    monkeypatch.setattr(
        JITCodeLibrary, "_finalize_specific", lambda self: (names.append(self.name), finalize(self))
    )
    return names


def fourth_powers(name):
    kernel = Kernel(_segment, name, lambda: (FLOAT64, FLOAT64))
    x = np.arange(5.0)
    y = np.empty_like(x)
    kernel(5, 5, (x, y), ())
    np.testing.assert_array_equal(y, x**4 + x)


def test_of_kernels_alone(made):
    fourth_powers("fourth_powers")
    assert made == ["fourth_powers"]


def test_what_is_only_declared_takes_no_time(made, monkeypatch):
    codegen, asked, declared = cpu_target.target_context.codegen(), [], []
    manager, add = codegen._function_pass_manager, JITCodeLibrary.add_llvm_module

    def noting(library, module):
        declared.extend(f.is_declaration for f in module.functions)
        add(library, module)

    monkeypatch.setattr(codegen, "_function_pass_manager", lambda: (asked.append(0), manager())[1])
    monkeypatch.setattr(JITCodeLibrary, "add_llvm_module", noting)
    fourth_powers("declared")
    assert any(declared)
    assert len(asked) == declared.count(False)


def test_parts_have_no_wrappers(tmp_path):
    """One that C could call; of what is Numba's own, they have."""
    code = """if True:
        import numpy as np
        from numba.core.lowering import BaseLower
        import npquant as nq
        wrapper = BaseLower.create_cfunc_wrapper
        def create(self):
            print(self.fndesc.modname, self.fndesc.qualname)
            wrapper(self)
        BaseLower.create_cfunc_wrapper = create
        x, token = np.ones((2, 64), np.float32), np.ones(2)
        nq.quantize_per_token(x, token, token, -8, 7, np.int8)
        nq.choose_qparams(x[:, ::2], -8, 7, 1e-6, np.int8)
        nq.adaround_soft(x, x, 1.0, 0, -8, 7)
    """
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env=os.environ | env)  # fmt: skip
    assert "numba" in run.stdout
    assert "npquant" not in run.stdout


def _primitives(begin, end, x, y):
    for i in range(np.uintp(begin), np.uintp(end)):
        v = rint(fma(widen(each((x, x), i)[0]), at(x, i), np.float32(1)))
        store(y, i, plus(times(v, like(at(2, i), v)), over(v, v)))


def test_primitives_are_no_functions(monkeypatch):
    """A function of Python takes ten milliseconds to compile, a few instructions one."""
    made, create = [], JITCodeLibrary.__init__
    monkeypatch.setattr(
        JITCodeLibrary,
        "__init__",
        lambda self, codegen, name: (made.append(name), create(self, codegen, name))[1],
    )
    kernel = Kernel(_primitives, "of_primitives", lambda: (FLOAT32, INT8))
    x, y = np.arange(20, dtype=np.float32) / 8, np.empty(20, np.int8)
    kernel(20, 20, (x, y), ())
    v = np.rint(x * x + 1)
    np.testing.assert_array_equal(y, 2 * v + 1)
    assert made == ["of_primitives"]


def test_an_unsigned_index_is_not_checked_for_wrap_around():
    kernel = Kernel(_primitives, "unsigned", lambda: (FLOAT32, INT8))
    code = kernel._code[()]
    text = str(code.library.get_function(code.fndesc.llvm_func_name))
    assert "fma" in text
    assert not re.search(r"icmp slt i64 %\S+, 0\b", text)


def _fetches(begin, end, x, y):
    fetch(x, begin, 16)
    y[0] = x[begin]
    fetch_to_second(x, begin, 16)


def test_to_which_cache_is_fetched():
    """LLVM counts from 3, the nearest, down."""
    kernel = Kernel(_fetches, "fetches", lambda: (FLOAT64, FLOAT64))
    text = kernel._code[()].library.get_llvm_str()
    caches = re.findall(r"call void @llvm\.prefetch\.p0\([^)]*i32 (\d), i32 1\)", text)
    assert list(dict.fromkeys(caches)) == ["3", "2"]


def _far(begin, end, x, y):
    y[0] = np.int8(far(x))
    y[1] = np.int8(far((x, x)))
    y[2] = np.int8(far(lent(x, 1, 4 * AHEAD)))
    y[3] = np.int8(far(lent(x, 1, 4 * AHEAD - 1)))
    y[4] = np.int8(far((lent(x, 1, 4 * AHEAD), x)))


def _beyond_second(begin, end, x, y):
    y[0] = np.int8(beyond_second(x))
    y[1] = np.int8(beyond_second((x, x)))
    y[2] = np.int8(beyond_second(lent(x, 1, 4 * AHEAD)))
    y[3] = np.int8(beyond_second(lent(x, 1, 4 * AHEAD - 1)))
    y[4] = np.int8(beyond_second((lent(x, 1, 4 * AHEAD), x)))


@pytest.mark.parametrize("fewer", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "dtype", "size"),
    [
        (_far, np.float32, FAR), (_far, np.float64, FAR),
        (_beyond_second, np.float32, BEYOND_SECOND // 4),
        (_beyond_second, np.float64, BEYOND_SECOND // 8),
        (_beyond_second, np.int8, BEYOND_SECOND),
    ],
)  # fmt: skip
def test_what_is_far(kernel, dtype, size, fewer):
    """Arrays that no cache of a core holds, or the second one does not, and long pieces of them."""
    kernel = Kernel(kernel, kernel.__name__, lambda: (array_type(np.dtype(dtype)), INT8))
    found = np.zeros(5, np.int8)
    kernel.serial[()](0, 1, np.empty(size - fewer, dtype), found)
    assert found.tolist() == ([0] * 5 if fewer else [1, 1, 1, 0, 0])


def _sharing(begin, end, x, y):
    n = 4 * AHEAD
    for k in range(2):
        y[k] = np.int8(shared(lent(x, 0, n), lent(x, n - k, n)))
        y[2 + k] = np.int8(shared(lent(x, n - k, n), lent(x, 0, n)))


def test_pieces_that_share_memory():
    """However much there is behind them."""
    kernel, found = Kernel(_sharing, "sharing", lambda: (FLOAT32, INT8)), np.zeros(4, np.int8)
    kernel.serial[()](0, 1, np.empty(12 * AHEAD, np.float32), found)
    assert found.tolist() == [0, 1, 0, 1]


def passes(code):
    """The names of the passes that a function went through."""
    (times,) = code.metadata["pipeline_times"].values()
    return {name.split("_", 1)[1] for name in times}


def test_needless_passes_are_left_out(made):
    """Of npquant's own functions; somebody else's may have what they rewrite."""
    own = _compile(usual, (types.intp, FLOAT32, FLOAT32, types.float64, types.float64))
    kernel = Kernel(_segment, "of_others", lambda: (FLOAT64, FLOAT64))
    every = passes(kernel._code[()])
    assert every > passes(own) > {"translate_bytecode", "reconstruct_ssa", "native_lowering"}
    needless = {"inline_closure_likes", "nopython_rewrites", "annotate_types"}
    assert needless <= every - passes(own)


def test_others_have_every_pass_again(made):
    def others():
        return Compiler.define_pipelines, _OverloadFunctionTemplate._get_impl

    before = others()
    with pytest.raises(TypingError):
        Kernel(_wrong, "wrong", lambda: (FLOAT64, FLOAT64))._code[()]
    assert others() == before
    fourth_powers("right")
    assert others() == before


def test_who_asks_meanwhile_has_no_caller():
    """Another thread may ask for the type of a call while this one compiles."""

    def named(v):
        raise NotImplementedError

    overload(named)(lambda v: lambda v: v)
    context = cpu_target.typing_context
    context.refresh()
    with needed_work():
        kind = context.resolve_value_type(named)
        assert context.resolve_function_type(kind, (types.int64,), {}).return_type == types.int64


@pytest.fixture
def noting():
    """A part, a segment of it, and from how many objects on garbage is collected meanwhile."""
    seen = []

    def noted(v):
        raise NotImplementedError

    @overload(noted)
    def _noted(v):
        seen.append(gc.get_threshold()[0])
        return lambda v: v

    def segment(begin, end, x, y):
        y[0] = noted(x[0])

    return noted, segment, seen


@pytest.mark.parametrize(("kind", "times"), [(called, 1), (inlined, 2)])
def test_what_several_call_is_compiled_once(made, noting, kind, times):
    """A kernel releases the GIL, which the others do not inherit; to be inlined they would."""
    noted, segment, seen = noting
    one = kind(segment)

    def two(begin, end, x, y):
        one(begin, end, x, y)
        y[0] += noted(x[0])

    Kernel(two, "two", lambda: (FLOAT64, FLOAT64)).serial[()]
    assert len(seen) == times


@pytest.mark.parametrize("before", [(600, 9), (0, 9)])
def test_no_garbage_is_collected_meanwhile(made, noting, before):
    """And then it is again, as often as before."""
    _, segment, seen = noting
    kernel = Kernel(segment, "noting", lambda: (FLOAT64, FLOAT64))
    wrong = Kernel(_wrong, "wrong", lambda: (FLOAT64, FLOAT64))
    usual = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        kernel(1, 1, (np.ones(1), np.ones(1)), ())
        assert gc.get_threshold()[:2] == before
        with pytest.raises(TypingError):
            wrong(5, 5, (np.ones(5), np.ones(5)), ())
        assert gc.get_threshold()[:2] == before
    finally:
        gc.set_threshold(*usual)
    assert set(seen) == {0}


@pytest.mark.parametrize(
    ("say", "expected"),
    [(gc.disable, (False, 600)), (lambda: gc.set_threshold(500), (True, 500))],
)
def test_what_is_said_of_garbage_meanwhile_holds(made, say, expected):
    """By another thread, for instance."""

    def saying(v):
        raise NotImplementedError

    @overload(saying)
    def _saying(v):
        assert gc.isenabled()
        say()
        return lambda v: v

    def segment(begin, end, x, y):
        y[0] = saying(x[0])

    kernel, usual = Kernel(segment, "saying", lambda: (FLOAT64, FLOAT64)), gc.get_threshold()
    gc.set_threshold(600)
    try:
        kernel(1, 1, (np.ones(1), np.ones(1)), ())
        assert (gc.isenabled(), gc.get_threshold()[0]) == expected
    finally:
        gc.set_threshold(*usual)
        gc.enable()


def test_others_call_the_same_parts(made):
    """A function that was a part before is one of a user's own function, and of another kernel."""
    fourth_powers("before")
    x = np.arange(5.0)
    users = njit(lambda x: fourth(x) + np.hypot(x, 0.0))
    assert [users(v) for v in x] == (x**4 + x).tolist()
    fourth_powers("after")
    assert made[0] == "before"
    assert made[-1] == "after"


def test_what_cannot_be_compiled_leaves_the_compiler_as_it_was(made):
    kernel = Kernel(_wrong, "wrong", lambda: (FLOAT64, FLOAT64))
    with pytest.raises(TypingError):
        kernel(5, 5, (np.ones(5), np.ones(5)), ())
    assert "create_library" not in vars(cpu_target.target_context.codegen())
    fourth_powers("right")


#: Of an older processor of Intel's and a later one, and how long their vectors are to be.
INTELS = {
    "cascadelake": ("+avx512f,+avx512vl,+avx512vnni", "ymm"),
    "icelake-server": ("+avx512f,+avx512vl,+avx512vbmi2", "zmm"),
}


@cache
def compiled_for(name, features, code):
    """What a program prints whose kernels are compiled for another processor.

    It runs none of them, unless this one has all that they are told of.
    """
    with TemporaryDirectory() as place:
        env = {
            "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": place,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True,
                             text=True, env=os.environ | env)  # fmt: skip
    return run.stdout


of_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="nobody else has them")


@of_x86
@pytest.mark.parametrize("name", INTELS)
def test_vectors_are_whole_where_they_slow_nothing_down(name):
    features, longest = INTELS[name]
    code = """if True:
        from test_parts import FLOAT64, Kernel, _in_vectors
        kernel = Kernel(_in_vectors, "fourth_powers", lambda: (FLOAT64, FLOAT64))
        print(kernel._code[()].library.get_asm_str())
    """
    text = compiled_for(name, features, code)
    assert max(re.findall(r"vmulpd\s.*([xyz]mm)", text)) == longest


@of_x86
@pytest.mark.parametrize("name", ["icelake-server", "znver3", "znver5"])
def test_arrays_are_not_addressed_as_the_stack_is(name):
    """By the register of a function's frame, if it has none; where that takes longer."""
    code = """if True:
        from npquant.cpu.extremes import of_any_size, np
        key = np.dtype(np.float32), np.dtype(np.int32)
        library = of_any_size._runs._code[key].library
        print(library.get_llvm_str(), library.get_asm_str())
    """
    text = compiled_for(name, "+avx512f,+avx512vl,+avx512vbmi2", code)
    assert ('"frame-pointer"="all"' in text) == (name == "icelake-server")
    if name == "icelake-server":
        assert "vpmaxud" in text
        assert "(%rbp,%" not in text


#: Prints digests of what a processor makes of every float16, and of floats about and between them.
HALVES = """if True:
    import zlib, numpy as np, npquant as nq
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = nq.convert_element_type(halves, np.float32)
    near = wide.view(np.uint32)[:, None] + np.array([-1, 0, 1, 0xFFF, 0x1000, 0x1001])
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 100_000)
    floats = np.concatenate([near.ravel(), drawn]).astype(np.uint32).view(np.float32)
    codes = np.arange(256, dtype=np.uint8)
    made = [nq.dequantize_per_tensor(codes.view(nq.dtypes.canonical(t, "t")), 1.0, 0, -8, 7, t)
            for t in ("float8_e4m3fn", "float8_e5m2")]
    print([zlib.crc32(a.tobytes()) for a in (wide, nq.convert_element_type(floats, np.float16),
           nq.quantize_per_tensor(halves, 0.1, 3, -128, 127, np.int8), *made)])
"""


@of_x86
def test_float16_on_processors_that_do_not_know_it():
    """Their bits, NaN included, are those of processors that do: see test_primitives.py."""
    found = compiled_for("generic", "", HALVES)
    assert "[" in found
    ours = subprocess.run(
        [sys.executable, "-c", HALVES], check=True, capture_output=True, text=True
    )
    assert found == ours.stdout


def test_what_is_not_inlined_is_the_kernels_own():
    """Nobody else finds it by its name, which is another's in another process."""
    float32, float64, int64 = map(np.dtype, (np.float32, np.float64, np.int64))
    kernel, _ = dynamic_per_token._rows[True]
    library = kernel._code[float32, float64, int64, "float32", np.dtype(np.int8)].library
    found = re.findall(r"^define (internal )?.*?@(\w*npquant\w*)", library.get_llvm_str(), re.M)
    assert [name for internal, name in found if internal], "parts that are not inlined"
    for internal, name in found:
        assert internal or kernel.name in name, name


#: Prints what becomes of a kernel.
MINMAX = """if True:
    from test_parts import np
    from npquant.cpu.extremes import of_any_size
    key = np.dtype(np.float32), np.dtype(np.int32)
    print(of_any_size._runs._code[key].library.get_llvm_str())
"""


@of_x86
@pytest.mark.parametrize(
    ("name", "long", "short"),
    [("haswell", True, True), ("znver3", False, False), ("znver5", True, False)],
)
def test_where_what_is_only_read_is_fetched(name, long, short):
    code = """if True:
        from test_parts import np
        from npquant.cpu.extremes import of_any_size
        float32, int32 = np.dtype(np.float32), np.dtype(np.int32)
        keys = {"_runs": (float32, int32), "_apart": (float32, int32),
                "short": (float32, float32), "_short_apart": (float32, float32)}
        for kernel, key in keys.items():
            text = getattr(of_any_size, kernel)._code[key].library.get_llvm_str()
            print("call void @llvm.prefetch" in text)
    """
    assert compiled_for(name, "+avx2,+fma", code).split() == [str(long), *3 * [str(short)]]


@of_x86
@pytest.mark.parametrize(
    ("name", "read", "fetches"),
    [
        ("haswell", "float32", True), ("haswell", "int8", False), ("znver3", "float32", False),
        ("znver5", "float32", True), ("znver5", "int8", False),
    ],
)  # fmt: skip
def test_where_what_goes_past_the_caches_is_fetched(name, read, fetches):
    """Not of codes that become wider, and not on a Zen up to the fourth."""
    code = f"""if True:
        from test_parts import np
        from npquant.cpu.quantize import dequantize, quantize_by_division
        run = dequantize if "{read}" == "int8" else quantize_by_division
        ops, float32 = run.__self__, np.dtype(np.float32)
        for kernel in (ops._runs_past, ops._blocks_past[32]):
            key = np.dtype("{read}"), float32, (float32, float32, "float32"), True
            text = kernel._code[key].library.get_llvm_str()
            print("!nontemporal" in text, "call void @llvm.prefetch" in text)
    """
    found = compiled_for(name, "+avx2,+fma", code).split()
    assert found == 2 * ["True", str(fetches)]


@of_x86
@pytest.mark.parametrize(
    ("name", "ahead", "lines"), [("haswell", 2048, 4), ("znver4", 2048, 4), ("znver5", 4096, 8)]
)
def test_how_far_ahead_a_processor_fetches(name, ahead, lines):
    code = "from npquant.cpu import lines; print(lines.PAST_AHEAD, lines.LINES_OF_STEPS)"
    assert compiled_for(name, "+avx2,+fma", code).split() == [str(ahead), str(lines)]


@of_x86
def test_no_references_are_counted():
    """Of arrays that a caller holds: in a loop it takes time, and threads wait for one another."""
    kernel = Kernel(_primitives, "without_references", lambda: (FLOAT32, INT8))
    assert "NRT_" not in kernel._code[()].library.get_llvm_str()
    text = compiled_for("haswell", "+avx2,+fma", MINMAX)
    assert "define " in text
    assert set(re.findall(r"NRT_\w+", text)) <= {"NRT_Free"}


@of_x86
@pytest.mark.parametrize(
    ("name", "features", "packs"),
    [
        ("haswell", "+avx2", True),
        ("nehalem", "+sse4.2", False),
        ("znver4", "+avx2,+avx512bw", False),
    ],
)
def test_where_bytes_are_packed(name, features, packs):
    code = """if True:
        from test_parts import np
        from npquant.cpu.quantize import quantize_per_tensor
        key = np.dtype(np.float32), np.dtype(np.int8), ("float64", "int32", "float32"), True
        print(quantize_per_tensor.__self__._runs._code[key].library.get_llvm_str())
    """
    text = compiled_for(name, features, code)
    assert ("call <32 x i8> @llvm.x86.avx2.packuswb" in text) == packs


@of_x86
@pytest.mark.parametrize(
    ("name", "features", "scale", "target", "lanes"),
    [
        ("haswell", "+avx2", "float32", "int8", True),
        ("haswell", "+avx2", "float64", "int8", False),
        ("haswell", "+avx2", "float32", "int16", False),
        ("nehalem", "+sse4.2", "float32", "int8", False),
        ("znver4", "+avx2,+avx512bw", "float32", "int8", False),
    ],
    ids=["avx2", "float64", "int16", "sse", "avx512"],
)
def test_where_codes_are_made_of_whole_vectors(name, features, scale, target, lanes):
    code = f"""if True:
        from test_parts import np
        from npquant.cpu.quantize import quantize_per_tensor
        key = np.dtype(np.float32), np.dtype("{target}"), ("{scale}", "int32", "float32"), True
        print(quantize_per_tensor.__self__._runs._code[key].library.get_llvm_str())
    """
    text = compiled_for(name, features, code)
    assert ("call <32 x i8> @llvm.x86.avx2.packsswb" in text) == lanes


#: A formula, and what it makes of float32 before it clamps.
FORMULAS = {
    "quantize": (quantize, lambda x, s, z: np.rint(x * s).astype(np.float64) + z),
    "float zero point": (quantize, lambda x, s, z: np.rint(x * s) + z),
    "zero first": (quantize_zero_first, lambda x, s, z: np.rint(x * s + z)),
    "by division": (quantize_by_division, lambda x, s, z: np.rint(x / s).astype(np.float64) + z),
}


@of_x86
@pytest.mark.parametrize("target", [np.int8, np.uint8, *SUB_BYTE], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_codes_made_of_whole_vectors(name, target, monkeypatch):
    """Of any length, wherever they begin, also where the processor has a better way."""
    monkeypatch.setattr(packs, "pay_for", lambda kind: kind in packs.BITS)
    formula, exact = FORMULAS[name]
    kind = np.float32 if name in ("float zero point", "zero first") else np.int32
    codes = codes_of(formula)

    def segment(begin, end, fetched, base, s, z, lo, hi, nan, x, y, done):
        n, first, constants = end - begin, np.uintp(base), (lo, hi, nan)
        done[0] = codes(x, first, n, (s, z), constants, y, first, None, fetched)

    numbers = 3 * (types.float32,)
    arrays = FLOAT32, array_type(np.dtype(target)), array_type(np.dtype(np.bool_))
    types_ = types.boolean, types.intp, types.float32, getattr(types, kind.__name__), *numbers
    kernel = Kernel(segment, "of_lanes", lambda: (*types_, *arrays))
    info, unsigned = ml_dtypes.iinfo(target), np.uint8
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        # Codes and ties, what is far out, by every exponent, and what is nothing or no number.
        ends = np.ldexp(np.float32([1, 1.5]), np.arange(-149, 128)[:, None]).ravel()
        odd = np.float32([0, np.inf, np.nan, 3e38, 2**22, 2**22 + 0.5, 2**23, 1.5 * 2**23, 2**24])
        x = np.concatenate([np.arange(-700, 700, dtype=np.float32) / 4, ends, odd])
        x = rng.permutation(np.concatenate([x, -x, np.float32(rng.standard_normal(500) * 90)]))
    x[np.isnan(x) & (rng.random(x.size) < 0.5)] *= -1
    before = x.copy()
    bounds = [(info.min, info.max, 0), (info.min + 1, info.max - 1, 1)]
    for s, z, (lo, hi, nan) in [
        (0.5, 0, bounds[0]), (1.0, 1, bounds[0]), (0.3, -1, bounds[1]), (1.0, 2**20, bounds[0]),
        (1.0, -(2**20), bounds[1]),
    ]:  # fmt: skip
        z = kind(z) + (np.float32(0.3) if name == "float zero point" and abs(z) < 2 else kind(0))
        with np.errstate(all="ignore"):
            code = np.clip(exact(x, np.float32(s), z), lo, hi)
            expected = np.where(np.isnan(x), nan, code).astype(np.int64)
        expected = (expected & (2**info.bits - 1)).astype(unsigned)
        for n, i in [*((n, n % 19) for n in range(1, 100)), (600, 0), (601, 5), (x.size - 16, 16)]:
            y, done = np.zeros(x.size + 9, target), np.zeros(1, bool)
            kernel(n, n, (n % 2 == 0, i, s, z, lo, hi, nan, x, y, done), ())
            got = y.view(unsigned)
            assert done[0] == (n >= 32)
            n = n if done[0] else 0
            np.testing.assert_array_equal(got[i : i + n], expected[i : i + n], f"{n} from {i}")
            assert not got[:i].any()
            assert not got[i + n :].any()
    assert before.tobytes() == x.tobytes()


@of_x86
@pytest.mark.parametrize(("name", "features", "many", "at_once"), [
    ("znver4", "+avx2,+avx512bw", True, False), ("haswell", "+avx2", False, False),
    ("znver4", "+avx2,+avx512bw,+avx512dq,+avx512bf16", True, True),
    ("znver4", "+avx2,+avx512bw,+avx512bf16", True, False),
])  # fmt: skip
def test_where_bfloat16_is_made_of_many(name, features, many, at_once):
    code = """if True:
        from test_parts import np
        import ml_dtypes
        from npquant.cpu.quantize import dequantize_in_integers
        qparams = np.dtype(np.float32), np.dtype(np.int64), "float32"
        key = np.dtype(np.int8), np.dtype(ml_dtypes.bfloat16), qparams, True
        print(dequantize_in_integers.__self__._runs._code[key].library.get_llvm_str())
    """
    text = compiled_for(name, features, code)
    assert ("shufflevector <64 x i16>" in text) == many
    assert ("@llvm.x86.avx512bf16.cvtne2ps2bf16.512" in text) == at_once


#: What is made of many values at once, and of which.
MADE = [(t, np.int32, False) for t in (np.int8, np.uint8, *SUB_BYTE)] + [
    (ml_dtypes.bfloat16, np.float32, False),
    pytest.param(
        ml_dtypes.bfloat16, np.float32, True,
        marks=pytest.mark.skipif(not processor_has("avx512bf16"), reason="no such instruction"),
    ),
]  # fmt: skip


@of_x86
@pytest.mark.parametrize(("target", "source", "at_once"), MADE, ids=str)
def test_elements_made_of_many_values(target, source, at_once, monkeypatch):
    """The same as one by one, also where the processor has a better way, or a worse one."""
    monkeypatch.setattr(packs, "pay_for", lambda kind: kind in packs.BITS)
    monkeypatch.setattr(bfloat16, "pays", lambda: True)
    monkeypatch.setattr(bfloat16, "compiled_for", lambda feature: at_once)

    def segment(begin, end, x, y):
        for start in range(begin, end, LONG):
            m, base = np.uintp(min(LONG, end - start)), np.uintp(start)
            # Of `begin`: the compiler remembers where there was no room of other types.
            room = together.room(LONG, begin, x[0], y)
            for k in range(m):
                together.hold(room, k, y, base + k, x[base + k])
            together.release(room, m, y, base)

    types_ = array_type(np.dtype(source)), array_type(np.dtype(target))
    kernel = Kernel(segment, "of_many", lambda: types_)
    text = kernel._code[()].library.get_llvm_str()
    assert f"[{LONG} x " in text
    assert ("cvtne2ps2bf16" in text) == at_once
    unsigned = np.dtype(f"u{np.dtype(target).itemsize}")
    if source == np.int32:
        x = np.random.default_rng(8).integers(-(2**31), 2**31, 10_007, np.int32)
        expected = (x & (2 ** ml_dtypes.iinfo(target).bits - 1)).astype(unsigned)
    else:  # every upper half, and lower ones around those that round it up
        lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
        x = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | lower).view(np.float32)
        x = np.random.default_rng(8).permutation(x[~np.isnan(x)])
        expected = x.astype(target).view(unsigned)
        # Of NaNs the bits alone, as of numbers: no arithmetic makes those that become others so.
        nans = np.array([0x7FC00000, 0xFFC00000, 0x7FC08001, 0xFF908001], np.uint32).repeat(40)
        order = np.argsort(x)
        x = np.concatenate([x[order], x, nans.view(np.float32)])
        rounded = (nans + 0x7FFF + (nans >> 16 & 1) >> 16).astype(np.uint16)
        expected = np.concatenate([expected[order], expected, rounded])
    for n in [*range(1, 70), x.size]:
        y = np.zeros(n + 9, target)
        kernel(n, n, (x[-n:].copy(), y), ())
        np.testing.assert_array_equal(y.view(unsigned)[:n], expected[-n:], str(n))
        assert not y.view(unsigned)[n:].any()
