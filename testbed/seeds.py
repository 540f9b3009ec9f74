"""Runs one function for many seeds, on all cores."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import TypeVar

from sbon.errors import UsageError

T = TypeVar("T")


def outcomes_of(one: Callable[[int], T], seeds: int, first: int, jobs: int) -> Iterator[T]:
    """Yields the result of each seed as it arrives; closing the iterator ends the processes.

    Parameters
    ----------
    one : function of a seed; importable by its name, as other processes call it
    seeds, first : number of seeds, and the first of them
    jobs : processes; 0: one for each core

    Raises
    ------
    UsageError
        A number is too small; the message names the option.
    """
    for option, value, least in (("--seeds", seeds, 1), ("--first", first, 0), ("--jobs", jobs, 0)):
        if value < least:
            raise UsageError(f"{option} {value}, expected at least {least}")
    return _each(one, range(first, first + seeds), min(jobs or os.cpu_count() or 1, seeds))


def _each(one: Callable[[int], T], seeds: range, jobs: int) -> Iterator[T]:
    if jobs == 1:
        before = gc.get_threshold()
        _collect_seldom()
        try:
            yield from map(one, seeds)
        finally:
            gc.set_threshold(*before)
        return
    # Only this process handles Ctrl-C and ends the others, which start with SIGINT blocked. Starting the tracker unblocks it, hence first.
    resource_tracker.ensure_running()
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Fresh processes: polars and its threads do not survive a fork.
        pool = multiprocessing.get_context("spawn").Pool(jobs, _collect_seldom)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    with pool:
        yield from pool.imap_unordered(one, seeds)


def _collect_seldom() -> None:
    """Makes the garbage collector run less often: most objects of a virtual world live as long as the world."""
    gc.set_threshold(50_000, 20, 20)
