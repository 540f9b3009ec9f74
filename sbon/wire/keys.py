"""Changing the cluster keys."""

from typing import Annotated

import msgspec

from sbon.wire.limits import MANY, Data, Text


class KeysAsk(msgspec.Struct, frozen=True, tag="keys?"):
    """Which cluster keys do you hold?"""


class KeyInstall(msgspec.Struct, frozen=True, tag="keyinstall"):
    """Hold this cluster key too."""

    key: Data

    def __repr__(self) -> str:
        return f"KeyInstall({len(self.key)} bytes)"  # logs must not have it


class KeyUse(msgspec.Struct, frozen=True, tag="keyuse"):
    """Seal with the key of this id from now on."""

    id: Text


class KeyRemove(msgspec.Struct, frozen=True, tag="keyremove"):
    """Forget the key of this id."""

    id: Text


class KeysHeld(msgspec.Struct, frozen=True, tag="keys"):
    """Ids of the keys held now, the primary one's first. Answer to all of the above."""

    ids: Annotated[tuple[Text, ...], MANY]
