"""The map of a fleet: the links between devices and servers, or between peers."""

from __future__ import annotations

import math
from typing import Any

import networkx
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from edgesim.core.errors import ConfigError
from edgesim.reports.figures import INK, Drawing, colours, figure, legend_below, legend_in
from edgesim.reports.format import text

_MOST_NODES = 2_000  # more nodes would cover each other
_MOST_EXACT = 150  # nodes of a layout by all distances, which takes long for more
_MARKERS = "ovD^PX*<>h"
_SERVER, _SERVER_MARK = "server", "s"


def topology(nodes: pd.DataFrame, links: pd.DataFrame, width_in: float = 3.5) -> Drawing:
    """Return a map of nodes and the links between them, with a colour and a mark for each kind of node.

    `nodes`: node and kind, such as the name of a fleet block or server. `links`: a, b and bps, the rate of the slower
    direction. A faster link is a thicker line, unless all are alike. A single hub is drawn in the middle with all other
    nodes around it, sorted by kind. Other graphs are laid out by distances along their links, the same for the same
    graph. Raises ConfigError if there are no nodes, too many, or a link of an unknown node.
    """
    if nodes.empty or len(nodes) > _MOST_NODES:
        raise ConfigError(f"topology: a map shows 1 to {_MOST_NODES:,} nodes, got {len(nodes):,}")
    kind = dict(zip(nodes["node"].tolist(), nodes["kind"].astype(str).tolist(), strict=True))
    strangers = sorted({*links["a"], *links["b"]} - kind.keys())
    if strangers:
        raise ConfigError(f"topology: a link leads to node {strangers[0]}, which is none of the nodes")
    graph = networkx.Graph()
    graph.add_nodes_from(kind)
    graph.add_weighted_edges_from(links[["a", "b", "bps"]].itertuples(index=False, name=None), weight="bps")
    hubs = [node for node, degree in graph.degree if degree == len(graph) - 1]
    if len(graph) > 2 and len(hubs) == 1 and graph.number_of_edges() == len(graph) - 1:
        around = sorted((node for node in graph if node != hubs[0]), key=lambda node: (kind[node], node))
        place = _rings(around) | {hubs[0]: np.zeros(2)}
    elif networkx.is_connected(graph) and len(graph) <= _MOST_EXACT:
        place = dict(networkx.kamada_kawai_layout(graph, weight=None))
    else:
        place = dict(networkx.spring_layout(graph, seed=1, iterations=100))
    bps = np.array([speed for _, _, speed in graph.edges(data="bps")], dtype=float)
    finite = bps[np.isfinite(bps) & (bps > 0)]
    widths = [0.7] * len(bps)  # points
    if finite.size and finite.max() != finite.min():  # by orders of magnitude
        share = np.log(np.clip(bps, finite.min(), finite.max()) / finite.min()) / np.log(finite.max() / finite.min())
        widths = list(0.4 + 1.6 * share)

    names = list(dict.fromkeys(kind.values()))
    others = iter(zip(colours(len(names)), (_MARKERS * math.ceil(len(names) / len(_MARKERS))), strict=False))
    looks: list[dict[str, Any]] = []
    labels = []
    for name in names:
        colour, marker = (INK, _SERVER_MARK) if name == _SERVER else next(others)
        looks.append({"color": colour, "marker": marker})
        number = list(kind.values()).count(name)
        labels.append(name if number == 1 else f"{name} ({number})")
    speeds = links["bps"][np.isfinite(links["bps"])]
    if not speeds.empty:
        low, high = text("_bps", float(speeds.min())), text("_bps", float(speeds.max()))
        labels.append(low if low == high else f"{low} to {high}")
    with figure(width_in, width_in * 0.86 + legend_in(labels, width_in)) as drawn:
        axis = drawn.subplots()
        lines = networkx.draw_networkx_edges(graph, place, ax=axis, width=widths, edge_color="0.72")
        if graph.number_of_edges():
            lines.set_gid("links")
        handles = []
        size = max(9.0, min(70.0, 2_600 * (width_in / 3.5) ** 2 / len(kind)))
        for name, look in zip(names, looks, strict=True):
            members = [node for node, of in kind.items() if of == name]
            at = np.array([place[node] for node in members])
            large = 1.7 if name == _SERVER else 1.0
            axis.scatter(
                at[:, 0], at[:, 1], s=large * size, label=name, edgecolor="white", linewidth=0.5, zorder=2, **look
            )
            handles.append(Line2D([], [], linestyle="none", markeredgecolor="white", markersize=7, **look))
        handles += [Line2D([], [], color="0.72")] * (len(labels) - len(names))
        axis.set_aspect("equal")
        axis.axis("off")
        axis.margins(0.06)
        legend_below(drawn, handles, labels)
    return drawn


def _rings(nodes: list[Any]) -> dict[Any, Any]:
    """Return places on rings around the middle, on more rings the more nodes there are."""
    rings = max(1, math.ceil(len(nodes) / 60))
    found = {}
    for ring in range(rings):
        members = nodes[ring::rings]
        radius = 1.0 - 0.6 * ring / rings
        for i, node in enumerate(members):
            angle = 2 * math.pi * (i + 0.5 * (ring % 2)) / len(members) + math.pi / 2
            found[node] = radius * np.array([math.cos(angle), math.sin(angle)])
    return found
