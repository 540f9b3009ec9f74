"""The secure stream between two agents: turns one stream of bytes into authenticated messages.

Both ends prove that they hold the same cluster key, and learn each other's name. From then on every message is sealed, numbered and in
order. The dialler sends D1 and D2, the acceptor A1 and A2::

    D1  "sbon" | versions 1 | mode 1 | length 2 | ids of accepted keys, 4 each | X25519 public key 32
    A1  "sbon" | version 1  | mode 1 | length 2 | id of the chosen key 4       | X25519 public key 32
    A2  frame 0 of the acceptor: its name            D2  frame 0 of the dialler: its name

    keys = HKDF-SHA256(salt = SHA-256(D1 + A1), secret = X25519(own, peer's) + cluster key): one for each direction

This is Noise's NNpsk pattern (Noise Protocol Framework, section 9). The key exchange is fresh, so a stolen cluster key opens no recorded
stream. The cluster key is mixed in, so nobody without it can be in the middle. The transcript is the salt, so a changed byte of either
hello (another version, fewer keys) gives the ends different keys, and frame 0 fails to open. A replayed D1 meets a new A1.

D1 names the versions that the dialler speaks, A1 the highest of them that the acceptor speaks, too. If there is none, the acceptor refuses
and names its own versions. Both are in the transcript, so nobody in between can make two ends use an older version.

Afterwards both sides send frames::

    length of the body 4 | kind 1 | number 4 | body

sealed with AES-256-GCM. The nonce is the count of frames in that direction, so a frame that is lost, repeated, swapped or altered fails
authentication; the header is authenticated, too. Kind and number belong to the user of the stream (`sbon.peers.peers`) and are not
encrypted. Datagrams use ChaCha20. Streams use AES, because bulk data then costs a fifth on processors with AES instructions, and a counted
nonce needs no extension.

Without a key ring (an agent that listens on loopback only) the mode is "plain": the same messages, unsealed.

States: HELLO (waits for the peer's hello), FINISH (waits for the peer's frame 0), OPEN, BROKEN. Any error leads to BROKEN, which is final.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from sbon.errors import KeyMismatchError, LocalProtocolError, RemoteProtocolError
from sbon.handshake import (
    HELLO,
    HELLO_BODY_BYTES_MAX,
    MAGIC,
    NAME_BYTES_MAX,
    PUBLIC_BYTES,
    SPOKEN,
    TAG_BYTES,
    Cipher,
    Mode,
    Plain,
    Refusal,
    Sealed,
    Versions,
    derive_keys,
    hello,
    name_problem,
    public_key,
    refusal_text,
)
from sbon.handshake import RANDOM_BYTES as RANDOM_BYTES
from sbon.links.frames import Buffer
from sbon.receive_buffer import ReceiveBuffer
from sbon.sealing import KEY_ID_BYTES, KeyRing
from sbon.types import NodeId

_FRAME = struct.Struct(">IBI")

FRAME_HEADER_BYTES = _FRAME.size
_AHEAD_BYTES_MAX = 4 * 2**20
FINISH_KIND = 0
"""Kind of frame 0 in each direction; no other frame may have it."""


class _State(enum.Enum):
    HELLO = "hello"
    FINISH = "finish"
    OPEN = "open"
    BROKEN = "broken"


class Send(msgspec.Struct, frozen=True):
    """Handshake bytes to be written now."""

    data: bytes


class Established(msgspec.Struct, frozen=True):
    """The handshake is done: `peer` is the name of the other end, which holds the cluster key."""

    peer: NodeId


class Frame(msgspec.Struct, frozen=True):
    """One complete, authenticated message."""

    kind: int
    number: int
    payload: bytes


Event: TypeAlias = Send | Established | Frame


class SecureStream:
    """The machine of one end of a stream: bytes in, messages out; messages in, bytes out.

    Parameters
    ----------
    dialler
        True if this end opened the connection; the dialler speaks first.
    name
        Our own name, which is sent to the peer.
    key_ring
        None for a plain stream.
    random_bytes
        32 fresh bytes; unused without a key ring.
    frame_bytes_max
        Largest payload, in either direction. A larger one is refused at its header, before any of it is buffered.
    expect
        The peer's name, if it is known; another name breaks the stream.
    versions
        Protocol versions of this end.

    Raises
    ------
    LocalProtocolError
        The random bytes are too few, or the name cannot be sent.
    """

    def __init__(
        self,
        *,
        dialler: bool,
        name: NodeId,
        key_ring: KeyRing | None,
        random_bytes: bytes,
        frame_bytes_max: int,
        expect: NodeId | None = None,
        versions: Versions = SPOKEN,
    ) -> None:
        if key_ring is not None and len(random_bytes) != RANDOM_BYTES:
            raise LocalProtocolError(f"{len(random_bytes)} random bytes for a stream, expected {RANDOM_BYTES}")
        if (problem := name_problem(name)) is not None:
            raise LocalProtocolError(f"our own name {name!r} {problem}")
        self._dialler, self._name, self._ring, self._expect = dialler, name, key_ring, expect
        self._frame_bytes_max = frame_bytes_max
        self._versions = versions
        self.version = 0
        """Protocol version of both ends, known once the hellos are exchanged."""
        self._private = random_bytes
        self._state = _State.HELLO
        self._buffer = ReceiveBuffer()
        self._own_hello = b""
        self._sealer: Cipher = Plain()
        self._opener: Cipher = Plain()
        self.refusal = b""
        """Bytes to write before closing after an error, so that the peer can report the reason; often empty."""
        if dialler:
            ids = b"".join(name for name, _ in key_ring.named_keys) if key_ring else b""
            self._own_hello = self._hello(ids + self._public_key())

    @property
    def is_open(self) -> bool:
        """Tells whether the handshake is done and no error has happened since."""
        return self._state is _State.OPEN

    def start(self) -> bytes:
        """Returns the bytes to write when the connection opens: the dialler's hello; none for the acceptor."""
        return self._own_hello if self._dialler else b""

    def send(self, kind: int, number: int, *payload: Buffer) -> list[Buffer]:
        """Returns the bytes of one message, in pieces to be written in order.

        Parameters
        ----------
        kind, number
            1 to 255, and 0 to 2^32 - 1.
        payload
            One piece or several, which the receiver gets as one. Do not modify them until they are sent.

        Raises
        ------
        LocalProtocolError
            The stream is not open, or the payload is larger than `frame_bytes_max`.
        """
        if self._state is not _State.OPEN:
            raise LocalProtocolError(f"message for a stream in state {self._state.value}, expected open")
        size = sum(map(len, payload))
        if size > self._frame_bytes_max:
            raise LocalProtocolError(f"payload of {size} bytes, expected at most {self._frame_bytes_max}")
        if not FINISH_KIND < kind <= 255:
            raise LocalProtocolError(f"frame kind {kind}, expected 1 to 255")
        return self._seal(kind, number, payload)

    def receive(self, data: bytes) -> Iterator[Event]:
        """Takes bytes from the connection and yields the events that they complete. The iterator must be consumed to its end.

        Raises
        ------
        RemoteProtocolError
            The peer broke the rules. Raised while iterating, after the valid events. The stream is broken: write `refusal`, then close.
        LocalProtocolError
            The stream was broken already.
        """
        if self._state is _State.BROKEN:
            raise LocalProtocolError("bytes for a stream in state broken")
        self._buffer.append(data)
        return self._events()

    def room(self) -> memoryview:
        """Returns the memory to read the connection's next bytes into, without a copy; call `filled` afterwards."""
        return self._buffer.room()

    def filled(self, count: int) -> Iterator[Event]:
        """Takes `count` bytes that were read into `room`; otherwise like `receive`."""
        if self._state is _State.BROKEN:
            raise LocalProtocolError("bytes for a stream in state broken")
        self._buffer.added(count)
        return self._events()

    def end(self) -> None:
        """Records that the connection has ended.

        Raises
        ------
        RemoteProtocolError
            The connection ended within the handshake or within a frame.
        """
        state, self._state = self._state, _State.BROKEN
        if state in (_State.HELLO, _State.FINISH):
            raise RemoteProtocolError("connection ended during the handshake")
        if state is _State.OPEN and self._buffer:
            raise RemoteProtocolError(f"connection ended within a frame, after {len(self._buffer)} bytes of it")

    def _events(self) -> Iterator[Event]:
        try:
            while True:
                event = self._take_hello() if self._state is _State.HELLO else self._take_frame()
                if event is None:
                    return
                yield from event
        except RemoteProtocolError:
            self._state = _State.BROKEN
            self._buffer.clear()
            raise

    def _take_hello(self) -> list[Event] | None:
        buffer = self._buffer
        begin = buffer.peek(HELLO.size)
        if not MAGIC.startswith(begin[:4]):
            raise RemoteProtocolError(f"stream begins with {begin[:4]!r}, expected {MAGIC!r}: the peer is no sbon agent")
        if len(begin) > 4:
            self._agree(Versions.unpack(begin[4]))
        if len(begin) < HELLO.size:
            return None
        _, _, mode, length = HELLO.unpack(begin)
        if length > HELLO_BODY_BYTES_MAX:
            raise RemoteProtocolError(f"hello of {length} bytes, expected at most {HELLO_BODY_BYTES_MAX}")
        if len(buffer) < HELLO.size + length:
            return None
        whole = buffer.peek(HELLO.size + length)
        buffer.drop(len(whole))
        return self._answer_hello(mode, whole)

    def _agree(self, theirs: Versions) -> None:
        """Chooses the highest version that both ends speak."""
        common = self._versions.common(theirs)
        if common is None:
            self._refuse(Refusal.VERSION)
            advice = "run releases on both that have one in common"
            raise RemoteProtocolError(f"peer speaks protocol {theirs}, this agent {self._versions}: {advice}")
        self.version = common

    def _answer_hello(self, mode: int, peer_hello: bytes) -> list[Event]:
        body = peer_hello[HELLO.size :]
        if self._dialler and mode == Mode.REFUSED:
            kind = KeyMismatchError if body == bytes([Refusal.KEY]) else RemoteProtocolError
            raise kind(f"peer refuses: {refusal_text(body)}")
        if self._dialler and peer_hello[4] != Versions(self.version, self.version).pack():
            raise RemoteProtocolError(f"acceptor answers with protocol {Versions.unpack(peer_hello[4])}, expected one version")
        if mode not in (Mode.PLAIN, Mode.SEALED):
            raise RemoteProtocolError(f"hello of mode {mode}, expected {Mode.PLAIN} or {Mode.SEALED}")
        if mode != self._mode:
            self._refuse(Refusal.MODE)
            ours, theirs = ("holds", "none") if self._ring else ("has no", "one")
            raise RemoteProtocolError(f"this agent {ours} cluster key and the peer uses {theirs}: give both the same key file")
        if self._ring is None and body:
            raise RemoteProtocolError(f"plain hello with {len(body)} bytes more, expected none")
        if self._ring is not None:
            ids, peer_public = body[:-PUBLIC_BYTES], body[-PUBLIC_BYTES:]
            if not ids or len(ids) % KEY_ID_BYTES or len(peer_public) != PUBLIC_BYTES:
                raise RemoteProtocolError(f"hello with {len(body)} bytes, expected ids of 4 bytes and a public key of 32")
            chosen, key = self._choose(ids)
            if not self._dialler:
                self._own_hello = self._hello(chosen + self._public_key())
            self._derive(peer_hello, peer_public, key)
        elif not self._dialler:
            self._own_hello = self._hello(b"")
        self._state = _State.FINISH
        return [] if self._dialler else [Send(self._own_hello + self._finish())]

    def _choose(self, offered: bytes) -> tuple[bytes, bytes]:
        """Returns (id, key) of our first key that the peer holds too; for a dialler, the key that the acceptor chose."""
        assert self._ring is not None
        ids = [offered[i : i + KEY_ID_BYTES] for i in range(0, len(offered), KEY_ID_BYTES)]
        if not self._dialler or len(ids) == 1:
            for name, key in self._ring.named_keys:
                if name in ids:
                    return name, key
        self._refuse(Refusal.KEY)
        theirs, ours = ", ".join(i.hex() for i in ids), ", ".join(self._ring.ids)
        raise KeyMismatchError(f"peer holds cluster key {theirs}, expected one of {ours}")

    def _derive(self, peer_hello: bytes, peer_public: bytes, key: bytes) -> None:
        hellos = self._own_hello + peer_hello if self._dialler else peer_hello + self._own_hello
        keys = derive_keys(self._private, peer_public, key, hellos)
        self._private = b""
        from_dialler, from_acceptor = Sealed(keys[0]), Sealed(keys[1])
        self._sealer, self._opener = (from_dialler, from_acceptor) if self._dialler else (from_acceptor, from_dialler)

    def _take_frame(self) -> list[Event] | None:
        buffer = self._buffer
        if len(buffer) < FRAME_HEADER_BYTES:
            return None
        header = buffer.peek(FRAME_HEADER_BYTES)
        length, kind, number = _FRAME.unpack(header)
        greatest = NAME_BYTES_MAX if self._state is _State.FINISH else self._frame_bytes_max
        tag_bytes = TAG_BYTES if self._ring else 0
        if not tag_bytes <= length <= greatest + tag_bytes:
            raise RemoteProtocolError(f"frame of {length} bytes, expected {tag_bytes} to {greatest + tag_bytes}")
        whole = FRAME_HEADER_BYTES + length
        if len(buffer) < whole:
            # The buffer grows with the bytes that have arrived: a size that a peer only claims must not cost memory.
            buffer.reserve(min(whole, 2 * len(buffer) + _AHEAD_BYTES_MAX))
            return None
        with buffer.view() as view, view[FRAME_HEADER_BYTES:whole] as body:
            payload = self._opener.open(body, header)
        buffer.drop(whole)
        if self._state is _State.FINISH:
            return self._finished(kind, payload)
        if kind == FINISH_KIND:
            raise RemoteProtocolError("second handshake within an open stream")
        return [Frame(kind, number, payload)]

    def _finished(self, kind: int, payload: bytes) -> list[Event]:
        if kind != FINISH_KIND:
            raise RemoteProtocolError(f"first frame of kind {kind}, expected the peer's name (kind {FINISH_KIND})")
        try:
            peer = payload.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("peer's name is not UTF-8") from error
        if (problem := name_problem(peer)) is not None:
            raise RemoteProtocolError(f"peer's name {peer!r} {problem}")
        if self._expect is not None and peer != self._expect:
            raise RemoteProtocolError(f"peer is called {peer!r}, expected {self._expect!r}")
        self._state = _State.OPEN
        events: list[Event] = [Send(self._finish())] if self._dialler else []
        return [*events, Established(peer)]

    @property
    def _mode(self) -> Mode:
        return Mode.SEALED if self._ring else Mode.PLAIN

    def _hello(self, body: bytes) -> bytes:
        versions = self._versions if self._dialler else Versions(self.version, self.version)
        return hello(versions, self._mode, body)

    def _public_key(self) -> bytes:
        return public_key(self._private) if self._ring else b""

    def _finish(self) -> bytes:
        return b"".join(self._seal(FINISH_KIND, 0, (self._name.encode("utf-8"),)))

    def _seal(self, kind: int, number: int, pieces: Sequence[Buffer]) -> list[Buffer]:
        size = sum(map(len, pieces))
        return self._sealer.seal(_FRAME.pack(size + (TAG_BYTES if self._ring else 0), kind, number), pieces)

    def _refuse(self, reason: Refusal) -> None:
        if not self._dialler:
            self.refusal = hello(self._versions, Mode.REFUSED, bytes([reason]))
