"""Which variables are small enough to be put together, for programs that XLA compiles."""

import math

# Arrays with fewer elements are put together with those of their kind.
SMALL = 2**13
# XLA fuses at most 96 inputs and outputs into one kernel of a GPU.
MAX_OPERANDS = 90


def positions_by_kind(kinds, small, longest):
    """Lists of positions of small arrays of one kind, and of each large one alone.

    Args:
        kinds: For each array its shape, or a tuple that begins with it and holds what else must
            agree.
        small: Arrays with fewer elements than this are put together.
        longest: The largest number of arrays in a list. Lists of one kind are of like length.
    """
    by_kind, lists = {}, []
    for i, kind in enumerate(kinds):
        shape = kind[0] if kind and isinstance(kind[0], tuple) else kind
        if math.prod(shape) < small:
            by_kind.setdefault(kind, []).append(i)
        else:
            lists.append([i])
    for positions in by_kind.values():
        count = math.ceil(len(positions) / longest)
        size = math.ceil(len(positions) / count)
        lists += [positions[i : i + size] for i in range(0, len(positions), size)]
    return lists
