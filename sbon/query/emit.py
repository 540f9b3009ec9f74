"""Reads EMIT at the end of a query, which says when the query gives answers.

Answers of windows leave once, when the watermark says that the window is complete. EMIT ON WINDOW CLOSE (RisingWave), EMIT FINAL (ksqlDB)
and EMIT AFTER WATERMARK (Calcite) ask for that and are accepted; forms that emit early and correct answers later are refused.
"""

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token

from sbon.query.dialect import Text

_TAKEN = (("ON", "WINDOW", "CLOSE"), ("FINAL",), ("AFTER", "WATERMARK"))
_REFUSED = (("CHANGES",), ("ON", "UPDATE"), ("STREAM",), ("WITH", "DELAY"), ("WITH", "BATCH"))


def without_emit(text: Text, tokens: Sequence[Token]) -> list[Token]:
    """Returns the tokens of a statement without its EMIT; the caller has removed WITH before.

    Raises
    ------
    QueryError
        EMIT asks for answers that are corrected later.
    """
    index = next((place for place in range(len(tokens) - 1, 0, -1) if tokens[place].text.upper() == "EMIT"), 0)
    words = tuple(token.text.upper() for token in tokens[index + 1 :]) if index else ()
    if words in _TAKEN:
        return list(tokens[:index])
    if any(words[: len(refused)] == refused for refused in _REFUSED):
        message = f"EMIT {' '.join(words)} is not supported: an answer leaves once, when its window is complete, and is not taken back"
        raise text.error(tokens[index], message, "write EMIT ON WINDOW CLOSE, or nothing; smaller windows answer sooner")
    return list(tokens)
