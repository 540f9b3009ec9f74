"""`sbon coordinates`: what is laid out, and what is drawn."""

import sys

import numpy as np
import pytest

from sbon.cli.coordinates import draw, laid_out, node_rows, principal
from sbon.errors import ConfigError


def member(name, vector, *, region="eu", status="alive", height_ms=1.0):
    coordinate = {"vector": list(vector), "height_ms": height_ms, "error": 0.25, "load_ms": 3.0}
    return {"name": name, "status": status, "labels": {"region": region} if region else {}, "coordinate": coordinate}


SPACE = [member("b", (0, 0, 100), region="us"), member("a", (0, 0, -100), height_ms=9.0), member("c", (0, 40, 0), region=None)]


def test_two_dimensions_show_what_three_hold_where_that_is_flat():
    rng = np.random.default_rng(1)
    flat = rng.normal(size=(30, 2)) * [80.0, 20.0]
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    vectors = flat @ turn[:2] + [5.0, 6.0, 7.0]

    shown, held = principal(vectors)

    def distances(points):
        return np.linalg.norm(points[:, None] - points[None], axis=2)

    assert held == pytest.approx(1.0)
    assert distances(shown) == pytest.approx(distances(vectors))
    assert np.ptp(shown[:, 0]) > np.ptp(shown[:, 1])


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_agents_have_a_place_as_well(count):
    shown, held = principal(np.array([[1.0, 2.0, 3.0]] * count))
    assert shown.tolist() == [[0.0, 0.0]] * count
    assert held == 1.0


def test_the_living_with_coordinates_are_laid_out_by_name():
    space = laid_out([*SPACE, member("d", (0, 0, 0), status="failed"), {**SPACE[0], "name": "e", "coordinate": None}])

    assert [(node["name"], node["region"]) for node in space["nodes"]] == [("a", "eu"), ("b", "us"), ("c", None)]
    assert [node["x_ms"] for node in space["nodes"]] == [-100.0, 100.0, 0.0]
    assert space["shown_share"] == 1.0
    assert node_rows(space)[2] == ["c", "-", "0.0", "26.7", "1.0", "3.0", "25.0 %"]
    assert laid_out([]) == {"nodes": [], "shown_share": None}


@pytest.mark.parametrize("agents", [3, 60])
def test_the_picture_is_a_png(tmp_path, agents):
    pytest.importorskip("matplotlib")
    file = tmp_path / "space.png"
    draw(laid_out([member(f"n{i}", (i, i % 7, i % 3), region=f"r{i % 4}", height_ms=i % 5) for i in range(agents)]), file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_said_in_one_line(tmp_path, monkeypatch):
    space = laid_out(SPACE)
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw(laid_out([]), tmp_path / "space.png")
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="No such file"):
        draw(space, tmp_path / "missing" / "space.png")
    with pytest.raises(ConfigError, match=r"name it FILE\.png"):
        draw(space, tmp_path / "space.xyz")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install"):
        draw(space, tmp_path / "space.png")
