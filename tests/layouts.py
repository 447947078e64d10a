"""Ways to lie in memory: functions from a C-ordered array to an equal one."""

import numpy as np

from calls import in_order


def relaid(kwargs, lay, names):
    return {key: lay(value) if key in names else value for key, value in kwargs.items()}


def reversed_axes(x):
    every = (slice(None, None, -1),) * x.ndim
    return x[every].copy()[every]


def every_second(x):
    wide = np.zeros([2 * n for n in x.shape], x.dtype)
    part = wide[(slice(1, None, 2),) * x.ndim]
    part[...] = x
    return part


def apart_in_order(x, order):
    """`every_second`, with its axes in this order."""
    return every_second(x.transpose(order)).transpose(np.argsort(order))


def in_pairs(x, place=1):
    """Every second element of memory, the first or the second of each pair."""
    pairs = np.full((*x.shape, 2), x.max() if x.size else 0, x.dtype)
    pairs[..., place] = x
    return pairs[..., place]


def window(x):
    wide = np.zeros([n + 3 for n in x.shape], x.dtype)
    part = wide[(slice(1, -2),) * x.ndim]
    part[...] = x
    return part


def unaligned(x):
    part = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    part[...] = x
    return part


def byte_swapped(x):
    return x.astype(x.dtype.newbyteorder())


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


DENSE = {
    "Fortran": lambda x: in_order(x, range(x.ndim)[::-1]),
    "channels last": lambda x: in_order(x, [*range(x.ndim)[:1], *range(x.ndim)[2:], 1][: x.ndim]),
    "first axis last": lambda x: in_order(x, [*range(1, x.ndim), 0]),
}
LAYOUTS = DENSE | {
    "reversed": reversed_axes,
    "every second": every_second,
    "in pairs": in_pairs,
    "window": window,
    "unaligned": unaligned,
    "byte-swapped": byte_swapped,
    "read-only": read_only,
}
