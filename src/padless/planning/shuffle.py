"""A seeded shuffle that is linear, needs almost no memory, and is the same on every machine and numpy.

A keyed bijection of k-bit words (xor, odd multiplication, xor with the high half, all invertible) visits 0 .. 2**k - 1
in a scrambled order; the words below n, in that order, are the shuffle of 0 .. n - 1. Only integer arithmetic is used,
so there is nothing that a library or a processor could do differently.
"""

import numpy as np

ROUNDS = 5
_FEWEST_BITS = 10  # below this a few rounds scramble too little; visiting 1,024 words costs nothing
_CHUNK = 1 << 16
_WORD = (1 << 64) - 1


def shuffle_keys(n: int, seed: int, stream: int) -> tuple[int, np.ndarray]:
    """The number of bits k and uint64[ROUNDS, 2] round keys (to xor; odd, to multiply) of one shuffle."""
    bits = max(_FEWEST_BITS, (n - 1).bit_length())
    state = 0
    for part in _words(seed):
        state = _mix(state ^ part)
    state = _mix(state ^ _mix(stream + 1))
    mask = (1 << bits) - 1
    keys = []
    for _ in range(ROUNDS):
        state = (state + 0x9E3779B97F4A7C15) & _WORD
        first = _mix(state)
        keys.append((first & mask, (_mix(first ^ 0xD1B54A32D192ED03) & mask) | 1))
    return bits, np.array(keys, np.uint64)


def shuffled(n: int, seed: int, stream: int) -> np.ndarray:
    """The numbers 0 .. n - 1 in an order that looks random and depends only on the arguments.

    Args:
        n: How many.
        seed: Any whole number from 0.
        stream: Different uses of one seed take different streams.

    Returns:
        int32[n], or int64[n] where 31 bits are too few.

    Example:
        >>> shuffled(5, seed=0, stream=0).tolist() != shuffled(5, seed=1, stream=0).tolist()
        True
    """
    bits, keys = shuffle_keys(n, seed, stream)
    word = np.uint32 if bits <= 32 else np.uint64
    out = np.empty(n, np.int32 if bits <= 31 else np.int64)
    mask, shift = word((1 << bits) - 1), word((bits + 1) // 2)
    rounds = [(word(a), word(b)) for a, b in keys.tolist()]
    filled = 0
    for start in range(0, 1 << bits, _CHUNK):
        words = np.arange(start, min(start + _CHUNK, 1 << bits), dtype=word)
        for to_xor, to_multiply in rounds:
            words ^= to_xor
            words *= to_multiply
            words &= mask
            words ^= words >> shift
        kept = words[words < n]
        out[filled : filled + kept.size] = kept
        filled += kept.size
    return out


def _words(seed: int) -> list[int]:
    """The seed as 64-bit words, lowest first, and how many there are: no two seeds give the same list."""
    words = [(seed >> (64 * i)) & _WORD for i in range(max(1, (seed.bit_length() + 63) // 64))]
    return [*words, len(words)]


def _mix(word: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
