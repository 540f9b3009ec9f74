"""Loads TOML text into frozen structs, and writes them back as a commented sample.

A configuration is a tree of `msgspec.Struct`s whose fields all have defaults and are each followed by a docstring. Files and flags are
layers of nested dictionaries that replace the defaults. Every mistake becomes one `ConfigError` that gives the path of the setting, the
line of the file if it can be found, and the nearest name that exists.
"""

import ast
import difflib
import enum
import inspect
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from sbon.errors import ConfigError

ConfigType = TypeVar("ConfigType", bound=msgspec.Struct)

Layer = Mapping[str, Any]
"""Settings by name; those of a section are a nested layer."""

_PATH_IN_MESSAGE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_TABLE_HEADER = re.compile(r"^\s*\[+\s*([^\[\]]+?)\s*\]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_COMMENT_WIDTH = 118


def load(kind: type[ConfigType], text: str, origin: str, *overrides: Layer) -> ConfigType:
    """Reads a TOML text, applies `overrides` (flags) on top and checks everything.

    Parameters
    ----------
    kind : the struct at the top
    text : may be empty, which gives the defaults
    origin : name of the file, for messages
    overrides : later ones win; a section's settings are replaced one by one

    Raises
    ------
    ConfigError
        The text is not TOML, or a setting is unknown, of the wrong type or out of range.
    """
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{origin}: not TOML: {problem}") from problem
    _refuse_unknown(kind, kind, settings, "", lambda path: _place(origin, text, path))
    for layer in overrides:
        _refuse_unknown(kind, kind, layer, "", lambda path: "command line")
        settings = overlay(settings, layer)
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as problem:
        path, message = _explain(kind, str(problem))
        where = "command line" if any(_has(layer, path) for layer in overrides) else _place(origin, text, path)
        raise ConfigError(f"{where}: {message}") from problem


def overlay(below: Layer, above: Layer) -> dict[str, Any]:
    """Returns `below` with the settings of `above` replacing its own; dictionaries are merged, lists replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = overlay(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return merged


def setting_paths(kind: type[msgspec.Struct], prefix: str = "") -> list[str]:
    """Returns the path of every setting, sections included, in the order of the classes."""
    paths = []
    for field in msgspec.structs.fields(kind):
        paths.append(prefix + field.encode_name)
        if section := _section(field.type):
            paths += setting_paths(section, f"{prefix}{field.encode_name}.")
    return paths


def field_docstrings(kind: type) -> dict[str, str]:
    """Returns the docstring after each field, read from the source of the class and of its bases.

    Python keeps no string expression that follows an assignment, so it must be read from the source.
    """
    documents: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner in (object, msgspec.Struct) or not inspect.get_annotations(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        if not isinstance(body, ast.ClassDef):
            continue
        for field, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                documents[field.target.id] = inspect.cleandoc(after.value.value)
    return documents


def sample(config: msgspec.Struct) -> str:
    """Returns a complete TOML file with the values of `config`, each under its docstring. `load` makes an equal struct of it.

    Settings without a value (None) are commented out, because TOML has no null.
    """
    return "\n".join(_sample_lines(config, "")).strip() + "\n"


def _sample_lines(config: msgspec.Struct, path: str) -> list[str]:
    kind = type(config)
    documents = field_docstrings(kind)
    lines = _comment(inspect.cleandoc(kind.__doc__ or ""))
    if path:
        lines.append(f"[{path}]")
    sections = []
    for field in msgspec.structs.fields(kind):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            sections.append((field.encode_name, value))
            continue
        lines += ["", *_comment(documents.get(field.name, ""))]
        lines.append(f"# {field.encode_name} =" if value is None else f"{field.encode_name} = {toml_value(value)}")
    for name, section in sections:
        lines += ["", "", *_sample_lines(section, f"{path}.{name}" if path else name)]
    return lines


def _comment(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines += textwrap.wrap(paragraph, _COMMENT_WIDTH - 2, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"# {line}".rstrip() for line in lines]


def toml_value(value: Any) -> str:
    """Returns a plain value in TOML syntax.

    Raises
    ------
    ConfigError
        TOML has no such value.

    Examples
    --------
    >>> toml_value({"region": "eu", "racks": (1, 2)})
    '{ region = "eu", racks = [1, 2] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else ("inf" if value > 0 else "-inf"))
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        items = [f"{key if _BARE_KEY.fullmatch(key) else toml_value(key)} = {toml_value(item)}" for key, item in value.items()]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    if isinstance(value, enum.Enum):
        return toml_value(value.value)
    raise ConfigError(f"{value!r} has no form in TOML")


def _section(annotation: Any) -> type[msgspec.Struct] | None:
    """Returns the struct class of a field that holds a struct (or a struct or None), else None."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _refuse_unknown(root: type[msgspec.Struct], kind: type[msgspec.Struct], settings: Layer, path: str, place: Any) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, value in settings.items():
        where = f"{path}{name}"
        if name not in fields:
            raise ConfigError(f"{place(where)}: {where} is not a setting{_nearest(root, list(fields), name, path)}")
        section = _section(fields[name].type)
        if section and isinstance(value, Mapping):
            _refuse_unknown(root, section, value, f"{where}.", place)


def _nearest(root: type[msgspec.Struct], siblings: list[str], name: str, path: str) -> str:
    """Suggests a setting: a similar name in the same section, or else the same or a similar name in another section."""
    if close := difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
        return f"; did you mean {path}{close[0]}?"
    everywhere = {candidate.rpartition(".")[2]: candidate for candidate in reversed(setting_paths(root))}
    if close := difflib.get_close_matches(name, list(everywhere), n=1, cutoff=0.8):
        return f"; did you mean {everywhere[close[0]]}?"
    return f"; known here: {', '.join(siblings)}"


def _explain(kind: type[msgspec.Struct], text: str) -> tuple[str, str]:
    """Returns the path of the setting in msgspec's error, and the error as a sentence that begins with the path."""
    path, message = "", text
    if found := _PATH_IN_MESSAGE.search(text):
        path, message = found["path"], text[: found.start()]
    annotation: Any = kind
    for name in path.split(".") if path else []:
        section = _section(annotation)
        types = {field.encode_name: field.type for field in msgspec.structs.fields(section)} if section else {}
        annotation = types.get(name)
    if section := _section(annotation):
        # A section's __post_init__ begins its message with the name of the setting that it refuses.
        named = re.match(r"[a-z_0-9]+", message)
        if named and named[0] in {field.encode_name for field in msgspec.structs.fields(section)}:
            path = f"{path}.{named[0]}".lstrip(".")
            return path, path + message[named.end() :]
    elif get_origin(annotation) is Literal:
        message += f", expected one of {', '.join(map(repr, get_args(annotation)))}"
    return path, f"{path}: {message}" if path else message


def _has(layer: Layer, path: str) -> bool:
    value: Any = layer
    for name in path.replace("[", ".[").split("."):
        if name.startswith("["):
            return True
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _place(origin: str, text: str, path: str) -> str:
    """Returns `file:line` of a setting. TOML's parser gives no positions, so the text is searched for the key under its table's header."""
    table, _, key = re.sub(r"\[.*", "", path).rpartition(".")
    current = ""
    best = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE_HEADER.match(line):
            current = re.sub(r"[\s\"']", "", header[1])
            if current == f"{table}.{key}".strip("."):
                best = best or number
        elif path and current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return f"{origin}:{number}"
    return f"{origin}:{best}" if best else origin
