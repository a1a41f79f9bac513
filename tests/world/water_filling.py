"""Max-min fair sharing worked out the slow way: from event to event, in decimal numbers of 50 digits.

Written apart from `edgesim.world.contention.fair`: no bundles, no clocks, no caps; every event looks at every transfer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal, localcontext

Link = Hashable
Transfer = tuple[float, Sequence[Link], float]  # second of its start, links, bytes
Change = tuple[float, Link, float]  # second, link, new bit/s

DIGITS = 50
DUST = Decimal("1e-30")  # what rounding in the 50th digit may leave of a transfer's bits


def fair_rates(capacity: Mapping[Link, Decimal], paths: Mapping[int, Sequence[Link]]) -> dict[int, Decimal]:
    """Return the rate of every transfer: again and again fix those on the link that has least for each."""
    rates: dict[int, Decimal] = {}
    spare = {link: capacity[link] for path in paths.values() for link in path}
    wanting = {link: [flow for flow, path in paths.items() if link in path] for link in spare}
    while wanting:
        tightest = min(wanting, key=lambda link: spare[link] / len(wanting[link]))
        rate = spare[tightest] / len(wanting[tightest])
        for flow in wanting[tightest]:
            rates[flow] = rate
            for link in paths[flow]:
                spare[link] -= rate
        wanting = {link: [f for f in flows if f not in rates] for link, flows in wanting.items()}
        wanting = {link: flows for link, flows in wanting.items() if flows}
    return rates


def finish_times(
    capacity_bps: Mapping[Link, float], transfers: Sequence[Transfer], changes: Sequence[Change] = ()
) -> list[Decimal]:
    """Return the second at which each transfer ends. Every transfer has bytes and at least one link of finite speed."""
    with localcontext(prec=DIGITS):
        capacity = {link: Decimal(bps) for link, bps in capacity_bps.items()}
        left = {flow: 8 * Decimal(nbytes) for flow, (_, _, nbytes) in enumerate(transfers)}
        starts = [Decimal(start_s) for start_s, _, _ in transfers]
        agenda = sorted([*starts, *(Decimal(second) for second, _, _ in changes)])
        ends: dict[int, Decimal] = {}
        now = agenda.pop(0)
        while len(ends) < len(transfers):
            for second, link, bps in changes:
                if Decimal(second) == now:
                    capacity[link] = Decimal(bps)
            under_way = {f: transfers[f][1] for f, start in enumerate(starts) if start <= now and f not in ends}
            rates = fair_rates(capacity, under_way)
            horizons = [now + left[flow] / rate for flow, rate in rates.items() if rate > 0]
            agenda = [second for second in agenda if second > now]
            soon = min([*horizons, *agenda[:1]])
            for flow, rate in rates.items():
                left[flow] -= rate * (soon - now)
                if left[flow] <= DUST:
                    ends[flow] = soon
            now = soon
        return [ends[flow] for flow in range(len(transfers))]


def queue_times(capacity_bps: Mapping[Link, float], transfers: Sequence[Transfer]) -> list[float]:
    """Return the second at which each transfer ends if links serve in order of arrival and whole paths are held."""
    free_s: dict[Link, float] = {}
    ends = []
    for start_s, path, nbytes in transfers:
        begin_s = max([start_s, *(free_s.get(link, 0.0) for link in path)])
        end_s = begin_s + 8 * nbytes / min(capacity_bps[link] for link in path)
        free_s.update(dict.fromkeys(path, end_s))
        ends.append(end_s)
    return ends
