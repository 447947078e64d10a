"""What CUDA kernels are compiled to, for two generations of GPUs and more; there need be none here.

Every call of every_kernel.py is made with its launches noted in place of being made, and each
kernel is compiled for what it was to be launched with.
"""

import re
from collections import Counter
from functools import cache
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import nvjitlink

import every_kernel
import npquant as nq
import npquant.modules as npq
from calls import CALLS, arguments, axis_name, fits, results
from npquant import backend, cpu, cuda, layout
from npquant.cpu.target import no_collection
from npquant.cuda import (
    arithmetic,
    convert,
    dynamic,
    elements,
    extremes,
    inverse,
    learnable,
    loops,
    reduce,
    target,
)
from npquant.dtypes import NARROW
from npquant.formulas.base import formula
from npquant.formulas.fake_quantize import affine_wide, fake_quantize_half_zero_point
from npquant.formulas.quantize import channel_inverse, quantize_zero_first
from npquant.primitives import fma, item, like, rint, widen
from twins import MEMORY, Noted, installed, off_vectors, ptx

#: The last that one compiler of NVIDIA's compiles for, and one of those that another does.
GENERATIONS = ((9, 0), (12, 0))
by_generation = pytest.mark.parametrize("cc", GENERATIONS, ids="{0[0]}.{0[1]}".format)

#: Kernels with float64 arithmetic on float32 data, and why.
IN_FLOAT64 = {
    "fake_quantize_float_zero_point": "the contract: PyTorch's product is a double",
    "fake_quantize_half_zero_point": "the contract: PyTorch's product is a double",
    **dict.fromkeys(
        (
            "choose_fbgemm",
            "choose_fbgemm_symmetric",
            "choose_symmetric",
            "observe_fbgemm",
            "observe_fbgemm_symmetric",
        ),
        "the contract: PyTorch chooses on the host, in doubles; once a channel",
    ),
    **dict.fromkeys(
        (
            "adaround_regularizer",
            "learnable_gradients_per_channel",
            "learnable_gradients_per_channel_nearest",
            "learnable_gradients_per_tensor",
            "learnable_gradients_per_tensor_nearest",
        ),
        "the contract: sums are of float64",
    ),
}

#: Types of what is computed with: of float16 the compiler computes some in two bytes.
FLOAT = r"(b?f16(x2)?|f32|f64)"

#: What an access to 16 bytes is called.
WIDEST = r"\.(v4\.[bfsu]32|v2\.[bfsu]64)"

#: Kernels that only round a float64 to a float32, and why.
FROM_FLOAT64 = {"dequantize": "the zero point of a tensor may be fractional: a float64 number"}

#: Kernels that make a float32 of an int64 by way of a float64, and why.
THROUGH_FLOAT64 = dict.fromkeys(
    ("choose_affine", "choose_float", "choose_kept_float"),
    "the contract: PyTorch divides by a Python float; once a channel",
)

#: Kernels with divisions of 64 bits, and why.
WIDE_DIVISIONS = {"copy_strided": "it walks arrays of any size along any axes"}

#: What launches other kernels alone.
MADE_OF_OTHERS = ("fused_fbgemm", "fused_fbgemm_symmetric")

#: Kernels with approximate reciprocals, of which `corrected` makes quotients; they do not divide.
CORRECTED = ("adaround_regularizer", "adaround_regularizer_backward")

#: Kernels whose formulas call primitives.fma.
FUSED = (
    "adam",
    "adam_decayed",
    "adamw",
    "adaround_init",
    "adaround_regularizer",
    "adaround_regularizer_backward",
    "adaround_soft",
    "adaround_soft_backward",
    "fake_quantize_float_zero_point",
    "fake_quantize_learnable",
    "fake_quantize_learnable_per_tensor",
    "fake_quantize_per_channel",
    "fake_quantize_per_channel_by_division",
    "fake_quantize_per_tensor",
    "fake_quantize_per_tensor_by_division",
    "learnable_gradients_per_channel",
    "learnable_gradients_per_channel_nearest",
    "learnable_gradients_per_tensor",
    "learnable_gradients_per_tensor_nearest",
    "sgd",
    "sgd_decayed",
    "sgd_momentum",
    "sgd_momentum_decayed",
)

