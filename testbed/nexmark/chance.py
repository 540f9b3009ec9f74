"""Random numbers of events, computed from a hash of seed, purpose and event number, so that any event's numbers are available directly."""

import numpy as np

from sbon.connectors.fields import Index, hashed
from sbon.types import FloatArray

_STEP = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, purpose: str, number: Index) -> FloatArray:
    """Returns numbers x with 0 <= x < 1; those of different seeds or purposes are independent.

    The generator is SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014), from a position that
    is a hash of seed and purpose.

    Parameters
    ----------
    seed : from 0 to 2^63 - 1
    purpose : name such as `price`
    number : (n,)
    """
    with np.errstate(over="ignore"):
        z = number.view(np.uint64) * _STEP
        z += np.uint64(hashed(seed, purpose))
        # In place: two arrays of a large batch stay in a core's cache where ten would not.
        shifted = z >> np.uint64(30)
        z ^= shifted
        z *= np.uint64(0xBF58476D1CE4E5B9)
        np.right_shift(z, np.uint64(27), out=shifted)
        z ^= shifted
        z *= np.uint64(0x94D049BB133111EB)
        np.right_shift(z, np.uint64(31), out=shifted)
        z ^= shifted
        z >>= np.uint64(11)
    # 53 bits are left. Processors convert signed numbers to floats faster.
    return np.multiply(z.view(np.int64), 2.0**-53, out=shifted.view(np.float64))
