#!/usr/bin/env python3
"""What `inflight convert --quantization tensor_wise_fp8 | block_wise_fp8` must write, computed with numpy from the documented rules (docs/formats/tensor_wise_fp8.md).

For each case: every tensor of the folder with its type, shape and the FNV-1a hash (64 bits) of its bytes, and config.json's quantization_config.
The conversion under PaddlePaddle's names first brings the checkpoint into PaddlePaddle's layout (as make_paddle_form.py does), then goes key by key as FastDeploy's
own converter does: every "_proj.weight" is quantized, by output where the key says ".experts.", else as a whole; a maximum of activations is stored as it is
where the key says "self_attn", else divided by the bound. One thing is different on purpose: a weight is divided by the scale that is stored, in BF16, and not by
the one before rounding.
Usage: make_fp8_folder_goldens.py TESTS_DIR      writes fp8/<case>.json
"""
import json
import os
import struct
import sys

import numpy as np

BOUND = {"ocp": np.float32(448), "gaudi": np.float32(240)}
SIZE = {"BF16": 2, "F32": 4, "I8": 1, "F8_E4M3": 1}


def read(folder):
    """{name: (type, array)}: BF16 as uint16."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            kind = {"BF16": np.uint16, "F32": np.float32}[t["dtype"]]
            out[name] = (t["dtype"], np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], kind).reshape(t["shape"]))
    return out


def to_f32(kind, a):
    return (a.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else a


def to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


# Codes 0 to 126 are the finite magnitudes in ascending order: exponents biased by 7, three bits of mantissa.
VALUES = np.array([(m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) for e in range(16) for m in range(8)][:127])


def e4m3(x, bound):
    """Nearest code, ties to the even one; magnitudes above the bound become the bound's code."""
    x = np.asarray(x, np.float32)
    magnitude = np.minimum(np.abs(x), bound).astype(np.float64)
    above = np.searchsorted(VALUES, magnitude).clip(1, 126)
    below = above - 1
    low, high = magnitude - VALUES[below], VALUES[above] - magnitude
    code = np.where((low < high) | ((low == high) & (below % 2 == 0)), below, above)
    code = np.where(magnitude == 0, 0, code)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def quantize(w, scale, bound):
    with np.errstate(divide="ignore", invalid="ignore"):
        return e4m3(np.where(scale == 0, np.float32(0), w / scale), bound)


def hugging_face(w, amax, target, blocks, channels, scales):
    bound, out, plain = BOUND[target], {}, set()
    for name, (kind, a) in w.items():
        if not name.endswith("_proj.weight"):
            out[name] = (kind, a)
            continue
        x, base = to_f32(kind, a), name[: -len(".weight")]
        if blocks:
            rows, columns = (x.shape[0] + 127) // 128, (x.shape[1] + 127) // 128
            scale = np.array([[np.abs(x[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]).max() for j in range(columns)] for i in range(rows)], np.float32) / bound
            wide = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: x.shape[0], : x.shape[1]]
            out[base + ".weight_scale_inv"] = ("F32", scale)
        elif channels and ".experts." in name:
            scale = wide = np.abs(x).max(1, keepdims=True) / bound
            out[base + ".weight_scale"] = ("F32", scale)
        else:
            scale = wide = np.array([np.abs(x).max()], np.float32) / bound
            out[base + ".weight_scale"] = ("F32", scale)
        out[name] = ("F8_E4M3", quantize(x, wide, bound))
        if scales:
            own = base.rsplit(".", 1)
            point = own[0] + "." + {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "up_gate_proj", "up_proj": "up_gate_proj"}.get(own[1], own[1])
            if ".experts." in point and point.endswith("up_gate_proj"):  # one for all experts of a layer
                point = point.split(".experts.")[0] + ".experts.up_gate_proj"
            out[base + ".input_scale"] = ("F32", np.array([np.float32(amax[point]) / bound], np.float32))
            if own[1] == "q_proj":
                for short, long in (("q_scale", "q_matmul"), ("k_scale", "cachek_matmul"), ("v_scale", "cachev_matmul")):
                    out[own[0] + "." + short] = ("F32", np.array([np.float32(amax[own[0] + "." + long]) / bound], np.float32))
    return out


