"""Whether a host offers a running operator to another query: only if those that run do not suffer from one more output."""

from sbon.placement.reservations import HostingConfig


def why_not_share(
    config: HostingConfig,
    *,
    outputs: int,
    bytes_per_s_one_more: float,
    bytes_per_s_here: float,
    load: float,
    stalled: bool,
    movable: bool = True,
) -> str:
    """What speaks against one more output of an operator; empty: nothing.

    A pinned operator is shared even on a busy host: a second one would run beside it, and cost that host more than one more output.

    Parameters
    ----------
    outputs : that it has
    bytes_per_s_one_more : what another would carry: the fastest of those it has
    bytes_per_s_here : what leaves this host
    load : of the processors, 0 to 2 (`sbon_agent.cpu_load`)
    stalled : it waits for credit of those that it serves already
    movable : it could run elsewhere
    """
    if stalled:
        return "it waits for the consumers that it has"
    if outputs >= config.share_outputs_max:
        return f"it has {outputs} outputs (hosting.share_outputs_max)"
    if not movable:
        return ""
    if load > config.share_load_max:
        return f"the load is {load:.2f}, expected at most {config.share_load_max} (hosting.share_load_max)"
    limit = config.share_bytes_per_s_max
    if limit and bytes_per_s_here + bytes_per_s_one_more > limit:
        rate = bytes_per_s_here + bytes_per_s_one_more
        return f"{rate:.3g} bytes/s would leave, expected at most {limit:.3g} (hosting.share_bytes_per_s_max)"
    return ""
