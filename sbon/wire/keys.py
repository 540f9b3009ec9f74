"""Messages that change the cluster keys."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Data, Text


class KeysAsk(msgspec.Struct, frozen=True, tag="keys?"):
    """Asks which cluster keys an agent holds."""


class KeyInstall(msgspec.Struct, frozen=True, tag="keyinstall"):
    """Add this cluster key."""

    key: Data

    def __repr__(self) -> str:
        return f"KeyInstall({len(self.key)} bytes)"  # logs must not contain the key


class KeyUse(msgspec.Struct, frozen=True, tag="keyuse"):
    """Seal with the key of this id from now on."""

    id: Text


class KeyRemove(msgspec.Struct, frozen=True, tag="keyremove"):
    """Remove the key of this id."""

    id: Text


class KeysHeld(msgspec.Struct, frozen=True, tag="keys"):
    """Answers all messages above with the ids of the present keys, the primary key's first."""

    ids: Annotated[tuple[Text, ...], MANY]
