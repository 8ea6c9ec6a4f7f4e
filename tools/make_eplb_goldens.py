#!/usr/bin/env python3
"""Writes tests/eplb/golden.json: placements of experts by the published algorithm of expert-parallel load balancing (EPLB), in numpy.

Written from the description of the algorithm, on whole arrays of layers and nodes at a time, so that it shares nothing with src/params/expert_placement.cc, which works
through one layer after another. Usage: make_eplb_goldens.py tests/eplb/golden.json

The algorithm. Packing: items by falling weight, each into the lightest pack that still has room; all packs take equally many; with one item a pack, item i goes to pack i.
Replicas: each expert has one; then, as long as there are places, another for the expert with the most load per replica. Hierarchical: groups of experts are packed onto
nodes, each node replicates its own experts, and its replicas are packed onto its ranks. Intra-node: all experts are replicated together, places in that order are cut into
nodes, and each node's are packed onto its ranks. Global: replicas alone. Where two are equal, the first one is taken.

A case has `loads` [layers][experts], `ranks nodes redundant groups strategy`; what follows from them is `physical_to_logical` [layers][physical], `counts` [layers][experts],
`logical_to_physical` [layers][experts][largest count], ascending, -1 where there are fewer, and `rank_loads` [layers][ranks].
"""
import json
import pathlib
import sys

import numpy as np


def pack(weights, packs):
    """weights [n, items] -> for each slot of each pack, in order, the item that lies there: [n, items]."""
    n, items = weights.shape
    room = items // packs
    if room == 1:
        return np.tile(np.arange(items), (n, 1))
    slots = np.full((n, packs, room), -1)
    heaviest_first = np.argsort(-weights, axis=1, kind="stable")
    total, used = np.zeros((n, packs)), np.zeros((n, packs), dtype=int)
    every = np.arange(n)
    for turn in range(items):
        item = heaviest_first[:, turn]
        target = np.where(used < room, total, np.inf).argmin(axis=1)
        slots[every, target, used[every, target]] = item
        total[every, target] += weights[every, item]
        used[every, target] += 1
    return slots.reshape(n, items)


def replicate(weights, places):
    """weights [n, experts] -> the expert of each place [n, places], replicas of each expert [n, experts]."""
    n, experts = weights.shape
    owner = np.zeros((n, places), dtype=int)
    owner[:, :experts] = np.arange(experts)
    counts = np.ones((n, experts), dtype=int)
    for place in range(experts, places):
        owner[:, place] = np.argmax(weights / counts, axis=1)
        counts[np.arange(n), owner[:, place]] += 1
    return owner, counts


def pick(table, index):
    return np.take_along_axis(table, index, axis=1)


def hierarchical(weights, places, groups, nodes, ranks):
    layers, experts = weights.shape
    members = np.arange(experts).reshape(groups, -1)
    by_node = members[pack(weights.reshape(layers, groups, -1).sum(axis=2), nodes)].reshape(layers, experts)
    node_experts = by_node.reshape(layers * nodes, -1)
    node_weights = pick(weights, by_node).reshape(layers * nodes, -1)
    owner, counts = replicate(node_weights, places // nodes)
    slots = pack(pick(node_weights / counts, owner), ranks // nodes)
    return pick(node_experts, pick(owner, slots)).reshape(layers, places)


def intra_node(weights, places, nodes, ranks):
    layers = len(weights)
    owner, counts = replicate(weights, places)
    loads = pick(weights / counts, owner).reshape(layers * nodes, -1)
    return pick(owner.reshape(layers * nodes, -1), pack(loads, ranks // nodes)).reshape(layers, places)


def solve(case):
    weights = np.array(case["loads"], dtype=np.float64)
    weights[weights.sum(axis=1) == 0] = 1  # a layer that saw nothing: all experts alike
    layers, experts = weights.shape
    places, groups, nodes, ranks = experts + case["redundant"], case["groups"] or experts, case["nodes"], case["ranks"]
    strategy = case["strategy"]
    if strategy == "auto":
        strategy = "hierarchical" if groups % nodes == 0 else "global"
    if strategy == "hierarchical":
        logical = hierarchical(weights, places, groups, nodes, ranks)
    elif strategy == "balance_intra_node":
        logical = intra_node(weights, places, nodes, ranks)
    else:
        logical = replicate(weights, places)[0]
    counts = (logical[:, :, None] == np.arange(experts)).sum(axis=1)
    physical = np.full((layers, experts, counts.max()), -1)
    for layer, expert in np.ndindex(layers, experts):
        where = np.flatnonzero(logical[layer] == expert)
        physical[layer, expert, :len(where)] = where
    shares = pick(np.array(case["loads"]) / counts, logical)
    return {"physical_to_logical": logical.tolist(), "counts": counts.tolist(), "logical_to_physical": physical.tolist(), "rank_loads": shares.reshape(layers, ranks, -1).sum(axis=2).tolist()}


def cases():
    rng = np.random.default_rng(20260731)
    skewed = lambda layers, experts: np.floor(1e4 * rng.pareto(1.1, (layers, experts))).astype(int).tolist()
    even = lambda layers, experts: rng.integers(0, 4, (layers, experts)).tolist()  # many ties
    for loads, ranks, nodes, redundant, groups, strategy in [
        (skewed(3, 16), 4, 1, 4, 0, "auto"),
        (skewed(3, 16), 4, 1, 0, 0, "auto"),
        (skewed(2, 16), 16, 1, 0, 0, "auto"),
        (skewed(2, 64), 16, 2, 16, 8, "hierarchical"),
        (skewed(2, 12), 4, 2, 4, 4, "hierarchical"),
        (even(4, 12), 4, 2, 4, 6, "hierarchical"),
        (even(4, 16), 8, 1, 8, 0, "auto"),
        (skewed(2, 12), 4, 2, 4, 3, "auto"),
        (skewed(2, 12), 4, 1, 8, 0, "global"),
        (skewed(2, 16), 8, 4, 16, 0, "balance_intra_node"),
        (even(3, 24), 8, 4, 8, 0, "balance_intra_node"),
        (skewed(2, 8), 2, 1, 8, 0, "auto"),
        ([[0] * 8, [5] + [0] * 7], 4, 1, 4, 0, "auto"),
        ([[1] * 64], 64, 8, 64, 1, "auto"),
        (skewed(2, 128), 8, 1, 32, 0, "auto"),
    ]:
        case = {"loads": loads, "ranks": ranks, "nodes": nodes, "redundant": redundant, "groups": groups, "strategy": strategy}
        yield case | solve(case)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.parent.mkdir(exist_ok=True)
    target.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases()) + "\n]\n")
