"""Shows the progress of long work on standard error: one line rewritten on a terminal, now and then a line elsewhere."""

import sys
import time
from typing import TextIO

TERMINAL_S = 0.2
"""Seconds between two updates on a terminal."""
FILE_S = 10.0
"""Seconds between two lines elsewhere: a run of minutes leaves a few of them."""


class Progress:
    """Shows `what: done of total`; silent if it is not wanted."""

    def __init__(self, wanted: bool = True, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._wanted = wanted
        self._terminal = self._stream.isatty()
        self._shown_s = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Reports progress; the last step is always shown."""
        if not self._wanted:
            return
        now_s = time.monotonic()
        if done < total and now_s - self._shown_s < (TERMINAL_S if self._terminal else FILE_S):
            return
        self._shown_s = now_s
        line = f"{what}: {done:,} of {total:,}"
        if self._terminal:
            print(f"\r\x1b[K{line}", end="\n" if done >= total else "", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)
