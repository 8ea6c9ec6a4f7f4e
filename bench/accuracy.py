#!/usr/bin/env python3
"""How much formats of few bits lose: on matrices of random numbers, on the matrices of a model, and on the model's answers.

    accuracy.py weights [--model FOLDER]     relative squared error of weights
    accuracy.py model FOLDER [options]       KL divergence, perplexity and top-1 agreement on held-out text, speed with --speed-model

KL is the mean over tokens, to the model as stored; weights alone are rounded, and all arithmetic is FP32, for every row of the table alike. The output head
and the embedding stay as stored. "KL as run" is what a run with the defaults has: int8 activations and an int8 head.

Beside the formats of this program stand those of GGUF files, remade here from their public description: Q4_0 (32 weights, FP16 scale),
Q4_1 (with an FP16 minimum), Q4_K (256 weights: 8 runs of 32 with 6-bit scales and minima), and the mix Q4_K_M, which has Q6_K in places. As in such files, a
row whose length is no multiple of 256 has Q5_0 in the place of Q4_K and Q8_0 in that of Q6_K. Needs numpy alone.

A model for it, trained in FP32: tools/train_small_dense.py.
"""
import argparse
import fnmatch
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

F32 = np.float32
ROOT = pathlib.Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------- formats of this program, by their rules


def round_half_away(x):
    return np.trunc(x + np.copysign(F32(0.5), x))


def symmetric(w, bound, group):
    """wint8, wint4: one scale a row (group 0, FP32) or a group (FP16)."""
    x = grouped(w, group or w.shape[1])
    scale = (np.abs(x).max(-1, keepdims=True) / F32(bound)).astype(F32)
    q = np.clip(round_half_away(x / np.where(scale == 0, F32(np.inf), scale)), -bound, bound)
    return ungrouped(q * (scale.astype(np.float16).astype(F32) if group else scale), w.shape)


LUT4 = np.array([-64, -52, -40, -31, -23, -16, -10, -5, 0, 6, 12, 18, 25, 32, 41, 55])