#: Kernels whose formulas round to codes; float8 codes are not rounded to integers by division.
ROUNDED = tuple(
    name
    for name in cpu.__all__
    if name.startswith(("quantize", "fake_quantize")) and "float8" not in name
)


#: Ops in other dtypes, and where vectors do not fit.
ALSO = tuple(
    (op, dtype, lay)
    for op in ("quantize_per_channel", "fake_quantize_per_tensor_affine_cachemask")
    for dtype, lay in (
        (np.float16, np.copy), (ml_dtypes.bfloat16, np.copy), (np.float32, off_vectors),
    )
)  # fmt: skip


def of_many_elements():
    """What other calls are too small for: parts, tiles, bins in shared memory, several runs."""
    many = np.zeros((8 * layout.GROUP + 1) * layout.TILE, np.float32)
    few, lib = many[: 1 << 16], backend.of(many)
    lib.minmax(layout.whole(many.size), many)
    lib.minmax_finite(layout.whole(many.size), many)
    nq.adaround_regularizer(many, 4.0)
    for observer in (npq.HistogramObserver(64), npq.MSEObserver(64)):
        observer(few)
    images = np.zeros((3, 2, 96, 16), np.float32)
    of_axis = layout.per_channel(images.shape, 1)
    lib.minmax(of_axis, images)
    npq.MSEObserver(64, ch_axis=1)(images)
    one, two = np.ones(1, np.float32), np.ones(2, np.float32)
    nq.fake_quantize_learnable_per_tensor_affine_backward(many, many, one, one, -8, 7)
    nq.fake_quantize_learnable_per_channel_affine_backward(images, images, two, two, 1, -8, 7)
    for dtype in (np.float16, np.float32):
        rows, each = np.zeros((3, 32), dtype), np.ones((3, 1), np.float32)
        lib.minmax(layout.per_token(rows.shape), rows)
        nq.fake_quantize_learnable_per_token_affine_backward(rows, rows, each, each, -8, 7)


def of_channels_beside_each_other():
    """As many as vectors hold, in few rows and in many, in every op with an axis and formula."""
    for name, rows in product(CALLS, (9, 96)):
        if axis_name(name) and fits(name, (rows, 48)):
            kwargs = arguments(name, (rows, 48), 1)
            ways = every_kernel.OTHERWISE.get(name, ())
            for change in ({}, *[c for c in ways if c.get("rounding")]):
                results(name, kwargs | {k: v for k, v in change.items() if np.ndim(v) == 0})


@pytest.fixture(scope="module")
def launches():
    """The public kernel -> the (kernel, key) that it came to."""
    with pytest.MonkeyPatch.context() as patch, no_collection():
        noted = Noted(patch)
        with installed(noted):
            for call in every_kernel.EVERYTHING.values():
                call()
            for op in ALSO:
                every_kernel.op(*op)
            of_many_elements()
            of_channels_beside_each_other()
    found = {name: [] for name in cpu.__all__}
    for launch, names in noted.launches.items():
        for name in names:
            found[name].append(launch)
    return found


@cache
def opcodes(kernel, key, cc):
    """The PTX of a kernel, and how often each of its instructions is there."""
    with no_collection():
        text = ptx(kernel, key, cc)
    body = text[text.index("\n{") :]
    found = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s[^;]*;", body, re.MULTILINE)
    return text, Counter(found)


def count(found, pattern):
    return sum(n for opcode, n in found.items() if re.fullmatch(pattern, opcode))


def words(key):
    """Every word of a key, the names of dtypes too."""
    for part in key:
        if isinstance(part, tuple):
            yield from words(part)
        else:
            yield str(part)


def guessed(kernel, key):
    """Whether codes are guessed, by a reciprocal that begins with such a one and is corrected."""
    made = getattr(kernel._make, "__self__", None)
    return isinstance(made, loops.Map) and bool(made.formula_of(key[0], key[1], key[3]).shortcuts)


