"""Options of the questions about plans, as the control socket brings them."""

from collections.abc import Mapping
from typing import Any

from sbon.errors import ConfigError


def number(options: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    """Returns an option that is a number.

    Raises
    ------
    ConfigError
        The value is no number, or out of range.

    Examples
    --------
    >>> number({"rates": 1.5}, "rates", 1.0, 0.0, 100.0), number({}, "rates", 1.0, 0.0, 100.0)
    (1.5, 1.0)
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} = {value!r}, expected a number from {least:g} to {most:g}")
    return float(value)