def wlut4(w):
    """The rule of docs/formats/wlut4.md."""
    most = np.abs(w).max(1)
    exponent = np.clip(np.floor(np.log2(np.where(most == 0, 1, most))), -100, 126)
    z = grouped((w.astype(np.float64) * 2.0 ** (16 - exponent)[:, None]), 16)
    largest = np.abs(z).max(-1)
    step = np.append((16 + np.arange(128) % 16) * 2.0 ** (np.arange(128) // 16), np.inf)
    floor = np.searchsorted(step, largest / 64, side="right") - 1
    base, octave = np.clip(floor, 1, 121), np.maximum(floor, 0) // 16
    t = np.rint(z * (2.0 ** -octave)[..., None]).astype(np.int32)
    long_sign = np.where(-z.min(-1) >= z.max(-1), 1, -1)
    bounds = np.floor((LUT4[1:] + LUT4[:-1]) / 2)
    best = np.full(base.shape, 1 << 30)
    out = np.zeros(z.shape, F32)
    for sign, tries in ((long_sign, range(-1, 7)), (-long_sign, range(2, 6))):
        for d in tries:
            s = step[base + d]
            twice = (2 * s / 2.0 ** octave).astype(np.int32)   # the step in its octave
            multiplier = sign * (((1 << 17) // twice + 1) // 2)
            y = (t * multiplier[..., None] + (1 << 14)) >> 15
            q = LUT4[np.searchsorted(bounds, y)]
            error = (16 * np.minimum(((y - q) ** 2).sum(-1), 2047).astype(np.int64) * 9 * twice * twice) >> 16
            better = error < best
            best = np.where(better, error, best)
            out = np.where(better[..., None], q * (sign * s)[..., None], out)
    return ungrouped(out, w.shape) * (2.0 ** (exponent - 16)).astype(F32)[:, None]


# ---------------------------------------------------------------- formats of GGUF files


def grouped(w, group):
    """[rows, columns] as [rows, groups, group], zeros at the end."""
    pad = -w.shape[1] % group
    return np.pad(w, ((0, 0), (0, pad))).reshape(w.shape[0], -1, group)


def ungrouped(x, shape):
    return x.reshape(shape[0], -1)[:, :shape[1]].astype(F32)


def half(x):
    return x.astype(np.float16).astype(F32)


def inverse(x):
    return np.where(x == 0, 0, 1 / np.where(x == 0, 1, x))


def q4_0(w):
    """16 levels of a step; the largest weight of 32, with its sign, is level 0 of -8 .. 7."""
    x = grouped(w, 32)
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)
    step = extreme / -8
    q = np.clip(np.floor(x * inverse(step) + 8.5), 0, 15) - 8
    return ungrouped(q * half(step), w.shape)


def q4_1(w):
    """16 even levels from the least to the largest weight of 32."""
    x = grouped(w, 32)
    low = x.min(-1, keepdims=True)
    step = (x.max(-1, keepdims=True) - low) / F32(15)
    q = np.clip(np.floor((x - low) * inverse(step) + F32(0.5)), 0, 15)
    return ungrouped(q * half(step) + half(low), w.shape)


def q5_0(w):
    x = grouped(w, 32)
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)
    step = extreme / -16
    q = np.clip(np.floor(x * inverse(step) + 16.5), 0, 31) - 16
    return ungrouped(q * half(step), w.shape)


def q8_0(w):
    x = grouped(w, 32)
    step = np.abs(x).max(-1, keepdims=True) / F32(127)
    return ungrouped(round_half_away(x * inverse(step)) * half(step), w.shape)


def fit_scale_and_minimum(x, weight):
    """For runs [..., n]: scale and minimum of 16 levels, the weighted best of 21 widths over the minimum so far, each refined by least squares."""
    low, high = np.minimum(x.min(-1), 0), x.max(-1)
    width = np.where(high > low, high - low, 1)
    total, total_x = weight.sum(-1), (weight * x).sum(-1)
    scale, minimum = width / 15, low
    q = np.clip(np.rint((x - low[..., None]) / scale[..., None]), 0, 15)
    best = (weight * (scale[..., None] * q + minimum[..., None] - x) ** 2).sum(-1)
    for i in range(21):
        q = np.clip(np.rint((14 + 0.1 * i) / (high - minimum + (high <= minimum))[..., None] * (x - minimum[..., None])), 0, 15)
        sum_q, sum_qq, sum_qx = (weight * q).sum(-1), (weight * q * q).sum(-1), (weight * q * x).sum(-1)
        determinant = total * sum_qq - sum_q ** 2
        s = (total * sum_qx - total_x * sum_q) * inverse(determinant)
        m = (sum_qq * total_x - sum_q * sum_qx) * inverse(determinant)
        s, m = np.where(m > 0, sum_qx * inverse(sum_qq), s), np.minimum(m, 0)
        error = (weight * (s[..., None] * q + m[..., None] - x) ** 2).sum(-1)
        better = (determinant > 0) & (error < best)
        best, scale, minimum = np.where(better, error, best), np.where(better, s, scale), np.where(better, m, minimum)
    return np.where(high > low, scale, 0), -minimum


def q4_k(w):
    x = grouped(w, 256)
    x = x.reshape(*x.shape[:2], 8, 32)
    weight = np.sqrt((x * x).mean(-1, keepdims=True)) + np.abs(x)
    scale, minimum = fit_scale_and_minimum(x, weight)
    top_scale, top_minimum = scale.max(-1, keepdims=True), minimum.max(-1, keepdims=True)
    d = half(top_scale / 63) * np.minimum(np.rint(63 * scale * inverse(top_scale)), 63)
    m = half(top_minimum / 63) * np.minimum(np.rint(63 * minimum * inverse(top_minimum)), 63)
    q = np.clip(np.rint((x + m[..., None]) * inverse(d)[..., None]), 0, 15)
    return ungrouped(np.where(d[..., None] > 0, d[..., None] * q - m[..., None], 0).reshape(w.shape[0], -1), w.shape)


def q6_k(w):
    x = grouped(w, 256)
    x = x.reshape(*x.shape[:2], 16, 16)
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)
    best, scale = np.full(x.shape[:-1], -1.0), np.zeros(x.shape[:-1])
    for i in [0] + [i for i in range(-9, 10) if i]:
        q = np.clip(np.rint(-(32 + 0.1 * i) * inverse(extreme) * x), -32, 31)
        sum_qx, sum_qq = (x * x * q * x).sum(-1), (x * x * q * q).sum(-1)
        gain = sum_qx ** 2 * inverse(sum_qq)
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, sum_qx * inverse(sum_qq), scale)
    top = np.take_along_axis(scale, np.abs(scale).argmax(-1)[..., None], -1)
    d = half(top / -128) * np.clip(np.rint(-128 * scale * inverse(top)), -128, 127)
    q = np.clip(np.rint(x * inverse(d)[..., None]), -32, 31)
    return ungrouped((d[..., None] * q).reshape(w.shape[0], -1), w.shape)


def in_chunks(f):
    return lambda w: np.concatenate([f(w[i:i + 512]) for i in range(0, len(w), 512)])


# name: (bits a weight in long rows, function)
FORMATS = {
    "wint4-g128": (4.125, lambda w: symmetric(w, 7, 128)),
    "wint4-g64": (4.25, lambda w: symmetric(w, 7, 64)),
    "wint4-g32": (4.5, lambda w: symmetric(w, 7, 32)),
    "Q4_0": (4.5, q4_0),
    "Q4_1": (5.0, q4_1),
    "Q4_K": (4.5, in_chunks(q4_k)),
    "wlut4": (4.5, in_chunks(wlut4)),
}
PEERS = ("Q4_0", "Q4_1", "Q4_K_M")

