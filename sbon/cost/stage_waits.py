"""Waits in queues, and for cores that threads share, for arrays of settings."""

import functools
import math

import numpy as np

from sbon.types import FloatArray

_ERFC = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277)


def queue_wait(gap: FloatArray, gap_scv: FloatArray | float, service: FloatArray, service_scv: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns mean and variance of the wait in G/G/1 queues, for arrays; as `sbon.cost.queues.gg1_wait` for the mean.

    The variance is that of a wait which is 0 with probability 1 - load and else exponential.

    Source
    ------
    Kraemer and Langenbach-Belz (1976).
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        load = service / gap
        both = np.maximum(gap_scv + service_scv, 1e-12)
        even = (1 - np.minimum(gap_scv, 1.0)) ** 2
        bent = np.exp(-2 * (1 - load) * even / (3 * np.maximum(load, 1e-12) * both))
        mean = np.where(load < 1, service * load * both * bent / (2 * np.maximum(1 - load, 1e-12)), np.inf)
        mean = np.where(service > 0, mean, 0.0)
        variance = mean**2 * (2 / np.clip(load, 0.05, 1.0) - 1)
    return mean, variance


def periodic_wait(senders: FloatArray, service: FloatArray, load: FloatArray, service_scv: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns mean and variance of the wait of batches that come from so many senders, each once an interval at a phase of its own.

    The excess over a cycle is a Brownian bridge: P(wait > x services) is about load exp(-2 x (x / N + 1 - load)).

    Source
    ------
    Roberts, Mocci, Virtamo (eds.), Broadband Network Teletraffic (1996), on the queue N D / D / 1.
    """
    free = np.maximum(1 - load, 0.0)
    argument = free * np.sqrt(senders / 2)
    mean = service * load * (1 + service_scv) * np.sqrt(math.pi * senders / 8) * scaled_tail(argument)
    mean = np.where(load < 1, mean, np.inf)
    with np.errstate(invalid="ignore"):
        variance = mean**2 * (2 / np.clip(load, 0.05, 1.0) - 1)
    return mean, variance


def scaled_tail(x: FloatArray) -> FloatArray:
    """Returns exp(x^2) erfc(x) for x >= 0, within 2e-7 of it.

    Source
    ------
    Press et al., Numerical Recipes (1992), section 6.2: a Chebyshev fit that holds for all x.
    """
    t = 1 / (1 + 0.5 * x)
    polynomial = np.full_like(t, _ERFC[-1])
    for coefficient in _ERFC[-2::-1]:
        polynomial = polynomial * t + coefficient
    found: FloatArray = t * np.exp(polynomial)
    return found


def slowdown(threads: FloatArray, busy: FloatArray, always: FloatArray | float, cores: int) -> FloatArray:
    """Returns the factor by which a thread takes longer than alone: the mean of max(1, threads at work / cores), this one included.

    Parameters
    ----------
    threads : other threads of the node
    busy : share of time that each is at work
    always : further threads that are always at work
    cores : of the node
    """
    count = np.asarray(threads, dtype=np.float64).round().astype(np.int64)
    p = np.clip(busy, 1e-12, 1 - 1e-12)
    others = np.arange(max(1, cores - 1), int(count.max(initial=0)) + 1)
    shape = np.broadcast(count, p, always).shape
    if not others.size and not np.any(always):
        return np.ones(shape)
    others = np.arange(int(count.max(initial=0)) + 1) if np.any(always) else others
    column = others.reshape(-1, *([1] * len(shape)))
    # Binomial, by logarithms: all numbers of others at work at once.
    chance = np.exp(_binomials(int(count.max(initial=0)))[count, column] + column * np.log(p) + (count - column) * np.log1p(-p))
    beyond = np.maximum((1 + column + always) / cores - 1, 0.0)
    found: FloatArray = 1 + (np.where(column <= count, chance, 0.0) * beyond).sum(axis=0)
    return found


@functools.lru_cache(maxsize=64)
def _binomials(most: int) -> FloatArray:
    """Returns the logarithms of the binomial coefficients, (most + 1, most + 1); those of k > n count as 0."""
    return np.array([[math.log(math.comb(n, k)) if k <= n else 0.0 for k in range(most + 1)] for n in range(most + 1)])
