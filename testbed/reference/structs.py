"""Fields of configuration structs as rows of tables: name, type or unit, default, meaning."""

import inspect
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from sbon.config import field_docstrings, toml_value
from sbon_testbed.reference.markdown import code

_UNITS = {
    "s": "s",
    "ms": "ms",
    "us": "µs",
    "ns": "ns",
    "bytes": "bytes",
    "rows": "rows",
    "hours": "hours",
    "batches": "batches",
    "percentile": "%",
    "fraction": "share, 0 to 1",
    "share": "share, 0 to 1",
}
"""Units by the word of a setting's name that stands for them."""
_UNITS_OF_NAMES = {"memory_max": "bytes", "force_threshold": "ms"}
"""Units of settings whose names have no word for the unit."""
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    """Yields name, type or unit, default and meaning of each field that holds no struct."""
    meanings = field_docstrings(kind)
    for field in msgspec.structs.fields(kind):
        if not structs_of(field.type):
            yield field.encode_name, unit_of(field.name, field.type), default_of(field), meanings.get(field.name, "")


def structs_of(annotation: Any) -> list[type[msgspec.Struct]]:
    """Returns the structs that a field may hold, by itself or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in structs_of(part)]


def about(kind: type[msgspec.Struct]) -> str:
    """Returns the docstring of a struct."""
    return inspect.cleandoc(kind.__doc__ or "")


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Returns the default of a field in TOML."""
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    return "none" if value is None else code(toml_value(value))


def unit_of(name: str, annotation: Any) -> str:
    """Returns the unit in a field's name; without one, the field's type in words.

    Examples
    --------
    >>> unit_of("share_bytes_per_s_max", float), unit_of("copy_timeout_s", float), unit_of("bind", str)
    ('bytes/s', 's', 'text')
    """
    if name in _UNITS_OF_NAMES:
        return _UNITS_OF_NAMES[name]
    bare = _without_none(annotation)
    words = name.split("_")
    if bare in (int, float):
        if "per" in words:
            before, after = words[words.index("per") - 1], words[words.index("per") + 1]
            if before in _UNITS and after in _UNITS:
                return f"{_UNITS[before]}/{_UNITS[after]}"
        else:
            found = [_UNITS[word] for place, word in enumerate(words) if word in _UNITS and (place or len(words) == 1)]
            if found:
                return found[-1]
    return _type_text(bare)


def _type_text(annotation: Any) -> str:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(code(str(word)) for word in arguments)
    if get_origin(annotation) is tuple:
        pair = len(arguments) == 2 and arguments[1] is not Ellipsis
        return f"{'two' if pair else 'list of'} {_several(arguments[0])}"
    if get_origin(annotation) is dict:
        return f"table of {'values' if arguments[1] is Any else _several(arguments[1])}"
    return str(getattr(annotation, "__name__", annotation))


def _several(annotation: Any) -> str:
    """Returns the type in words, in the plural."""
    first, of, rest = _type_text(annotation).partition(" of ")
    return f"{first}s{of}{rest}"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not types.NoneType)
    return annotation
