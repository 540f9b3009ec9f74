"""The WITH clause of CREATE SOURCE and CREATE SINK, read word by word: any word may be the name of a connector's option.

Options of a source
-------------------
connector : required; which connector reads the rows
nodes : names of the nodes that have a physical source, separated by commas. Without `nodes` and `labels` it is the agent that takes the
    statement
labels : pairs such as 'region=eu,site=x': the nodes whose labels match have a physical source. Values of one label are alternatives,
    different labels must all match. Not with `nodes`
idle_after : after so long without a row, 100 ms to 30 days, the watermark follows the wall clock, so that a silent source does not hold
    windows and joins open; default: never. Needs an event time; files do not take it
estimated_rows_per_second : expected rows of each physical source, for placement until rates are measured; default:
    `rows_per_second` of `datagen`; for other connectors an assumed rate
profile : rates that each physical source is expected to reach, such as '1000/s', or one for each of several target points, such as
    'day: 1000/s, launch: 8000/s' (also /min and /h). Sources share the points. `sbon explain` tells how many times these rates a query
    carries. At a point that a source does not name, it has its only rate, else its expected one; default: expected rates

Options of a sink
-----------------
connector : required; which connector takes the rows
node : name of the node that the sink runs on; default: the agent that takes the statement
delay_bound : the longest network latency from any source to the sink that the query accepts, such as '250 ms'; default: none. CREATE
    MATERIALIZED VIEW takes it, too, for every query that reads the view
max_latency : the greatest predicted latency of an answer that the query accepts, such as '500 ms'. It counts from the entry of the answer's
    latest source row to the sink, with waiting, computing and the network; default: none. CREATE MATERIALIZED VIEW takes it, too
after_crash : treatment of windows, sessions, joins and OVER that a crash has taken rows of: 'leave_out', the default, or
    'incomplete', answered with the rows that came later; `lost` of the query says which. CREATE MATERIALIZED VIEW takes it, too, for every
    query that reads the view and does not say it itself
on_miss : treatment of rows that would be later than `max_latency`, which must be given: 'finish', the default, processes all of them;
    'shed' leaves out those that cannot be in time, and counts them; 'defer' processes them when nothing else waits, for functions whose
    updates commute. CREATE MATERIALIZED VIEW takes it, too, for every query that reads the view and does not say it itself
shed_fairness : with `on_miss = 'shed'`, a number from 0 to 1. With 0, the default, rows of the most expensive cost class are left out
    first; with 1, all classes lose the same share
instances : how many instances of each operator with keys there are, 1 to 64, each with a part of the keys; 'auto': as many as the rates and
    `max_latency` need; default: 1. CREATE MATERIALIZED VIEW takes it, too, for every query that reads the view and does not say it itself
dealing : how the rows of a pattern are divided among its `instances`: 'key', the default, by its PARTITION BY; 'window', for a pattern
    without PARTITION BY, by the rows where matches may begin, each with all rows WITHIN of it. CREATE MATERIALIZED VIEW takes it, too
turn : with `dealing = 'window'`, the event time for which one instance gets the rows where matches may begin, before the next instance
    does, such as '1 minute'. The longer it is, the fewer rows go to several instances, and the more unequal is their work; default: such
    that all instances have work at any time, or, with `instances = 'auto'`, what keeps `max_latency` with the fewest copies of rows. CREATE
    MATERIALIZED VIEW takes it, too
dealer : with `dealing = 'window'`, who chooses the instance for each turn while the query runs: 'auto', which needs `max_latency`, uses as
    few instances as keep it; 'turns', 'last', 'model', 'reactive' and 'round-robin' name a dealer; 'none': instances take turns. Default:
    'auto' with `max_latency` and a number of instances, otherwise 'none'. CREATE MATERIALIZED VIEW takes it, too
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot.tokenizer_core import Token, TokenType

from sbon.errors import QueryError
from sbon.extensions import Extensions
from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.limits import IDLE_US_MAX, INSTANCES_MAX
from sbon.query.params.streams import DEALERS
from sbon.query.plan import AFTER_CRASH, INCOMPLETE, ON_MISS, SHED
from sbon.query.spans import parse_interval

OPTIONS_MAX = 500
IDLE_US_MIN = 100_000
"""Shortest `idle_after`. A shorter one would treat every network delay as silence; the longest is a month."""

_FORM = "write WITH (name = 'value', ...)"
AUTO = 0
"""Number of instances that stands for `instances = 'auto'`: the planner chooses the number."""
NO_DEALER = "none"
"""The dealer that stands for instances that take turns."""
_DELAY_BOUND, _MAX_LATENCY = ("delay_bound", "250 ms"), ("max_latency", "500 ms")
KEY, WINDOW = DEALINGS = ("key", "window")
_TURN = ("turn", "1 minute")
_IDLE_FORM = "write WITH (idle_after = '10 seconds')"


@dataclass(frozen=True)
class Option:
    """One option of a WITH clause."""

    value: str
    where: Token
    """First token of the option."""


@dataclass(frozen=True)
class Wishes:
    """Wishes of a query's author for its execution; None: no wish."""

    delay_ms: float | None = None
    """Longest network latency from any source to the sink that is accepted, in milliseconds."""
    latency_ms: float | None = None
    """Greatest predicted latency of an answer that is accepted, in milliseconds."""
    instances: int | None = None
    """Number of instances of each operator with keys; `AUTO`: the planner chooses it."""
    after_crash: str | None = None
    """One of `AFTER_CRASH`: treatment of windows that have lost rows in a crash."""
    on_miss: str | None = None
    """One of `ON_MISS`: treatment of rows that would be late."""
    fairness: float | None = None
    """When rows are shed, each cost class keeps at least this part of the share that it would keep if all classes lost alike."""
    dealing: str | None = None
    """One of `DEALINGS`: how the rows of a pattern are divided among its instances."""
    turn_ms: float | None = None
    """Event time, in milliseconds, for which all windows that open go to one instance."""
    dealer: str | None = None
    """One of `DEALERS`: who chooses the instance of each turn while the query runs; `NO_DEALER`: instances take turns; None: see `asks`."""

    @property
    def asks(self) -> str | None:
        """Returns the dealer that is asked; None if instances take turns. By default a dealer is asked if there is a bound to keep, unless
        the planner chooses the number of instances and their turns for it."""
        if self.dealer is None:
            return DEALERS[0] if self.latency_ms is not None and self.instances != AUTO else None
        return None if self.dealer == NO_DEALER else self.dealer

    def below(self, other: "Wishes") -> "Wishes":
        """Merges the wishes of a view with those of a query that reads it: the smaller of two bounds, else the query's wish, if any."""
        instances = self.instances if other.instances is None else other.instances
        delay_ms, latency_ms = _least(self.delay_ms, other.delay_ms), _least(self.latency_ms, other.latency_ms)
        missing = self if other.on_miss is None else other
        after_crash = other.after_crash or self.after_crash
        dealt = self if other.dealing is None else other
        found = Wishes(delay_ms, latency_ms, instances, after_crash, missing.on_miss, missing.fairness)
        return replace(found, dealing=dealt.dealing, turn_ms=dealt.turn_ms, dealer=dealt.dealer)


