"""Tracks the messages whose acknowledgement a broker awaits, at QoS 1 and 2: the receiver's half of both protocols, for one connection of
a source.

A message is acknowledged when its rows have been processed. Until then the broker keeps it and sends it again after a break. At QoS 1 the
acknowledgement (PUBACK) ends the exchange: if it is lost, the broker sends the message again, and its rows repeat. At QoS 2 the broker
answers the acknowledgement (PUBREC) with a release (PUBREL), and the packet id is remembered until then: a message that arrives again
before that is recognised and only acknowledged again.

    not known --message--> held --processed--> (QoS 1) not known
                                               (QoS 2) processed --released--> not known

A broker that has lost messages may give their packet ids to other messages. So a message marked as repeated is recognised only if its
contents are the same.
"""

from __future__ import annotations

from collections import deque

from sbon.formats.mqtt_packets import PUBACK, PUBCOMP, PUBREC, Message, answers

_PROCESSED = 0
"""Replaces the position of a message whose rows have been processed, until the broker releases the message."""


class Acknowledging:
    """Messages of one session by packet id. The bytes that methods return must be sent to the broker."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        """Packet id -> position and hash of a message that the broker's session has under this id; at most 65,535."""
        self._owed: deque[tuple[int, int, int]] = deque()
        """Position, packet id and QoS of the messages that have not been acknowledged, in order."""
        self._again: list[int] = []
        """Packet ids of processed messages that have come again."""

    @property
    def unacknowledged(self) -> int:
        """Returns how many messages are held and not yet acknowledged."""
        return len(self._owed)

    def is_new(self, message: Message, position: int) -> bool:
        """Notes a message at QoS 1 or 2; returns False if it is known.

        Parameters
        ----------
        position : from 1, in the order of the messages; grows with each new one
        """
        mark = hash((message.topic, message.payload))
        if message.is_repeated:
            known = self._known.get(message.mid)
            if known is not None and known[1] == mark:
                if known[0] == _PROCESSED:
                    self._again.append(message.mid)
                return False
        self._known[message.mid] = (position, mark)
        self._owed.append((position, message.mid, message.qos))
        return True

    def again(self) -> bytes:
        """Returns the acknowledgements of messages that were processed before they came again."""
        mids, self._again = self._again, []
        return answers(PUBREC, mids)

    def processed(self, upto: int) -> bytes:
        """Returns the acknowledgements of the messages up to a position."""
        once, twice = [], []
        while self._owed and self._owed[0][0] <= upto:
            position, mid, qos = self._owed.popleft()
            known, mark = self._known.get(mid, (_PROCESSED, 0))
            if known != position:
                continue  # the broker has given the packet id to another message
            if qos == 1:
                del self._known[mid]
                once.append(mid)
            else:
                self._known[mid] = (_PROCESSED, mark)
                twice.append(mid)
        return answers(PUBACK, once) + answers(PUBREC, twice)

    def released(self, mids: list[int]) -> bytes:
        """Handles releases: the broker will not send these messages again. Returns the answers, which let it reuse the packet ids."""
        for mid in mids:
            if self._known.get(mid, (-1, 0))[0] == _PROCESSED:
                del self._known[mid]
        return answers(PUBCOMP, mids)

    def forget(self) -> None:
        """Forgets all messages, because the broker has a new session without them."""
        self._known.clear()
        self._owed.clear()
        self._again.clear()
