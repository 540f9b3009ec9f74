"""Runs the writer (`sbon_agent.telemetry.writer`) as a separate process when a piece of the spool is ready, one at a time.

If a writer fails, rows that it has not written stay in the spool for the next one.
"""

import asyncio
import os
import sys
from contextlib import suppress

import msgspec

from sbon_agent.logs import structlog
from sbon_agent.telemetry.log import Telemetry

WRITER_S_MAX = 600.0
"""Seconds after which a writer is killed, because the disk hangs or the machine is overloaded."""
FINISH_S_MAX = 10.0
"""Seconds that a stopping agent waits for the last writer. After that the writer continues alone, and the next start writes the rest."""

_COUNTED = {"files": "telemetry_files", "rows": "telemetry_rows_written", "lines_damaged": "telemetry_lines_damaged"}
_COUNTED |= {"pieces_unreadable": "telemetry_pieces_unreadable", "files_deleted": "telemetry_files_deleted"}


class WriterProcess:
    """Starts writers for the spool of one agent."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.counters = dict.fromkeys(_COUNTED.values(), 0) | {"telemetry_writer_failures": 0}
        self._telemetry = telemetry
        self._log = structlog.get_logger("telemetry")
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._failing = False
        self._hurry = asyncio.Event()
        telemetry.on_piece = self.start

    def begin(self) -> None:
        """Starts a writer for pieces that an earlier run has left, after the agent has started."""
        if self._telemetry.left_over:
            self.start()

    def start(self) -> None:
        """Starts a writer now, or as soon as the present one has ended."""
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def hurry(self) -> None:
        """Makes `finish` return without waiting."""
        self._hurry.set()

    async def finish(self) -> None:
        """Waits until all pieces are written, for a limited time, after the agent has stopped."""
        if self._task is None:
            return
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({self._task, hurry}, timeout=FINISH_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if self._task is not None:
            self._log.warning("telemetry.writer_left_behind", advice="records that it does not write wait in the spool for the next start")
            self._task.cancel()

    async def _work(self) -> None:
        while self._again:
            self._again = False
            await self._write()
        self._task = None

    async def _write(self) -> None:
        telemetry, config = self._telemetry, self._telemetry.config
        limits = ["--keep-hours", str(config.keep_hours), "--bytes-max", str(config.total_bytes_max)]
        # -P keeps the current directory off the module path: a folder called `agent` there must not be imported instead.
        command = [sys.executable, "-P", "-m", "sbon_agent.telemetry.writer", "--running", *limits, str(telemetry.directory)]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | {"POLARS_MAX_THREADS": "1"},
                start_new_session=True,  # Ctrl-C at a terminal is for the agent
            )
        except OSError as problem:
            self._failed(str(problem))
            return
        try:
            said, problems = await asyncio.wait_for(process.communicate(), WRITER_S_MAX)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            self._failed(f"no end within {WRITER_S_MAX:g} s")
            return
        self._count(said)
        if process.returncode:
            lines = problems.decode(errors="replace").strip().splitlines()
            self._failed(lines[-1] if lines else f"exit code {process.returncode}")
        elif self._failing:
            self._failing = False
            self._log.info("telemetry.writer_resumed")

    def _count(self, said: bytes) -> None:
        try:
            outcome = msgspec.json.decode(said, type=dict[str, int])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # killed before it could print anything
        for name, counter in _COUNTED.items():
            self.counters[counter] += outcome.get(name, 0)

    def _failed(self, reason: str) -> None:
        """Counts a failure; warns once until a writer succeeds."""
        self.counters["telemetry_writer_failures"] += 1
        if not self._failing:
            self._failing = True
            self._log.warning("telemetry.writer_failed", reason=reason, directory=str(self._telemetry.directory))
