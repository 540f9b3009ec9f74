"""Profiles: the rates that a source is expected to reach, as text (WhiteWater, section 3).

One rate, '1000/s', or several named target points, 'day: 1000/s, launch: 8000/s'; rows a second, minute (/min) or hour (/h).
"""

import math
from collections.abc import Mapping

from sbon.errors import QueryError
from sbon.query.plan import ProfilePoint
from sbon.types import OperatorId

POINTS_MAX = 16
NAME_MAX = 100
RATE_MAX = 1e12
_SECONDS = {"/s": 1.0, "/min": 60.0, "/h": 3600.0}
FORM = "write profile = '1000/s', or several points: profile = 'day: 1000/s, launch: 8000/s'"

Points = tuple[tuple[str, float], ...]
"""Name of a target point, "" for the only one, and rows per second."""


def parse_profile(text: str) -> Points:
    """Returns the target points of one source, in the order given.

    Raises
    ------
    QueryError
        The text is no profile, a rate is not above 0, or a point is named twice.

    Examples
    --------
    >>> parse_profile("1000/s"), parse_profile("day: 60/min, launch: 8000/s")
    ((('', 1000.0),), (('day', 1.0), ('launch', 8000.0)))
    """
    parts = [part.strip() for part in text.split(",")]
    found: dict[str, float] = {}
    for part in parts:
        name, colon, rate = (piece.strip() for piece in part.rpartition(":"))
        if (colon and not name) or (not colon and len(parts) > 1) or len(name) > NAME_MAX:
            raise QueryError(f"the profile's part {part!r} is not a point and a rate", hint=FORM)
        if name in found:
            raise QueryError(f"the profile names the point {name!r} twice", hint="leave one of them out")
        found[name] = _rate(rate)
    if len(found) > POINTS_MAX:
        raise QueryError(f"the profile has {len(found)} points, expected at most {POINTS_MAX}", hint="leave out points that others exceed")
    return tuple(found.items())


def _rate(text: str) -> float:
    unit = next((unit for unit in _SECONDS if text.endswith(unit)), None)
    try:
        rate = float(text.removesuffix(unit or "")) / _SECONDS[unit or ""]
    except (KeyError, ValueError):
        raise QueryError(f"the profile's rate is {text!r}, expected rows a second such as '1000/s'", hint=FORM) from None
    if not 0 < rate <= RATE_MAX or math.isnan(rate):
        raise QueryError(f"the profile's rate is {text!r}, expected more than 0 and at most {RATE_MAX:g}/s", hint=FORM)
    return rate


def together(profiles: Mapping[OperatorId, Points]) -> tuple[ProfilePoint, ...]:
    """Returns the target points of all sources. A rate without a point's name counts at every point; a point lacks sources without a rate.

    Examples
    --------
    >>> together({"a": (("", 5.0),), "b": (("day", 1.0), ("night", 2.0))})[1]
    ProfilePoint(name='night', rates=(('a', 5.0), ('b', 2.0)))
    """
    names = dict.fromkeys(name for points in profiles.values() for name, _ in points if name)
    found = []
    for name in names or dict.fromkeys(name for points in profiles.values() for name, _ in points):
        rates = ((source, dict(points).get(name, dict(points).get(""))) for source, points in profiles.items())
        found.append(ProfilePoint(name, tuple((source, rate) for source, rate in rates if rate is not None)))
    return tuple(found)
