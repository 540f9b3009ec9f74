"""Lines of several connections, received in pieces of any size, equal those of a reader that takes one octet at a time."""

from contextlib import nullcontext

from hypothesis import example, given
from hypothesis import strategies as st

from sbon.connectors.line_buffer import LineBuffer
from sbon.connectors.line_endpoint import LineTail
from sbon.misfits import Misfits

LINE_BYTES_MAX = 16
CLOSED = None
PIECES = st.one_of(
    st.just(CLOSED),
    st.lists(st.sampled_from([b"a", b"bc", b"\n", b"d" * 7, b"e" * 15, b"f" * 16, b"g" * 17, b"h" * 40, b" ", b"i\n" * 9])).map(b"".join),
)


def plain(events: list[tuple[int, bytes | None]]) -> tuple[list[bytes], int]:
    """Returns the lines in the order in which their ends arrived, and how many were too long."""
    kept: list[bytes] = []
    begun: dict[int, bytes] = {}
    long = 0
    for connection, data in events:
        for octet in [b"\n"] if data is CLOSED else [data[at : at + 1] for at in range(len(data))]:
            line = begun.get(connection, b"")
            if octet != b"\n":
                begun[connection] = line + octet
                long += len(line) == LINE_BYTES_MAX
                continue
            begun[connection] = b""
            if len(line) <= LINE_BYTES_MAX and (data is not CLOSED or line.strip()):
                kept.append(line)
    return kept, long


@given(
    st.lists(st.tuples(st.integers(0, 1), PIECES), max_size=12),
    st.lists(st.one_of(st.integers(1, 5), st.integers(-40, -1)), max_size=8),
)
@example([(0, b"e" * 15), (0, b"g" * 17), (0, b"\na\n")], [])
@example([(0, b"bc\n" + b"g" * 17 + b"\n" + b"a\n" * 9)], [])
@example([(0, b"a\n" * 20)], [3, -100, 1])
def test_lines_are_those_of_a_plain_reading(events: list[tuple[int, bytes | None]], takes: list[int]) -> None:
    misfits = Misfits()
    buffer = LineBuffer(LINE_BYTES_MAX, misfits, nullcontext())
    connections = [LineTail() for _ in range(2)]
    kept, long = plain(events)
    for connection, data in events:
        before = buffer.lines
        begins = buffer.closed(connections[connection]) if data is CLOSED else buffer.received(connections[connection], data)
        assert begins == (not before and buffer.lines > 0)
    assert (buffer.lines, buffer.size_bytes) == (len(kept), sum(map(len, kept)) + len(kept))
    assert misfits.rows == long

    taken = b""
    for take in [*takes, -10_000]:
        before = buffer.lines
        piece = buffer.take_lines(take, 1 << 20) if take > 0 else buffer.take(-take)
        taken += piece
        assert piece.count(b"\n") == before - buffer.lines
        assert take < 0 or piece.count(b"\n") == min(take, before)

    assert taken.split(b"\n")[:-1] == kept
    assert (buffer.lines, buffer.size_bytes, buffer.take(1)) == (0, 0, b"")


def test_what_a_connection_holds_of_a_line_without_end_is_bounded() -> None:
    misfits = Misfits()
    buffer = LineBuffer(1000, misfits, nullcontext())
    connection = LineTail()
    for _ in range(5000):
        buffer.received(connection, b"x")
        assert len(connection.tail) <= 1000
    buffer.received(connection, b"y" * 100_000 + b"\n{}\n")

    assert (buffer.take(1), misfits.rows) == (b"{}\n", 1)


def test_few_lines_are_also_limited_in_their_octets() -> None:
    buffer = LineBuffer(1000, Misfits(), nullcontext())
    buffer.received(LineTail(), (b"x" * 99 + b"\n") * 10)

    assert len(buffer.take_lines(10, 250)) == 300
    assert buffer.lines == 7


def test_lines_that_come_one_by_one_take_no_more_memory_than_a_block_of_them() -> None:
    buffer = LineBuffer(1000, Misfits(), nullcontext())
    connection = LineTail()
    for _ in range(10_000):
        buffer.received(connection, b"{}\n")

    assert len(buffer._pieces) == 8
    assert (buffer.lines, buffer.size_bytes) == (10_000, 30_000)
