"""The stream machine: which handshakes succeed, and the text of each refusal."""

import pytest

from sbon.errors import LocalProtocolError, RemoteProtocolError
from sbon.framing import Established, Frame, SecureStream, Send
from sbon.handshake import SPOKEN, Versions
from sbon.sealing import KeyRing

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
LIMIT = 1000


def make_stream(name, *, dialler, ring, limit=LIMIT, expect=None, versions=SPOKEN):
    random_bytes = bytes([len(name) % 100 + dialler]) * 32
    return SecureStream(
        dialler=dialler, name=name, key_ring=ring, random_bytes=random_bytes, frame_bytes_max=limit, expect=expect, versions=versions
    )


def make_pair(dialler_ring, acceptor_ring, expect=None):
    return make_stream("ada", dialler=True, ring=dialler_ring, expect=expect), make_stream("bob", dialler=False, ring=acceptor_ring)


def feed(stream, data):
    """Returns (bytes to answer, other events)."""
    events = list(stream.receive(data))
    return b"".join(e.data for e in events if isinstance(e, Send)), [e for e in events if not isinstance(e, Send)]


def shake(dialler, acceptor):
    answer, nothing = feed(acceptor, dialler.start())
    finish, dialler_events = feed(dialler, answer)
    _, acceptor_events = feed(acceptor, finish)
    assert nothing == []
    return dialler_events, acceptor_events


@pytest.mark.parametrize("ring", [None, KeyRing([NEW])], ids=["plain", "sealed"])
def test_a_handshake_tells_each_end_the_others_name(ring):
    dialler, acceptor = make_pair(ring, ring)

    assert shake(dialler, acceptor) == ([Established("bob")], [Established("ada")])
    assert feed(acceptor, b"".join(dialler.send(7, 42, b"rows"))) == (b"", [Frame(7, 42, b"rows")])
    assert feed(dialler, b"".join(acceptor.send(255, 2**32 - 1, b""))) == (b"", [Frame(255, 2**32 - 1, b"")])


def test_names_and_messages_of_a_sealed_stream_are_unreadable():
    ring = KeyRing([NEW])
    dialler, acceptor = make_pair(ring, ring)
    hello = dialler.start()
    answer, _ = feed(acceptor, hello)
    finish, _ = feed(dialler, answer)
    feed(acceptor, finish)
    wire = hello + answer + finish + b"".join(dialler.send(1, 1, b"secret rows"))

    assert b"ada" not in wire
    assert b"bob" not in wire
    assert b"secret" not in wire


def test_rings_in_the_middle_of_a_rotation_meet_in_any_common_key():
    both, old, new = KeyRing([NEW, OLD]), KeyRing([OLD]), KeyRing([NEW])
    for first, second in [(both, old), (old, both), (both, new), (KeyRing([OLD, NEW]), both)]:
        dialler, acceptor = make_pair(first, second)
        assert shake(dialler, acceptor) == ([Established("bob")], [Established("ada")])


def test_without_a_common_key_both_ends_say_so():
    dialler, acceptor = make_pair(KeyRing([OLD]), KeyRing([NEW]))
    with pytest.raises(RemoteProtocolError, match=r"peer holds cluster key [0-9a-f]{8}, expected one of [0-9a-f]{8}"):
        feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="peer refuses: we hold no cluster key in common"):
        feed(dialler, acceptor.refusal)


@pytest.mark.parametrize(("first", "second"), [(None, KeyRing([NEW])), (KeyRing([NEW]), None)])
def test_sealed_and_plain_do_not_mix(first, second):
    dialler, acceptor = make_pair(first, second)
    with pytest.raises(RemoteProtocolError, match="give both the same key file"):
        feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="one of us has a cluster key and the other has none"):
        feed(dialler, acceptor.refusal)


def versioned_pair(first, second, ring=None):
    dialler = make_stream("ada", dialler=True, ring=ring, versions=Versions(*first))
    return dialler, make_stream("bob", dialler=False, ring=ring, versions=Versions(*second))


