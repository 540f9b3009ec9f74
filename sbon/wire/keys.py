"""Changing the cluster keys."""

import msgspec


class KeysAsk(msgspec.Struct, frozen=True, tag="keys?"):
    """Which cluster keys do you hold?"""


class KeyInstall(msgspec.Struct, frozen=True, tag="keyinstall"):
    """Hold this cluster key too."""

    key: bytes

    def __repr__(self) -> str:
        return f"KeyInstall({len(self.key)} bytes)"  # logs must not have it


class KeyUse(msgspec.Struct, frozen=True, tag="keyuse"):
    """Seal with the key of this id from now on."""

    id: str


class KeyRemove(msgspec.Struct, frozen=True, tag="keyremove"):
    """Forget the key of this id."""

    id: str


class KeysHeld(msgspec.Struct, frozen=True, tag="keys"):
    """Ids of the keys held now, the primary one's first. Answer to all of the above."""

    ids: tuple[str, ...]