def faults(name, kernel, key, cc):
    """What is wrong with the code of a kernel that a public one of this name came to."""
    text, found = opcodes(kernel, key, cc)
    near = name in CORRECTED or guessed(kernel, key)
    near = r"rcp\.approx\.ftz\.f32" if near else r"none"
    wrong = {
        "local memory": len(re.findall(r"\.local\b", text)),
        "a call": count(found, r"call.*"),
        "an approximation": count(found, rf"(?!{near}$).*\.(approx|full|ftz).*"),
        # Without .rn the assembler may fuse a product and a sum.
        "a rounding that is not named": count(found, rf"(mul|add|sub|div|sqrt)\.{FLOAT}"),
    }
    double = {"wide", "float64"} & set(words(key))
    if name in FROM_FLOAT64:
        double_is_right = r"ld\.param\.f64|cvt\.rn\.f32\.f64"
    elif name in THROUGH_FLOAT64 and not double:
        double_is_right = r"cvt\.rn\.(f64\.s64|f32\.f64)"
    else:
        double_is_right = r".*" if name in IN_FLOAT64 or double else r"none"
    wrong["float64"] = count(found, rf"(?!({double_is_right})$).*f64.*")
    if name in CORRECTED:
        wrong["a division of 32 bits"] = count(found, r"div\.rn\.f32")
    if kernel.name not in WIDE_DIVISIONS:
        wrong["a division of 64 bits"] = count(found, r"(div|rem)\.[su]64")
    if name not in FUSED and not guessed(kernel, key):
        wrong["a fused product and sum"] = count(found, rf"(fma|mad)\.(rn\.)?{FLOAT}")
    wrong |= {f"no {what}": not there for what, there in wanted(name, kernel, key, found)}
    return {what: n for what, n in wrong.items() if n}


def wanted(name, kernel, key, found):
    """Yield what the code must have, and whether it has."""
    fused = name in FUSED and not ("wide" in words(key) or kernel.name.startswith("sums_of"))
    if fused or guessed(kernel, key):
        yield "fused product and sum", count(found, r"fma\.rn\.f(32|64)")
    if name in ROUNDED:
        yield "rounding", count(found, r"cvt\.rni\.f(32|64)\.f(32|64)")
    if isinstance(getattr(kernel._make, "__self__", None), loops.Map):
        inputs, qparams, _, outputs, width, many, runs = key
        if kernel.name in ("all_inside", "fill"):
            inputs = ()  # whose values it does not ask for
        read, written = inputs * many, outputs * many
        if runs == elements.BESIDE:  # qparams are those of all rows
            read += qparams[: 1 if name == "adaround_init" else 2]  # which has no zero point
        for verb, dtypes in (("ld", read), ("st", written)):
            for access, n in Counter(access_of(d, width) for d in dtypes).items():
                yield f"{verb}.global{access}", count(found, rf"{verb}\.global{access}") >= n
    elif kernel.name.endswith(("_runs", "_teams", "_total")):
        yield "ld.global of 16 bytes", count(found, rf"ld\.global{WIDEST}")


def access_of(dtype, width):
    """The pattern of an access to a vector of `width` elements, or to each if it is no word."""
    size = width * dtype.itemsize
    size = size if size >= 4 else dtype.itemsize
    if size == 16:
        return WIDEST
    if size > 4:
        return rf"\.(v{size // 4}\.[bfsu]32|[bfsu]64)"
    return rf"\.[bfsu]{8 * size}"


@by_generation
@pytest.mark.parametrize("name", cpu.__all__)
def test_code(name, cc, launches):
    if name == "outside":  # on a GPU nobody looks at qparams
        assert not launches[name]
        return
    if name == "dequantize_in_integers":  # nor at how large zero points are
        assert cuda.dequantize_in_integers is cuda.dequantize_promoted
        return
    if name.startswith("fake_quantize_decomposed") and "wide" not in name:
        wide = name.replace("decomposed", "decomposed_wide")
        assert getattr(cuda, name) is getattr(cuda, wide)
        return
    assert launches[name], f"no call of every_kernel.py comes to {name}"
    if name in MADE_OF_OTHERS:
        others = [found for other, found in launches.items() if other not in MADE_OF_OTHERS]
        assert {kernel for kernel, _ in launches[name]} <= {k for found in others for k, _ in found}
        return
    for kernel, key in launches[name]:
        assert faults(name, kernel, key, cc) == {}, (kernel.name, key)


#: Generations before those and between them.
OTHERS = (7, 5), (8, 0), (10, 0)
SOME = ("quantize_per_channel", "fake_quantize_per_tensor", "learnable_gradients_per_tensor",
        "minmax", "adaround_soft", "adaround_regularizer", "adam", "count_doubling")  # fmt: skip


