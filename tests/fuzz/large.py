"""Small arrays that go the ways of large ones: what is drawn is small, and most of it is packed."""

from npquant.cpu import channels, loops, maps, walk
from npquant.ops import fast_choice, fast_path

#: Elements that are packed at most, wherever the library knows such a number.
FEW = 4


def as_if_large(set_=setattr):
    """Have no more than FEW elements packed."""
    for module in (fast_choice, fast_path, channels, loops, maps, walk):
        set_(module, "PIECE", FEW)
    set_(fast_path, "PACKED", FEW)
