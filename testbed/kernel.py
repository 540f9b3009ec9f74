"""Linux system calls that Python has no function for: ending with the parent process, namespaces, precise timers."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_CLONE_NEWNET = 0x4000_0000
_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends; does nothing on other systems than Linux."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wake_punctually() -> None:
    """Asks the kernel to end this thread's waits on time, instead of up to 50 us later together with others, and before ordinary programs.

    The priority is unchanged if the real-time class is not allowed, or if there is only one processor, which other programs need.
    """
    _libc().prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    if (os.cpu_count() or 1) < 2:
        return
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def own_network_namespace() -> int:
    """Returns a new descriptor of this thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_network_namespace(descriptor: int) -> None:
    """Moves this thread into a network namespace; raises OSError if that is not allowed."""
    _checked(_libc().setns(descriptor, _CLONE_NEWNET), "setns")


@contextmanager
def in_network_namespace(descriptor: int) -> Iterator[None]:
    """Moves this thread into a network namespace for the block; sockets created in it stay there."""
    before = own_network_namespace()
    try:
        enter_network_namespace(descriptor)
        try:
            yield
        finally:
            enter_network_namespace(before)
    finally:
        os.close(before)


@contextmanager
def new_network_namespace() -> Iterator[int]:
    """Moves this thread into a new network namespace for the block; the descriptor stays open after it."""
    before = own_network_namespace()
    try:
        _checked(_libc().unshare(_CLONE_NEWNET), "unshare")
        try:
            yield own_network_namespace()
        finally:
            enter_network_namespace(before)
    finally:
        os.close(before)


class PreciseTimer:
    """A descriptor that becomes readable at an instant, to the microsecond; epoll's own timeout has milliseconds only."""

    def __init__(self) -> None:
        self.descriptor = _checked(_libc().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC), "timerfd_create")
        self._at = (ctypes.c_long * 4)()

    def set(self, at_ns: int) -> None:
        """Sets the timer to this time of the monotonic clock, which may have passed; 0 is never. Replaces an earlier setting."""
        self._at[2], self._at[3] = divmod(at_ns, _NS)
        _checked(_libc().timerfd_settime(self.descriptor, _TFD_TIMER_ABSTIME, self._at, None), "timerfd_settime")

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.descriptor)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
