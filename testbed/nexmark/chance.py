"""Random numbers of events, from a hash of seed, purpose and the event's number: an event looks at those of others, in no order."""

import numpy as np

from sbon.connectors.fields import Index, hashed
from sbon.types import FloatArray

_STEP = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, purpose: str, number: Index) -> FloatArray:
    """Returns numbers from 0 to below 1; those of different seeds or purposes are independent.

    They are SplitMix64's (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014), from a position on that is a
    hash of seed and purpose.

    Parameters
    ----------
    seed : from 0 to 2^63 - 1
    purpose : such as `price`
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
    # 53 bits are left: as signed numbers, which processors turn into floats faster.
    return np.multiply(z.view(np.int64), 2.0**-53, out=shifted.view(np.float64))
