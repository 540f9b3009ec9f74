"""Answers to HTTP requests, as connectors give them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Answer(NamedTuple):
    """Status and JSON document of a response."""

    status: int
    document: bytes
    headers: tuple[tuple[str, str], ...] = ()


def refusal(status: int, error: str, **headers: str) -> Answer:
    """Returns an answer whose document says in one line why a request was refused."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(status, msgspec.json.encode({"error": error}), named)
