"""The history of a query, as its home remembers it."""

from sbon.cli.overview import history_rows, lost_text
from sbon.supervision.continuation import Continuation
from sbon.supervision.history import HAPPENINGS_MAX, Change, History
from sbon.supervision.recovery import Recovered


def recovered(nodes: dict[str, str], **cost: object) -> Recovered:
    return Recovered(nodes, 65_536, (), {operator: Continuation(**cost) for operator in nodes}, 2, 4.5)  # type: ignore[arg-type]


def test_a_move_is_noted_once_whoever_tells_of_it():
    history = History()
    history.placed({"q.1": "ams", "q.2": "ams"}, 1.0)
    for _ in range(2):
        history.look({"q.1": "ams", "q.2": "nyc"}, 2.0)

    placed, moved = history.told(str.upper)
    assert [one["node"] for one in placed["operators"]] == ["ams", "ams"]
    assert (moved["event"], moved["at_wall_s"]) == ("moved", 2.0)
    assert moved["operators"] == [{"id": "q.2", "text": "Q.2", "from": "ams", "node": "nyc"}]
    assert history.migrations == 1


def test_an_operator_that_joins_a_query_has_not_moved():
    history = History()
    history.placed({"q.1": "ams"}, 1.0)
    history.look({"q.1": "ams", "q.1.m": "nyc"}, 2.0)

    assert [one["event"] for one in history.told(str)] == ["placed"]


def test_a_recovery_is_no_move_and_says_what_it_cost():
    history = History()
    history.placed({"q.1": "ams", "q.2": "nyc"}, 1.0)
    history.recovering(["q.2"], "hosts are being chosen", 8.0)
    noted = history.recovered(recovered({"q.2": "fra"}, lost_rows={"l": 7}, windows=2), {"q.1": "lon", "q.2": "fra"}, 9.0)
    history.look({"q.1": "lon", "q.2": "fra"}, 10.0)

    assert noted.operators == (Change("q.2", "nyc", "fra"),)
    assert (noted.rows, noted.windows, noted.is_exact, noted.seconds, noted.attempts) == (7, 2, True, 4.5, 2)
    assert [one["event"] for one in history.told(str)] == ["placed", "recovering", "moved", "recovered"]
    assert history.migrations == 1, "only q.1 has moved"


def test_the_oldest_happenings_give_way():
    history = History()
    for number in range(HAPPENINGS_MAX + 5):
        history.look({"q.1": f"n{number}"}, float(number))

    told = history.told(str)
    assert len(told) == HAPPENINGS_MAX
    assert told[-1]["operators"][0]["node"] == f"n{HAPPENINGS_MAX + 4}"
    assert [one["at_wall_s"] for one in history.told(str, 2)] == [HAPPENINGS_MAX + 3, HAPPENINGS_MAX + 4]


def test_the_table_has_all_events_in_order_of_time():
    first, second = History(), History()
    first.placed({"ams.1.1": "ams"}, 0.0)
    second.placed({"ams.2.1": "ams"}, 30.0)
    first.recovered(recovered({"ams.1.1": "nyc"}, windows=None), {"ams.1.1": "nyc"}, 60.0)
    second.ended("finished", 90.0)
    rows = history_rows(
        [
            {"id": "ams.1", "name": "k", "history": first.told(str)},
            {"id": "ams.2", "name": "", "history": second.told(str)},
            {"id": "ams.3", "name": "orphan"},
        ]
    )

    assert rows == [
        ["1970-01-01 00:00:00", "k", "placed", "-", "1@ams", "-"],
        ["1970-01-01 00:00:30", "ams.2", "placed", "-", "1@ams", "-"],
        ["1970-01-01 00:01:00", "k", "recovered", "0+ windows, 4.5 s", "1@ams>nyc", "-"],
        ["1970-01-01 00:01:30", "ams.2", "ended", "-", "-", "finished"],
    ]


def test_what_a_crash_cost_is_rows_windows_and_seconds():
    assert lost_text(3, [{"seconds": 5.04, "windows": 1}]) == "3 rows, 1 window, 5.0 s"
    assert lost_text(0, [{"seconds": 5.04, "windows": 0}]) == "5.0 s"
    assert lost_text(0, []) == "0"
