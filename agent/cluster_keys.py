"""Changes the cluster's keys on all agents from any one of them, for `sbon keys`.

install: all agents accept the new key -> use: all encrypt with it -> remove: none accepts the old one

No step makes an agent receive messages that it cannot decrypt: `use` is refused while some living agent lacks the key, `remove` while one
still encrypts with it. Failed agents are not asked, since a broken machine must not keep a stolen key in force. An agent that comes back
with removed keys only cannot join again, and logs this (`no_common_key`). Keys travel on connections that the present key has authenticated
and encrypted. Replies and logs show only the keys' ids.

A step can leave members out (`except`), so that a member that has stolen a key does not get the next one: it is neither asked nor waited
for. Keys travel in no other way: no exchange of tables carries them, and no step is repeated automatically. But whoever holds the present
key can speak in any member's name and be sent that member's keys: against such a thief, carry new keys by hand.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sbon.addresses import format_address
from sbon.errors import ConfigError, SbonError
from sbon.membership.gossip import Gossip
from sbon.membership.members import MemberStatus
from sbon.peers.directory import Directory
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId
from sbon.wire.keys import KeyInstall, KeyRemove, KeysAsk, KeysHeld, KeyUse
from sbon.wire.messages import Message
from sbon_agent.key_file import replace_key_file
from sbon_agent.logs import structlog

if TYPE_CHECKING:
    from sbon_agent.host import Host

KeyMessage: TypeAlias = KeysAsk | KeyInstall | KeyUse | KeyRemove
Answers: TypeAlias = dict[NodeId, KeysHeld | SbonError]
"""Answers of all members that were asked."""
AT_ONCE_MAX = 32
"""Most agents asked at the same time, since each may need a connection of its own."""
COMPLAINT_PAUSE_S = 60.0
REFUSAL_KEPT_S = 90.0
"""Seconds for which a refusal counts. An agent without any peer dials again at least twice a minute."""
ACTIONS = ("list", "install", "use", "remove")
LEFT_OUT = "left out, as you asked: it keeps its keys, and is cut off once the others have removed them"


class ClusterKeys:
    """This agent's key ring, and changes to the rings of all agents.

    Parameters
    ----------
    key_file : returns the path of the key file; empty keeps the ring in memory only
    ring : returns the ring in force; None without a cluster key
    use : puts another ring in force
    """

    def __init__(
        self,
        host: "Host",
        directory: Directory,
        gossip: Gossip,
        key_file: Callable[[], str],
        ring: Callable[[], KeyRing | None],
        use: Callable[[KeyRing], None],
    ) -> None:
        self._host, self._directory, self._gossip = host, directory, gossip
        self._key_file = key_file
        self._ring, self._use = ring, use
        self._complained_at_s = float("-inf")
        self._refused: tuple[Address, float] | None = None
        self._log = structlog.get_logger("keys", node=directory.me)

    # ------------------------------------------------------------------------------------------------------ this agent

    def apply(self, message: KeyMessage) -> KeysHeld:
        """Changes this agent's key file and then its ring; in this order, so that a restart finds the keys that the answer names.

        Raises
        ------
        ConfigError
            The ring does not allow the change, or the file cannot be written; nothing has changed.
        """
        ring = self._ring()
        if ring is None:
            raise ConfigError(f"{self._directory.me} runs without a cluster key; start every agent with --key-file")
        fresh = _changed(ring, message)
        if fresh.ids != ring.ids:
            file = self._key_file()
            if file:
                replace_key_file(Path(file), ring, fresh)
            self._use(fresh)
            self._log.info("keys.changed", before=list(ring.ids), after=list(fresh.ids), saved=bool(file))
        return KeysHeld(ids=fresh.ids)

    def no_common_key(self, address: Address) -> None:
        """Records that the agent at an address shares no key with this one.

        Logs an error if no other agent is reachable, because this agent has then missed a change of keys; otherwise a warning.
        """
        now = self._host.now()
        self._refused = address, now
        if now - self._complained_at_s < COMPLAINT_PAUSE_S:
            return
        self._complained_at_s = now
        problem = self.problem
        if problem is not None:
            self._log.error("keys.outdated", reason=problem)
        else:
            advice = "if it is one of ours, give it the present key file and start it again"
            self._log.warning("keys.not_shared", address=format_address(address), advice=advice)

    @property
    def problem(self) -> str | None:
        """Describes why this agent's keys keep it out of its cluster; None if they do not."""
        if self._refused is None or self._host.now() - self._refused[1] > REFUSAL_KEPT_S:
            return None
        others = (m for m in self._gossip.members.values() if m.name != self._gossip.name and m.status is MemberStatus.ALIVE)
        if any(others):
            return None
        ring = self._ring()
        held = "no cluster key" if ring is None else f"only {_keys(ring.ids)}"
        return (
            f"the agent at {format_address(self._refused[0])} holds none of our cluster keys: this agent has {held}, "
            f"and the cluster has probably changed its key; copy the key file of an agent in the cluster to "
            f"{self._key_file() or 'this one'} and run `sbon reload` (or restart)"
        )

    # --------------------------------------------------------------------------------------------------- the whole cluster

    def change(self, action: str, arguments: dict[str, Any], done: Callable[[dict[str, Any] | SbonError], None]) -> None:
        """Runs `list`, `install` (argument `key`: 32 bytes), `use` or `remove` (argument `id`) on all agents.

        `done` gets the result for `sbon keys`. Argument `except`: names of members that are not asked.

        Raises
        ------
        ConfigError
            The request is invalid here and therefore everywhere, or a member to be left out is unknown.
        """
        message = _message(action, arguments)
        left_out = self._left_out(arguments.get("except", []))
        ring = self._ring()
        if ring is None:
            raise ConfigError(f"{self._directory.me} runs without a cluster key; start every agent with --key-file")
        _changed(ring, message)
        reached = (MemberStatus.ALIVE, MemberStatus.SUSPECT)
        members = self._gossip.members
        nodes = sorted(name for name, member in members.items() if member.status in reached and name not in left_out)

        def finish(answers: Answers) -> None:
            done(self._result(action, answers, left_out))

        def checked(held: Answers) -> None:
            objection = _objection(message, held)
            if objection is not None:
                done(ConfigError(objection))
            else:
                self._ask_all(nodes, message, finish)

        if isinstance(message, KeyUse | KeyRemove):
            self._ask_all(nodes, KeysAsk(), checked)
        else:
            self._ask_all(nodes, message, finish)

    def _left_out(self, names: object) -> frozenset[NodeId]:
        """Returns the members to leave out. Unknown names are refused: a mistyped name would leave the member in."""
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError("except needs a list of names of members")
        for name in names:
            if name == self._directory.me:
                raise ConfigError(f"{name} is this agent itself: give the command to another agent")
            if name not in self._gossip.members:
                raise ConfigError(f"nothing has changed: there is no member {name} to leave out; `sbon members` lists the members")
        return frozenset(names)

    def _ask_all(self, nodes: Iterable[NodeId], message: Message, done: Callable[[Answers], None]) -> None:
        """Asks members, a bounded number at a time; `done` gets all answers in order of name."""
        waiting = deque(nodes)
        expected = len(waiting)
        answers: Answers = {}

        def answered(node: NodeId, result: Message | SbonError) -> None:
            answers[node] = result if isinstance(result, KeysHeld | SbonError) else ConfigError("it sent an unexpected kind of answer")
            if waiting:
                ask(waiting.popleft())
            elif len(answers) == expected:
                done(dict(sorted(answers.items())))

        def ask(node: NodeId) -> None:
            self._directory.request(node, message, partial(answered, node))

        for _ in range(min(AT_ONCE_MAX, expected)):
            ask(waiting.popleft())

    def _result(self, action: str, answers: Answers, left_out: frozenset[NodeId]) -> dict[str, Any]:
        nodes = []
        for name, member in sorted(self._gossip.members.items()):
            answer = answers.get(name)
            error = None
            if isinstance(answer, SbonError):
                error = str(answer)
            elif name in left_out:
                error = LEFT_OUT
            elif answer is None:
                error = f"not asked, as it has {member.status.value}; give it the keys before it comes back"
            ids = list(answer.ids) if isinstance(answer, KeysHeld) else []
            if answer is not None or member.status is not MemberStatus.LEFT:
                row = {"node": name, "status": member.status.value, "primary": ids[0] if ids else None, "ids": ids, "error": error}
                nodes.append(row | {"left_out": name in left_out})
        if action != "list":
            failed = [node["node"] for node in nodes if node["error"] and not node["left_out"]]
            self._log.info("keys.told", action=action, nodes=len(answers), failed=failed, left_out=sorted(left_out))
        return {"action": action, "nodes": nodes, "keys": _by_key(nodes), "problem": self.problem}


