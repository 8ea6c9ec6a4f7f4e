#!/usr/bin/env python3
"""Estimates what a model does on several hosts, one rank a host: time of a decode step and of a prompt, from sizes, memory bandwidth and the network.

    scaling.py                                       the tables of docs/scaling.md
    scaling.py --model deepseek-v3 --hosts 8 16 --bits 4.5 --memory-gb-per-s 400 --latency-us 20 --network-gb-per-s 3

It computes bytes and messages by the formulas of docs/scaling.md and divides by what hosts and network are said to do. Needs Python's standard library alone.
"""
import argparse
import random
import sys

FLOAT = 4  # sums travel in FP32

# Weights a layer. `replicated`: every rank holds and reads them. `kv`: numbers of the cache a token and layer, of all heads; they are split over at most `kv_split` ranks.
MODELS = {
    "qwen3-235b-a22b": dict(layers=94, dense_layers=0, hidden=4096, vocabulary=151936, attention=2 * 4096 * 8192 + 2 * 4096 * 512, replicated=0, dense=0, shared=0,
                            expert=3 * 4096 * 1536, experts=128, chosen=8, kv=2 * 4 * 128, kv_split=4),
    "deepseek-v3": dict(layers=61, dense_layers=3, hidden=7168, vocabulary=129280, attention=1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168, replicated=7168 * (1536 + 576),
                        dense=3 * 7168 * 18432, shared=3 * 7168 * 2048, expert=3 * 7168 * 2048, experts=256, chosen=8, kv=576, kv_split=1),
}


def busiest(experts, chosen, ranks, tokens, rounds=400, seed=1):
    """Mean over draws of the number of distinct experts that the busiest rank has to read when `tokens` tokens choose evenly; ranks hold equal runs of them."""
    draw, each, total = random.Random(seed), experts // ranks, 0
    for _ in range(rounds):
        touched = set()
        for _ in range(tokens):
            touched.update(draw.sample(range(experts), chosen))
        loads = [0] * ranks
        for expert in touched:
            loads[expert // each] += 1
        total += max(loads)
    return total / rounds


def sum_us(ranks, size, host):
    """An all-reduce of `size` bytes: two hosts exchange once; more scatter slices of the sum and gather them."""
    if ranks == 1:
        return 0.0
    steps = 1 if ranks == 2 else 2
    moved = size if ranks == 2 else 2 * (ranks - 1) / ranks * size
    return steps * (host["latency_us"] + (ranks - 1) * host["message_us"]) + moved / host["network_gb_per_s"] / 1e3


def weights(model):
    sparse = model["layers"] - model["dense_layers"]
    return (model["layers"] * (model["attention"] + model["replicated"]) + model["dense_layers"] * model["dense"] + sparse * (model["shared"] + model["experts"] * model["expert"])
            + 2 * model["vocabulary"] * model["hidden"])


def active(model):
    sparse = model["layers"] - model["dense_layers"]
    return (model["layers"] * (model["attention"] + model["replicated"]) + model["dense_layers"] * model["dense"] + sparse * (model["shared"] + model["chosen"] * model["expert"])
            + model["vocabulary"] * model["hidden"])


def held_bytes(model, ranks, bits):
    replicated = model["layers"] * model["replicated"]
    return ((weights(model) - replicated) / ranks + replicated) * bits / 8


def decode(model, ranks, batch, context, bits, host):
    """Microseconds of one step: (reading, sums, the rest of the network)."""
    sparse = model["layers"] - model["dense_layers"]
    shared = model["layers"] * model["attention"] + model["dense_layers"] * model["dense"] + sparse * model["shared"] + model["vocabulary"] * model["hidden"]
    expert = sparse * busiest(model["experts"], model["chosen"], ranks, batch) * model["expert"]
    read = (shared / ranks + model["layers"] * model["replicated"] + expert) * bits / 8
    read += batch * context * model["layers"] * model["kv"] * 2 / min(ranks, model["kv_split"])
    reading = read / host["memory_gb_per_s"] / host["memory_share"] / 1e3
    sums = (2 * model["layers"] + 1) * sum_us(ranks, batch * FLOAT * model["hidden"], host)
    rest = 0.0
    if ranks > 1:
        logits = (ranks - 1) * FLOAT * model["vocabulary"] / ranks * batch
        rest = 2 * (host["latency_us"] + (ranks - 1) * host["message_us"]) + (logits + (ranks - 1) * 4096) / host["network_gb_per_s"] / 1e3
    return reading, sums, rest


def prompt(model, ranks, tokens, chunk, host):
    """Microseconds of a prompt: (arithmetic, sums). Experts are spread evenly: a chunk has tokens for all."""
    arithmetic = 2 * active(model) * tokens / ranks / host["tera_operations"] / host["arithmetic_share"] / 1e6
    chunks = (tokens + chunk - 1) // chunk
    return arithmetic, chunks * (2 * model["layers"] + 1) * sum_us(ranks, chunk * FLOAT * model["hidden"], host)


def table(name, hosts, bits, context, host):
    model = MODELS[name]
    lines = [f"| hosts | GB a host | ms a step, 1 sequence: reading + sums + rest | tokens/s | ms a step, 32 sequences | tokens/s | prompt tokens/s (limit by sums) |", "|---|---|---|---|---|---|---|"]
    for ranks in hosts:
        one, many = decode(model, ranks, 1, context, bits, host), decode(model, ranks, 32, context, bits, host)
        arithmetic, sums = prompt(model, ranks, 4096, 512, host)
        limit = f"{4096e6 / sums:.0f}" if sums else "none"
        lines.append(f"| {ranks} | {held_bytes(model, ranks, bits) / 1e9:.0f} | {one[0] / 1e3:.1f} + {one[1] / 1e3:.1f} + {one[2] / 1e3:.1f} | {1e6 / sum(one):.1f} | {many[0] / 1e3:.0f} + {many[1] / 1e3:.0f} + {many[2] / 1e3:.0f}"
                     f" | {32e6 / sum(many):.0f} | {4096e6 / (arithmetic + sums):.0f} ({limit}) |")
    return "\n".join(lines)


NETWORKS = {"25 Gbit/s Ethernet, TCP": dict(latency_us=30.0, message_us=3.0, network_gb_per_s=2.8), "200 Gbit/s, RDMA": dict(latency_us=3.0, message_us=0.5, network_gb_per_s=22.0)}
HOST = dict(memory_gb_per_s=300.0, memory_share=0.8, tera_operations=20.0, arithmetic_share=0.6)


def all_tables():
    parts = []
    for name in MODELS:
        for network, numbers in NETWORKS.items():
            parts.append(f"{name}, {network}:\n\n{table(name, (8, 16, 32, 64), 4.25, 2048, {**HOST, **numbers})}")
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS))
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--bits", type=float, default=4.25, help="a weight, scales included")
    parser.add_argument("--context", type=int, default=2048, help="tokens in the cache of each sequence")
    for key, value in {**HOST, **NETWORKS["25 Gbit/s Ethernet, TCP"]}.items():
        parser.add_argument("--" + key.replace("_", "-"), type=float, default=value)
    arguments = vars(parser.parse_args())
    if not arguments["model"]:
        print(all_tables())
        return 0
    experts = MODELS[arguments["model"]]["experts"]
    for ranks in arguments["hosts"]:
        if ranks < 1 or experts % ranks:
            print(f"{experts} experts do not divide over {ranks} hosts", file=sys.stderr)
            return 2
    print(table(arguments["model"], arguments["hosts"], arguments["bits"], arguments["context"], arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
