#!/usr/bin/env python3
"""Reference for full static FP8 inference: weights, activations, KV cache, Q.K^T and S.V on E4M3.

For a checkpoint folder (Llama, Qwen2/3, ERNIE-4.5 dense or MoE layouts) and a target (ocp: B = 448, gaudi: B = 240):
  calibrate   running max of |x| (FP32) over the calibration ids at each point, keys as below
  weights     s_w = absmax / B per tensor (gate and up apart, per expert); w8 = E4M3(w / s_w), round to nearest even, clamped to +-B
  linear      s_x = amax / B;  y = (E4M3(clamp(x / s_x)) . w8) * s_x * s_w, FP32
  attention   q8, k8, v8 with s = amax / B of Q and K after rotary (and q/k norm) and of V; scores = q8.k8 * s_q * s_k * d^-0.5;
              e = exp(scores - row max); e8 = E4M3(e * B);  out = (e8.v8) / B * s_v / sum(e), the sum over unquantized e
  MoE         one s_x per layer for up_gate, one per expert for down; router, norms, embedding and head unquantized
Points: <layer>.self_attn.{qkv_proj,q_matmul,cachek_matmul,cachev_matmul,o_proj}, <layer>.mlp.{up_gate_proj,down_proj},
        <layer>.mlp.shared_experts.{up_gate_proj,down_proj}, <layer>.mlp.experts.up_gate_proj, <layer>.mlp.experts.<e>.down_proj
An expert that calibration never reached takes the largest amax of its layer's experts.

Usage: make_fp8_goldens.py TESTS_TINY       writes <model>/golden_fp8.safetensors (logits_fp8full-<target>.<i>, FP32 [T, V], for the
       prompts of golden.safetensors, calibrated on all three) and <model>/fp8_amax.json (the recorded points)
       make_fp8_goldens.py --eval MODEL_DIR   held-out loss in FP32 and in both targets (calibrated on tests/text/train_200k.txt)
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "text")

BOUND = {"ocp": 448.0, "gaudi": 240.0}
state = {"mode": "off", "amax": {}, "bound": 448.0}


def e4m3(x, bound):
    return x.clamp(-bound, bound).to(torch.float8_e4m3fn).float()


def point(key, x):
    """Record x under key, or return (x8, s) for it."""
    if state["mode"] == "calibrate":
        state["amax"][key] = max(state["amax"].get(key, 0.0), x.abs().max().item() if x.numel() else 0.0)
        return None
    s = torch.tensor(max(state["amax"][key], 1e-12) / state["bound"], dtype=torch.float32)
    return e4m3(x / s, state["bound"]), s


def weight(w):
    s = w.abs().max() / state["bound"]
    s = torch.where(s == 0, torch.ones_like(s), s)
    return e4m3(w / s, state["bound"]), s


def linear(key, x, w, bias=None):
    if state["mode"] != "fp8":
        if state["mode"] == "calibrate":
            point(key, x)
        y = x @ w.T
    else:
        x8, s = point(key, x)
        w8, t = weight(w)
        y = (x8 @ w8.T) * (s * t)
    return y if bias is None else y + bias


def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    name = module.fp8_name
    groups = query.shape[1] // key.shape[1]
    if state["mode"] == "calibrate":
        point(name + ".q_matmul", query), point(name + ".cachek_matmul", key), point(name + ".cachev_matmul", value)
    mul = scaling
    if state["mode"] == "fp8":
        query, sq = point(name + ".q_matmul", query)
        key, sk = point(name + ".cachek_matmul", key)
        value, sv = point(name + ".cachev_matmul", value)
        mul = scaling * sq * sk
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * mul
    t = scores.shape[-1]
    scores = scores.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), float("-inf"))
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    if state["mode"] == "fp8":
        out = (e4m3(e * state["bound"], state["bound"]) @ value) / state["bound"] * sv / e.sum(-1, keepdim=True)
    else:
        out = (e @ value) / e.sum(-1, keepdim=True)
    return out.transpose(1, 2).contiguous(), None


def wrap(model):
    ALL_ATTENTION_FUNCTIONS.register("fp8_reference", attention)
    model.config._attn_implementation = "fp8_reference"
    for name, m in model.named_modules():
        kind = name.rsplit(".", 1)[-1]
        if kind == "self_attn":
            m.fp8_name = name
        if isinstance(m, torch.nn.Linear) and kind in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            parent = name.rsplit(".", 1)[0]
            key = parent + "." + {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "up_gate_proj",
                                  "up_proj": "up_gate_proj"}.get(kind, kind)
            m.forward = lambda x, m=m, key=key: linear(key, x, m.weight, m.bias)
        if kind == "experts":
            def experts(x, index, weights, m=m, name=name):
                out = torch.zeros_like(x)
                for e in range(m.gate_up_proj.shape[0]):
                    rows, slot = torch.where(index == e)
                    if state["mode"] != "calibrate" and not len(rows):
                        continue
                    gate, up = m.gate_up_proj[e].chunk(2, dim=0)
                    h = x[rows]
                    a = torch.nn.functional.silu(linear(name + ".up_gate_proj", h, gate)) * linear(name + ".up_gate_proj", h, up)
                    out.index_add_(0, rows, linear(f"{name}.{e}.down_proj", a, m.down_proj[e]) * weights[rows, slot, None])
                return out
            m.forward = experts


def fill_unseen():
    for key in [k for k, v in state["amax"].items() if v == 0 and ".experts." in k]:
        layer = key.split(".experts.")[0] + ".experts."
        state["amax"][key] = max(v for k, v in state["amax"].items() if k.startswith(layer) and k.endswith("down_proj"))


@torch.no_grad()
def calibrate(model, batches):
    state.update(mode="calibrate", amax={})
    for ids in batches:
        model(input_ids=torch.tensor([ids]), use_cache=False)
    fill_unseen()


@torch.no_grad()
def main():
    torch.set_num_threads(2)
    if sys.argv[1] == "--eval":
        path = sys.argv[2]
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        tok = AutoTokenizer.from_pretrained(path)
        wrap(model)
        with open(os.path.join(TEXT, "train_200k.txt"), encoding="utf-8") as f:
            train = tok(f.read(60000), add_special_tokens=False)["input_ids"]
        with open(os.path.join(TEXT, "heldout.txt"), encoding="utf-8") as f:
            held = tok(f.read(), add_special_tokens=False)["input_ids"][:16 * 256]
        calibrate(model, [train[k:k + 256] for k in range(0, 24 * 256, 256)])

        def loss():
            total = 0
            for k in range(0, len(held), 256):
                x = torch.tensor([held[k:k + 256]])
                total += torch.nn.functional.cross_entropy(model(input_ids=x, use_cache=False).logits[0, :-1].float(), x[0, 1:]).item()
            return total / (len(held) // 256)
        state["mode"] = "off"
        print("fp32", round(loss(), 4), flush=True)
        for target, bound in BOUND.items():
            state.update(mode="fp8", bound=bound)
            print(target, round(loss(), 4), flush=True)
        return
    for name in ("tiny-qwen2", "tiny-qwen3", "tiny-ernie4_5-moe"):
        path = os.path.join(sys.argv[1], name)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        g = load_file(os.path.join(path, "golden.safetensors"))
        prompts = [g[f"prompt.{i}"].tolist() for i in range(3)]
        wrap(model)
        state["mode"] = "off"
        for i, ids in enumerate(prompts):
            off = (model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float() - g[f"logits.{i}"]).abs().max().item()
            assert off < 1e-3, (name, i, off)                            # the wrapped model computes what the plain one does
        calibrate(model, prompts)
        with open(os.path.join(path, "fp8_amax.json"), "w") as f:
            json.dump(state["amax"], f, indent=1)
        out = {}
        for target, bound in BOUND.items():
            state.update(mode="fp8", bound=bound)
            for i, ids in enumerate(prompts):
                out[f"logits_fp8full-{target}.{i}"] = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().contiguous()
        save_file(out, os.path.join(path, "golden_fp8.safetensors"))
        b = g["logits.2"].log_softmax(-1)
        print(name, len(state["amax"]), "points", {t: round((b.exp() * (b - out[f"logits_fp8full-{t}.2"].log_softmax(-1))).sum(-1).mean().item(), 4) for t in BOUND})


if __name__ == "__main__":
    main()
