"""The prediction for a placed query: one struct for `sbon explain`, for admission and for telemetry.

Each model gives one `Line`: a name, a text for people, and figures for `--json`. A model that does not apply to a query gives None.
A new model adds its function to `MODELS` (docs/costs.md). Models read `PlacedQuery` and nothing else.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from sbon.cost.explaining import amount
from sbon.cost.figure import Source
from sbon.cost.highest_rate import highest_rate
from sbon.cost.latency_prediction import LatencyPrediction, predicted_latency
from sbon.cost.line import Line
from sbon.cost.placed_query import PlacedQuery

Model: TypeAlias = Callable[[PlacedQuery], Line | None]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of all models, and the sources of the figures behind them."""

    lines: tuple[Line, ...]
    operators: dict[str, int]
    """Number of operators by the source of their costs (`sbon.cost.figure.Source`)."""
    latency: LatencyPrediction

    @property
    def rests_on_rules(self) -> bool:
        """Tells whether the costs of an operator are a rule of thumb: no query is refused for such figures alone."""
        return self.operators.get(Source.RULE, 0) > 0

    def explained(self) -> dict[str, Any]:
        """Returns what `sbon explain --json` shows as `prediction`."""
        return {
            "operators": {source.value: self.operators.get(source, 0) for source in Source},
            "rests_on_rules": self.rests_on_rules,
            "lines": [{"name": line.name, "text": line.text} for line in self.lines],
            **{line.name.replace(" ", "_"): line.figures for line in self.lines},
        }


def predict(query: PlacedQuery, models: Sequence[Model] | None = None) -> Prediction:
    """Returns the predictions of all models.

    Parameters
    ----------
    models : instead of `MODELS`
    """
    latency = predicted_latency(query)
    found = [
        Line("network usage", f"{amount(query.network_usage_bytes)} B in transit", {"bytes": query.network_usage_bytes}),
        Line("latency", latency.text(), latency.figures()),
    ]
    found += [line for line in (model(query) for model in (MODELS if models is None else models)) if line is not None]
    return Prediction(lines=tuple(found), operators={source.value: count for source, count in query.known().items()}, latency=latency)


MODELS: tuple[Model, ...] = (highest_rate,)
"""Models beside network usage and latency, in the order of their lines."""
