"""Tracks the messages whose acknowledgement a broker awaits, at QoS 1 and 2: the receiver's half of both protocols, for one connection of
a source.

A message is acknowledged when its rows have been processed. Until then the broker keeps it and sends it again after a break. At QoS 1 the
acknowledgement (PUBACK) ends the exchange: if it is lost, the broker sends the message once more, and its rows repeat. At QoS 2 the broker
answers the acknowledgement (PUBREC) with a release (PUBREL), and the number is remembered until then: a message that arrives again
meanwhile is recognised and only acknowledged again.

    not known --message--> held --processed--> (QoS 1) not known
                                               (QoS 2) processed --released--> not known

A broker that has lost messages may give their numbers to others. So a message marked as repeated is recognised only if its contents are the
same.
"""

from __future__ import annotations

from collections import deque

from sbon.formats.mqtt_packets import PUBACK, PUBCOMP, PUBREC, Message, answers

_PROCESSED = 0
"""In the place of a position: the rows have been processed, and the broker has not yet released the message."""


class Acknowledging:
    """Messages of one session by their numbers. What the methods return is to be sent to the broker."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        """Packet id -> position and hash of a message that the broker's session has under this id; at most 65,535."""
        self._owed: deque[tuple[int, int, int]] = deque()
        """Position, packet id and QoS of the messages that have not been acknowledged, in order."""
        self._again: list[int] = []
        """Processed messages that have come once more."""

    @property
    def unacknowledged(self) -> int:
        """Returns how many messages are held and not yet acknowledged."""
        return len(self._owed)

    def is_new(self, message: Message, position: int) -> bool:
        """Notes a message at QoS 1 or 2; False for one that is known.

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
        """Returns the acknowledgements of messages that were processed before they came once more."""
        mids, self._again = self._again, []
        return answers(PUBREC, mids)

    def processed(self, upto: int) -> bytes:
        """Returns the acknowledgements of the messages up to a position."""
        once, twice = [], []
        while self._owed and self._owed[0][0] <= upto:
            position, mid, qos = self._owed.popleft()
            known, mark = self._known.get(mid, (_PROCESSED, 0))
            if known != position:
                continue  # the broker has given the number to another message
            if qos == 1:
                del self._known[mid]
                once.append(mid)
            else:
                self._known[mid] = (_PROCESSED, mark)
                twice.append(mid)
        return answers(PUBACK, once) + answers(PUBREC, twice)

    def released(self, mids: list[int]) -> bytes:
        """The broker will not send these again. Returns the answers, which let it use the numbers again."""
        for mid in mids:
            if self._known.get(mid, (-1, 0))[0] == _PROCESSED:
                del self._known[mid]
        return answers(PUBCOMP, mids)

    def forget(self) -> None:
        """The broker has a new session: it knows none of them."""
        self._known.clear()
        self._owed.clear()
        self._again.clear()
