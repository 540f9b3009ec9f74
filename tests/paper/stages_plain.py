"""The twin of `sbon.cost.stages`: the latency model of two stages with plain numbers and loops, one setting at a time.

Valid only if the update instances get equal shares of the rows. Waits in queues come from `gg1_wait` where its formula is the same.
"""

import math

from sbon.cost.moments import Moments
from sbon.cost.queues import gg1_wait
from sbon.cost.stages import Cluster, Job


def wait_of(gap: float, gap_scv: float, service: float, service_scv: float) -> float:
    """Returns the mean wait in a G/G/1 queue."""
    if service <= 0:
        return 0.0
    gaps = Moments(1, gap, gap**2 * (1 + gap_scv), gap**3 * (1 + gap_scv) ** 3 * 10)
    services = Moments(1, service, service**2 * (1 + service_scv), service**3 * (1 + service_scv) ** 3 * 10)
    return gg1_wait(gaps, services).mean


def slowdown_of(others: int, busy: float, cores: int) -> float:
    """Returns the mean of max(1, threads at work / cores) over all sets of other threads at work."""
    found = 0.0
    for at_work in range(others + 1):
        chance = math.comb(others, at_work) * busy**at_work * (1 - busy) ** (others - at_work)
        found += chance * max(1.0, (1 + at_work) / cores)
    return found


def phases_of(
    job: Job, cluster: Cluster, nodes: int, maps: int, updates: int, pace_s: float, exchange_s: float, poll_s: float, rate: float
) -> list[float]:
    """Returns the mean of each of the twelve phases of a row, in s."""
    senders, receivers = nodes * maps, nodes * updates
    core, wire = cluster.speed * 1e9, cluster.bandwidth_bytes_per_s
    map_rows = rate * pace_s / senders
    map_alone = (job.map.per_batch_ns + job.map.per_row_ns * map_rows) / core
    sent_rows = rate * job.rows_out * exchange_s / senders / receivers
    update_alone = (job.update.per_batch_ns + job.update.per_row_ns * sent_rows) / core
    per_update = senders / exchange_s
    slow = 1.0
    if maps + updates > cluster.cores:
        for _ in range(6):
            at_work = maps * min(1.0, map_alone * slow / pace_s) + updates * min(1.0, update_alone * slow * per_update)
            slow = slowdown_of(maps + updates - 1, at_work / (maps + updates), cluster.cores)
    map_s, service = map_alone * slow, update_alone * slow
    in_s, sent_s = map_rows * job.row_bytes / wire, sent_rows * job.sent_bytes / wire
    sent_load = updates * per_update * sent_s
    free = max(1e-3, 1 - maps / pace_s * in_s - sent_load)
    phases = [0.0] * 12
    phases[0] = pace_s / 2
    phases[1] = wait_of(pace_s / maps, 1.0, in_s, 0.0) + sent_load * (senders * poll_s / exchange_s * sent_s) / 2 / free
    phases[2] = in_s + cluster.propagation_s
    rows_share = job.map.per_row_ns * map_rows / core / map_alone
    map_scv = job.map.scatter**2 + rows_share**2 * (1 / map_rows + job.arrival_scatter**2)
    map_load = min(0.999, map_s / pace_s)
    phases[3] = wait_of(pace_s, 0.0, map_s, map_scv) + sent_load * (senders * poll_s / exchange_s * sent_s) / 2 * map_load / (1 - map_load)
    phases[4] = map_s if job.map.whole else map_s / 2
    phases[5] = exchange_s / 2
    phases[8] = poll_s / 2
    rows_share = job.update.per_row_ns * sent_rows / core / update_alone
    scv = job.update.scatter**2 + rows_share**2 / sent_rows
    load = service * per_update
    # N periodic senders at one server: the excess of a Brownian bridge.
    x = (1 - load) * math.sqrt(senders / 2)
    pushed = service * load * (1 + scv) * math.sqrt(math.pi * senders / 8) * math.exp(x * x) * math.erfc(x)
    if poll_s > 0:
        bulk = senders * poll_s / exchange_s
        fraction = poll_s / exchange_s - math.floor(poll_s / exchange_s)
        spread = senders * fraction * (1 - fraction)
        beside = max(0.0, bulk + spread / bulk - 1)
        jam = (updates - 1) * senders / exchange_s * sent_s * bulk * sent_s / 2 / free
        phases[9] = sent_s + beside * sent_s / 2 + cluster.propagation_s + jam
        carried = wait_of(poll_s, 0.0, bulk * service, spread / bulk**2 + scv / bulk)
        phases[10] = beside * max(0.0, service - sent_s) / 2 + min(pushed, carried)
    else:
        phases[9] = 2 * sent_s + cluster.propagation_s + (receivers - 1) * sent_s / 2
        phases[10] = pushed
    phases[11] = service if job.update.whole else service / 2
    return phases