@pytest.mark.parametrize("cc", OTHERS, ids="{0[0]}.{0[1]}".format)
def test_code_of_other_generations(cc, launches):
    """A few kernels of each kind are the same there."""
    for name in SOME:
        for kernel, key in launches[name][:2]:
            assert faults(name, kernel, key, cc) == {}, (kernel.name, key)
            assert f".target sm_{cc[0]}{cc[1]}" in ptx(kernel, key, cc)


def test_what_numba_makes_is_the_same_for_all(launches):
    """`ptx` makes it once, for the first that is asked for: of a few kernels of each kind."""
    first, last = GENERATIONS
    for name in SOME:
        kernel, key = launches[name][0]
        opcodes(kernel, key, first)  # made for it, unless it was for another one before
        texts = (
            opcodes(kernel, key, last)[0],
            ptx(target.Kernel(kernel._make, kernel.name), key, last),
        )
        lines, others = (
            Counter(re.sub(r"_ZN\w+|_cudapy_smem_\d+|//.*", "", text).splitlines())
            for text in texts
        )
        assert lines == others, kernel.name


#: The kernels that no call of many elements may come to in vain.
LARGE = (
    "doubling_bin_blocks", "extremes_key_teams", "extremes_of_parts", "linear_bin_blocks",
    "slopes_per_channel_gradients_zero_first_teams", "sums_of_groups_of_tiles",
    "sums_of_many_tiles",
)  # fmt: skip


def test_kernels_of_many_elements(launches):
    """They are among those whose code is looked at."""
    names = {kernel.name for some in launches.values() for kernel, _ in some}
    assert set(LARGE) <= names, names
    runs = [
        key for some in launches.values() for kernel, key in some if kernel.name.endswith("_runs")
    ]
    assert {False, True} <= {key[-1] for key in runs}


def test_codes_are_guessed(launches):
    """Of integers with a zero point, per channel and per token, and in no other kernel."""
    found = {name for name, some in launches.items() if any(guessed(*launch) for launch in some)}
    assert found == {"quantize_per_channel", "quantize_per_token"}
    for name in found:
        for kernel, key in launches[name]:
            (x,), (scale, zero_point), _, (y,), *_ = key
            usual = scale in (np.float32, np.float64) and x != np.float64 and y in NARROW
            assert guessed(kernel, key) == (usual and zero_point.kind == "i"), key


def test_qparams_of_rows_are_prepared_once(launches):
    """A thread of channels side by side makes as many reciprocals as a vector has elements."""
    asked = [
        (key[-3], count(opcodes(kernel, key, GENERATIONS[0])[1], r"rcp\.approx.*"))
        for kernel, key in launches["quantize_per_channel"]
        if key[-2:] == (loops.NARROWER_ROWS, elements.BESIDE) and guessed(kernel, key)
    ]
    assert asked
    assert all(width == found for width, found in asked)


def test_vectors_share_qparams_in_every_way(launches):
    """Those of one channel, those whose elements each have their own, and any others."""
    found = {
        key[-1] for some in launches.values() for kernel, key in some
        if isinstance(getattr(kernel._make, "__self__", None), loops.Map)
    }  # fmt: skip
    assert found == {elements.WHOLE, elements.BESIDE, elements.ANY}


@by_generation
def test_code_of_kernels_without_a_twin(cc, monkeypatch):
    """What NumPy does on the CPU: arithmetic of modules and the tape, conversions of integers."""
    noted = Noted(monkeypatch)

    def array(dtype):
        return MEMORY.upload(np.ones(64, dtype))

    x, y, codes = array(np.float32), array(np.float32), array(np.int32)
    for call in (arithmetic.add, arithmetic.maximum, arithmetic.minimum):
        call(x, y, y)
    for call in (arithmetic.add_number, arithmetic.maximum_number):
        call(x, 0.5, y)
    arithmetic.fill(y, 0.5)
    arithmetic.rounded(x, -8.0, 7.0, codes)
    inverse(x, y)
    convert(codes, array(np.int8))
    for kind, op in product((np.float16, ml_dtypes.bfloat16, np.float32), (False, True)):
        nq.quantize_per_token_dynamic(array(kind).viewed((2, 32)), np.int8, symmetric=op)
    for columns in (3, 1000, 2040, 1 << 12):  # from elements one by one to vectors that are held
        there = MEMORY.upload(np.zeros((2, columns), np.float32))
        nq.quantize_per_token_dynamic(there, np.int8)
    assert len(noted.launches) == 19
    for kernel, key in noted.launches:
        wrong = faults(kernel.name, kernel, key, cc)
        fused = wrong.pop("a fused product and sum", 0)
        assert wrong == {}, kernel.name
        # What is guessed of an element is a product on each side of it.
        guessed = kernel.name == "dynamic_token_asymmetric_qparams"
        width, held = key[-3:-1] if guessed else (0, 0)
        assert fused == 2 * width * held, (kernel.name, key)


