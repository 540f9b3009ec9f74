"""Keys of streams and datagrams depend on everything that they must depend on, and no two are alike."""

from itertools import combinations

from sbon.framing import SecureStream
from sbon.handshake import Plain, Sealed, derive_keys, public_key
from sbon.sealing import KEY_ID_BYTES, NONCE_BYTES, KeyRing

ADA, BOB, CLUSTER = (bytes([number]) * 32 for number in (1, 2, 3))
PLAIN_TEXT = bytes(64)
"""Sealed zeros are the key stream."""


def key_stream(nonce: bytes, key: bytes = CLUSTER) -> bytes:
    return KeyRing([key]).seal(PLAIN_TEXT, nonce)[1 + KEY_ID_BYTES + NONCE_BYTES :]


def test_both_ends_have_the_same_two_keys_one_for_each_direction():
    ada, bob = derive_keys(ADA, public_key(BOB), CLUSTER, b"hellos"), derive_keys(BOB, public_key(ADA), CLUSTER, b"hellos")

    assert ada == bob
    assert ada[0] != ada[1]


def test_keys_of_a_stream_depend_on_the_exchange_the_cluster_key_and_the_hellos():
    found = [
        derive_keys(ADA, public_key(BOB), CLUSTER, b"hellos"),
        derive_keys(ADA, public_key(bytes([9]) * 32), CLUSTER, b"hellos"),
        derive_keys(bytes([9]) * 32, public_key(BOB), CLUSTER, b"hellos"),
        derive_keys(ADA, public_key(BOB), bytes([9]) * 32, b"hellos"),
        derive_keys(ADA, public_key(BOB), CLUSTER, b"hello5"),
    ]

    assert len({key for keys in found for key in keys}) == 2 * len(found)


def test_no_two_frames_of_a_direction_are_sealed_alike():
    sealer = Sealed(CLUSTER)
    small = [b"".join(sealer.seal(b"head", [PLAIN_TEXT])) for _ in range(3)]
    large = [b"".join(sealer.seal(b"head", [bytes(40_000)])) for _ in range(3)]

    assert len({frame[4:68] for frame in small + large}) == 6


def test_header_of_a_frame_is_authenticated():
    sealed = b"".join(Sealed(CLUSTER).seal(b"head", [PLAIN_TEXT]))

    assert Sealed(CLUSTER).open(memoryview(sealed)[4:], b"head") == PLAIN_TEXT
    assert Plain().open(memoryview(b"xy"), b"head") == b"xy"


def test_each_half_of_a_datagram_s_nonce_changes_its_key_stream():
    nonces = [bytes(24), bytes(11) + b"\1" + bytes(12), bytes(23) + b"\1", bytes([1]) + bytes(23), bytes(12) + b"\1" + bytes(11)]

    for one, other in combinations([key_stream(nonce) for nonce in nonces] + [key_stream(bytes(24), ADA)], 2):
        assert one != other
    # The first half of the nonce changes the key, not only the cipher's nonce.
    assert KeyRing([CLUSTER])._one_time(CLUSTER, nonces[0]).encrypt(bytes(12), PLAIN_TEXT, b"") != KeyRing([CLUSTER])._one_time(
        CLUSTER, nonces[1]
    ).encrypt(bytes(12), PLAIN_TEXT, b"")


def test_what_a_peer_only_claims_to_send_costs_no_memory():
    ends = [
        SecureStream(dialler=dialler, name="a", key_ring=None, random_bytes=b"", frame_bytes_max=512 * 2**20) for dialler in (True, False)
    ]
    hello = b"".join(event.data for event in ends[1].receive(ends[0].start()))
    finish = b"".join(getattr(event, "data", b"") for event in ends[0].receive(hello))
    assert list(ends[1].receive(finish))
    header = (512 * 2**20).to_bytes(4, "big") + b"\1" + bytes(4)
    assert list(ends[1].receive(header)) == []

    assert len(ends[1].room()) < 16 * 2**20
