"""The end of the demo: runs `sbon analyze` on the telemetry that the demo has written."""

import sys
from pathlib import Path

from sbon.errors import SbonError

REPORT_NAME = "report"


def analysed(agents: Path, out: Path) -> str:
    """Analyses the agents' telemetry; returns lines with the path of the report, or with the reason why there is none and how to get
    one."""
    try:
        from sbon.analysis.run import analyse_logs
    except ImportError as problem:
        return f"no report of the log: {problem.name} is not installed; pip install 'sbon[analysis]', then {_command(agents, out)}"
    print("analysing the telemetry log with Spark ...", file=sys.stderr, flush=True)
    try:
        report = analyse_logs([agents], out / REPORT_NAME)
    except SbonError as problem:
        return f"no report of the log: {problem}; then {_command(agents, out)}"
    return "\n".join([*report.summary, f"  report of the log: {report.path}"])


def _command(agents: Path, out: Path) -> str:
    return f"sbon analyze {agents} --out {out / REPORT_NAME}"