def _changed(ring: KeyRing, message: KeyMessage) -> KeyRing:
    match message:
        case KeyInstall(key):
            return ring.with_key(key)
        case KeyUse(name):
            return ring.with_primary(name)
        case KeyRemove(name):
            return ring.without(name)
        case KeysAsk():
            return ring


def _message(action: str, arguments: dict[str, Any]) -> KeyMessage:
    if action == "list":
        return KeysAsk()
    if action == "install":
        key = arguments.get("key")
        if not isinstance(key, bytes):
            raise ConfigError("install needs the key's 32 bytes")
        return KeyInstall(key=key)
    name = arguments.get("id")
    if action not in ACTIONS or not isinstance(name, str):
        raise ConfigError(f"expected one of {', '.join(ACTIONS)}, and the id of a key for the last two")
    return KeyUse(id=name) if action == "use" else KeyRemove(id=name)


def _objection(message: KeyMessage, held: Answers) -> str | None:
    """Returns why the change would cut an agent off, given what all living agents hold; None if it would not."""
    unknown = [node for node, answer in held.items() if isinstance(answer, SbonError)]
    if unknown:
        first = held[unknown[0]]
        return f"nothing has changed: {', '.join(unknown)} cannot be asked for its keys ({first}); try again when it answers or has left"
    rings = {node: answer.ids for node, answer in held.items() if isinstance(answer, KeysHeld)}
    if isinstance(message, KeyUse):
        lacking = [node for node, ids in rings.items() if message.id not in ids]
        if lacking:
            return f"nothing has changed: {', '.join(lacking)} would be cut off without key {message.id}; run `sbon keys install` again"
    if isinstance(message, KeyRemove):
        if not any(message.id in ids for ids in rings.values()):
            return f"no agent holds a key {message.id}; `sbon keys list` shows all keys"
        sealing = [node for node, ids in rings.items() if ids[0] == message.id]
        if sealing:
            return (
                f"nothing has changed: {', '.join(sealing)} would be cut off, sealing with key {message.id}; "
                "run `sbon keys use` with another first"
            )
    return None


def _by_key(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lists each key with the agents that hold it, and with the agents that answered and lack it."""
    asked = [node for node in nodes if not node["error"]]
    ids = sorted({key for node in asked for key in node["ids"]})
    return [
        {
            "id": key,
            "primary_on": [node["node"] for node in asked if node["primary"] == key],
            "held_by": [node["node"] for node in asked if key in node["ids"]],
            "missing_on": [node["node"] for node in asked if key not in node["ids"]],
        }
        for key in ids
    ]


def _keys(ids: tuple[str, ...]) -> str:
    return f"key {ids[0]}" if len(ids) == 1 else f"keys {', '.join(ids)}"
