"""The points from which lost operators go on: one function for each method, and what a host is told of its result. Pure functions.

`sbon.supervision.crash_analysis` decides which method applies to an operator.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sbon.links.link_names import first_name
from sbon.links.origins import of_part
from sbon.query.params.kinds import Params, keeps_state
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec
from sbon.supervision.left_out import Stretch
from sbon.supervision.lost_state import begin_of, windows_left_out
from sbon.supervision.replayed_inputs import is_table
from sbon.supervision.rows_made import Cut, Made
from sbon.types import LinkId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import DealtTurns, Renewed, TakenUp, User


class Continuation(msgspec.Struct, frozen=True):
    """The point from which one operator goes on."""

    rows_out: int = 0
    """Rows that it counts as already made."""
    skip_rows: Mapping[LinkId, int] = {}
    """Number of rows to skip at the beginning of each output link, by the link's first name."""
    skips: Mapping[LinkId, tuple[int, ...]] = {}
    """Number of rows to skip on each output link, by the origin of the rows (`sbon.links.origins`)."""
    made: Mapping[LinkId, tuple[int, ...]] = {}
    """Rows that it had made of the input that it does not get again, by the input link's first name; of each part, if it deals rows."""
    made_by_origin: tuple[tuple[int, ...], ...] | None = None
    """`made` by origin instead of by input, for an operator with one input that passes origins on."""
    lost_rows: Mapping[LinkId, int] = {}
    """Rows that it had made and that have not arrived, by output link."""
    is_exact: bool = True
    """False: the rows lost are at least these, and some may come twice. True: apart from answers that are left out (`begin`), exactly these
    rows are lost."""
    watermark_us: int = WATERMARK_MIN
    """Watermark at which its state begins."""
    watermark_out_us: int = WATERMARK_MIN
    state_until_us: int | None = None
    """Event time up to which answers lack rows of the lost state, in microseconds; None if no state is missing."""
    repeats_all: bool = False
    """True for a source that sends all its rows once more, from the first one on."""
    windows: int | None = 0
    """Number of windows between the last answer that consumers have seen and the newest row of the lost state, including windows without
    rows; None if unknown."""
    begin: Begin | None = None
    """The first answers that have all rows; None: none are left out, although they may lack rows."""
    begin_behind: Mapping[OperatorId, Begin] = {}
    """The first answers that have all rows, of operators behind it that run on; they leave out earlier ones."""
    whole_us: int | None = None
    """Event time from which on its lost state costs the query no answer, in microseconds; None if no state is missing, or nobody knows."""
    fresh: tuple[LinkId, ...] = ()
    """Inputs of a sink, by their first names, whose rows its former copies have not written, or nobody knows how many of them they have.
    The sink skips no row of these inputs; with `by_word`, it counts the rows of the others."""
    is_fresh: bool = False
    """True for a sink all of whose inputs are `fresh`: it counts its rows from the end of its file on."""
    by_word: bool = False
    """True for a sink that has yet to say whether it has found what its former copy has written of each input and origin. The continuation
    is exact only if it has."""
    matches: bool = False
    """True for a sink that gets all its rows once more in another order, and leaves out those that it finds in its file. It does not say
    where the query's rows begin until it has left all of them out."""
    surplus_rows: int = 0
    """Rows in the file of a sink that an undisturbed run of the query does not give."""
    late_until_us: int | None = None
    """Event time up to which its consumers have gone on without it, in microseconds; None if they have not."""

    def given(self, link: LinkSpec) -> tuple[int, ...] | None:
        """Returns the rows that the operator had sent on a link and does not send again, by origin; None if unknown."""
        made = [self.made[name] for name in sorted(self.made)] if self.made else self.made_by_origin
        if made is None:
            return None
        skips = self.skips.get(first_name(link.id), ())
        return tuple([of_part(rows, link) + (skips[place] if place < len(skips) else 0) for place, rows in enumerate(made)])


class Lost(NamedTuple):
    """A lost operator, and what is known of an operator of any kind."""

    spec: OperatorSpec
    inputs: tuple[LinkSpec, ...]
    outputs: tuple[LinkSpec, ...]
    taken: Mapping[LinkId, int]
    """Rows that the living consumer of an output link has taken or will never get, by the link's first name."""
    seen_us: int
    """A watermark that it had sent."""
    is_among: bool
    """True if a consumer of it is lost, too."""

    def begin(self, watermark_us: int) -> int:
        """Returns the watermark to begin at: below the end of the stream if a consumer is lost, too, because that one has not had the
        end."""
        most_us = WATERMARK_END - 1 if self.is_among else WATERMARK_END
        return min(watermark_us, most_us)

    @property
    def watermark_us(self) -> int:
        """The watermark at which it goes on."""
        return self.begin(self.seen_us)

    def skipped(self, given: Mapping[LinkId, int]) -> dict[LinkId, int]:
        """Returns the rows to skip on each link, if the operator goes on behind the rows `given`."""
        return {name: max(0, rows - given[name]) for name, rows in self.taken.items()}

    def gone(self, given: Mapping[LinkId, int]) -> dict[LinkId, int]:
        """Returns the rows of `given` that have not arrived, by link."""
        return {name: max(0, given[name] - rows) for name, rows in self.taken.items()}


