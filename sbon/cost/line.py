"""One line of a prediction, as every model gives it."""

from typing import Any

import msgspec


class Line(msgspec.Struct, frozen=True):
    """Prediction of one model."""

    name: str
    """Such as "latency", "highest rate"."""
    text: str
    """For people, without the name."""
    figures: dict[str, Any]
    """For programs: plain numbers, texts, lists and tables; infinite and unknown numbers are None."""
