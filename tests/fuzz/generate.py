"""Cases: a call of an op, drawn at random, and what must come of it.

`case(seed, index)` is always the same call. Every argument is drawn right, in one of the forms that
it may have, or, in some calls, odd; what odd ones mean is read from them (`read.py`). So it is
known of each call in which arguments it is wrong, or else what the oracle must be asked.
"""

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import cases
import oracle
from calls import PARAMETERS, STATE
from cases import BOUNDS, FLOAT8
from fuzz import read
from fuzz.draw import ODD, ODD_DTYPES, Draw, odd_arrays, placed
from fuzz.read import UNSURE, WRONG, known

F16, BF16, F32, F64 = cases.FLOATS
INT8, INT32, INT64 = (np.dtype(t) for t in ("i1", "i4", "i8"))
FLOATS = cases.FLOATS
REALS = tuple(sorted(read.REALS, key=str))
SCHEMES = tuple(
    f"per_{g}" for g in ("tensor_affine", "tensor_symmetric", "channel_affine",
                         "channel_symmetric", "channel_affine_float_qparams")
)  # fmt: skip

#: Integers up to here are exact in float32, and in float64.
EXACT = {F32: 2**23, F64: 2**52}


@dataclass
class Case:
    """A call, and what is known of it."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: The same for the oracle: plain arrays in C order, numbers of Python.
    plain: dict[str, Any] = field(default_factory=dict)
    #: Arguments of which one must be named by an error; where there are none, none must be raised.
    wrong: set[str] = field(default_factory=set)
    #: Arguments that may be named as well, once something is wrong.
    named: set[str] = field(default_factory=set)
    #: Arguments that may be refused or taken.
    unsure: set[str] = field(default_factory=set)
    #: Where arrays lie: their bytes, and those round them.
    memory: dict[str, Any] = field(default_factory=dict)


#: Arguments that are read while results are written, beside the data.
READ = "scale", "scales", "zero_point", "zero_points", "beta", "weight"
#: Arguments that may be None in some op.
OPTIONAL = "axis", "group_size"


def case(seed, index, *, every_dtype=False, long=False):
    """Return the case with this number; with few dtypes, or with many that compile for long.

    Arrays have a few elements, or, if `long`, mostly some ten thousand.
    """
    draw = Draw(seed, index, long=long)
    name = draw.of(NAMES)
    maker = Maker(draw, name, draw.of(dtypes_of(name, every_dtype)), every_dtype)
    DRAWERS[name](maker)
    return maker.case


@dataclass(frozen=True)
class Dtypes:
    """Those of a call: of data, of codes, of scales, zero points and output."""

    x: np.dtype
    target: np.dtype
    scale: np.dtype
    zero: np.dtype
    out: np.dtype


_FEW = Dtypes(F32, INT8, F32, INT32, F32)
#: Sets of dtypes an op is called with in a long run: each compiles kernels of its own.
MANY = 8


def dtypes_of(name, every_dtype):
    """The same ones for an op whatever the seed, or a run would compile without end."""
    if not every_dtype:
        return (_FEW,)
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def some(options):
        return options[int(rng.integers(len(options)))]

    targets = tuple(BOUNDS)
    sets = [
        Dtypes(some(FLOATS), some(targets), some((F32, F32, *REALS)), some(REALS), some(FLOATS))
        for _ in range(MANY - 1)
    ]
    return (_FEW, *sets)


# --- one argument -------------------------------------------------------------------------------


class Maker:
    """Draws the arguments of one call, one after the other."""

    def __init__(self, draw, name, dtypes, every_dtype):
        self.draw, self.name, self.dtypes, self.many = draw, name, dtypes, every_dtype
        self.case = Case(name)
        #: How likely each argument is to be odd; most calls have none.
        self.odd = draw.of((0, 0, 0, 0, 0.1, 0.15, 0.3))
        #: Whether qparams of channels are numbers, all of them: what is right of one tensor.
        self.numbers = draw.chance(0.03)

    def add(self, name, value, got, memory=None):
        """Take an argument that was read as `got`."""
        self.case.kwargs[name], self.case.plain[name] = value, got
        if memory is not None:
            self.case.memory[name] = memory
        if got is WRONG:
            self.case.wrong.add(name)
        elif got is UNSURE:
            self.case.unsure.add(name)
        return got

    def wrong(self, *names):
        self.case.wrong.update(names)
        return WRONG

    def odd_value(self):
        return self.draw.of(ODD if self.draw.chance(0.6) else odd_arrays())

    def wrong_value(self, reader):
        """An odd value that is surely wrong."""
        while (value := self.odd_value()) is None or reader(value) is not WRONG:
            if value is None and reader(None) is WRONG:
                break
        return value

    def argument(self, name, reader, *forms):
        """An argument that is no array of data: one of the right `forms` of it, or an odd one."""
        value = self.odd_value() if self.draw.chance(self.odd) else self.draw.of(forms)
        if value is None and name in OPTIONAL:  # another call, which is drawn elsewhere
            value = forms[0]
        return self.add(name, value, reader(value))

    def number(self, name, value, reader=read.finite):
        forms = (value, value, value, np.float64(value), np.float32(value), np.array([value]),
                 np.array(value), np.array([[value]], ">f8"), np.array([value], F32))  # fmt: skip
        return self.argument(name, reader, *forms)

    def integer(self, name, value, reader=read.integer):
        forms = [value, value, value]
        if self.draw.chance(self.odd):
            forms = [np.array([value + 0.5])]  # which is none, unless it may be truncated
        if abs(value) < 2**63:
            forms += [np.array([value]), np.array(value, ">i8"), np.int64(value)]
        if abs(value) < 2**31:
            forms += [np.int32(value), np.array([[value]], INT32), np.array([value], F64)]
        return self.argument(name, reader, *forms)

    def switch(self, name, value):
        forms = (value, int(value), np.bool_(value), np.array([value]), np.array(float(value)),
                 np.int8(3 * value), 1.5 * value)  # fmt: skip
        return self.argument(name, read.switch, *forms)

    def word(self, name, value, allowed):
        return self.argument(name, lambda v: read.word(v, allowed), value, np.str_(value))

    def dtype(self, name, value, allowed):
        """The dtype as it is, or as one of its other names."""

        if self.draw.chance(self.odd):
            every = read.CONVERTIBLE | read.TARGETS  # another right one would be another call
            while known(read.dtype(bad := self.draw.of(self.draw.of((ODD_DTYPES, ODD))), every)):
                pass
            got = F32 if bad is None and name in ("out_dtype", "output_dtype") else WRONG
            return self.add(name, bad, got)
        forms = [value, value, value.type, value.newbyteorder()]
        forms += [value.name, value.str] if value.isbuiltin == 1 else []
        value = self.draw.of(forms)
        return self.add(name, value, read.dtype(value, allowed))

    # --- arrays ---------------------------------------------------------------------------------

    def data(self, name, x, allowed, shape=None):
        """An array of data; of the shape `shape` if there is another that says so."""
        if self.draw.chance(self.odd):
            return self.add(name, self.wrong_data(x, allowed, shape), WRONG)
        value, memory, x = placed(self.draw, x)
        return self.add(name, value, x, memory)

    def wrong_data(self, x, allowed, shape):
        """Another dtype, something that is no array, or another shape."""
        kind = self.draw.below(4 if shape is not None else 3)
        if kind == 0:
            return self.wrong_value(lambda v: read.array(v, allowed))
        if kind == 1:
            return np.ma.masked_array(x, mask=np.zeros(x.shape, bool))
        if kind == 2:
            kinds = (object, "V8", "S4", "m8[s]", np.longdouble, "u8", [("a", "f4")],
                     ml_dtypes.int2, ml_dtypes.float8_e4m3b11fnuz)  # fmt: skip
            kind = np.dtype(self.draw.of(kinds))
            return np.zeros(x.shape, object if kind in allowed else kind)
        return np.zeros((*shape, 2) if x.size else (3,), x.dtype)

    def parameters(self, name, p, reader, forms=()):
        """An array of qparams, one a channel: in one of several shapes, or as a list."""
        if self.numbers and p.size:
            value = p.reshape(-1)[0].item()
            return self.add(name, value, reader(value))
        if self.draw.chance(self.odd):
            value = self.odd_parameters(p)
            got = reader(value)
            if self.many or not isinstance(got, np.ndarray):
                return self.add(name, value, got)
        if forms:
            p = p.reshape(self.draw.of(forms))
        if self.draw.chance(0.1) and p.dtype in (F64, INT64):
            return self.add(name, p.tolist(), reader(p.tolist()))
        value, memory, p = placed(self.draw, p)
        return self.add(name, value, reader(p), memory)

    def odd_parameters(self, p):
        """Qparams with one element changed, of another length or dtype, or none at all."""
        kind = self.draw.below(4)
        if kind == 0 or not p.size:
            return self.odd_value()
        if kind == 1:
            with np.errstate(all="ignore"):
                odd = np.array(self.draw.of((np.nan, np.inf, -np.inf, 0, -0.0, -1, 1e-60, 1e60,
                                             2.0**31, -(2.0**63), 0.5, 1e-42)))  # fmt: skip
                q = p.astype(self.draw.of((p.dtype, F64)))
                q.reshape(-1)[self.draw.below(q.size)] = odd.astype(q.dtype)
            return q
        if kind == 2:
            other = (p[:-1] if p.ndim else p[None, None], np.concatenate([p.reshape(-1)] * 2),
                     p[None, None], p.reshape(-1)[:1], p.reshape(-1)[0])  # fmt: skip
            return self.draw.of(other)
        with np.errstate(all="ignore"):
            p = np.asarray(p, F64)
            return p.astype(self.draw.of((object, complex, bool, "S8", "u8", np.longdouble)))

    def out(self, dtype, shape, *data):
        """Where to write, if anywhere: apart from all, in the place of the data, or over others."""
        draw = self.draw
        if not draw.chance(0.4):
            return
        kind = draw.below(10)
        if kind < 3 and self.odd:
            value, memory = self.odd_out(dtype, shape), None
        elif kind < 6:
            value, memory = self.shared_out(dtype, shape)
        else:
            value, memory, _ = placed(draw, np.zeros(shape, dtype), written=True)
        kwargs = self.case.kwargs
        apart = [*data, *(key for key in kwargs if key in READ)]
        others = [v for key, v in kwargs.items() if key not in apart]
        got = read.out(value, dtype, shape, *(kwargs[key] for key in apart), others=others)
        self.add("out", value, got, memory)

    def odd_out(self, dtype, shape):
        """No array, one of another dtype or shape, or one whose elements share places."""
        draw = self.draw
        kind = draw.below(7)
        if kind == 0:
            return self.odd_value()
        if kind == 1:
            return np.zeros(shape, draw.of(("u4", "c8", object, "m8[s]", ">u2", [("a", "f4")])))
        if kind == 2:
            other = (*shape, 1), shape[:-1] or (3,), (2, *shape)
            return np.zeros(draw.of(other) if math.prod(shape) else other[0], dtype)
        y = np.zeros(max(1, math.prod(shape)), dtype)
        if kind < 5:
            step = draw.of((0, dtype.itemsize, 2 * dtype.itemsize))
            memory = np.zeros(3 * y.nbytes, np.uint8)
            return np.ndarray(shape, dtype, memory.data, 0, [step] * len(shape))
        y = y[: math.prod(shape)].reshape(shape)
        if kind == 5:
            y.flags.writeable = False
            return y
        return draw.of((np.ma.masked_array(y), y.reshape(1, -1).view(np.matrix), y[()]))

    def shared_out(self, dtype, shape):
        """An array in the memory of an argument: its elements, in this or another order, or others.

        None where there is no such array.
        """
        draw, memory = self.draw, self.case.memory
        held = [key for key in memory if type(memory[key]) is np.ndarray and memory[key].size]
        if not held:
            return None, None
        key = draw.of(held)
        x, base = self.case.kwargs[key], memory[key]
        if draw.chance(0.6) and x.dtype.itemsize == dtype.itemsize and x.shape == shape:
            if x.dtype != dtype:
                x = np.ndarray(x.shape, dtype, base.data, _offset(x, base), x.strides)
            return draw.of((x, x, x, x[::-1], x.T) if x.ndim > 1 else (x,)), base
        size = math.prod(shape) * dtype.itemsize
        if not size or base.nbytes < size:
            return None, None
        start = draw.below(base.nbytes - size + 1)
        return np.ndarray(shape, dtype, base.data, start), base


def _offset(x, base):
    """Where the first element of `x` lies in its memory."""
    return x.__array_interface__["data"][0] - base.__array_interface__["data"][0]


# --- what several ops have ------------------------------------------------------------------------

LENGTHS = (1, 1, 2, 2, 3, 4, 5, 7, 8, 16)
MOST = 64
#: Of arrays as long as those in use: more than are packed, rows of several tiles and of parts of
#: them, more channels than are done at once.
LONG_LENGTHS = (1, 2, 3, 4, 8, 16, 17, 40, 64, 100, 128, 256, 300, 1000, 1024, 2048, 3072, 4096,
                5000, 8192, 9001, 12_288, 16_384, 40_000, 65_536)  # fmt: skip
LONG_MOST = 1 << 17


def most(draw):
    """Elements at most of an array."""
    return LONG_MOST if draw.long else MOST


def some_axis(draw, shape):
    """An axis that is no huge one."""
    return draw.of([i for i, n in enumerate(shape) if n <= most(draw)])


def shape(draw, least=0, *, rows=False):
    """A shape of few elements, now and then of none; and of few `rows`, if they have qparams."""
    ndim = max(least, draw.of((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6)))
    lengths = lengths_of(draw, ndim, most(draw))
    if ndim and draw.chance(0.06):
        lengths[draw.below(ndim)] = 0
        if ndim > 1 and draw.chance(0.2) and (zeros := [i for i in range(ndim) if lengths[i]]):
            lengths[draw.of(zeros)] = draw.of((1 << 20, 1 << 31, 1 << 40))
            if rows and math.prod(lengths[:-1]) > most(draw):
                lengths = lengths[-1:] + lengths[:-1]
    return tuple(lengths)


def lengths_of(draw, ndim, size):
    """Lengths whose product is at most `size`, in any order."""
    lengths = []
    for _ in range(ndim):
        if draw.long:
            n = draw.of([n for n in LONG_LENGTHS if n <= size])
        else:
            n = draw.of(LENGTHS)
            n = n if n <= size else 1
        size //= n
        lengths.append(n)
    if draw.long:
        draw.rng.shuffle(lengths)
    return lengths


def scale_of(draw):
    """A positive number: an ordinary one, a power of two, or an awkward one."""
    kind = draw.below(10)
    if kind < 6:
        return 10 ** (4 * float(draw.rng.random()) - 3)
    return draw.of(cases.SCALES) if kind < 9 else 2.0 ** (draw.below(40) - 20)


def scales_of(draw, count, dtype):
    """Positive numbers of a dtype."""
    s = np.array([scale_of(draw) for _ in range(min(count, 8))], F64)
    if count > 8:  # in no order, which might hide that they are in another
        s = s[draw.rng.integers(0, 8, count)]
    with np.errstate(all="ignore"):
        s = s.astype(dtype)
        return np.where((s > 0) & np.isfinite(s.astype(F32)), s, np.ones(1, dtype))


def zeros_of(draw, count, dtype, lo, hi):
    """Zero points between two bounds, which here lie near zero."""
    lo, hi = max(lo, -(2**15)), min(hi, 2**15)
    if lo > hi:
        lo = hi = min(max(lo, hi), hi)
    z = draw.rng.integers(lo, hi, count, endpoint=True)
    z = np.clip(z, *_ends(dtype)).astype(F64) if dtype in read.INTEGERS else z.astype(F64)
    if dtype not in read.INTEGERS and draw.chance(0.6):
        z = np.clip(z + draw.rng.random(count) - 0.5, lo, hi)
    with np.errstate(all="ignore"):
        return z.astype(dtype)


def _ends(dtype):
    info = np.iinfo(dtype)
    return info.min, info.max


def floats_of(draw, shape, dtype, scale=1.0, lo=-8, hi=7):
    """Values in and round the range of codes, on ties, and special ones."""
    n = math.prod(shape)
    if not n:
        return np.zeros(shape, dtype)
    rng, lo, hi = draw.rng, max(lo, -(2**33)), min(hi, 2**33)
    with np.errstate(all="ignore"):
        if draw.chance(0.5):
            x = rng.normal(0, scale * (hi - lo + 2) / 2, n)
        else:
            x = (
                rng.integers(min(lo, 0) - 2, max(hi, 0) + 3, n) + draw.of((0.5, 0.5, 0, 0.25))
            ) * scale
        x = x.astype(dtype)
        if draw.chance(0.4):
            special = _SPECIALS[dtype]
            for _ in range(1 + draw.below(3)):
                x[draw.below(n)] = draw.of(special)
    return x.reshape(shape)


_SPECIALS = {dtype: cases.specials(dtype) for dtype in FLOATS}


def reals_of(draw, shape, dtype, *args):
    """Floats, or integers of the whole range of their dtype."""
    if dtype in read.INTEGERS:
        lo, hi = _ends(dtype) if draw.chance(0.3) else (max(_ends(dtype)[0], -100), 100)
        return draw.rng.integers(lo, hi, shape, endpoint=True).astype(dtype)
    return floats_of(draw, shape, dtype, *args)


def codes_of(draw, shape, dtype):
    if dtype in FLOAT8:
        return draw.rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
    lo, hi = BOUNDS[dtype]
    return draw.rng.integers(lo, hi, shape, endpoint=True).astype(dtype)


WIDE = ((-(2**31), 2**31 - 1), (-(2**24) - 1, 2**25 + 3), (2**24 + 1, 2**24 + 9))
RANGES = ((-128, 127), (0, 255), (-8, 7), (0, 15), (-5, 100), (-32768, 32767), (0, 0), (3, 9))


def within(draw, target):
    """Bounds within those of a dtype: mostly all of it."""
    lo, hi = BOUNDS[target]
    if draw.chance(0.6):
        return lo, hi
    a, b = sorted((lo + draw.below(hi - lo + 1), lo + draw.below(hi - lo + 1)))
    return draw.of(((a, b), (lo, b), (a, hi), (max(lo, -5), min(hi, 100))))


def anywhere(draw, many):
    return draw.of(RANGES + WIDE if many else RANGES)


AS_INT32 = {"least": -(2**31), "greatest": 2**31 - 1}


def bounds(m, lo, hi, *, least=-(2**63), greatest=2**63 - 1, zero=False, proper=False,
           steps=False):  # fmt: skip
    """The two bounds: in order, in a range; round zero, or of more than one code, where asked."""
    a, b = (m.integer(f"quant_{k}", v, read.truncated) for k, v in (("min", lo), ("max", hi)))
    if not known(a, b):
        m.case.named |= {"quant_min", "quant_max"}
        return None
    wrong = not least <= a <= b <= greatest
    wrong |= (zero and not a <= 0 <= b) or (proper and a == b) or (steps and b - a >= 2**63)
    if not wrong and max(-a, b) > 2**53:  # a float64 does not hold them, nor does the oracle
        m.case.unsure |= {"quant_min", "quant_max"}
    return m.wrong("quant_min", "quant_max") if wrong else (a, b)


def number_scale(m, *, single=False, double=False):
    """One scale: positive and finite, in float32 where it is used so."""
    reader = read.single if single else read.number

    def positive(value):
        s = reader(value)
        if not known(s):
            return s
        with np.errstate(all="ignore"):
            used = s if double else float(np.float32(s))
        return s if 0 < used < math.inf else WRONG

    return m.number("scale", scale_of(m.draw), positive)


def used_in(m, name, precision):
    """Look again at scales that were read, once it is known in which precision they are used."""
    s = m.case.plain[name]
    if not known(s) or precision == F64:
        return
    with np.errstate(all="ignore"):
        used = np.asarray(s).astype(F32)
    if not ((used > 0) & np.isfinite(used)).all():
        (m.case.wrong if known(precision) else m.case.unsure).add(name)


def array_scales(m, name, shapes, count, dtype=None, *, double=False, floats=False):
    """A scale for each channel."""
    dtype = dtype or m.dtypes.scale

    def positive(value):
        s = read.learned(value, shapes) if floats else read.parameters(value, shapes)
        if s is WRONG:
            return s
        with np.errstate(all="ignore"):
            kept = double and (s.dtype in read.FLOATS or m.name.startswith("adaround"))
            used = s if kept else s.astype(F32)
            right = ((used > 0) & np.isfinite(used)).all()
        return s if right else WRONG

    return m.parameters(name, scales_of(m.draw, count, dtype), positive, forms(shapes))


def forms(shapes):
    return tuple(s for s in shapes if math.prod(s) < 1 << 16)


def array_zeros(m, name, shapes, p, check, reader=read.parameters):
    """A zero point for each channel, of which `check` says whether all are right."""

    def checked(value):
        z = reader(value, shapes)
        return z if z is WRONG or check(z) else WRONG

    return m.parameters(name, p, checked, forms(shapes))


def all_finite(z):
    return z.dtype in read.INTEGERS or bool(np.isfinite(z.astype(F64)).all())


def no_nan(z):
    return z.dtype in read.INTEGERS or not np.isnan(z).any()


def fit_int32(z):
    if z.dtype in read.INTEGERS:
        return bool(((z >= -(2**31)) & (z < 2**31)).all())
    return bool(((z.astype(F64) > -(2.0**31) - 1) & (z.astype(F64) < 2.0**31)).all())


def zero_point_number(value):
    """An integer of 64 bits, or the one element of an array, which may be fractional."""
    value = read.boxed(value)
    if isinstance(value, np.ndarray):
        return read.finite(value)
    z = read.integer(value)
    return z if not known(z) or -(2**63) <= z < 2**63 else WRONG


def axis(m, shape, a, name="axis"):
    """An axis, from either end; `a` is one from the front. Return which one it is."""
    ndim = len(shape)

    def reader(value):
        n = read.integer(value)
        return n if not known(n) or -ndim <= n < ndim else WRONG

    form = m.draw.of((a, a - ndim))
    if m.draw.chance(m.odd):
        form = m.draw.of((ndim, -ndim - 1, 2**63, -(2**70)))
    got = m.integer(name, form, reader)
    if known(got) and shape[got] > most(m.draw):  # nobody has as many scales
        got = m.add(name, a, a)
    return got % ndim if known(got) else a


def group_of(m, shape, group):
    """A size of groups that divides the last axis, or is greater."""
    width = shape[-1]

    def reader(value):
        g = read.integer(value)
        if not known(g):
            return g
        if g <= 1 or (g < width and width % g):
            return WRONG
        return min(g, width or 2)

    if m.draw.chance(m.odd):
        group = m.draw.of((0, 1, -group, group + 1, 2 * group + 1, 2**70))
    return m.integer("group_size", group, reader)


def grouped(draw, ndim=None):
    """A shape whose last axis is some groups, and the size of these."""
    if draw.long:
        group, count = draw.of((2, 3, 4, 16, 24, 32, 100, 128, 1024, 4096)), draw.of((1, 2, 3, 8))
        ndim = draw.of((0, 1, 1, 2, 2, 3)) if ndim is None else ndim - 1
        return (*lengths_of(draw, ndim, LONG_MOST // (group * count)), group * count), group
    group, count = draw.of((2, 3, 4, 8)), draw.of((0, 1, 1, 2, 3))
    rows = draw.of((1, 2, 3, 4, 0))
    lead = (rows,) if ndim == 2 else draw.of(((), (rows,), (rows,), (2, rows), (1, 2, rows)))
    return (*lead, group * count), draw.of((group, group, group, 100)) if count < 2 else group


def token_shapes(shape):
    rows = shape[:-1]
    return ((*rows, 1) if shape else (), (math.prod(rows),))


def group_shapes(shape, group):
    kept = (*shape[:-1], shape[-1] // group)
    return kept, (math.prod(kept),)


def rounding(m):
    if m.draw.chance(0.3 if m.many else 0.1) or m.draw.chance(m.odd):
        return m.word("rounding", m.draw.of(("reciprocal", "divide")), ("reciprocal", "divide"))
    return "reciprocal"


def output_dtype(m, name):
    """A floating dtype, or none for float32."""
    if m.draw.chance(0.5):
        return F32
    if m.draw.chance(0.2):
        m.add(name, None, F32)
        return F32
    return m.dtype(name, m.dtypes.out, read.FLOATS)


# --- quantize and dequantize ----------------------------------------------------------------------


def _per_tensor(m):
    t = m.dtypes.target
    lo, hi = within(m.draw, t)
    scale = number_scale(m, double=True)
    middle = int(zeros_of(m.draw, (), INT64, lo, hi))
    z = m.draw.of((middle, middle, middle + 0.25)) if m.many else middle
    if isinstance(z, float):
        m.argument("zero_point", zero_point_number, np.array([z]), np.array(z, F32))
    else:
        m.integer("zero_point", z, zero_point_number)
    bounds(m, lo, hi, least=BOUNDS[t][0], greatest=BOUNDS[t][1])
    return scale if known(scale) else 1.0, lo - middle, hi - middle


def quantize_per_tensor(m):
    d = m.dtypes
    size, (scale, lo, hi) = shape(m.draw), _per_tensor(m)
    m.data("input", floats_of(m.draw, size, d.x, scale, lo, hi), read.FLOATS)
    m.dtype("dtype", d.target, {d.target})
    if rounding(m) == "divide":
        used_in(m, "scale", d.x)
    m.out(d.target, size, "input")


def dequantize_per_tensor(m):
    d = m.dtypes
    size, _ = shape(m.draw), _per_tensor(m)
    m.data("input", codes_of(m.draw, size, d.target), {d.target})
    m.dtype("dtype", d.target, {d.target})
    out = output_dtype(m, "out_dtype")
    used_in(m, "scale", out)
    m.out(out if known(out) else F32, size, "input")


def _channels(m, ending, scales, zeros):
    """Shape, axis, and qparams along it, drawn by the functions `scales` and `zeros`."""
    size = shape(m.draw, 1)
    a = axis(m, size, some_axis(m.draw, size))
    shapes = ((size[a],),)
    s, z = f"scale{ending}", f"zero_point{ending}"
    scales(s, shapes, size[a])
    zeros(z, shapes, size[a])
    return size


def _scale_near(m, name):
    s = m.case.plain.get(name)
    return float(np.asarray(s).reshape(-1)[0]) if isinstance(s, np.ndarray) and s.size else 1.0


def _code_params(m, lo, hi, none=False):
    """How scales and zero points of the quantize ops are drawn."""
    d = m.dtypes

    def scales(name, shapes, count):
        array_scales(m, name, shapes, count, double=True)

    def zeros(name, shapes, count):
        if none and m.draw.chance(0.2):
            m.add(name, None, None)
            return
        z = zeros_of(m.draw, count, d.zero, lo, hi)
        if m.many and d.zero in (INT64, INT32) and z.size and m.draw.chance(0.1):
            z.reshape(-1)[0] = m.draw.of((2**20 + 1, 2**25 + 1, -(2**31), 2**31 - 1))
        got = array_zeros(m, name, shapes, z, all_finite)
        if none and m.case.kwargs[name] is None:  # drawn as an odd value, and right here
            m.case.wrong.discard(name)
            m.case.plain[name] = None
        return got

    return scales, zeros


def quantize_per_channel(m):
    d, (lo, hi) = m.dtypes, within(m.draw, m.dtypes.target)
    size = _channels(m, "s", *_code_params(m, lo, hi))
    x = floats_of(m.draw, size, d.x, _scale_near(m, "scales"), lo, hi)
    m.data("input", x, read.FLOATS)
    _codes_end(m, lo, hi)
    rounding(m)
    m.out(d.target, size, "input")


def _codes_end(m, lo, hi):
    t = m.dtypes.target
    bounds(m, lo, hi, least=BOUNDS[t][0], greatest=BOUNDS[t][1])
    m.dtype("dtype", t, {t})


def dequantize_per_channel(m):
    d, (lo, hi) = m.dtypes, within(m.draw, m.dtypes.target)
    size = _channels(m, "s", *_code_params(m, lo, hi, none=True))
    m.data("input", codes_of(m.draw, size, d.target), {d.target})
    _codes_end(m, lo, hi)
    out = output_dtype(m, "out_dtype")
    used_in(m, "scales", out)
    m.out(out if known(out) else F32, size, "input")


def _rows(m, lo, hi, none=False, groups=False):
    """Shape and qparams per token, or per group of a matrix."""
    if groups:
        size, g = grouped(m.draw, 2)
        got = group_of(m, size, g)
        g = got if known(got) else 2
        shapes = group_shapes(size, g)
    else:
        size = shape(m.draw, rows=True)
        shapes = token_shapes(size)
    scales, zeros = _code_params(m, lo, hi, none)
    scales("scales", shapes, math.prod(shapes[1]))
    zeros("zero_points", shapes, math.prod(shapes[1]))
    if groups:  # the oracle wants to see the groups of a row
        for key in ("scales", "zero_points"):
            if isinstance(m.case.plain[key], np.ndarray):
                m.case.plain[key] = m.case.plain[key].reshape(shapes[0])
    return size


def _quantize_rows(m, groups):
    d, (lo, hi) = m.dtypes, within(m.draw, m.dtypes.target)
    size = _rows(m, lo, hi, groups=groups)
    dtype = d.zero if m.many and m.draw.chance(0.2) else d.x
    x = reals_of(m.draw, size, dtype, _scale_near(m, "scales"), lo, hi)
    m.data("input", x, read.REALS)
    _codes_end(m, lo, hi)
    rounding(m)
    m.out(d.target, size, "input")


def _dequantize_rows(m, groups):
    d, (lo, hi) = m.dtypes, within(m.draw, m.dtypes.target)
    size = _rows(m, lo, hi, groups, groups)
    m.data("input", codes_of(m.draw, size, d.target), {d.target})
    _codes_end(m, lo, hi)
    out = output_dtype(m, "output_dtype")
    m.out(out if known(out) else F32, size, "input")


# --- fake quantize --------------------------------------------------------------------------------


def _fake_number(m):
    lo, hi = anywhere(m.draw, m.many)
    z = int(zeros_of(m.draw, (), INT64, lo, hi)) if hi < 2**20 else hi
    return (lo, hi), z


def fake_quantize_per_tensor(m):
    (lo, hi), z = _fake_number(m)
    size, scale = shape(m.draw), number_scale(m)
    range_ = bounds(m, lo, hi)

    def inside(value):
        n = read.truncated(read.boxed(value))
        return n if not known(n, range_) or range_ is None or range_[0] <= n <= range_[1] else WRONG

    m.integer("zero_point", z, inside)
    if range_ is None or not known(range_):
        m.case.named.add("zero_point")
    x = floats_of(m.draw, size, m.dtypes.x, scale if known(scale) else 1.0, lo - z, hi - z)
    m.data("input", x, read.FLOATS)
    rounding(m)
    if "out" in PARAMETERS[m.name]:
        m.out(m.dtypes.x, size, "input")


def fake_quantize_tensor_qparams(m):
    (lo, hi), z = _fake_number(m)
    size, scale = shape(m.draw), number_scale(m)
    bounds(m, lo, hi)

    def int32(value):
        n = read.number(value)
        return n if not known(n) or -(2.0**31) - 1 < n < 2.0**31 else WRONG

    m.number("zero_point", float(z) + m.draw.of((0, 0.3, -0.7)), int32)
    m.switch("fake_quant_enabled", m.draw.chance(0.8))
    x = floats_of(m.draw, size, m.dtypes.x, scale if known(scale) else 1.0, lo - z, hi - z)
    m.data("input", x, read.FLOATS)
    rounding(m)


def fake_quantize_per_channel(m):
    d, (lo, hi) = m.dtypes, anywhere(m.draw, m.many)
    range_ = bounds(m, lo, hi)

    def right(z):
        if z.dtype in read.FLOATS:
            with np.errstate(all="ignore"):
                return all_finite(z if z.dtype == F16 else z.astype(F32))
        if range_ is None or not known(range_):
            return True
        return bool(((z >= range_[0]) & (z <= range_[1])).all()) and fit_int32(z)

    def zeros(name, shapes, count):
        z = zeros_of(m.draw, count, d.zero, lo, hi) if hi < 2**20 else np.full(count, hi)
        fits = d.zero not in read.INTEGERS or (_ends(d.zero)[0] <= lo and hi <= _ends(d.zero)[1])
        z = z.astype(d.zero if fits else INT64)
        if not fits:
            z = np.clip(z, lo, hi)
        array_zeros(m, name, shapes, z, right)

    size = _channels(m, "", lambda *args: array_scales(m, *args), zeros)
    if range_ is None or not known(range_):
        m.case.named.add("zero_point")
    _fake_end(m, size, "scale", lo, hi)


def _fake_end(m, size, scale, lo, hi):
    x = floats_of(m.draw, size, m.dtypes.x, _scale_near(m, scale), lo, hi)
    m.data("input", x, read.FLOATS)
    if "rounding" in PARAMETERS[m.name]:
        rounding(m)
    if "out" in PARAMETERS[m.name]:
        m.out(m.dtypes.x, size, "input")


def fake_quant_per_channel(m):
    d, (lo, hi) = m.dtypes, anywhere(m.draw, m.many)
    bounds(m, lo, hi)

    def zeros(name, shapes, count):
        array_zeros(m, name, shapes, zeros_of(m.draw, count, d.zero, lo, hi), fit_int32)

    size = _channels(m, "s", lambda *args: array_scales(m, *args), zeros)
    _fake_end(m, size, "scales", lo, hi)


def masked(m):
    d, size = m.dtypes, shape(m.draw)
    grad = reals_of(m.draw, size, m.draw.of((d.x, d.x, d.zero)) if m.many else d.x)
    mask = m.draw.rng.random(size) < 0.5 if math.prod(size) else np.zeros(size, bool)
    if m.draw.chance(0.1) and grad.size:  # axes of one may be elsewhere
        mask = mask.reshape(m.draw.of(((1, *size), (*size[:1], 1, *size[1:]) if size else (1,))))
    try:
        both = np.broadcast_shapes(size, mask.shape)
    except ValueError:
        both = ()
    m.data("grad", grad, read.REALS)
    got = m.data("mask", mask, {read.BOOL}, size)
    if math.prod(both) != grad.size and known(got):
        m.wrong("mask")
        both = size
    m.out(grad.dtype, both if grad.size else size, "grad", "mask")


# --- learnable ------------------------------------------------------------------------------------


def _learnable(m, granularity):
    """The forward and the backward of one granularity."""
    d, draw, backward = m.dtypes, m.draw, m.name.endswith("backward")
    lo, hi = draw.of(((-128, 127), (0, 255), (-8, 7), (0, 15), (0, 0)))
    if m.many:
        lo, hi = draw.of(((lo, hi), (lo, hi), (-(2**31), 2**31 - 1), (-(2**24) - 1, 7)))
    if not backward and draw.chance(0.1):
        lo, hi = 3, 9
    if granularity == "tensor":
        size, shapes = shape(draw), ((1,), ())
    elif granularity == "channel":
        size = shape(draw, 1)
        a = axis(m, size, some_axis(draw, size))
        shapes = ((size[a],),)
    elif granularity == "token":
        size = shape(draw, rows=True)
        shapes = token_shapes(size)
    else:
        size, g = grouped(draw)
        got = group_of(m, size, g)
        shapes = group_shapes(size, got if known(got) else 2)
    count = math.prod(shapes[0])
    kind = d.scale if d.scale in read.FLOATS else F32
    _learned_qparams(m, shapes, count, kind, lo, hi, backward, granularity == "tensor")
    bounds(m, lo, hi, zero=backward, steps=backward)
    m.number("grad_factor", draw.of((1.0, 0.5, -0.25, 0.0, 1e-3)))
    x = floats_of(draw, size, d.x, _scale_near(m, "scale"), lo, hi)
    m.data("input", x, read.FLOATS)
    if granularity == "channel_group":
        for key in ("scale", "zero_point"):
            p = m.case.plain.get(key)
            if isinstance(p, np.ndarray) and not backward:
                m.case.plain[key] = p.reshape(shapes[0])
    if backward:
        grad = floats_of(draw, size, d.x, 0.1)
        if draw.long:  # of many magnitudes, or sums would be exact in whatever order
            with np.errstate(all="ignore"):
                grad = (grad.astype(F64) * 2.0 ** draw.rng.integers(-12, 12, size)).astype(d.x)
        m.data("grad", grad, {d.x}, size)
        if draw.chance(0.3):
            both = "pytorch", "nearest"
            m.word("zero_point_rounding", draw.of(both if m.many else both[:1]), both)
    else:
        m.out(d.x, size, "input")


def _learned_qparams(m, shapes, count, kind, lo, hi, backward, single):
    draw = m.draw
    z = np.clip(draw.rng.normal(0, 3, count), -1e4, 1e4) if count else np.zeros(0)
    z = z + draw.of((0, 0.5, max(lo, -1000), min(hi, 1000)))
    z_kind = draw.of((F32, F32, kind, INT32, INT64) if m.many else (F32, F32, F32, INT32))
    whole = z_kind in read.INTEGERS
    if draw.chance(0.05) and count:
        z[draw.below(count)] = draw.of((1e9, -1e9) if whole else (np.inf, -np.inf, 1e9, -1e9))
    with np.errstate(all="ignore"):
        z = z.astype(z_kind)
    if single and not backward:
        number_scale(m, single=True)

        def number(value):
            n = read.single(value)
            return WRONG if known(n) and math.isnan(n) else n

        m.number("zero_point", float(z[0]), number)
        return
    reader = read.learned_zero_point if backward else read.parameters
    array_scales(m, "scale", shapes, count, kind, floats=backward)
    array_zeros(m, "zero_point", shapes, z, no_nan, reader)


# --- qparams, fused, conversion -------------------------------------------------------------------


def _around_zero(draw):
    return draw.of(((-128, 127), (0, 255), (-8, 7), (0, 15), (-5, 100), (-32768, 32767), (0, 1)))


def choose(m):
    d, size, (lo, hi) = m.dtypes, shape(m.draw), _around_zero(m.draw)
    m.data("input", floats_of(m.draw, size, d.x), read.FLOATS)
    if not math.prod(size):
        m.wrong("input")
    within = {} if m.name.endswith("symmetric") else AS_INT32
    bounds(m, lo, hi, zero=True, proper=True, steps=True, **within)
    m.number("eps", m.draw.of((2.0**-23, 1e-5, 1e-3, 0.0)), read.least_scale)
    m.dtype("dtype", d.target, read.TARGETS)


def choose_per_token(m):
    d, size = m.dtypes, shape(m.draw, rows=True)
    m.data("input", reals_of(m.draw, size, d.zero if m.many and m.draw.chance(0.3) else d.x),
           read.REALS)  # fmt: skip
    if size and not size[-1]:
        m.wrong("input")
    allowed = read.TARGETS if m.name.endswith("asymmetric") else {INT8}
    m.dtype("dtype", INT8 if len(allowed) == 1 else d.target, allowed)


def dynamic(m):
    d, size = m.dtypes, shape(m.draw, rows=True)
    x = m.data("input", reals_of(m.draw, size, d.zero if m.many and m.draw.chance(0.3) else d.x),
               read.REALS)  # fmt: skip
    m.dtype("dtype", INT8, {INT8})
    symmetric = m.switch("symmetric", m.draw.chance(0.3))
    if size and not size[-1]:
        m.wrong("input")
    elif known(x) and known(symmetric) and x.size:
        choose = ("choose_qparams_per_token", "choose_qparams_per_token_asymmetric")[not symmetric]
        if not np.isfinite(getattr(oracle, choose)(x, INT8)[0].astype(F64)).all():
            m.wrong("input")


def determine(m):
    d, draw = m.dtypes, m.draw
    size = draw.of(((), (), (1,), (3,), (8,), (0,)))
    dtype = draw.of((F32, F32, F64)) if m.many else F32
    low, high = (floats_of(draw, size, dtype) for _ in range(2))
    with np.errstate(all="ignore"):
        if draw.chance(0.95):
            low, high = np.fmin(low, high), np.fmax(low, high)
    if size == () and draw.chance(0.05):
        low, high = np.array(np.inf, dtype), np.array(-np.inf, dtype)
    mn, mx = m.data("min_val", low, read.FLOATS), m.data("max_val", high, {dtype}, size)
    if known(mn, mx):
        unseen = size == () and mn == np.inf and mx == -np.inf
        if mn.size and not unseen and (mn > mx).any():
            m.wrong("min_val", "max_val")
    limits = bounds(m, *_around_zero(draw), steps=True)
    m.dtype("dtype", d.target, read.TARGETS)
    m.number("eps", draw.of((2.0**-23, 1e-5, 1e-3)), read.least_scale)
    m.switch("has_customized_qrange", draw.chance(0.5))
    scheme = m.word("qscheme", draw.of(SCHEMES), SCHEMES)
    affine = known(scheme) and scheme.endswith("affine")
    if affine and isinstance(limits, tuple) and not -(2**31) <= min(limits) <= max(limits) < 2**31:
        m.wrong("quant_min", "quant_max")


def fused(m):
    d, draw, (lo, hi) = m.dtypes, m.draw, _around_zero(m.draw)
    per_row = draw.chance(0.5)
    size = shape(draw, 1)
    a = some_axis(draw, size)
    on = m.switch("observer_on", draw.chance(0.8)), m.switch("fake_quant_on", draw.chance(0.8))
    row = m.switch("per_row_fake_quant", per_row)
    row = row if known(row) else per_row
    m.switch("symmetric_quant", draw.chance(0.4))
    m.number("averaging_const", draw.of((0.01, 0.25, 1.0, 0.0)))
    bounds(m, lo, hi, proper=True, **AS_INT32)
    if row:
        a = axis(m, size, a, "ch_axis")
    else:
        m.integer("ch_axis", draw.of((a, 0, 99, -1)))  # of which no more is asked
    state = (size[a],) if row else draw.of(((1,), ()))
    started = draw.chance(0.5)
    low, high = np.full(state, np.inf, F32), np.full(state, -np.inf, F32)
    if started:
        low, high = (np.array(draw.rng.normal(v, 1, state), F32) for v in (-2, 2))
    zero = draw.of((INT32, INT64, F32)) if m.many and not row else INT32
    if not row and m.many:
        zero = draw.of((INT32, INT32, INT64, F32))
    for name, p in zip(STATE, (low, high, np.ones(state, F32), np.zeros(state, zero)), strict=True):
        _state(m, name, p)
    m.data("input", floats_of(draw, size, d.x), read.FLOATS)
    return on


def _state(m, name, p):
    draw = m.draw
    if draw.chance(m.odd):
        other = (p.astype(F16), p.astype(object), p[None, None], np.ma.masked_array(p), p.tolist(),
                 None, p.astype(">f8"), np.zeros((7, 7), p.dtype), 1.0)  # fmt: skip
        m.add(name, draw.of(other), WRONG)
        return
    value, memory, p = placed(draw, p, written=True)
    if value.dtype != p.dtype:
        m.add(name, value, WRONG, memory)
        return
    if draw.chance(0.02):
        value.flags.writeable = False
        m.wrong(name)
    m.add(name, value, p.copy(), memory)


def convert(m):
    draw, size = m.draw, shape(m.draw)
    kinds = sorted(read.CONVERTIBLE, key=str)
    dtype = draw.of(kinds) if m.many else draw.of((F32, INT8, F64))
    target = draw.of(kinds) if m.many else INT8
    if dtype in FLOAT8:
        x = codes_of(draw, size, dtype)
    elif dtype == read.BOOL:
        x = draw.rng.integers(0, 2, size).astype(bool)
    else:
        x = reals_of(draw, size, dtype)
        if dtype in (F32, F64) and draw.chance(0.2):
            with np.errstate(all="ignore"):
                x = x.astype(np.complex64 if dtype == F32 else np.complex128) + 1j
    m.data("input", x, read.CONVERTIBLE | read.COMPLEX)
    got = m.dtype("dtype", target, read.CONVERTIBLE if m.many else {target})
    target = got if known(got) else target
    m.out(target, size, "input")
    plain = m.case.plain
    if known(plain["input"]):
        plain["input"] = plain["input"].real


# --- AdaRound -------------------------------------------------------------------------------------


def adaround(m):
    d, draw, name = m.dtypes, m.draw, m.name
    compute = F64 if d.x == F64 else F32
    shapes = ()
    kind = draw.of(("tensor", "channel", "group"))
    if kind == "group":
        size, g = grouped(draw)
        got = group_of(m, size, g)
        shapes = group_shapes(size, got if known(got) else 2)
        if draw.chance(0.03):
            axis(m, size, 0)
            m.wrong("axis", "group_size")
    else:
        size = shape(draw, kind == "channel")
        if kind == "channel":
            a = axis(m, size, some_axis(draw, size))
            shapes = ((size[a],),)
    count = math.prod(shapes[0]) if shapes else 1
    double = compute == F64
    if shapes:
        array_scales(m, "scale", shapes, count, double=double)
    else:
        number_scale(m, double=double)
    target = d.target if d.target in read.INTEGER_TARGETS else INT8
    lo, hi = -8, 7
    if name != "adaround_init":
        most = EXACT[compute]
        least, greatest = -most, most
        if name == "adaround_codes":
            lo, hi = within(draw, target)
            lo, hi = max(lo, -most), min(hi, most)
            least, greatest = max(-most, BOUNDS[target][0]), min(most, BOUNDS[target][1])
            m.dtype("dtype", target, {target})
        else:
            lo, hi = draw.of(((-128, 127), (-8, 7), (0, 15), (-5, 100), (3, 9), (0, 0)))
        range_ = bounds(m, lo, hi, least=least, greatest=greatest)
        if range_ is None or not known(range_):
            m.case.named.add("zero_point")
            range_ = -math.inf, math.inf
        _adaround_zeros(m, shapes, count, range_, lo, hi)
    x = floats_of(draw, size, d.x, _scale_near(m, "scale"), lo, hi)
    m.data("input", x, read.FLOATS)
    data = ["input"]
    if name != "adaround_init":
        m.data("V", floats_of(draw, size, compute, 0.5), {compute}, size)
        data.append("V")
    if name == "adaround_soft_backward":
        m.data("grad", floats_of(draw, size, d.x, 0.1), {d.x}, size)
        data.append("grad")
    out = target if name == "adaround_codes" else compute if name.endswith(("d", "t")) else d.x
    out = d.x if name in ("adaround_soft", "adaround_hard") else out
    m.out(out, size, *data)
    for key in ("scale", "zero_point"):  # the oracle wants to see the groups of a row
        p = m.case.plain.get(key)
        if kind == "group" and isinstance(p, np.ndarray):
            m.case.plain[key] = p.reshape(shapes[0])


def _adaround_zeros(m, shapes, count, range_, lo, hi):
    def right(z):
        whole = z if z.dtype in read.INTEGERS else np.trunc(z.astype(F64))
        return bool(((whole >= range_[0]) & (whole <= range_[1])).all())

    def number(value):
        n = read.truncated(read.boxed(value))
        return n if not known(n) or range_[0] <= n <= range_[1] else WRONG

    if shapes:
        z = zeros_of(m.draw, count, m.dtypes.zero, lo, hi)
        with np.errstate(all="ignore"):
            z = np.where((z >= lo) & (z <= hi), z, np.asarray(max(lo, 0), z.dtype)).astype(z.dtype)
        array_zeros(m, "zero_point", shapes, z, right)
    else:
        m.integer("zero_point", int(zeros_of(m.draw, (), INT64, lo, hi)), number)


def regularizer(m):
    draw, size = m.draw, shape(m.draw)
    dtype = F64 if m.dtypes.x == F64 else F32
    m.data("V", floats_of(draw, size, dtype, 0.5), {F32, F64})

    def finite(value):
        n = read.finite(value)
        if not known(n):
            return n
        with np.errstate(all="ignore"):
            return n if np.isfinite(np.float64(n).astype(dtype)) else WRONG

    def at_least_one(value):
        n = finite(value)
        return n if not known(n) or n >= 1 else WRONG

    m.number("beta", draw.of((1.0, 2.0, 3.5, 20.0)), at_least_one)
    if m.name.endswith("backward"):
        m.number("weight", draw.of((1.0, 0.5, -2.0, 0.0)), finite)
        m.out(dtype, size, "V")


def _learnables():
    for granularity in ("tensor", "channel", "token", "channel_group"):
        for ending in ("", "_backward"):
            name = f"fake_quantize_learnable_per_{granularity}_affine{ending}"
            yield name, lambda m, g=granularity: _learnable(m, g)


DRAWERS = {
    "quantize_per_tensor": quantize_per_tensor,
    "dequantize_per_tensor": dequantize_per_tensor,
    "quantize_per_channel": quantize_per_channel,
    "dequantize_per_channel": dequantize_per_channel,
    "quantize_per_token": lambda m: _quantize_rows(m, False),
    "dequantize_per_token": lambda m: _dequantize_rows(m, False),
    "quantize_per_channel_group": lambda m: _quantize_rows(m, True),
    "dequantize_per_channel_group": lambda m: _dequantize_rows(m, True),
    "fake_quantize_per_tensor_affine": fake_quantize_per_tensor,
    "fake_quantize_per_tensor_affine_cachemask": fake_quantize_per_tensor,
    "fake_quantize_per_tensor_affine_cachemask_tensor_qparams": fake_quantize_tensor_qparams,
    "fake_quantize_per_channel_affine": fake_quantize_per_channel,
    "fake_quantize_per_channel_affine_cachemask": fake_quantize_per_channel,
    "fake_quant_per_channel": fake_quant_per_channel,
    "fake_quant_per_channel_cachemask": fake_quant_per_channel,
    "fake_quantize_per_tensor_affine_cachemask_backward": masked,
    "fake_quantize_per_channel_affine_cachemask_backward": masked,
    "fake_quant_per_channel_backward": masked,
    **dict(_learnables()),
    "choose_qparams": choose,
    "choose_qparams_symmetric": choose,
    "choose_qparams_per_token": choose_per_token,
    "choose_qparams_per_token_asymmetric": choose_per_token,
    "quantize_per_token_dynamic": dynamic,
    "determine_qparams": determine,
    "convert_element_type": convert,
    "fused_moving_avg_obs_fake_quant": fused,
    "fused_moving_avg_obs_fake_quant_cachemask": fused,
    "adaround_init": adaround,
    "adaround_soft": adaround,
    "adaround_soft_backward": adaround,
    "adaround_hard": adaround,
    "adaround_codes": adaround,
    "adaround_regularizer": regularizer,
    "adaround_regularizer_backward": regularizer,
}
NAMES = tuple(DRAWERS)