def by_origin(
    one: Lost,
    made: Sequence[tuple[int, ...] | None],
    names: Sequence[LinkId],
    consumers: Mapping[LinkId, Renewed],
    missing: Mapping[LinkId, int],
    cuts: Mapping[OperatorId, Sequence[Cut]],
    finding: Collection[OperatorId],
) -> Continuation | None:
    """Returns from where a lost operator without state goes on, if its rows have several origins. Returns None if a consumer does not know
    the origins of the rows that it has taken, or if nobody knows how far an input was.

    Parameters
    ----------
    made : the rows made of each origin; None where unknown
    names : the first names of the input links that the origins stand for; empty if it passes on the origins of its only input
    missing : rows of a link that earlier recoveries have counted as lost
    cuts : the progress of the lost operators behind it
    finding : lost sinks that find out what their former copies have written
    """
    taken: dict[LinkId, tuple[int, ...]] = {}
    lost_behind: set[LinkId] = set()
    """Links to lost operators that go on by their cuts."""
    for link in one.outputs:
        name, answer = first_name(link.id), consumers.get(first_name(link.id))
        if answer is not None:
            origins = answer.origins
            if origins is None or (names and len(origins) > len(names)) or sum(origins) != answer.rows:
                return None
            taken[name] = origins
        elif link.target in cuts:
            taken[name] = tuple([cut.taken for cut in cuts[link.target]])
            lost_behind.add(name)
    links = [link for link in one.outputs if first_name(link.id) in taken]
    if not links and None in made:
        return None
    parts = max([link.part.of for link in one.outputs if link.part is not None], default=1)
    count = max([len(made), *map(len, taken.values())])
    taken = {name: (*rows, *[0] * (count - len(rows))) for name, rows in taken.items()}
    known: list[tuple[int, ...]] = []
    for place, rows in enumerate([*made, *[(0,) * parts] * (count - len(made))]):
        most = [0] * parts
        for link in links if rows is None else ():
            index = 0 if link.part is None else link.part.index
            most[index] = max(most[index], taken[first_name(link.id)][place])
        known.append(tuple(most) if rows is None else rows)
    given = {first_name(link.id): [of_part(rows, link) for rows in known] for link in links}
    lost = {link: sum(max(0, gave - had) for gave, had in zip(given[link], rows, strict=True)) for link, rows in taken.items()}
    return Continuation(
        rows_out=sum(map(sum, known)),
        skips={link: tuple([max(0, had - gave) for gave, had in zip(given[link], rows, strict=True)]) for link, rows in taken.items()},
        made=dict(zip(names, known, strict=True)) if names else {},
        made_by_origin=None if names else tuple(known),
        lost_rows={link: max(0, rows - missing.get(link, 0)) for link, rows in lost.items() if link not in lost_behind or rows},
        # Nobody knows the origins of the rows that were lost earlier.
        is_exact=None not in made
        and not any(lost.values())
        and all(first_name(link.id) in taken or link.target in finding for link in one.outputs)
        and not any(missing.get(name) for name in taken),
        watermark_us=one.watermark_us,
        watermark_out_us=one.watermark_us,
    )


def from_first_row(one: Lost, *, is_ordered: bool) -> Continuation:
    """Returns from where an operator goes on, if it works through its whole input once more.

    Parameters
    ----------
    is_ordered : True if its rows come in the same order as before
    """
    return Continuation(skip_rows=one.taken, is_exact=is_ordered or not any(one.taken.values()))


def by_total(one: Lost, several: Mapping[LinkId, tuple[int, ...] | None]) -> Continuation:
    """Returns from where an operator without state goes on, if nobody knows the origins of the rows that its consumers have taken. It skips
    as many rows as they have taken, provided that the progress of each input is known.

    Parameters
    ----------
    several : the rows made of each input, as `several_inputs` says
    """
    known = [made for made in several.values() if made is not None]
    given = {first_name(link.id): sum(of_part(made, link) for made in known) for link in one.outputs}
    return Continuation(
        rows_out=max([sum(map(sum, known)), *one.taken.values()]),
        skip_rows=one.skipped(given) if len(known) == len(several) else {},
        lost_rows=dict.fromkeys(one.taken, 0),
        is_exact=False,
        watermark_us=one.watermark_us,
        watermark_out_us=one.watermark_us,
    )