def test_vectors_are_of_16_bytes(launches):
    """The keys above say how wide accesses must be; that they are wide is seen here."""
    for name, some in launches.items():
        for kernel, key in some:
            if isinstance(getattr(kernel._make, "__self__", None), loops.Map):
                *_, outputs, width, many, runs = key
                *several, last = sorted(d.itemsize for d in key[0] + outputs)
                # Two of what is quantized to less, or half of one of two bytes.
                wide = {16, 32} if key[0][0].itemsize == last not in several else {16}
                if runs == elements.BESIDE and last == 2 and len(wide) > 1:
                    wide = {8}
                assert width * last in wide or width == 1, (name, key)
                alone = runs == elements.BESIDE and many == 1  # of few rows
                asked = width * many * key[0][0].itemsize
                assert asked >= 16 or alone or width == 1, (name, key)


def test_exceptions_are_needed(launches):
    """No name stays in a table that does not need it."""
    needed = {"float64": set(), "division": set(), "fused": set(), "reciprocal": set()}
    for name, some in launches.items():
        for kernel, key in some:
            _, found = opcodes(kernel, key, GENERATIONS[-1])
            if "wide" not in words(key):
                needed["float64"] |= {name} if count(found, r".*f64.*") else set()
            needed["division"] |= {kernel.name} if count(found, r"(div|rem)\.[su]64") else set()
            needed["fused"] |= {name} if count(found, r"fma\.rn\.f(32|64)") else set()
            needed["reciprocal"] |= {name} if count(found, r"rcp\.approx.*") else set()
    tables = {"division": WIDE_DIVISIONS, "fused": FUSED, "reciprocal": CORRECTED}
    assert {what: set(table) - needed[what] for what, table in tables.items()} == {
        what: set() for what in tables
    }
    assert {*IN_FLOAT64, *FROM_FLOAT64, *THROUGH_FLOAT64} <= needed["float64"]


