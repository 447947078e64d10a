"""Every scalar formula of npquant, once. docs/numerics.md says where each comes from.

A formula is plain Python on scalars; the types of its arguments carry the precision (a product of
two float32 is a float32), so one text serves every dtype. `formula` lets CPU and CUDA kernels call
it. There is no float literal without a type here: Numba would make it a float64.

They come in pairs. *Parameters* make what all elements of a channel share, from its scale, its zero
point and the constants of the call (lo, hi, nan: the bounds of the codes, and what a NaN becomes);
the arrays of input and output tell them types alone. An *element* turns one value of the input,
these parameters and the constants into a result and whether it was inside the range. Types, by the
letters used below:

* T: the compute precision of the input: float32, or float64 for float64 input.
* K: the precision of codes, and so of the constants: T wherever it holds every code.
"""
