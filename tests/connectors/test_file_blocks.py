"""Files are read in blocks that end between records, whatever the sizes. Rows keep their order, whichever part is ready first."""

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from sbon.errors import ConnectorError
from sbon_agent.connectors import file_blocks
from sbon_agent.connectors.file_source import PARTS_AHEAD_MAX
from tests.connector_world import WALL, columns, context, source
from tests.examples import examples

FIELDS = st.sampled_from(["", "a", "bb", '"c"', '"d,e"', '"f\ng"', '"h""\n\n""i"', '"\n"', "k" * 30, '"' + "l\n" * 20 + '"'])
RECORDS = st.lists(st.lists(FIELDS, min_size=2, max_size=2).map(lambda fields: ",".join(fields)), max_size=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


@given(RECORDS, st.booleans(), st.booleans(), st.integers(1, 80), st.integers(1, 80))
@example(['"a\n",b', '"c\nd",e'], True, False, 5, 2)
@examples(35)
def test_blocks_end_between_records(folder: Path, records: list[str], ended: bool, zipped: bool, size: int, look: int) -> None:
    data = ("\n".join(records) + "\n" * ended).encode()
    (folder / "r").write_bytes(gzip.compress(data) if zipped else data)
    with pytest.MonkeyPatch.context() as patch, (folder / "r").open("rb") as file:
        patch.setattr(file_blocks, "BLOCK_BYTES", size)
        patch.setattr(file_blocks, "_LOOK_BYTES", look)
        found = list(file_blocks.blocks(file, "r", zipped=zipped, quoted=True))
    joined = b"".join(found)
    assert data.startswith(joined)
    assert not data[len(joined) :].strip()
    assert all(block.endswith(b"\n") for block in found[:-1])
    assert [record for block in found for record in _records(block)] == _records(data)


def _records(data: bytes) -> list[list[str]]:
    return [record for record in csv.reader(io.StringIO(data.decode(), newline="")) if record]


def test_a_file_that_shrinks_while_it_is_read_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 10)
    (tmp_path / "r").write_bytes(b"12345678\n" * 10)
    with (tmp_path / "r").open("r+b") as file:
        found = file_blocks.blocks(file, "r", zipped=False, quoted=False)
        assert next(found) == b"12345678\n"
        file.truncate(13)
        assert list(found) == [b"1234"]


# ------------------------------------------------------------------------------------------------- parts out of order


class Late:
    """A host whose threads do their work at once. The test chooses when and in which order the source hears of it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.untold: list[Callable[[], None]] = []

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        """Does the work now; keeps the call of `done` for later."""
        result = work()
        self.untold.append(lambda: done(result))


GOOD = '{"ts": "2026-01-01T00:00:01Z", "n": %d}\n'
ODD = ["{}\n", '{"n": "x%d"}\n', "no %d\n", '{"ts": "day %d"}\n', "\n"]


# No shrinking: each example reads a file, so shrinking takes minutes, and a smaller example shows no more.
@settings(examples(40), phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_keep_their_order_whatever_part_is_ready_first(folder: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([GOOD, GOOD, GOOD, *ODD]), min_size=8, max_size=40))
    text = "".join(kind % n if "%" in kind else kind for n, kind in enumerate(kinds))
    (folder / "r.ndjson").write_text(text)
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 30)
    host: Any = Late(data.draw(st.integers(1, 9)))
    schema = columns(ts="time", n="int")
    one_by_one = source("file", schema, context(folder), path="r.ndjson")
    one_by_one.start(lambda: None)
    expected = _polled(one_by_one, lambda: None)

    stream: Any = source("file", schema, msgspec.structs.replace(context(folder), host=host), path="r.ndjson")
    stream.start(lambda: None)

    def tell() -> None:
        assert len(host.untold) + len(stream._parts) <= min(host.workers, PARTS_AHEAD_MAX)
        if host.untold:
            host.untold.pop(data.draw(st.integers(0, len(host.untold) - 1)))()

    assert _polled(stream, tell) == expected
    assert stream.misfits.told() == one_by_one.misfits.told()
    assert expected == [n for n, kind in enumerate(kinds) if kind is GOOD] or any(kind not in (GOOD, "\n") for kind in kinds)


def _polled(stream: Any, between: Callable[[], None]) -> list[Any]:
    """Returns all rows of a started source."""
    numbers: list[Any] = []
    for _ in range(1000):
        polled = stream.poll(0.0, WALL)
        if polled.finished:
            break
        numbers.extend([] if polled.frame is None else polled.frame["n"].to_list())
        between()
    assert polled.finished
    while getattr(stream._host, "untold", None):
        between()
    return numbers


def test_a_part_that_cannot_be_read_leaves_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source gives all rows before the bad part, then the error, although the error came first; then it closes the file."""
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 30)
    monkeypatch.setattr(file_blocks, "RECORD_BYTES_MAX", 100)
    (tmp_path / "r.csv").write_text("n\n" + "1\n" * 50 + '"' + "never closed\n" * 50)
    host: Any = Late(4)
    stream: Any = source("file", columns(n="int"), msgspec.structs.replace(context(tmp_path), host=host), path="r.csv")
    stream.start(lambda: None)
    rows: list[int] = []

    def poll() -> None:
        for _ in range(200):
            polled = stream.poll(0.0, WALL)
            rows.extend([] if polled.frame is None else polled.frame["n"].to_list())
            while polled.frame is None and host.untold:
                host.untold.pop()()

    with pytest.raises(ConnectorError, match="a record of more than 100 bytes"):
        poll()
    assert rows == [1] * 50
    while host.untold:
        host.untold.pop()()
    assert stream.reader._file is None


def test_parts_are_decoded_beside_each_other_only_where_rows_are_taken_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 8)
    (tmp_path / "r.csv").write_text("n\n" + "1\n" * 100)
    host: Any = Late(2)
    stream: Any = source("file", columns(n="int"), msgspec.structs.replace(context(tmp_path), host=host), path="r.csv")
    stream.start(lambda: None)
    assert len(host.untold) == 1
    for _ in range(5):
        host.untold.pop()()
        assert stream.poll(0.0, WALL).rows
        assert len(host.untold) == 1  # one part ahead
    assert stream.poll(0.0, WALL).rows == 0
    assert len(host.untold) == 2


def test_what_parts_leave_out_has_the_first_sample_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 12)
    (tmp_path / "r.csv").write_text("n,x\n" + "".join(f"{n},bad{n}\n" for n in range(1000, 1020)) + "1,2,3\n" + "7,0.5")  # no line end
    host: Any = Late(4)
    stream: Any = source("file", columns(n="int", x="float"), msgspec.structs.replace(context(tmp_path), host=host), path="r.csv")
    stream.start(lambda: None)
    found = []
    while not (polled := stream.poll(0.0, WALL)).finished:
        found += [] if polled.frame is None else polled.frame.rows()
        while host.untold:
            host.untold.pop()()
    assert found == [(7, 0.5)]
    assert [(kind.rows, kind.text, kind.line) for kind in stream.misfits.told()] == [
        (20, 'column x: "bad1000" is not a number (FLOAT)', "1000,bad1000"),
        (1, "the line has 3 fields, expected 2", "1,2,3\\n"),
    ]
    assert stream.dropped_rows == 21
