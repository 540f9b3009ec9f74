"""`sbon analyze`: analyses the telemetry of an overlay into tables and one report."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbon.cli.output import print_json, print_note, say
from sbon.errors import SbonError

if TYPE_CHECKING:
    from sbon.analysis.run import Report

LOCAL = "local[*]"


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command()(analyze)


def analyze(
    logs: Annotated[list[Path], typer.Argument(metavar="LOGDIR...", help="Data directories of agents, or folders that hold some.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for report and tables; made if missing.")],
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark master. Others than local need LOGDIR and DIR on shared storage.")
    ] = LOCAL,
    since: Annotated[str | None, typer.Option(metavar="T", help="Only rows from this time on, such as 2026-11-21T04:00 (UTC).")] = None,
    until: Annotated[str | None, typer.Option(metavar="T", help="Only rows before this time.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers (as in report.json) instead of a summary.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Analyse the telemetry of an overlay: coordinates, network usage, migrations, sharing, latencies, health.

    Writes report.html (one file, to be read in any browser), report.json (every number) and tables/ (Parquet). Needs the extra
    'analysis': pip install 'sbon[analysis]'.

    \b
    Examples:
      sbon analyze demo-out/agents --out report
      sbon analyze /var/lib/sbon --out report --since 2026-11-21T00:00 --until 2026-11-22T00:00
      sbon analyze /shared/logs --out /shared/report --master spark://spark.example:7077 --json
    """
    window = (_moment("--since", since), _moment("--until", until))
    if window[0] is not None and window[1] is not None and window[0] >= window[1]:
        raise typer.BadParameter(f"--since {since} is not before --until {until}")
    try:
        from sbon.analysis.run import analyse_logs
    except ImportError as problem:
        missing = (problem.name or "").split(".")[0]
        if missing not in ("pyspark", "py4j", "matplotlib"):
            raise
        name = "matplotlib" if missing == "matplotlib" else "PySpark"
        raise SbonError(f"the analysis needs {name}, which is not installed: pip install 'sbon[analysis]'") from None
    report = analyse_logs(logs, out, master=master, since=window[0], until=window[1], progress=None if quiet else _progress())
    if json:
        print_json(report.numbers)
    else:
        _show(report)


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option} {text}, expected a date and time such as 2026-11-21T04:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _progress() -> Any:
    begun = time.monotonic()

    def show(what: str) -> None:
        say(f"{time.monotonic() - begun:8.1f} s  {what}", error=True)

    return show


def _show(report: "Report") -> None:
    for line in report.summary:
        print_note(line)
    for problem in report.problems[:5]:
        print_note(f"  PROBLEM  {problem.where} {problem.what}")
    if len(report.problems) > 5:
        say(f"  PROBLEM  {len(report.problems) - 5} more in the report")
    say(str(report.path))
