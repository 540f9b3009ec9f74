"""Figures as people read them: no zero with a sign."""

import json

import pytest

from sbon.analysis.findings import figure, percent, size
from sbon.cli.coordinates import laid_out
from sbon.cli.output import amount, count, number, share
from sbon.cli.overview import status_rows


@pytest.mark.parametrize("value", [-0.0, -0.0001, -0.004])
def test_no_figure_is_a_negative_zero(value):
    printed = [
        number(value),
        number(value, 0),
        count(value),
        share(value / 10),
        amount(-0.0, "B"),
        percent(value / 10),
        figure(-0.0),
        size(-0.0),
    ]
    assert printed == ["0.0", "0", "0", "0.0 %", "0 B", "0.0%", "0", "0 B"]


def test_negative_figures_keep_their_sign():
    assert [number(-0.06), count(-1.0), share(-0.001), amount(-1500.0, "B")] == ["-0.1", "-1", "-0.1 %", "-1.5 kB"]


def test_status_shows_an_agent_at_the_origin_without_a_sign():
    status = {"name": "a", "address": "-", "coordinate": {"vector": [-0.0, -0.01, 2.0], "height_ms": -0.0, "load_ms": -0.0, "error": 0.1}}
    rows = dict(status_rows(status))
    assert rows["coordinate"] == "(0.0, 0.0, 2.0) ms, height 0.0 ms"
    assert rows["load"] == "0.0 ms"


def test_coordinates_as_json_have_no_sign_at_zero():
    rest = {"height_ms": 0.1, "load_ms": 0.0, "error": 0.1}
    vectors = {"a": [0.0, 0.0, 1e-6], "b": [0.0, 1e-6, 0.0], "c": [1e-6, 0.0, 0.0]}
    members = [{"name": name, "status": "alive", "labels": {}, "coordinate": {"vector": v, **rest}} for name, v in vectors.items()]
    assert "-0.0" not in json.dumps([(node["x_ms"], node["y_ms"]) for node in laid_out(members)["nodes"]])
