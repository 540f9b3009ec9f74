"""Creates operator objects from parameters."""

from sbon.errors import LocalProtocolError
from sbon.extensions import NOTHING, Extensions
from sbon.operators.asking_splitter import AskingSplitter
from sbon.operators.assign import Assign
from sbon.operators.deduplicate import Deduplicate
from sbon.operators.deferring import Deferring
from sbon.operators.exchange import Exchange
from sbon.operators.function import Function
from sbon.operators.join import IntervalJoin
from sbon.operators.keyed import Keyed
from sbon.operators.lookup import Lookup
from sbon.operators.map import Map
from sbon.operators.match.operator import MatchRows
from sbon.operators.merge import Merge
from sbon.operators.merger import Merger
from sbon.operators.multicast import Multicast
from sbon.operators.operator import Operator
from sbon.operators.over import Over
from sbon.operators.session import Session
from sbon.operators.splitter import Splitter
from sbon.operators.top import Top
from sbon.operators.union import Union
from sbon.operators.unnest import Unnest
from sbon.operators.window import Window
from sbon.operators.window_join import WindowJoin
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.streams import ExchangeParams, MergeParams, MulticastParams, SplitParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.state.room import StateRoom


def build(params: Params, extensions: Extensions = NOTHING, room: StateRoom | None = None) -> Operator:
    """Returns a new operator; users' functions come from `extensions`.

    Parameters
    ----------
    room : memory and disk for states that may be larger than memory; None: all are in memory

    Raises
    ------
    LocalProtocolError
        Sources and sinks are connectors of the agent, not operators.
    FunctionError
        A user's function is not installed, or cannot be made.
    RemoteProtocolError
        The parameters make no sense (a window without length, a function that is not in the table).
    StateError
        The memory for states is too small for the states of one batch.
    """
    match params:
        case MapParams():
            return Map(params)
        case WindowParams():
            return Window(params, room)
        case SessionParams():
            return Session(params, room)
        case TopParams():
            return Top(params)
        case OverParams():
            return Over(params)
        case MatchParams():
            return MatchRows(params)
        case AssignParams():
            return Assign(params)
        case UnnestParams():
            return Unnest(params)
        case DeduplicateParams():
            return Deduplicate(params, room)
        case JoinParams():
            return IntervalJoin(params)
        case WindowJoinParams():
            return WindowJoin(params)
        case LookupParams():
            return Lookup(params)
        case FunctionParams():
            if params.defers and params.partition:
                return Deferring(params, extensions, room)
            return Keyed(params, extensions, room) if params.partition else Function(params, extensions)
        case UnionParams():
            return Union()
        case MulticastParams():
            return Multicast()
        case ExchangeParams():
            return Exchange(params) if params.turns is None else Splitter(params, params.turns)
        case SplitParams():
            return AskingSplitter(params)
        case MergeParams():
            return Merge(params) if params.choice is None else Merger(params, params.choice)
        case _:
            raise LocalProtocolError(f"build got {type(params).__name__}, expected an operator: sources and sinks are connectors")