def by_number(one: Lost, known: Made, counted: Collection[OperatorId]) -> Continuation:
    """Returns from where an operator goes on, if its output follows from its one input row by row: behind the rows that it had made.

    Parameters
    ----------
    known : the rows that it had made
    counted : lost operators that go on by such a number, and sinks that find out what their former copies have written
    """
    given = {first_name(link.id): known.given(link) for link in one.outputs}
    return Continuation(
        rows_out=known.rows,
        skip_rows=one.skipped(given),
        lost_rows=one.gone(given),
        is_exact=bool(one.taken) or all(link.target in counted for link in one.outputs),
        watermark_us=one.watermark_us,
        watermark_out_us=one.watermark_us,
    )


def behind_consumers(
    one: Lost, feeders: Sequence[Renewed], stretch: Stretch | None, lacking_us: int | None, *, is_elsewhere: bool, finds_end: bool
) -> Continuation:
    """Returns from where an operator with state, a source or a sink goes on, if nothing better is known.

    Parameters
    ----------
    feeders : the answers of its feeders
    stretch : the answers that lack rows; None if none do
    lacking_us : event time up to which its former copies lacked rows, because they had begun empty, too
    is_elsewhere : True if exactly the answers before its `begin` are lost, or if it passes such answers on
    finds_end : True for a sink that finds out what its former copy has written, and gets its rows in the same order as before
    """
    params = one.spec.params
    made = max((answer.made for answer in feeders if answer.made is not None), default=0)
    gone = one.gone(dict.fromkeys(one.taken, made))
    if any(link.part is not None for link in one.outputs):  # each consumer has taken its own part of the rows
        gone = dict.fromkeys(one.taken, 0) | dict.fromkeys(list(one.taken)[:1], max(0, made - sum(one.taken.values())))
    keeps = keeps_state(params)
    until_us = stretch.until_us if keeps and stretch is not None else lacking_us
    begin_us = one.seen_us
    if keeps and WATERMARK_MIN < one.seen_us < WATERMARK_END:
        begin_us = begin_of(params, one.seen_us)
    return Continuation(
        rows_out=max([made, *one.taken.values()]),
        lost_rows=dict.fromkeys(gone, 0) if is_elsewhere else gone,  # answers that are left out are not counted by their rows
        is_exact=is_elsewhere or is_table(one.spec) or (isinstance(params, SinkParams) and finds_end),
        watermark_us=one.begin(begin_us),
        watermark_out_us=one.watermark_us,
        state_until_us=until_us,
        repeats_all=generates(params),
        windows=windows_left_out(params, one.seen_us, until_us, lacking_us),
        begin=stretch.begin if keeps and stretch is not None else None,
    )


def generates(params: Params) -> bool:
    """Tells whether a source begins again at its first row, whatever it had given."""
    return isinstance(params, SourceParams) and params.connector == "datagen"


def merged(before: Continuation, after: Continuation) -> Continuation:
    """Returns the later of two continuations of an operator, with the losses of both: an earlier attempt has lost rows or state, too."""
    lost = {link: before.lost_rows.get(link, 0) + after.lost_rows.get(link, 0) for link in {**before.lost_rows, **after.lost_rows}}
    known = [until_us for until_us in (before.state_until_us, after.state_until_us) if until_us is not None]
    return msgspec.structs.replace(
        after,
        lost_rows=lost,
        is_exact=before.is_exact and after.is_exact,
        watermark_out_us=min(before.watermark_out_us, after.watermark_out_us),
        state_until_us=max(known, default=None),
        late_until_us=max([one for one in (before.late_until_us, after.late_until_us) if one is not None], default=None),
        repeats_all=before.repeats_all or after.repeats_all,
        windows=None if before.windows is None or after.windows is None else before.windows + after.windows,
    )


def begins_with(go_on: Continuation, link: LinkSpec) -> bool:
    """Tells whether an operator with several inputs works through this one from its first row on, and skips what its consumers have taken
    of it."""
    made = go_on.made.get(first_name(link.id))
    return made is not None and not any(made)


def taken_up(
    go_on: Continuation,
    epoch: int,
    seconds: float,
    begun_at: int | None,
    users: tuple[User, ...],
    lost: int,
    begins: Made | None = None,
    dealt: DealtTurns | msgspec.UnsetType = msgspec.UNSET,
) -> TakenUp:
    """Returns the message that tells a host about the former copy of an operator.

    Parameters
    ----------
    begins : the rows before the place where a source begins in the midst of its file; None for all others
    dealt : the owners of turns that a splitter, or an instance behind it, begins with; UNSET for all others
    """
    told = TakenUp(epoch, go_on.rows_out, go_on.watermark_us, go_on.watermark_out_us, seconds, begun_at, users, lost or msgspec.UNSET)
    told = msgspec.structs.replace(told, dealt=dealt)
    if go_on.fresh:
        told = msgspec.structs.replace(told, fresh=go_on.fresh) if go_on.by_word else msgspec.structs.replace(told, is_fresh=True)
    if go_on.matches:
        told = msgspec.structs.replace(told, matches=True)
    return told if begins is None else msgspec.structs.replace(told, begins_behind=begins.rows)