NO_WISHES = Wishes()


def _least(one: float | None, other: float | None) -> float | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def split_with(tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Splits a statement into the part before its WITH clause and the tokens inside the clause's brackets; no tokens if the statement does
    not end with such a clause."""
    if tokens[-1].token_type != TokenType.R_PAREN:
        return list(tokens), []
    depth, start = 0, len(tokens)
    while start > 0:
        start -= 1
        depth += {TokenType.R_PAREN: 1, TokenType.L_PAREN: -1}.get(tokens[start].token_type, 0)
        if depth == 0:
            break
    if depth or start == 0 or tokens[start - 1].token_type != TokenType.WITH:
        return list(tokens), []
    return list(tokens[: start - 1]), list(tokens[start + 1 : -1])


def split_early_with(tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Splits off the WITH clause between a statement's name and its AS or FROM; returns the rest and the tokens inside the brackets."""
    depth = 0
    for index, token in enumerate(tokens[:-1]):
        if depth == 0 and token.token_type in (TokenType.ALIAS, TokenType.FROM):
            break
        if depth == 0 and token.token_type == TokenType.WITH and tokens[index + 1].token_type == TokenType.L_PAREN:
            end = next((i for i in range(index, len(tokens)) if tokens[i].token_type == TokenType.R_PAREN), len(tokens) - 1)
            return [*tokens[:index], *tokens[end + 1 :]], list(tokens[index + 2 : end])
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
    return list(tokens), []


def read_options(text: Text, tokens: Sequence[Token]) -> dict[str, Option]:
    """Returns the options by name; unquoted names in lower case.

    Raises
    ------
    QueryError
        An option is not `name = value`; points at it.
    """
    options: dict[str, Option] = {}
    entry: list[Token] = []
    for token in [*tokens, None]:
        if token is not None and token.token_type != TokenType.COMMA:
            entry.append(token)
            continue
        if not entry:
            # A comma may follow the last option, and the list may be empty.
            if token is not None:
                raise text.error(token, "an option is missing before the comma", _FORM)
            break
        key, value = _read_entry(text, entry)
        if key in options:
            raise text.error(entry[0], f"option {key} is given twice", "leave one of them out")
        options[key] = Option(value, entry[0])
        entry = []
    if len(options) > OPTIONS_MAX:
        raise text.error(tokens[0], f"{len(options)} options, expected at most {OPTIONS_MAX}")
    return options


def _read_entry(text: Text, entry: list[Token]) -> tuple[str, str]:
    equals = next((index for index, token in enumerate(entry) if token.token_type == TokenType.EQ), 0)
    name, value = entry[:equals], entry[equals + 1 :]
    if not name or any((token.token_type == TokenType.DOT) != (index % 2 == 1) for index, token in enumerate(name)) or len(name) % 2 == 0:
        raise text.error(entry[0], "an option is a name, =, and a value", _FORM)
    quoted = (TokenType.IDENTIFIER, TokenType.STRING)
    key = "".join(token.text if token.token_type in quoted else token.text.lower() for token in name)
    plain = value[-1] if value else None
    negative = len(value) == 2 and value[0].token_type == TokenType.DASH and value[1].token_type == TokenType.NUMBER
    if plain is None or not (len(value) == 1 or negative):
        raise text.error(entry[0], f"the value of {key} is neither a text nor a number", f"write {key} = '...'")
    if plain.token_type in (TokenType.STRING, TokenType.NUMBER):
        return key, ("-" if negative else "") + plain.text
    if plain.token_type in (TokenType.TRUE, TokenType.FALSE):
        return key, plain.text.lower()
    raise text.error(plain, f"the value of {key} is neither a text nor a number", f"write {key} = '{plain.text}'")


def take_connector(
    text: Text, options: dict[str, Option], kind: str, built_in: tuple[str, ...], extensions: Extensions, end: Token, *, elsewhere: bool
) -> str:
    """Takes the connector out of the options.

    Parameters
    ----------
    kind : "source" or "sink"
    built_in : connectors of that kind that every agent has
    extensions : includes the connectors installed on this agent
    elsewhere : the connector runs on nodes that the statement names, which may have others installed

    Raises
    ------
    QueryError
        The connector is missing, or unknown. With `elsewhere`, an unknown one is refused only if it looks like a misspelt known one.
    """
    option = options.pop("connector", None)
    if option is not None and option.value in built_in:
        return option.value
    known = (*built_in, *extensions.connectors_of(kind))
    if option is None:
        hint = f"add WITH (connector = '{known[0]}', ...); there is {', '.join(known)}"
        raise text.error(end.end + 1, "the connector is missing", hint)
    if option.value not in known and option.value in extensions.connectors:
        raise text.error(option.where, f"connector {option.value!r} is no {kind}", f"there is {', '.join(known)}")
    if option.value not in known and (not elsewhere or did_you_mean(option.value, known).startswith("did you mean")):
        raise text.error(option.where, f"there is no connector {option.value!r} for this", did_you_mean(option.value, known))
    return option.value


def take_list(text: Text, options: dict[str, Option], key: str) -> list[str]:
    """Takes out an option with values separated by commas; returns no values if it is not given."""
    option = options.pop(key, None)
    if option is None:
        return []
    values = [value.strip() for value in option.value.split(",") if value.strip()]
    if not values:
        raise text.error(option.where, f"{key} is empty", f"name at least one, or leave {key} out")
    return values


def take_wishes(text: Text, options: dict[str, Option]) -> Wishes:
    """Takes the options out that say how a query should run: `delay_bound`, `max_latency`, `instances`, `after_crash`, `on_miss`,
    `shed_fairness`, `dealing`, `turn` and `dealer`.

    Raises
    ------
    QueryError
        A bound is no time span, or not above 0; `instances` is neither a whole number from 1 to 64 nor 'auto'; a word is unknown;
        `shed_fairness` is not 0 to 1; or an option lacks another one that it needs.
    """
    delay_ms, latency_ms = (_take_bound(text, options, key, example) for key, example in (_DELAY_BOUND, _MAX_LATENCY))
    instances, after_crash = _take_instances(text, options), _take_word(text, options, "after_crash", AFTER_CRASH, INCOMPLETE)
    where = options.get("on_miss")
    on_miss = _take_word(text, options, "on_miss", ON_MISS, SHED)
    if where is not None and latency_ms is None:
        raise text.error(where.where, "on_miss, but no max_latency that rows could miss", "add max_latency = '1 s'")
    fairness, (dealing, turn_ms) = _take_fairness(text, options, on_miss), _take_dealing(text, options, instances)
    dealer = _take_dealer(text, options, dealing, latency_ms)
    return Wishes(delay_ms, latency_ms, instances, after_crash, on_miss, fairness, dealing, turn_ms, dealer)


def _take_word(text: Text, options: dict[str, Option], key: str, words: tuple[str, ...], example: str) -> str | None:
    option = options.pop(key, None)
    if option is not None and option.value not in words:
        raise text.error(option.where, f"{key} is {option.value!r}, expected {' or '.join(words)}", f"write WITH ({key} = '{example}')")
    return None if option is None else option.value


def _take_fairness(text: Text, options: dict[str, Option], on_miss: str | None) -> float | None:
    option = options.pop("shed_fairness", None)
    if option is None:
        return None
    if on_miss != SHED:
        raise text.error(option.where, "shed_fairness, but no rows are shed", f"add on_miss = '{SHED}', or leave it out")
    try:
        fairness = float(option.value)
    except ValueError:
        fairness = -1.0
    if not 0 <= fairness <= 1:
        raise text.error(option.where, f"shed_fairness is {option.value!r}, expected 0 to 1", "write WITH (shed_fairness = 0.5)")
    return fairness


def _take_instances(text: Text, options: dict[str, Option]) -> int | None:
    option = options.pop("instances", None)
    if option is None:
        return None
    if option.value.lower() == "auto":
        return AUTO
    if not (option.value.isdecimal() and len(option.value) < 10 and 1 <= int(option.value) <= INSTANCES_MAX):
        message = f"instances is {option.value!r}, expected a whole number from 1 to {INSTANCES_MAX}, or 'auto'"
        raise text.error(option.where, message, "write WITH (instances = 2), or WITH (instances = 'auto')")
    return int(option.value)


def _take_dealing(text: Text, options: dict[str, Option], instances: int | None) -> tuple[str | None, float | None]:
    where, turn = options.get("dealing"), options.get("turn")
    dealing, turn_ms = _take_word(text, options, "dealing", DEALINGS, WINDOW), _take_bound(text, options, *_TURN)
    if dealing == WINDOW and where is not None and instances in (None, 1):
        what = "dealing = 'window' needs a number of instances, at least 2, or 'auto'"
        raise text.error(where.where, what, "add instances = 2, or instances = 'auto'")
    if turn is not None and dealing != WINDOW:
        raise text.error(turn.where, "turn, but no windows are dealt", f"add dealing = '{WINDOW}'")
    return dealing, turn_ms


def _take_dealer(text: Text, options: dict[str, Option], dealing: str | None, latency_ms: float | None) -> str | None:
    where = options.get("dealer")
    dealer = _take_word(text, options, "dealer", (*DEALERS, NO_DEALER), DEALERS[0])
    if where is not None and dealing != WINDOW:
        raise text.error(where.where, "dealer, but no windows are dealt", f"add dealing = '{WINDOW}'")
    if where is not None and latency_ms is None and dealer not in ("round-robin", NO_DEALER):
        raise text.error(where.where, f"dealer {dealer!r} keeps max_latency, which is not given", "add max_latency = '1 s'")
    return dealer


def _take_bound(text: Text, options: dict[str, Option], key: str, example: str) -> float | None:
    form = f"write WITH ({key} = '{example}')"
    option = options.pop(key, None)
    if option is None:
        return None
    bound_us = _span_us(text, key, option, form)
    if bound_us <= 0:
        raise text.error(option.where, f"{key} is {option.value!r}, expected more than 0", form)
    return bound_us / 1000


def take_idle_after(text: Text, options: dict[str, Option]) -> tuple[int, Option | None]:
    """Takes the option `idle_after` out, in microseconds; returns 0 if it is not given.

    Raises
    ------
    QueryError
        The option is no time span, or out of range.
    """
    option = options.pop("idle_after", None)
    if option is None:
        return 0, None
    idle_us = _span_us(text, "idle_after", option, _IDLE_FORM)
    if not IDLE_US_MIN <= idle_us <= IDLE_US_MAX:
        raise text.error(option.where, f"idle_after is {option.value!r}, expected '100 ms' to '30 days'", _IDLE_FORM)
    return idle_us, option


def _span_us(text: Text, key: str, option: Option, form: str) -> int:
    try:
        return parse_interval(option.value)
    except QueryError as error:
        raise text.error(option.where, f"{key}: {error.message}", form) from None


def rest_of(options: dict[str, Option]) -> tuple[tuple[str, str], ...]:
    """Returns the remaining options, sorted, as connectors take them."""
    return tuple(sorted((key, option.value) for key, option in options.items()))
