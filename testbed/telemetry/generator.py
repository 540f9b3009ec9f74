"""`sbon testbed telemetry`: generates logs of any size for `sbon analyze` from a seed, in the layout and columns that agents write."""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from sbon.errors import ConfigError, UsageError
from sbon.telemetry import layout
from sbon.telemetry.schema import TABLES, VERSION, VERSION_KEY
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.telemetry.events import events_of_hour
from sbon_testbed.telemetry.story import BEGIN, DOWN_S, Story
from sbon_testbed.telemetry.tables import samples_of_hour

HOUR_S = 3600.0
HOURS_MAX = 10_000
QUERIES_PER_AGENT = 3


class Writer:
    """Numbers rows as agents do and writes one file for each agent, kind and hour."""

    def __init__(self, story: Story, out: Path) -> None:
        self._story = story
        self._out = out
        self._next: dict[str, int] = {}
        self.rows: dict[str, int] = dict.fromkeys(TABLES, 0)
        self.files = 0

    def write(self, kind: str, hour: int, rows: pl.DataFrame) -> None:
        """Writes rows that have `at_s` (seconds since the start) and `node` (number) instead of the columns common to all kinds."""
        if rows.is_empty():
            return
        moment = BEGIN + timedelta(hours=hour)
        folder = self._out / "telemetry" / layout.folder(kind, moment)
        folder.mkdir(parents=True, exist_ok=True)
        for (node, restarted), own in self._with_runs(rows).partition_by("node", "restarted", as_dict=True, include_key=True).items():
            agent = self._story.topology.nodes[int(node)]
            start = hashlib.sha256(f"{agent}/{restarted}".encode()).hexdigest()[:8]
            first = self._next.get(start, 1)
            self._next[start] = first + len(own)
            complete = own.with_columns(
                (pl.lit(BEGIN) + pl.duration(microseconds=(pl.col("at_s") * 1e6).cast(pl.Int64)))
                .cast(pl.Datetime("us", "UTC"))
                .alias("time"),
                pl.lit(agent).alias("agent"),
                pl.lit(start).alias("start"),
                pl.int_range(first, first + len(own), dtype=pl.Int64).alias("sequence"),
                pl.lit(VERSION, dtype=pl.Int64).alias("version"),
            )
            schema = TABLES[kind].polars_schema()
            path = folder / layout.file_name(agent, start, hour)
            complete.select(pl.col(name).cast(wanted) for name, wanted in schema.items()).write_parquet(
                path, compression="zstd", metadata={VERSION_KEY: str(VERSION)}
            )
            self.rows[kind] += len(own)
            self.files += 1

    def _with_runs(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Removes rows of agents while they were down, and adds `restarted`: whether a row is from after the crash."""
        down = pl.DataFrame(
            {"node": list(self._story.down_s), "down_s": list(self._story.down_s.values())}, schema={"node": pl.Int64, "down_s": pl.Float64}
        )
        since_down = pl.col("at_s") - pl.col("down_s")
        return (
            rows.join(down, on="node", how="left", maintain_order="left")
            .filter((since_down < 0).fill_null(True) | (since_down >= DOWN_S))
            .with_columns((since_down >= DOWN_S).fill_null(False).alias("restarted"))
            .drop("down_s")
        )


def generate(
    out: Path,
    agents: int = 100,
    hours: float = 24.0,
    queries: int | None = None,
    probe_interval_s: float = 0.6,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Writes the log of a synthetic overlay.

    Parameters
    ----------
    out : folder, created if missing; the files go to `out/telemetry`
    queries : number of queries; None: three for each agent
    probe_interval_s : time between two probes by an agent

    Returns
    -------
    dict
        Rows by kind, files, and events of the story.

    Raises
    ------
    UsageError
        A number is out of range.
    ConfigError
        There is a log in `out` already, or it cannot be written.
    KeyboardInterrupt
        The run was interrupted; the files written so far are removed.
    """
    if agents < 2 or not 0 < hours <= HOURS_MAX or not 0 < probe_interval_s <= HOUR_S or (queries is not None and queries < 1):
        given = (
            f"{agents} agents, {hours:g} hours, {3 * agents if queries is None else queries} queries, a probe each {probe_interval_s:g} s"
        )
        raise UsageError(f"{given}; expected 2 agents or more, 1 query or more, up to {HOURS_MAX} hours, a probe an hour or more often")
    if (out / "telemetry").exists():
        raise ConfigError(f"{out / 'telemetry'} exists; choose another folder with --out, so that two logs do not mix")
    story = Story(agents, queries or QUERIES_PER_AGENT * agents, hours * HOUR_S, seed)
    writer = Writer(story, out)
    try:
        for hour, kind, rows in _everything(story, probe_interval_s):
            writer.write(kind, hour, rows)
            if progress is not None and kind == "latencies":
                progress(f"hour {hour + 1} of {int(np.ceil(hours))}: {sum(writer.rows.values()):,} rows")
    except KeyboardInterrupt:
        # A partial log would be taken for a complete one. If Ctrl-C has stopped polars, Python raises it once more.
        try:
            shutil.rmtree(out / "telemetry", ignore_errors=True)
        except KeyboardInterrupt:
            shutil.rmtree(out / "telemetry", ignore_errors=True)
        raise
    except OSError as problem:
        raise ConfigError(f"cannot write to {out}: {problem.strerror or problem}") from problem
    return {
        "rows": sum(writer.rows.values()),
        "files": writer.files,
        "rows_by_kind": writer.rows,
        "agents": agents,
        "queries": len(story.queries),
        "migrations": len(story.moves),
        "crashes": len(story.down_s),
        "seed": seed,
    }


def _everything(story: Story, probe_interval_s: float) -> Iterator[tuple[int, str, pl.DataFrame]]:
    for hour in range(int(np.ceil(story.seconds / HOUR_S))):
        begin_s, end_s = hour * HOUR_S, min(story.seconds, (hour + 1) * HOUR_S)
        for kind, rows in events_of_hour(story, begin_s, end_s):
            yield hour, kind, rows
        for kind, rows in samples_of_hour(story, begin_s, end_s, probe_interval_s):
            yield hour, kind, rows


def telemetry_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The log is written to DIR/telemetry; made if missing.")],
    agents: Annotated[int, typer.Option(metavar="N", help="Size of the overlay.")] = 100,
    hours: Annotated[float, typer.Option(metavar="H", help="Duration of the log in hours.")] = 24.0,
    queries: Annotated[int | None, typer.Option(metavar="N", help="Number of queries; default: three for each agent.")] = None,
    probe_interval: Annotated[float, typer.Option(metavar="S", help="Seconds between two probes by an agent.")] = 0.6,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same log.")] = 0,
    json: JsonFile = None,
) -> None:
    """Generate a telemetry log, as agents would have written it, for trying `sbon analyze`.

    \b
    Examples:
      sbon testbed telemetry --agents 10 --hours 1 --out small
      sbon testbed telemetry --agents 100 --hours 24 --out large --seed 7
    """

    result = generate(out, agents, hours, queries, probe_interval, seed, lambda line: print(line, file=sys.stderr, flush=True))
    if json is not None:
        write_json(json, result)
    if json != "-":
        print(f"{result['rows']:,} rows in {result['files']:,} files: {result['agents']} agents, {result['queries']} queries,")
        print(f"{result['migrations']} migrations, {result['crashes']} crashes; sbon analyze {out} --out {out}-report")