@pytest.mark.parametrize("ring", [None, KeyRing([NEW])], ids=["plain", "sealed"])
@pytest.mark.parametrize(
    ("first", "second", "version"),
    [((2, 2), (2, 2), 2), ((2, 3), (2, 2), 2), ((2, 2), (2, 3), 2), ((2, 4), (3, 5), 4)],
)
def test_two_ends_speak_the_highest_version_that_both_know(first, second, version, ring):
    dialler, acceptor = versioned_pair(first, second, ring)
    assert shake(dialler, acceptor) == ([Established("bob")], [Established("ada")])
    assert (dialler.version, acceptor.version) == (version, version)


@pytest.mark.parametrize(("first", "second"), [((2, 2), (3, 4)), ((3, 4), (2, 2)), ((9, 9), (2, 2))])
def test_without_a_common_version_both_ends_say_what_either_speaks(first, second):
    dialler, acceptor = versioned_pair(first, second)
    ours, theirs = str(Versions(*first)), str(Versions(*second))
    with pytest.raises(RemoteProtocolError, match=f"peer speaks protocol {ours}, this agent {theirs}"):
        feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match=f"peer speaks protocol {theirs}, this agent {ours}"):
        feed(dialler, acceptor.refusal)


def test_one_version_alone_is_written_as_before_there_were_ranges():
    alone = Versions(2, 2)
    assert make_stream("ada", dialler=True, ring=None, versions=alone).start()[4] == alone.pack() == SPOKEN.lowest == 2
    assert [Versions.unpack(Versions(*v).pack()) for v in ((2, 2), (2, 3), (0, 14))] == [(2, 2), (2, 3), (0, 14)]


def test_nobody_in_between_makes_two_ends_use_an_older_version():
    ring, older = KeyRing([NEW]), Versions(2, 2).pack()
    dialler, acceptor = versioned_pair((2, 3), (2, 3), ring)
    hello = bytearray(dialler.start())
    hello[4] = older
    answer, _ = feed(acceptor, bytes(hello))
    assert acceptor.version == 2
    with pytest.raises(RemoteProtocolError, match="authentication failed"):
        feed(dialler, answer)

    dialler, acceptor = versioned_pair((2, 3), (2, 3), ring)
    answer, _ = feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="authentication failed"):
        feed(dialler, answer[:4] + bytes([older]) + answer[5:])


def test_an_acceptor_that_does_not_choose_is_refused():
    dialler, acceptor = versioned_pair((2, 3), (2, 3))
    answer, _ = feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="answers with protocol versions 2 to 3, expected one version"):
        feed(dialler, answer[:4] + bytes([Versions(2, 3).pack()]) + answer[5:])


def test_a_key_of_the_right_id_but_other_bytes_fails_at_frame_zero():
    """An impostor may learn the key's id, which is not encrypted, but cannot answer."""

    class Impostor(KeyRing):
        @property
        def named_keys(self):
            return ((super().named_keys[0][0], OLD),)

    dialler, acceptor = make_pair(KeyRing([NEW]), Impostor([NEW]))
    answer, _ = feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="does not hold the cluster key"):
        feed(dialler, answer)


def test_a_replayed_dialler_meets_a_fresh_key_and_is_refused():
    ring = KeyRing([NEW])
    dialler, acceptor = make_pair(ring, ring)
    hello = dialler.start()
    answer, _ = feed(acceptor, hello)
    finish, _ = feed(dialler, answer)
    again = SecureStream(dialler=False, name="bob", key_ring=ring, random_bytes=bytes([200]) * 32, frame_bytes_max=LIMIT)
    feed(again, hello)
    with pytest.raises(RemoteProtocolError, match="authentication failed"):
        feed(again, finish)


def test_a_public_key_of_low_order_is_refused():
    ring = KeyRing([NEW])
    _, acceptor = make_pair(ring, ring)
    hello = make_stream("ada", dialler=True, ring=ring).start()
    with pytest.raises(RemoteProtocolError, match="unusable public key"):
        feed(acceptor, hello[:-32] + bytes(32))


