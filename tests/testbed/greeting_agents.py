"""Small agents for tests of the worlds themselves: they say hello to everybody and answer control requests, and no more."""

from sbon.control import ControlReply
from sbon_testbed.simulator.world import PORT


class FakeAgent:
    """Knows who has said hello within the last seconds."""

    def __init__(self, config, host, ring, all_ips):
        self.config, self.host, self.ips = config, host, all_ips
        self.heard = {}
        self.tails = []
        self.rows_out = 0
        self.queries = []

    def start(self):
        address, _, port = self.config.bind.rpartition(":")
        self.address = self.host.listen((address, int(port)), self._heard, lambda peer: None)
        self._hello()
        return self.address

    def _hello(self):
        for ip in self.ips:
            self.host.send_datagram(self.config.name.encode(), (ip, PORT))
        self._emit()
        self.host.call_at(self.host.now() + 1.0, self._hello)

    def _heard(self, data, sender, received_at):
        self.heard[data.decode()] = received_at

    def _emit(self):
        for request, reply in self.tails:
            self.rows_out += 1
            reply(ControlReply(request.id, final=False, result={"columns": ["n", "name"], "rows": [[self.rows_out, self.config.name]]}))

    def leave(self, done):
        self.host.call_at(self.host.now() + 0.1, done)

    def stop(self):
        pass

    def control(self, request, reply):
        if request.command == "tail":
            self.tails.append((request, reply))
        elif request.command == "submit" and "nonsense" in request.arguments["sql"]:
            reply(ControlReply(request.id, final=True, error="line 1: nonsense"))
        else:
            result = getattr(self, f"_{request.command}")(request.arguments)
            self.host.call_at(self.host.now() + 0.01, lambda: reply(ControlReply(request.id, final=True, result=result)))
        return lambda: None

    def _members(self, _):
        now = self.host.now()
        return [{"name": name, "status": "alive" if now - at < 3 else "failed"} for name, at in sorted(self.heard.items())]

    def _status(self, _):
        coordinate = {"vector": [float(len(self.config.name)), 0.0, 0.0], "height_ms": 50.0, "error": 0.2, "load_ms": 0.0}
        return {"name": self.config.name, "coordinate": coordinate, "counters": {"hellos": len(self.heard)}}

    def _operators(self, _):
        if not self.queries:
            return []
        link = {"id": "q1.a>q1.b:0", "node": self.config.name, "rows_sent": 10, "rows_acknowledged": 10, "bytes_per_s": 100.0}
        common = {"node": self.config.name, "state": "running"}
        return [
            {"id": "q1.a", "kind": "map", "migrations": 1, "links": [link], **common},
            {"id": "q1.b", "kind": "sink", "received": [{"id": "q1.a>q1.b:0", "rows": 10}], **common},
        ]

    def _queries(self, _):
        return [{"id": query, "state": "running", "reason": "", "operators": []} for query in self.queries]

    def _submit(self, arguments):
        self.queries.append(f"{self.config.name}-{len(self.queries) + 1}")
        return [{"statement": "query", "name": self.queries[-1], "query": self.queries[-1], "operators": [], "message": ""}]


def maker(world_ips):
    """A `make_agent` for `sbon_testbed.simulator.harness.World`; `world_ips` is filled in by the caller once the world is made."""
    return lambda config, host, ring: FakeAgent(config, host, ring, world_ips)