def to_paddle(w, prefix):
    new = {}
    for name, (kind, a) in w.items():
        p = name.replace("model.", prefix + ".", 1)
        if name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
            continue
        if name.endswith("q_proj.weight"):
            new[p.replace("q_proj", "qkv_proj")] = (kind, np.concatenate([w[name.replace("q_proj", x)][1] for x in ("q_proj", "k_proj", "v_proj")]).T)
        elif name.endswith("gate_proj.weight"):
            new[p.replace("gate_proj", "up_gate_proj")] = (kind, np.concatenate([a, w[name.replace("gate_proj", "up_proj")][1]]).T)
        elif name.endswith(("o_proj.weight", "down_proj.weight", "mlp.gate.weight")):
            new[p] = (kind, a.T)
        else:
            new[p] = (kind, a)
    return new


def paddle(w, amax, target, channels, prefix):
    bound, out = BOUND[target], {}
    for name, (kind, a) in to_paddle(w, prefix).items():
        if "_proj.weight" not in name:
            out[name] = (kind, a)
            continue
        x = to_f32(kind, a)
        most = np.abs(x).max(0) if channels and ".experts." in name else np.array([np.abs(x).max()])
        stored = to_bf16(np.maximum(most, np.float32(1e-8)) / bound)
        out[name.replace(".weight", ".weight_scale")] = ("BF16", stored)
        out[name.replace(".weight", ".quant_weight")] = ("I8", quantize(x, to_f32("BF16", stored), bound))
    for point, value in amax.items():
        value = np.float32(value)
        out[point.replace("model.", prefix + ".", 1) + ".activation_scale"] = ("BF16", to_bf16(np.array([value if "self_attn" in point else value / bound], np.float32)))
        if point.endswith("q_matmul"):
            out[point.replace("model.", prefix + ".", 1).replace("q_matmul", "s_matmul") + ".activation_scale"] = ("BF16", to_bf16(np.array([1], np.float32)))
    return out


def fnv(raw):
    h = 0xCBF29CE484222325
    for byte in raw:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


tests = sys.argv[1]
os.makedirs(os.path.join(tests, "fp8"), exist_ok=True)
for model in ("tiny-qwen3", "tiny-ernie4_5-moe"):
    weights = read(os.path.join(tests, "tiny", model))
    with open(os.path.join(tests, "tiny", model, "fp8_amax.json")) as f:
        measured = json.load(f)
    moe, ernie = "moe" in model, "ernie" if "ernie" in model else "model"
    cases = {f"{naming}-{target}": (naming, target, moe and naming == "ernie") for naming in ("hf", "ernie") for target in BOUND}
    if moe:
        cases |= {"hf-ocp-channel": ("hf", "ocp", True), "ernie-gaudi-tensor": ("ernie", "gaudi", False)}
    cases |= {"block-ocp": ("block", "ocp", False), "hf-gaudi-weights": ("weights", "gaudi", False)}
    for case, (naming, target, channels) in cases.items():
        if naming == "ernie":
            tensors = paddle(weights, measured, target, channels, ernie)
        else:
            tensors = hugging_face(weights, measured, target, naming == "block", channels, naming == "hf")
        rows = {name: [kind, list(a.shape), fnv(np.ascontiguousarray(a).tobytes())] for name, (kind, a) in sorted(tensors.items())}
        total = sum(a.size * SIZE[kind] for kind, a in tensors.values())
        with open(os.path.join(tests, "fp8", f"{model}-{case}.json"), "w") as f:
            f.write('{"total_size": %d, "tensors": {\n' % total + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "\n}}\n")
        print(model, case, len(rows), total)