# ---------------------------------------------------------------- checkpoints


def read_safetensors(path):
    """name: (dtype, shape, bytes)"""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            out.write(data)


def as_floats(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(F32).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(F32).reshape(shape)


def read_model(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def is_linear(name, shape):
    return len(shape) == 2 and name.endswith("_proj.weight")


def peer_of(peer, name, layers, inputs):
    """Bits and function of a matrix. Q4_K_M gives the values and down projections of about half of the layers six bits."""
    if peer != "Q4_K_M":
        return FORMATS[peer]
    layer = int(name.split(".layers.")[1].split(".")[0])
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    six = more and (".v_proj." in name or ".down_proj." in name)
    if inputs % 256 != 0:
        return (8.5, q8_0) if six else (5.5, q5_0)
    return (6.5625, in_chunks(q6_k)) if six else FORMATS["Q4_K"]


def copy_companions(model, folder):
    for path in model.iterdir():
        if path.suffix in (".json", ".jinja") and not path.name.endswith(".index.json"):
            shutil.copy(path, folder)


def write_peer(model, tensors, peer, folder):
    """The model with its linear weights rounded to the peer's numbers, as FP32. Returns bits a weight."""
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    changed, total, count = {}, 0.0, 0
    for name, tensor in tensors.items():
        changed[name] = tensor
        if is_linear(name, tensor[1]):
            w = as_floats(tensor)
            bits, function = peer_of(peer, name, layers, w.shape[1])
            changed[name] = ("F32", tensor[1], function(w).astype("<f4").tobytes())
            total += w.size * bits
            count += w.size
    copy_companions(model, folder)
    write_safetensors(folder / "model.safetensors", changed)
    return total / count


# ---------------------------------------------------------------- the tables


def error_of(w, back):
    return float(((w - back).astype(np.float64) ** 2).sum() / (w.astype(np.float64) ** 2).sum())


def weights(args):
    random = np.random.default_rng(1)
    columns = {"Gaussian": random.standard_normal((256, 4096)).astype(F32), "Student t, 5": random.standard_t(5, (256, 4096)).astype(F32)}
    matrices = {}
    if args.model:
        tensors = read_model(args.model)
        matrices = {name: as_floats(t) for name, t in tensors.items() if is_linear(name, t[1])}
        if not matrices:
            sys.exit(f"accuracy.py: no *_proj.weight matrices in {args.model}")
    head = ["format", "bits", *columns] + ([pathlib.Path(args.model).name] if matrices else [])
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for name, (bits, function) in FORMATS.items():
        row = [name, f"{bits:.2f}"] + [f"{error_of(w, function(w)):.5f}" for w in columns.values()]
        if matrices:
            errors = [error_of(w, function(w)) for w in matrices.values()]
            row.append(f"{np.mean(errors):.5f}")
        print("| " + " | ".join(row) + " |", flush=True)


def row_names(tensor_name):
    """What a pattern may match: the tensor's name, or those of the fused row it is part of and of that row's other parts."""
    prefix, _, own = tensor_name.removesuffix(".weight").rpartition(".")
    for row, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("up_gate_proj", ("up_proj", "gate_proj"))):
        if own in parts:
            return [f"{prefix}.{name}" for name in (row, *parts)]
    return [f"{prefix}.{own}"]


def bits_of(spec, tensors):
    """Bits a linear weight of this program's formats, padding left out. spec: a format, then +PATTERN=FORMAT for matrices that have another."""
    base, *overrides = spec.split("+")
    overrides = [text.rsplit("=", 1) for text in overrides]
    total = count = 0
    for tensor_name, (_, shape, _) in tensors.items():
        if not is_linear(tensor_name, shape):
            continue
        rows, k = shape
        name = base
        for pattern, other in overrides:
            if any(fnmatch.fnmatchcase(row, pattern) for row in row_names(tensor_name)):
                name = other
        groups = {"wint4-g128": 128, "wint4-g64": 64, "wint4-g32": 32}
        scales = -(-k // groups[name]) * 16 if name in groups else -(-k // 16) * 8 + 8 if name == "wlut4" else 0 if name == "bf16" else 32
        total += rows * (k * {"bf16": 16, "wint8": 8}.get(name, 4) + scales)
        count += rows * k
    return total / count


def mixed(tensors, limit=4.6):
    """wlut4 with as much of the first layer in wint8 as `limit` bits on average allow, paid for where needed by wint4-g128 in the wide products of the middle layers."""
    layers = 1 + max(int(name.split(".layers.")[1].split(".")[0]) for name, (_, shape, _) in tensors.items() if is_linear(name, shape))
    middle = sorted(range(1, layers - 1), key=lambda layer: abs(2 * layer - layers + 1))   # from the middle outwards
    first = [f"*.layers.0.{row}=wint8" for row in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.down_proj")]
    for kept in range(len(first), 0, -1):
        for paid in range(len(middle) + 1):
            spec = "+".join(["wlut4", *first[:kept], *(f"*.layers.{layer}.mlp.up_gate_proj=wint4-g128" for layer in sorted(middle[:paid]))])
            if bits_of(spec, tensors) <= limit:
                return spec
    return "wlut4"


def write_off_grid(model, tensors, folder):
    """The model with each linear weight moved by up to half a level of 16 in its run of 32: for checkpoints that were quantized once."""
    random = np.random.default_rng(3)
    for name, tensor in tensors.items():
        if is_linear(name, tensor[1]):
            w = as_floats(tensor)
            x = grouped(w, 32)
            step = (x.max(-1, keepdims=True) - x.min(-1, keepdims=True)) / 15
            moved = ungrouped(x + random.uniform(-0.5, 0.5, x.shape) * step, w.shape)
            tensors[name] = ("BF16", tensor[1], ((moved.view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes())
    copy_companions(model, folder)
    write_safetensors(folder / "model.safetensors", tensors)


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"accuracy.py: {' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def evaluate(args, model, reference, *options):
    return run([args.binary, "eval", model, "--data", args.data, "--windows", args.windows, "--reference", reference, "--reference-compute", "fp32", "--json", *options])


def options_of(spec):
    base, *overrides = spec.split("+")
    return ["--quantization", base, *(word for text in overrides for word in ("--quantization-override", text))]


def speed(args, name):
    """Tokens a second alone, GB of source a second: measured on another, larger model."""
    if not args.speed_model:
        return "", ""
    quantization = [] if name == "bf16" else options_of(name)
    result = run([args.binary, "bench", args.speed_model, "--prompt-tokens", 0, "--repeat", 3, "--json", *quantization])
    return f"{result['decode']['tokens_per_s']:.0f}", f"{result['load']['source_gb_per_s']:.1f}"


def model(args):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.model)
        tensors = read_model(folder)
        if args.off_grid:
            write_off_grid(folder, tensors, pathlib.Path(scratch))
            folder = pathlib.Path(scratch)
        compare(args, folder, tensors)


def compare(args, folder, tensors):
    print("| format | bits | KL | KL p99 | perplexity | top-1 | KL as run | decode t/s | load GB/s |\n|---|---|---|---|---|---|---|---|---|")

    def show(name, bits, result, as_run="", rates=("", "")):
        print(f"| {name} | {bits:.2f} | {result['kl_mean']:.5f} | {result['kl_p99']:.3f} | {result['perplexity']:.3f} | {100 * result['top1']:.2f} % | {as_run} | "
              f"{rates[0]} | {rates[1]} |", flush=True)

    for label in args.formats.split(","):
        name = mixed(tensors) if label == "mix" else label
        if label == "mix":
            print(f"accuracy.py: mix is {' '.join(options_of(name))}", file=sys.stderr)
        alone = evaluate(args, folder, folder, *options_of(name), "--lm-head", "bf16", "--compute", "fp32")
        as_run = evaluate(args, folder, folder, *options_of(name))
        show(label, bits_of(name, tensors), alone, f"{as_run['kl_mean']:.5f}", speed(args, name))
    for peer in PEERS if args.peers else ():
        with tempfile.TemporaryDirectory() as scratch:
            bits = write_peer(folder, tensors, peer, pathlib.Path(scratch))
            show(peer, bits, evaluate(args, scratch, folder, "--compute", "fp32"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("weights")
    one.add_argument("--model", help="also the mean over the linear weights of this checkpoint")
    one.set_defaults(run=weights)
    two = commands.add_parser("model")
    two.add_argument("model")
    two.add_argument("--binary", default=str(ROOT / "build/release/inflight"))
    two.add_argument("--data", default=str(ROOT / "tests/text/heldout.txt"))
    two.add_argument("--windows", type=int, default=40)
    two.add_argument("--formats", default="bf16,wint8,mix,wlut4,wint4-g32,wint4-g64,wint4-g128,wint4",
                     help="comma-separated; mix: wlut4 with other formats in places, at most 4.6 bits on average; FORMAT+PATTERN=FORMAT.. gives some matrices another format, as --quantization-override does")
    two.add_argument("--off-grid", action="store_true", help="first move each linear weight at random by up to half a 4-bit level, the reference too")
    two.add_argument("--speed-model", help="measure decode and load here too (inflight bench); best a model of billions of weights")
    two.add_argument("--no-peers", dest="peers", action="store_false")
    two.set_defaults(run=model)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
