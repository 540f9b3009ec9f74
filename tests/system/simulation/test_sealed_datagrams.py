"""No two sealed datagrams of an overlay share a nonce: with ChaCha20-Poly1305 that would reveal their content."""

from sbon.sealing import KEY_ID_BYTES, NONCE_BYTES, OVERHEAD_BYTES
from sbon_testbed.simulator.world import SimulatedHost
from tests.worlds import settled_world


def test_every_sealed_datagram_of_every_agent_has_a_nonce_of_its_own(monkeypatch):
    sent: list[bytes] = []
    send = SimulatedHost.send_datagram

    def record(host, data, address):
        sent.append(bytes(data))
        send(host, data, address)

    monkeypatch.setattr(SimulatedHost, "send_datagram", record)
    world = settled_world(3, seed=1, sealed=True)
    world.run(5.0)
    world.close()

    nonces = [data[1 + KEY_ID_BYTES :][:NONCE_BYTES] for data in sent]
    assert len(sent) > 50
    assert min(map(len, sent)) > OVERHEAD_BYTES
    # Both halves are unique: one selects the datagram's key, the other is the cipher's nonce.
    assert len({nonce[:12] for nonce in nonces}) == len({nonce[12:] for nonce in nonces}) == len(nonces)
