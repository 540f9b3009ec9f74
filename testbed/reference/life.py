"""Makes the page about the life of an operator from its table."""

from sbon.execution.life import ROWS, Row, State
from sbon_testbed.reference.markdown import code, page, table

_ABOUT = (
    "The states of an operator on one host, and what the engine does on each event. An event that the table does not have for a state is "
    "an error of the engine and raises `LocalProtocolError`. In conditions, *ended* means that every input has ended and has been "
    "processed. Users and other hosts see `waiting` as `building`, and `resting`, `forking` and `exported` as `paused`."
)
_OMITTED = (State.FAILED, State.GONE)


def life_page() -> str:
    """Returns the page with the table and a diagram of it."""
    rows = [
        (_states(row), row.event.value + _condition(row), code(row.next.value), "; ".join(does.value for does in row.does)) for row in ROWS
    ]
    return page(
        "The life of an operator",
        "`sbon/execution/life.py`",
        _ABOUT,
        "The diagram leaves out faults, which lead to `failed` from every state but `gone`, and the removal of an operator, which leads to "
        "`gone` from every state.",
        _diagram(),
        "## Table",
        table(("state", "what happens", "next state", "what is done"), [(*cells[:3], cells[3] or "nothing") for cells in rows]),
    )


def _states(row: Row) -> str:
    return ", ".join(code(state.value) for state in row.states)


def _condition(row: Row) -> str:
    return "" if row.ended is None else " (ended)" if row.ended else " (not ended)"


def _diagram() -> str:
    arrows = [
        f"    {state.value} --> {row.next.value} : {row.event.value}{_condition(row)}"
        for row in ROWS
        for state in row.states
        if state not in _OMITTED and row.next is not State.FAILED and row.event.name != "DESTROY"
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> building", "    [*] --> prepared", *arrows, "```"])