def test_a_peer_of_another_name_than_expected_is_refused():
    dialler, acceptor = make_pair(None, None, expect="carol")
    answer, _ = feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="peer is called 'bob', expected 'carol'"):
        feed(dialler, answer)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x1b[31m"])
def test_names_that_would_spoil_logs_are_neither_sent_nor_taken(name):
    with pytest.raises(LocalProtocolError, match="our own name"):
        make_stream(name, dialler=True, ring=None)

    acceptor = make_stream("bob", dialler=False, ring=None)
    raw = name.encode()
    with pytest.raises(RemoteProtocolError):
        feed(acceptor, make_stream("ada", dialler=True, ring=None).start() + len(raw).to_bytes(4, "big") + bytes(5) + raw)


def test_an_oversized_frame_is_refused_at_its_header():
    dialler, acceptor = make_pair(None, None)
    shake(dialler, acceptor)
    with pytest.raises(RemoteProtocolError, match="frame of 1001 bytes, expected 0 to 1000"):
        feed(acceptor, (1001).to_bytes(4, "big") + bytes([1, 0, 0, 0, 0]))


def test_an_oversized_hello_and_first_frame_are_refused_at_their_headers():
    _, acceptor = make_pair(None, None)
    with pytest.raises(RemoteProtocolError, match="hello of 65535 bytes, expected at most 64"):
        feed(acceptor, b"sbon\x02\x00\xff\xff")
    dialler, acceptor = make_pair(None, None)
    feed(acceptor, dialler.start())
    with pytest.raises(RemoteProtocolError, match="frame of 256 bytes, expected 0 to 255"):
        feed(acceptor, (256).to_bytes(4, "big") + bytes(5))


def test_another_protocol_altogether_is_recognised_at_its_first_byte():
    _, acceptor = make_pair(None, None)
    with pytest.raises(RemoteProtocolError, match="the peer is no sbon agent"):
        feed(acceptor, b"GET / HTTP/1.1\r\n")
    assert acceptor.refusal == b""


def test_events_before_a_bad_frame_are_still_given():
    ring = KeyRing([NEW])
    dialler, acceptor = make_pair(ring, ring)
    shake(dialler, acceptor)
    good, bad = b"".join(dialler.send(1, 1, b"good")), bytearray(b"".join(dialler.send(1, 2, b"bad")))
    bad[-1] ^= 1
    events = acceptor.receive(good + bytes(bad))

    assert next(events) == Frame(1, 1, b"good")
    with pytest.raises(RemoteProtocolError, match="frame 2 was damaged"):
        next(events)
    assert not acceptor.is_open
    with pytest.raises(LocalProtocolError):
        acceptor.receive(b"more")


def test_a_connection_that_ends_within_the_handshake_or_a_frame_is_an_error():
    dialler, acceptor = make_pair(None, None)
    with pytest.raises(RemoteProtocolError, match="during the handshake"):
        make_stream("bob", dialler=False, ring=None).end()
    shake(dialler, acceptor)
    acceptor_whole = make_pair(None, None)
    shake(*acceptor_whole)
    acceptor_whole[1].end()
    feed(acceptor, b"".join(dialler.send(1, 1, b"rows"))[:-1])
    with pytest.raises(RemoteProtocolError, match="within a frame, after 12 bytes"):
        acceptor.end()


def test_sending_too_early_too_much_or_the_wrong_kind_is_our_bug():
    dialler, acceptor = make_pair(None, None)
    with pytest.raises(LocalProtocolError, match="in state hello"):
        dialler.send(1, 1, b"")
    shake(dialler, acceptor)
    with pytest.raises(LocalProtocolError, match="1001 bytes, expected at most 1000"):
        dialler.send(1, 1, bytes(1001))
    with pytest.raises(LocalProtocolError, match="kind 0, expected 1 to 255"):
        dialler.send(0, 1, b"")


def test_a_second_handshake_frame_is_refused():
    dialler, acceptor = make_pair(None, None)
    shake(dialler, acceptor)
    with pytest.raises(RemoteProtocolError, match="second handshake"):
        feed(acceptor, bytes(9))


def test_a_large_payload_is_not_copied_to_join_its_header():
    dialler, acceptor = (make_stream(n, dialler=d, ring=None, limit=2**20) for n, d in (("ada", True), ("bob", False)))
    shake(dialler, acceptor)
    payload = bytes(2**20)

    assert dialler.send(1, 1, payload)[1] is payload
