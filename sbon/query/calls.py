"""Binds calls of users' functions in FROM: `my_function(stream, 0.5, window => 10)`. Arguments after the stream are constants."""

from sqlglot import exp

from sbon.extensions import Extensions
from sbon.functions import BatchFunction, FunctionError, Value
from sbon.query.dialect import Text
from sbon.query.literals import identifier
from sbon.query.params.rowwise import FunctionParams
from sbon.query.relation import Apply, Relation
from sbon.schema import Field


def called_function(tree: exp.Expr, extensions: Extensions) -> str | None:
    """Returns the name of the installed function that a table function in FROM calls; None if it is built in or unknown."""
    name = tree.name.lower() if isinstance(tree, exp.Anonymous) else tree.sql_name().lower() if isinstance(tree, exp.Func) else ""
    return name if name in extensions.functions else None


def applied(text: Text, tree: exp.Func, name: str, extensions: Extensions, relation: Relation) -> Apply:
    """Applies a function to the stream that is its first argument.

    Raises
    ------
    QueryError
        The function cannot be loaded or refuses an argument, an argument does not fit, or the stream lacks a needed column; points at the
        place.
    """
    try:
        function = extensions.function(name)
        partition = _partition(text, tree, function)
        others = tree.expressions[1:]
        named_or_keys = (exp.Kwarg, exp.PartitionedByProperty, *([exp.Column] if partition else []))
        positional = tuple(_constant(text, item) for item in others if not isinstance(item, named_or_keys))
        named = {identifier(item.this): _constant(text, item.expression) for item in tree.expressions if isinstance(item, exp.Kwarg)}
        arguments = function.bind(positional, named)
    except FunctionError as error:
        raise text.error(tree, str(error)) from error
    _check_columns(text, tree, function, relation)
    try:
        function.make(**dict(arguments))
    except Exception as error:  # User code may raise anything; refuse here, with a place in the text, rather than on the host.
        raise text.error(tree, f"function {name} {function.version}: {type(error).__name__}: {error}") from error
    params = FunctionParams(
        function.name,
        function.version,
        arguments,
        function.input_schema,
        function.output_schema,
        function.event_time,
        function.selectivity,
        function.deterministic,
        partition,
        function.commutes,
    )
    return Apply(relation, params)


def _partition(text: Text, tree: exp.Func, function: BatchFunction) -> tuple[str, ...]:
    """Returns the columns of PARTITION BY."""
    form = f"write {function.name}(stream, PARTITION BY column)"
    found: list[str] = []
    for item in tree.expressions[1:]:
        if isinstance(item, exp.PartitionedByProperty):
            item = item.this
        elif not (isinstance(item, exp.Column) and found):
            continue
        if not isinstance(item, exp.Column):
            raise text.error(tree, "PARTITION BY takes names of columns", form)
        column = identifier(item.this)
        known = {one.name: one.type for one in function.input_schema}
        if column not in known:
            raise text.error(tree, f"PARTITION BY {column}: {function.name} takes no such column", f"it takes {', '.join(known)}")
        if known[column].value == "float":
            raise text.error(
                tree, f"PARTITION BY {column} is a float, which cannot be a key", "take an integer, a text, a time or a BOOLEAN"
            )
        found.append(column)
    if function.is_keyed and not found:
        raise text.error(tree, f"{function.name} keeps state by key, and no key is given", form)
    if found and not function.is_keyed:
        raise text.error(tree, f"{function.name} keeps no state by key", "leave PARTITION BY out")
    return tuple(found)


def _check_columns(text: Text, tree: exp.Func, function: BatchFunction, relation: Relation) -> None:
    types = {column.name: column.type for column in relation.schema}
    for column in function.input_schema:
        if types.get(column.name) is not column.type:
            found = f"has {_told(Field(column.name, types[column.name]))}" if column.name in types else "has no such column"
            hint = f"it takes {', '.join(map(_told, function.input_schema))}: name and CAST columns in a SELECT in brackets"
            raise text.error(tree, f"{function.name} needs column {_told(column)}, its input {found}", hint)
    time = function.event_time
    if time is not None and relation.times.get(time) != (time, 0):
        hint = "declare WATERMARK FOR it in CREATE SOURCE, and keep the column in subqueries"
        raise text.error(tree, f"{function.name} needs {time} as its input's event time, and it is none", hint)


def _told(column: Field) -> str:
    return f"{column.name} {column.type.value}"


def _constant(text: Text, tree: exp.Expr) -> Value:
    negative = isinstance(tree, exp.Neg)
    literal = tree.this if negative else tree
    if isinstance(literal, exp.Boolean) and not negative:
        return bool(literal.this)
    if isinstance(literal, exp.Literal) and not (negative and literal.is_string):
        if literal.is_string:
            return str(literal.this)
        try:
            number: int | float = int(literal.this)
        except ValueError:
            number = float(literal.this)
        if abs(number) >= 2**63:
            raise text.error(tree, "the number is too large", "write one that fits into 64 bits")
        return -number if negative else number
    raise text.error(tree, "arguments of a function must be constants", "write a number, a text in quotes, TRUE or FALSE")
