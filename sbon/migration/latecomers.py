"""Chooses a new host's answers to late and repeated messages: about operators that it does not expect, or expects already."""

from sbon.errors import MigrationError
from sbon.migration.newcomer import Newcomer
from sbon.types import NodeId
from sbon.wire.migration import Activate, Prepare, StateChunk


def check_prepare(asked: Prepare, present: Newcomer | None, me: NodeId, *, is_here: bool, is_leaving: bool) -> None:
    """Checks whether an operator may come.

    Parameters
    ----------
    present : the same operator, if it is on its way here already
    is_here, is_leaving : whether it is on this host, and whether it is moving away from here

    Raises
    ------
    MigrationError
        It may not, or the request is late.
    """
    operator = asked.spec.id
    if is_leaving:
        # A sender that does not know yet that the operator left would send to it here, and so wake it before its return is committed.
        raise MigrationError(f"not everyone has been told that operator {operator} has left {me}")
    if is_here and present is None:
        raise MigrationError(f"operator {operator} is on {me} already")
    if present is not None and (asked.epoch < present.epoch or (asked.epoch == present.epoch and present.has_pieces)):
        raise MigrationError(f"operator {operator} is on its way to {me} already, in epoch {present.epoch}")


def check_unexpected_piece(message: StateChunk, me: NodeId, here_epoch: int | None) -> None:
    """Checks a piece of an operator that is not on its way here in this epoch; it may be answered again if the operator runs here by now.

    Parameters
    ----------
    here_epoch : epoch of the operator on this host; None: it is not here

    Raises
    ------
    MigrationError
        The operator does not run here in this epoch.
    """
    if here_epoch != message.epoch:
        raise MigrationError(f"operator {message.operator} is not expected on {me}")


def check_unexpected_word(message: Activate, me: NodeId, here_epoch: int | None, gone_epoch: int | None) -> None:
    """Checks the command to run for an operator that is not on its way here in this epoch; it is a repetition if the operator has run here.

    Parameters
    ----------
    gone_epoch : epoch in which the operator has left this host; None: it has not, or long ago

    Raises
    ------
    MigrationError
        The operator is not prepared here, and has not run here since.
    """
    if (here_epoch is None or here_epoch < message.epoch) and (gone_epoch is None or gone_epoch <= message.epoch):
        raise MigrationError(f"operator {message.operator} is not prepared on {me}")
