"""Tells the feeders of stateless operators which batches are safe: the rows made of these have been acknowledged as safe further on.

`sbon.delivery.flow` owns it; `sbon.links.unsafe` keeps a mark for each batch.
"""

from collections.abc import Callable, Sequence

from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance, mark_of
from sbon.links.ends import Ends
from sbon.links.origins import folded
from sbon.links.sender import LinkSender
from sbon.links.unsafe import Mark
from sbon.ports import Clock
from sbon.wire.links import Acknowledge

SAFE_S = 0.1
"""Seconds for which the message that batches are safe waits for another acknowledgement, as long as most of the window is free. Longer:
more batches are kept, and repeated after a crash; shorter: more messages."""
SAFE_SHARE = 8
"""The message is sent at once if it is about at least 1/8 of the window, so that senders need not wait for room."""


class Safety:
    """Tracks which batches are safe at all stateless operators of this host, and tells their feeders.

    Parameters
    ----------
    here : handles an acknowledgement for an operator of this host
    soon : acknowledges an input in this turn of the event loop
    """

    def __init__(
        self, host: Clock, ends: Ends[Instance, Input, Output], here: Callable[[Acknowledge], None], soon: Callable[[Input], None]
    ) -> None:
        self._host = host
        self._ends = ends
        self._here = here
        self._soon = soon
        self._due: list[Input] = []

    def passed_on(self, instance: Instance, incoming: Input) -> None:
        """Notes the output that a stateless operator has given for the last batch that it has processed."""
        incoming.unsafe.processed(mark_of(instance, incoming))
        self.look(instance)

    def look(self, instance: Instance) -> None:
        """Tells the feeders of a stateless operator which of its batches are safe, if more have become so."""
        if not instance.passes:
            return
        for incoming in instance.inputs.values():
            last = self.refresh(incoming)
            if last is None:
                continue
            if incoming.reply is None:
                self._here(incoming.acknowledgement(resume=False, passes=True))
            elif incoming.receiver.is_share(last.sequence - incoming.told_safe, incoming.bytes_in - incoming.told_bytes, SAFE_SHARE):
                self._soon(incoming)
            else:
                if not self._due:
                    self._host.call_at(self._host.now() + SAFE_S, self._tell)
                self._due.append(incoming)

    def refresh(self, incoming: Input) -> Mark[tuple[LinkSender, int]] | None:
        """Notes which batches of an input are safe; returns the mark of the last one that has become safe, None if none has."""
        last = incoming.unsafe.look(self._is_safe)
        if last is not None and not last.parts:
            found = [(self._ends.gives(sender.link), number) for sender, number in last.given]
            tell_behind(incoming, [(end[1], number) for end, number in found if end is not None], is_level=last.is_level)
        return last

    def _tell(self) -> None:
        due, self._due = self._due, []
        for incoming in due:
            found = self._ends.takes(incoming.link.id)
            if found is not None and found[1] is incoming and incoming.unsafe.safe > incoming.told_safe:
                self._soon(incoming)

    def _is_safe(self, given: tuple[LinkSender, int]) -> bool:
        """Tells whether a batch that was given is safe further on. It counts as safe while its link has batches on disk: its host keeps it.

        The batches of a link that is no longer here count as safe: its query has been dropped, or its operator has moved with its batches.
        """
        sender, number = given
        if sender.safe >= number or sender.on_disk:
            return True
        found = self._ends.gives(sender.link)
        return found is None or found[1].sender is not sender


def tell_behind(incoming: Input, outputs: Sequence[tuple[Output, int]], *, is_level: bool = True) -> None:
    """Adds the rows that the operators behind have made of an input's safe batches to the next acknowledgement, as far as they are known.

    Parameters
    ----------
    outputs : all outputs, each with the number of the last batch made of the safe batches
    is_level : False if the counts of the operators behind may cover more rows than these (`Mark.is_level`)
    """
    unsafe, number = incoming.unsafe, incoming.origin.number
    known = [(output.link.id, output.by_origin) for output, _ in outputs if output.by_origin is not None]
    if number:
        unsafe.behind = folded((link, by_origin[number - 1] if len(by_origin) >= number else ()) for link, by_origin in known)
        return
    unsafe.behind = ()
    if len(outputs) == 1 and is_level:
        (output, given), (safe, made) = outputs[0], outputs[0][0].made
        if output.behind is not None and safe == given and made is not None:
            unsafe.behind = (made, *output.behind)
    if unsafe.by_origin is not None and known:
        unsafe.by_origin = tuple(
            [
                (*own, *folded((link, by_origin[place] if place < len(by_origin) else ()) for link, by_origin in known))
                for place, own in enumerate(unsafe.by_origin)
            ]
        )
