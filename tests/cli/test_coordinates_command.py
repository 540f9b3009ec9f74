"""`sbon coordinates`: the layout and the picture."""

import sys

import numpy as np
import pytest

from sbon.cli.coordinates import draw, fill, laid_out, node_rows, principal
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
    assert node_rows(space)[2] == ["c", "-", "0.0", "26.7", "1.0", "25.0 %", "3.0"]
    assert laid_out([]) == {"nodes": [], "shown_share": None}


@pytest.mark.parametrize("agents", [3, 60])
def test_the_picture_is_a_png(tmp_path, agents):
    pytest.importorskip("matplotlib")
    file = tmp_path / "space.png"
    draw(laid_out([member(f"n{i}", (i, i % 7, i % 3), region=f"r{i % 4}", height_ms=i % 5) for i in range(agents)]), file)
    assert file.read_bytes().startswith(b"\x89PNG")


def drawn(members):
    """Returns the axes of the picture after layout."""
    figure_module = pytest.importorskip("matplotlib.figure")
    figure = figure_module.Figure(figsize=(10, 8), layout="constrained")
    fill(figure, laid_out(members))
    figure.draw_without_rendering()
    return figure.axes[0]


LONG = "a-very-long-name-of-an-agent-in-a-rack"


@pytest.mark.parametrize(
    "members",
    [
        [member(f"{LONG}-{i}", (100 * i, 30 * (i % 2), 0)) for i in range(3)],
        [member(f"n{i}-{'w' * 250}", (0, -i, 0)) for i in range(2)],
        [member("W" * 40, (0, 0, 0))],
        [member(f"n{i}", (300 * (i % 3), i, 0), region=f"{LONG}-{i % 3}") for i in range(60)],
    ],
    ids=["three", "names of 250 letters", "one", "regions"],
)
def test_labels_are_inside_the_picture(members):
    axes = drawn(members)
    assert len(axes.texts) in (len(members), 3)
    for text in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]:
        box, outer = text.get_window_extent(), axes.figure.bbox
        assert outer.x0 <= box.x0 < box.x1 <= outer.x1, text.get_text()
        assert outer.y0 <= box.y0 < box.y1 <= outer.y1, text.get_text()
    for text in axes.texts:
        box = text.get_window_extent()
        assert axes.bbox.x0 <= box.x0 < box.x1 <= axes.bbox.x1, text.get_text()


def test_the_axes_are_named_for_readers():
    axes = drawn(SPACE)
    assert axes.get_xlabel().startswith("ms of round trip, first axis")
    assert axes.get_ylabel().startswith("ms of round trip, second axis")
    assert "the axes show 100.0 % of their variance" in axes.get_title()


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
