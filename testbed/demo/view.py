"""The display of the demo: live on a terminal, plain lines elsewhere."""

import sys
from collections import deque
from contextlib import ExitStack
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sbon.cli.output import rich_lines
from sbon.cli.tables import Column, Shorten, table_lines

_BARS = "▁▂▃▄▅▆▇█"
_LINES = 12
_AGENT_COLUMNS = (Column("agent"), Column("region"), Column("sees alive"), Column("own error"), Column("operators"))
_QUERY_COLUMNS = (
    Column("query"),
    Column("taken at"),
    Column("state", keep=True),
    Column("rows", keep=True),
    Column("its operators run on", shorten=Shorten.LIST),
)


class View:
    """Draws the state of the demo.

    Parameters
    ----------
    plain : print a line for each event, and now and then one for the coordinates' error
    """

    def __init__(self, plain: bool) -> None:
        self._console = Console()
        self._live: Live | None = None
        self._cleanup = ExitStack()
        self._plain = plain or not self._console.is_terminal
        self._said: deque[tuple[float, str]] = deque(maxlen=_LINES)
        self._errors: list[float] = []
        self._agents: list[tuple[str, ...]] = []
        self._queries: list[tuple[str, ...]] = []
        self._headline = ""
        self._shown_error_at = -1e9

    def __enter__(self) -> "View":
        if not self._plain:
            self._live = self._cleanup.enter_context(Live(console=self._console, refresh_per_second=4, transient=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def say(self, now_s: float, what: str) -> None:
        """Reports an event."""
        self._said.append((now_s, what))
        if self._plain:
            print(f"{now_s:6.1f} s  {what}", flush=True)
        self._draw()

    def error(self, now_s: float, median: float | None, truth: str) -> None:
        """Shows the coordinates' median relative error against the true RTTs."""
        if median is None:
            return
        self._errors.append(median)
        self._headline = f"{now_s:5.1f} s   coordinates off by {median:.1%} (median, against the true RTTs{truth})"
        if self._plain and now_s - self._shown_error_at >= 3:
            self._shown_error_at = now_s
            print(f"{now_s:6.1f} s  coordinates off by {median:.1%} (median)", flush=True)
        self._draw()

    def agents(self, rows: list[tuple[str, ...]]) -> None:
        """Shows name, region, status, own error and operators of each agent."""
        self._agents = rows
        self._draw()

    def queries(self, rows: list[tuple[str, ...]]) -> None:
        """Shows name, home, state, rows and nodes of the unpinned operators of each query."""
        self._queries = rows
        self._draw()

    def page(self, text: str) -> None:
        """Shows the summary, below everything else."""
        self._cleanup.close()
        self._live = None
        sys.stdout.write(text)
        sys.stdout.flush()

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(Group(*self._parts()))

    def _parts(self) -> list[Any]:
        parts: list[Any] = [Text(self._headline, style="bold"), Text(sparkline(self._errors[-90:]), style="cyan")]
        if self._agents:
            parts.append(rich_lines(table_lines(_AGENT_COLUMNS, self._agents, self._console.width)))
        if self._queries:
            parts.append(rich_lines(table_lines(_QUERY_COLUMNS, self._queries, self._console.width)))
        parts += [Text(f"{at_s:6.1f} s  {what}") for at_s, what in self._said]
        return parts


def sparkline(values: list[float]) -> str:
    """Draws values as a row of bars; the tallest is the largest.

    Examples
    --------
    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(len(_BARS) - 1, round(value / top * (len(_BARS) - 1) + 0.01))] for value in values)
