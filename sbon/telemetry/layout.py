"""File layout of telemetry: one folder for each kind and hour, named as Spark expects partitions.

    telemetry/kind=probes/date=2026-11-21/hour=04/ams-5f0c2a91-000003.parquet

A file comes from one piece of one run's spool and is named after it, so that writing the piece again replaces the file by an equal one.
"""

import re
from datetime import UTC, datetime, timedelta

from sbon.types import NodeId

SUFFIX = ".parquet"
SPOOL = "spool"
"""Folder beside the kinds' folders, in which rows wait until they are written to Parquet files."""
OPEN, CLOSED = ".open", ".ndjson"
"""Suffixes of the spool's pieces: still written by the agent, and ready to become Parquet files. Other files there hold no rows."""
_FOLDER = re.compile(r"kind=([a-z_]+)/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def folder(kind: str, hour: datetime) -> str:
    """Returns the folder of a kind and hour (UTC), below `telemetry`.

    Examples
    --------
    >>> folder("probes", hour_of(1_795_233_600_000_000))
    'kind=probes/date=2026-11-21/hour=04'
    """
    return f"kind={kind}/date={hour:%Y-%m-%d}/hour={hour:%H}"


def parse_folder(path: str) -> tuple[str, datetime] | None:
    """Returns kind and hour of a folder named by `folder`; None for any other.

    Examples
    --------
    >>> parse_folder("kind=probes/date=2026-11-21/hour=04")
    ('probes', datetime.datetime(2026, 11, 21, 4, 0, tzinfo=datetime.timezone.utc))
    """
    found = _FOLDER.fullmatch(path)
    if found is None:
        return None
    try:
        return found[1], datetime.strptime(f"{found[2]} {found[3]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        return None


def hour_of(time_us: int) -> datetime:
    """Returns the start of an instant's hour, UTC. Instants outside the years 1970 to 9999 give the nearest hour."""
    hours = min(max(time_us // 3_600_000_000, 0), _HOUR_MAX)
    return _EPOCH + timedelta(hours=hours)


def file_name(agent: NodeId, start: str, piece: int) -> str:
    """Returns the name of a file. Replaces characters of agents' names that file systems or Spark do not accept; the run's id keeps names
    unique.

    Examples
    --------
    >>> file_name("rack:7", "5f0c2a91", 3), file_name("_x", "5f0c2a91", 12)
    ('rack-7-5f0c2a91-000003.parquet', 'agent_x-5f0c2a91-000012.parquet')
    """
    safe = _UNSAFE.sub("-", agent)
    hidden = not safe[:1].isalnum()  # Spark skips names that begin with a dot or an underscore
    return f"{'agent' if hidden else ''}{safe}-{_UNSAFE.sub('-', start)}-{piece:06d}{SUFFIX}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MAX = (datetime(9999, 12, 31, 23, tzinfo=UTC) - _EPOCH) // timedelta(hours=1)