def linked(text):
    """What NVIDIA's linker says of machine code for compute capability 9.0."""
    handle = nvjitlink.create(2, ["-arch=sm_90", "-verbose"])
    text = text.encode()
    nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel.ptx")
    nvjitlink.complete(handle)
    said = bytearray(nvjitlink.get_info_log_size(handle))
    nvjitlink.get_info_log(handle, said)
    nvjitlink.destroy(handle)
    return said.decode()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_registers_of_the_widest_blocks(dtype):
    """A multiprocessor has 2**16: each of 512 threads 128 as it comes, and each of 1,024 64."""
    x, single, double = map(np.dtype, (dtype, np.float32, np.float64))
    code = "float64" if x == double else "float32"
    many = reduce.BATCH_OF_SMALL if x.itemsize <= 2 else reduce.BATCH
    gradients = learnable.learnable_gradients_per_channel
    gradients = gradients._wide if x == double else gradients
    found = {
        "lanes": (512, gradients.lanes, (x, single, single, code, double, double, 32, True, many)),
        "extremes": (512, extremes.minmax.lanes, (x, 32, many, True)),
    }
    longest = extremes.MOST_DOUBLE if x == double else extremes.MOST
    rows, chosen = dynamic.dynamic_per_token_asymmetric.kernel, (double, np.dtype(np.int64))
    for width in (1, 16 // x.itemsize):
        team = extremes.Team.of(longest - 1 if width == 1 else longest, width)
        key = (x, *chosen, "float64", code, np.dtype(np.int8), *team)
        found[f"rows by {width}"] = team.block, rows, key
        found[f"extremes by {width}"] = team.block, extremes.minmax.teams, (x, *team)
    assert max(threads for threads, *_ in found.values()) == (512 if x == double else 1024)
    for name, (threads, kernel, key) in found.items():
        text = ptx(kernel, key, (9, 0))
        assert re.findall(r"\.maxntid (\d+)", text) == [str(threads)] * (threads > 512), name
        said = linked(text)
        assert int(re.search(r"Used (\d+) registers", said)[1]) <= 2**16 // threads, name
        assert "0 bytes spill stores" in said, name


# --- the rules find what is wrong -----------------------------------------------------------------


@formula
def _nothing(x, scale, zero_point, constants, y):
    return scale, zero_point


@formula
def _in_double(x, p, constants, y):
    return widen(x) * 0.1, True


@formula
def _fused(x, p, constants, y):
    return fma(widen(x), p[0], constants[0]), True


@formula
def _rounded_by_hand(x, p, constants, y):
    return like(int(widen(x)), item(y)), True


@formula
def _rounded(x, p, constants, y):
    return rint(widen(x) * p[0]), True


def map_of(element):
    """The formula of a kernel, of tuples of arrays."""
    return loops.Elementwise(_nothing, element).map.formula


WRONG = {
    "float64": (_in_double, "dequantize_promoted"),
    "a fused product and sum": (_fused, "dequantize_promoted"),
    "no fused product and sum": (_rounded, "fake_quantize_per_tensor"),
    "no rounding": (_rounded_by_hand, "quantize_per_tensor"),
}
FLOATS = ((np.dtype(np.float32),), ("float32", "int32"), ("float32",) * 3, (np.dtype(np.float32),))
HALVES = (
    (np.dtype(np.float16),), (np.dtype(np.float16),) * 2, ("float32",) * 3, (np.dtype(np.int8),),
)  # fmt: skip
SHAPE = 4, 2, elements.WHOLE


@pytest.mark.parametrize("what", WRONG)
def test_wrong_formulas_are_found(what):
    element, name = WRONG[what]
    kernel = loops.Elementwise(_nothing, element).map.kernel
    assert set(faults(name, kernel, (*FLOATS, *SHAPE), (9, 0))) == {what}


class _Single(loops.Map):
    """Kernels of single elements, whatever the key promises."""

    def _make(self, *key):
        return super()._make(*key[:-3], 1, 4, key[-1])


def test_missing_vectors_are_found():
    kernel = _Single(map_of(_rounded), "single").kernel
    expected = {f"no ld.global{WIDEST}", f"no st.global{WIDEST}"}
    assert set(faults("dequantize_promoted", kernel, (*FLOATS, *SHAPE), (9, 0))) == expected


def test_whether_it_is_nan_is_asked_of_what_becomes_bfloat16():
    """A NaN that a GPU makes has all bits but the sign: rounded as a number, it would be -0.0."""
    kernel = loops.Elementwise(_nothing, _rounded).map.kernel
    asked = {}
    for dtype in (np.float32, ml_dtypes.bfloat16):
        found = opcodes(kernel, (*FLOATS[:3], (np.dtype(dtype),), *SHAPE), (9, 0))[1]
        asked[dtype] = count(found, r"setp\.(nan|num)\.f32")
    assert asked == {np.float32: 0, ml_dtypes.bfloat16: count(found, r"cvt\.rni\.f32\.f32")}


CONTRACTED = {
    "fake_quantize_half_zero_point": (affine_wide, fake_quantize_half_zero_point, FLOATS),
    "quantize_per_token": (channel_inverse, quantize_zero_first, HALVES),
}


@by_generation
@pytest.mark.parametrize("name", CONTRACTED)
def test_contraction_is_found(name, cc, monkeypatch):
    """Where it may, the compiler leaves it to the assembler to fuse a product and a sum."""
    *formula, dtypes = CONTRACTED[name]
    for fused, expected in ((0, set()), (1, {"a rounding that is not named"})):
        monkeypatch.setitem(target.NVVM_OPTIONS, "fma", fused)
        kernel = loops.Elementwise(*formula).map.kernel
        key = (*dtypes, 16 // dtypes[0][0].itemsize, 2, elements.WHOLE)
        assert set(faults(name, kernel, key, cc)) == expected
    product = rf"mul\.{'f16' if dtypes is HALVES else 'f32'}"
    assert count(opcodes(kernel, key, cc)[1], product)
