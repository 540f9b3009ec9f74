"""Datagrams under the cluster key: who can open them, and what the errors give away."""

import base64
import subprocess
import sys

import pytest

from sbon.errors import ConfigError, RemoteProtocolError
from sbon.sealing import KEY_BYTES, NONCE_BYTES, OVERHEAD_BYTES, KeyRing, generate_key, key_id

OLD, NEW, OTHER = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
NONCE = bytes(range(100, 124))


def test_a_sealed_datagram_opens_to_what_was_sealed():
    ring = KeyRing([NEW])
    sealed = ring.seal(b"ping 7", NONCE)

    assert ring.open(sealed) == b"ping 7"
    assert b"ping" not in sealed
    assert len(sealed) == len(b"ping 7") + OVERHEAD_BYTES


def test_the_primary_key_seals_and_an_accepted_key_still_opens():
    """The middle of a rotation: some agents seal with the new key, others still with the old one."""
    before, during = KeyRing([OLD, NEW]), KeyRing([NEW, OLD])

    assert during.open(before.seal(b"a", NONCE)) == b"a"
    assert before.open(during.seal(b"b", NONCE)) == b"b"
    with pytest.raises(RemoteProtocolError, match="expected one of"):
        KeyRing([NEW]).open(before.seal(b"a", NONCE))


def test_a_datagram_under_an_unknown_key_names_both_keys_by_id_only():
    with pytest.raises(RemoteProtocolError) as caught:
        KeyRing([NEW]).open(KeyRing([OTHER]).seal(b"x", NONCE))

    assert key_id(OTHER).hex() in str(caught.value)
    assert key_id(NEW).hex() in str(caught.value)


def test_another_version_and_a_short_datagram_are_refused():
    ring = KeyRing([NEW])
    with pytest.raises(RemoteProtocolError, match="version 9, expected 1"):
        ring.open(b"\x09" + ring.seal(b"", NONCE)[1:])
    with pytest.raises(RemoteProtocolError, match="of 44 bytes, expected at least 45"):
        ring.open(ring.seal(b"", NONCE)[:-1])


def test_the_same_datagram_differs_with_every_nonce():
    ring = KeyRing([NEW])
    sealed = {ring.seal(b"x", bytes([i]) * NONCE_BYTES)[-17:] for i in range(20)}

    assert len(sealed) == 20


def test_a_nonce_of_another_length_is_our_bug():
    with pytest.raises(ValueError, match="12 bytes, expected 24"):
        KeyRing([NEW]).seal(b"", bytes(12))


def test_a_key_file_reads_back_with_comments_and_blank_lines():
    text = f"# rolled in May\n\n  {generate_key(NEW)}  # primary\n{generate_key(OLD)}\n"
    ring = KeyRing.parse(text)

    assert ring.named_keys == ((key_id(NEW), NEW), (key_id(OLD), OLD))
    assert KeyRing.parse(ring.print()).named_keys == ring.named_keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key in it"),
        ("# only a comment\n", "no key in it"),
        ("ok?\n", "line 1: not base64"),
        ("\nclé\n", "line 2: not base64"),
        (base64.b64encode(bytes(31)).decode(), "line 1: a key of 31 bytes, expected 32"),
        (f"{generate_key(NEW)}\n{generate_key(NEW)}\n", "given twice"),
        ("".join(generate_key(bytes([i]) * 32) + "\n" for i in range(9)), "9 cluster keys, expected 1 to 8"),
    ],
)
def test_a_bad_key_file_says_where_and_what(text, message):
    with pytest.raises(ConfigError, match=message):
        KeyRing.parse(text)


def test_keys_show_neither_in_repr_nor_in_errors():
    secret = generate_key(NEW)
    assert secret not in repr(KeyRing([NEW]))
    assert repr(KeyRing([NEW])) == f"KeyRing({key_id(NEW).hex()})"

    with pytest.raises(ConfigError) as caught:
        KeyRing.parse(secret[:-3] + "!")
    assert secret[:10] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_generated_keys_take_exactly_32_random_bytes():
    assert base64.b64decode(generate_key(OLD)) == OLD
    with pytest.raises(ValueError, match="31 random bytes"):
        generate_key(bytes(31))
    assert KEY_BYTES == 32


def test_the_module_loads_no_cryptography_until_a_ring_is_made():
    code = (
        "import sys, sbon.sealing, sbon.framing; assert 'cryptography' not in sys.modules; "
        "sbon.sealing.KeyRing([bytes(32)]); assert 'cryptography' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_ring_changes_step_by_step_and_never_lets_go_of_the_key_that_seals():
    old, new = key_id(OLD).hex(), key_id(NEW).hex()
    both = KeyRing([OLD]).with_key(NEW)
    assert both.ids == (old, new)
    assert both.with_key(NEW) is both
    with pytest.raises(ConfigError, match=f"key {old} is the primary key"):
        both.without(old)
    turned = both.with_primary(new)
    assert turned.ids == (new, old)
    assert turned.without(old).ids == (new,)
    assert turned.without("00000000") is turned
    with pytest.raises(ConfigError, match=f"no key 00000000 here, only {new}, {old}"):
        turned.with_primary("00000000")
    with pytest.raises(ConfigError, match="31 bytes, expected 32"):
        turned.with_key(bytes(31))


def test_a_full_ring_takes_no_further_key():
    ring = KeyRing([bytes([i]) * 32 for i in range(8)])
    with pytest.raises(ConfigError, match="holds 8 keys already"):
        ring.with_key(b"x" * 32)
