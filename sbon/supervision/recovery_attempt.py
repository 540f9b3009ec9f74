"""One attempt to make lost operators again: its questions to their neighbours, and its messages to the hosts that make the operators."""

from collections.abc import Collection, Mapping

import msgspec

from sbon.links.link_names import first_name
from sbon.query.params.kinds import keeps_state
from sbon.query.params.source import SinkParams
from sbon.query.plan import Begin as FirstAnswers
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.supervision.continuation import Continuation, begins_with, taken_up
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.supervision.file_positions import may_begin
from sbon.supervision.recovery_picture import Picture, absent_files, ended
from sbon.supervision.replayed_inputs import from_zero, is_table
from sbon.supervision.rerun import as_at_first, from_the_beginning, may_rerun
from sbon.supervision.rows_made import Made
from sbon.supervision.turn_owners import deals_otherwise, known_turns
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import Begin, DealtTurns, End, Instantiate, LeaveOut, Renew, Renewed, User

BEGIN_TRIES = 3
"""Number of times that a Begin is sent in one attempt."""


class Step(msgspec.Struct, frozen=True):
    """One message to one host, in one attempt."""

    attempt: int
    node: NodeId
    message: Renew | Instantiate | LeaveOut | Begin


class Attempt(msgspec.Struct):
    """One attempt, with the answers and results so far."""

    number: int
    query: QueryId
    user: User
    """The query, in the form in which its operators hear of it."""
    epoch: int
    """The epoch of the operators that it makes."""

    operators: frozenset[OperatorId] = frozenset()
    lost: frozenset[OperatorId] = frozenset()
    """All operators that were lost when it began, including those that are not made again now."""
    nodes: dict[OperatorId, NodeId] = msgspec.field(default_factory=dict)
    links: dict[LinkId, LinkSpec] = msgspec.field(default_factory=dict)
    """The links of these operators under their new ids, by first name."""
    stages: list[list[Step]] = msgspec.field(default_factory=list)
    waiting: int = 0
    tries_left: int = 0
    consumers: dict[LinkId, Renewed] = msgspec.field(default_factory=dict)
    feeders: dict[LinkId, Renewed] = msgspec.field(default_factory=dict)
    go_on: dict[OperatorId, Continuation] = msgspec.field(default_factory=dict)
    zero: frozenset[OperatorId] = frozenset()
    positions: dict[OperatorId, Made] = msgspec.field(default_factory=dict)
    """Sources that begin in the midst of their files, with the rows before that place."""
    dealt: dict[OperatorId, DealtTurns | msgspec.UnsetType] = msgspec.field(default_factory=dict)
    """The owners of turns that splitters which ask a dealer, and instances behind them, begin with."""
    asks_feeders: bool = False
    """True once consumers have answered, and feeders are asked."""
    over: frozenset[OperatorId] = frozenset()
    is_rerun: bool = False
    """True if all operators of the query are made again, as they were at first (`sbon.supervision.rerun`)."""
    left: frozenset[LinkId] = frozenset()
    """First names of links that have been given up, and that their sources cannot begin again now."""

    def ask_consumers(self, picture: Picture) -> list[list[Step]]:
        """Returns the questions to the living consumers. They come first, so that feeders send rows to nobody for as short as possible."""
        asked = []
        for link in self.links.values():
            if link.source in self.operators and link.target not in self.operators:
                end = End(link, self.nodes[link.source], (), self.epoch)
                asked.append(Step(self.number, picture.nodes[link.target], Renew(query=self.query, end=end, gives=False)))
        return [asked] if asked else []

    def ask_feeders(self, picture: Picture) -> list[list[Step]]:
        """Returns the questions to the living feeders of the operators that are still needed."""
        self.asks_feeders = True
        self.over = ended(picture.links, frozenset(one for one in self.operators if not is_table(picture.specs[one])), self.consumers)
        self.operators -= self.over
        chosen, feeders = self.operators, []
        for name, link in self.links.items():
            if link.target in chosen and link.source not in chosen:
                begins = name in picture.given_up  # by a multicast that has carried it, too
                carrier = link.source if begins else picture.carriers.get(name, link.source)
                node = picture.nodes.get(carrier, picture.nodes[link.source])
                if link.source in picture.lost or node not in picture.alive or (begins and not self._may_begin_again(picture, link)):
                    continue  # the feeder is lost itself, or the link is replaced later (`refeeding`)
                end = End(link, self.nodes[link.target], (), self.epoch)
                renew = Renew(query=self.query, end=end, gives=True, begins=begins or msgspec.UNSET)
                feeders.append(Step(self.number, node, renew))
        return [feeders] if feeders else []

    def _may_begin_again(self, picture: Picture, link: LinkSpec) -> bool:
        """Tells whether the source of a link that it has given up can say how far it is, and begin again there. All rows that it had given
        before are lost with the target's state."""
        is_own = link.source in picture.specs and first_name(link.id) not in self.left
        return is_own and keeps_state(picture.specs[link.target].params)

    def decide(self, picture: Picture, tried: Mapping[OperatorId, int] = {}, unable: Collection[OperatorId] = ()) -> None:
        """Decides from where the operators go on, now that their neighbours have answered.

        Parameters
        ----------
        tried : rows of the file positions with which earlier attempts have failed
        unable : operators on hosts of older releases, which do not understand what to leave out
        """
        links = [link for link in picture.links if first_name(link.id) in self.links]
        untried = {one: position for one, position in picture.positions.items() if tried.get(one) != position.rows}
        self.positions = may_begin(picture, self.operators, self.consumers, untried)
        self.zero = from_zero(picture.specs, links, self.operators, self.positions)
        crash = Crash(
            specs=picture.specs,
            links=links,
            lost=self.operators,
            consumers=self.consumers,
            feeders=self.feeders,
            missing=picture.missing,
            begun_at=picture.begun_at,
            lacking=picture.lacking,
            joined=picture.joined,
            absent_files=absent_files(picture, self.operators),
            positions=self.positions,
            plan_links=picture.links,
            unable=unable,
            matching=picture.matching,
        )
        self.go_on = continuations(crash)
        answers = {**self.consumers, **self.feeders}
        self.dealt = {one: known_turns(one, picture.specs, picture.links, answers) for one in self.operators}
        for one, turns in self.dealt.items():
            if deals_otherwise(one, turns, picture.specs, picture.links, self.operators, self.zero):
                self.go_on[one] = msgspec.structs.replace(self.go_on[one], is_exact=False)
        self.is_rerun = self.operators == picture.specs.keys() and self.wants_rerun(picture)
        if self.is_rerun:
            self.positions, self.zero = {}, from_zero(picture.specs, links, self.operators)
            self.go_on = from_the_beginning(picture.specs)

    def wants_rerun(self, picture: Picture) -> bool:
        """Tells whether nobody would know exactly what the query lacks, if it went on as decided, and a rerun would help. While a sink
        still compares rows, nobody knows which rows are in its file."""
        is_known = picture.is_exact and not picture.matching and all(go_on.is_exact for go_on in self.go_on.values())
        return not is_known and may_rerun(picture)

    def make(self, picture: Picture) -> list[list[Step]]:
        """Returns the messages that make the operators, stage by stage, consumers first. Before that, operators that run on learn what to
        leave out."""
        if self.is_rerun:
            picture = as_at_first(picture)
        staged: dict[int, list[Step]] = {}
        depth: dict[OperatorId, int] = {}
        for spec in reversed(list(picture.specs.values())):
            if spec.id not in self.operators:
                continue
            go_on = self.go_on[spec.id]
            wanted = [link for link in self.links.values() if link.source == spec.id and self._has_target(link)]
            outputs = tuple(self._output(picture, link, go_on) for link in wanted)
            inputs = tuple(self._input(picture, link) for link in self.links.values() if link.target == spec.id)
            host = self.nodes[spec.id]
            behind = [end.link.target for end in outputs if end.link.target in depth]
            # A host takes its messages in their order, so messages to one host go together.
            depth[spec.id] = max((depth[target] + (self.nodes[target] != host) for target in behind), default=0)
            made = Instantiate(
                spec=going_on(spec, go_on),
                inputs=inputs,
                outputs=outputs,
                user=self.user,
                taken_up=taken_up(
                    go_on,
                    self.epoch,
                    picture.seconds,
                    picture.begun_at.get(spec.id),
                    picture.users.get(spec.id, ()),
                    picture.missing.get(spec.id, 0),
                    self.positions.get(spec.id),
                    self.dealt[spec.id],
                ),
            )
            staged.setdefault(depth[spec.id], []).append(Step(self.number, host, made))
        told = self._leave_out(picture)
        return [*([told] if told else []), *(staged[level] for level in sorted(staged))]

    def _leave_out(self, picture: Picture) -> list[Step]:
        """Returns the messages to operators that run on, and leave out what would lack rows of the lost operators."""
        found: dict[OperatorId, FirstAnswers] = {}
        for go_on in self.go_on.values():
            for operator, begin in go_on.begin_behind.items():
                found[operator] = max(begin, found.get(operator, begin), key=lambda one: one.us)
        return [
            Step(self.number, picture.nodes[operator], LeaveOut(query=self.query, operator=operator, column=begin.column, us=begin.us))
            for operator, begin in sorted(found.items())
            if operator not in picture.lost
        ]

    def begin(self, picture: Picture) -> list[list[Step]]:
        """Returns the messages that let sinks take rows."""
        sinks = {self.nodes[operator] for operator in self.operators if isinstance(picture.specs[operator].params, SinkParams)}
        self.tries_left = BEGIN_TRIES - 1
        return [[Step(self.number, node, Begin(query=self.query)) for node in sorted(sinks)]] if sinks else []

    def _has_target(self, link: LinkSpec) -> bool:
        """Tells whether the target of a link is there or is made again; otherwise it is over, and wants no more rows."""
        return link.target in self.operators or first_name(link.id) in self.consumers

    def _output(self, picture: Picture, link: LinkSpec, go_on: Continuation) -> End:
        name, schema = first_name(link.id), picture.specs[link.source].schema
        answer = self.consumers.get(name)
        if answer is not None:
            node = picture.nodes[link.target]
            epoch = picture.epochs.get(link.target, 0)
            skip, skips = go_on.skip_rows.get(name, 0), go_on.skips.get(name, ())
            return End(answer.link, node, schema, epoch, answer.after, answer.rows, skip, answer.watermark_us, skips=skips)
        given = go_on.given(link)
        if given is not None and not picture.missing.get(name):
            return End(link, self.nodes[link.target], schema, self.epoch, 0, sum(given), skips=go_on.skips.get(name, ()))
        rows, skip = self._between(picture, link)
        return End(link, self.nodes[link.target], schema, self.epoch, 0, rows, skip)

    def _input(self, picture: Picture, link: LinkSpec) -> End:
        name = first_name(link.id)
        answer, made = self.feeders.get(name), self.go_on[link.target].made.get(name)
        if answer is not None:
            carrier = answer.link.source
            node = picture.nodes.get(carrier, picture.nodes[link.source])
            epoch = picture.epochs.get(carrier, 0)
            end = End(answer.link, node, answer.schema, epoch, answer.after, answer.rows, 0, answer.settled_us)
            return msgspec.structs.replace(end, made=made, origins=answer.origins, made_by_origin=self.go_on[link.target].made_by_origin)
        schema = picture.schemas[name]
        if link.source in self.operators:
            feeder = self.go_on[link.source]
            given = feeder.given(link)
            rows = sum(given) if given is not None and not picture.missing.get(name) else self._between(picture, link)[0]
            end = End(link, self.nodes[link.source], schema, self.epoch, 0, rows)
            return msgspec.structs.replace(end, made=made, origins=given, made_by_origin=self.go_on[link.target].made_by_origin)
        rows = (
            0
            if link.source in absent_files(picture, self.operators) and begins_with(self.go_on[link.target], link)
            else picture.taken.get(name, 0)
        )
        return End(link, picture.nodes[link.source], schema, 0, 0, rows, made=made)

    def _between(self, picture: Picture, link: LinkSpec) -> tuple[int, int]:
        """Returns the rows that count as sent on a link whose ends are both made again, and the number of rows to skip on it.

        If the link's source works through its whole input once more and the target goes on without a state, the source skips the rows that
        the target had taken by its last report. Other sources count on from the rows that they had made, and so do their targets. Rows that
        earlier recoveries have counted as lost were made and never taken; they are not sent now, either.
        """
        name = first_name(link.id)
        missing = picture.missing.get(name, 0)
        if name in self.go_on[link.target].fresh:
            return 0, 0
        if link.source not in self.zero:
            return max(0, self.go_on[link.source].rows_out - missing), 0
        joined = picture.joined.get(name, 0)
        is_empty = keeps_state(picture.specs[link.target].params)  # so it needs the rows that its former copy had taken
        begins = begins_with(self.go_on[link.target], link) or self.go_on[link.target].matches
        if link.target in self.zero or is_empty or begins:
            return 0, joined
        taken = picture.taken.get(name, 0)
        return taken, taken + missing + joined


def going_on(spec: OperatorSpec, go_on: Continuation) -> OperatorSpec:
    """Returns the spec with which an operator is made again."""
    params = spec.params
    if isinstance(params, SinkParams):
        return msgspec.structs.replace(spec, params=resuming(params))
    return spec if go_on.begin is None else msgspec.structs.replace(spec, begin=go_on.begin)


def resuming(params: SinkParams) -> SinkParams:
    """Returns the parameters with which a sink goes on behind the rows that its former copy has written.

    Examples
    --------
    >>> resuming(SinkParams("k", "file", (("mode", "replace"), ("path", "k.csv")))).options
    (('mode', 'resume'), ('path', 'k.csv'))
    """
    if params.connector != "file":
        return params
    options = tuple(option for option in params.options if option[0] != "mode")
    return msgspec.structs.replace(params, options=tuple(sorted((*options, ("mode", "resume")))))
