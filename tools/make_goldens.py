#!/usr/bin/env python3
"""Tiny checkpoints of every supported family with reference outputs from Hugging Face transformers.

Each DIR/<name>/ is a complete Hugging Face checkpoint (config.json, *.safetensors, tokenizer files,
generation_config.json) with random BF16 weights, and DIR/<name>/golden.safetensors holds what the
reference implementation computes on it in FP32:

  prompt.<i>               int64  [T]        token ids
  logits.<i>               fp32   [T, V]     logits at every position (weights BF16, maths FP32)
  hidden.<i>               fp32   [L+1,T,H]  residual stream: after the embedding, then after each layer
                                             (the last one is after the final norm, as transformers reports it)
  greedy.<i>               int64  [32]       greedy continuation, end-of-sequence ignored
  greedy_margin.<i>        fp32   [32]       top-1 minus top-2 logit at each of those steps
  logits_<format>.<i>      fp32   [T, V]     the same model with its linear weights fake-quantized (see quantize()); of LATER formats the first
                                             two prompts alone
  greedy_cached.<i>        int64  [32]       dynamic rotary scaling only: the continuation with a KV cache whose keys keep the rotation of the
  greedy_cached_margin.<i> fp32   [32]       step that made them; greedy.<i> rotates the whole sequence anew at every step

The first families have three prompts and every format; those that show one thing alone (rotary scaling, sliding windows, odd sizes) have
shorter prompts and at most two formats: see PROMPTS and FORMATS. Existing folders are made anew only when named. With --add, the checkpoints
and goldens in DIR stay as they are, and only the logits of LATER formats are computed (anew) from the files and added.

Needs: torch, transformers>=5.24, safetensors, numpy.   Usage: make_goldens.py [--add] DIR NAME...     (all: every name)
"""
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file

torch.manual_seed(0)
torch.set_num_threads(2)

VOCAB = 512
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests")
LATER = ("wint4-g64", "wint4-g128", "wlut4")
ALL_FORMATS = ("wint8", "wint4", "wint4-g32", "fp8-ocp", "fp8-gaudi", "fp8-block")
FORMATS = {"tiny-deepseek-v2-lite": ("wint8", "wint4", "wint4-g32"), "tiny-deepseek-v2": ("wint8", "wint4", "wint4-g32"), "tiny-qwen2-moe": ("wint8", "wint4", "wint4-g32"), "tiny-glm4-moe": ("wint8", "wint4", "wint4-g32"), "tiny-llama-linear": (), "tiny-llama-dynamic": (), "tiny-llama-yarn": (), "tiny-qwen2-sliding": (), "tiny-llama-odd": ("wint8", "wint4-g32")}
PROMPTS = {"tiny-llama-odd": (5, 50)}           # tokens; the others in FORMATS have 5, 40 and 90
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


def configs():
    from transformers import (DeepseekV2Config, DeepseekV3Config, Ernie4_5_MoeConfig, Ernie4_5Config, Glm4MoeConfig, LlamaConfig, Qwen2Config,
                              Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig)
    ids = dict(vocab_size=VOCAB, bos_token_id=None, eos_token_id=2, pad_token_id=0, max_position_embeddings=2048)
    small = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    return {
        # grouped-query attention, biases on q/k/v, untied head
        "tiny-qwen2": Qwen2Config(hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
                                  num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=ROPE, **ids),
        # head_dim differs from hidden/heads, q/k norms, tied head
        "tiny-qwen3": Qwen3Config(hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
                                  num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
                                  rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, **ids),
        # first layer dense, the others 8 experts, 2 active
        "tiny-qwen3-moe": Qwen3MoeConfig(hidden_size=64, intermediate_size=192, moe_intermediate_size=64,
                                         num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                                         num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[0],
                                         tie_word_embeddings=False, rope_parameters=ROPE, **ids),
        # MLA with query LoRA, grouped top-k routing with a correction bias, shared expert, YaRN
        "tiny-deepseek-v3": DeepseekV3Config(hidden_size=64, intermediate_size=160, moe_intermediate_size=64,
                                             num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
                                             q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=8,
                                             v_head_dim=24, n_routed_experts=8, n_shared_experts=1, n_group=4,
                                             topk_group=2, num_experts_per_tok=3, routed_scaling_factor=2.5,
                                             norm_topk_prob=True, first_k_dense_replace=1, tie_word_embeddings=False,
                                             rope_parameters={"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0,
                                                              "original_max_position_embeddings": 512, "beta_fast": 32,
                                                              "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, **ids),
        # interleaved rotary pairs
        "tiny-ernie4_5": Ernie4_5Config(hidden_size=64, intermediate_size=160, num_hidden_layers=3,
                                        num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_bias=False,
                                        tie_word_embeddings=True, rope_parameters=ROPE, **ids),
        # dense first layer, softmax routing chosen with a correction bias, shared experts
        "tiny-ernie4_5-moe": Ernie4_5_MoeConfig(hidden_size=64, intermediate_size=160, num_hidden_layers=4,
                                                num_attention_heads=4, num_key_value_heads=2, moe_intermediate_size=64,
                                                moe_num_experts=8, moe_k=3, moe_num_shared_experts=2,
                                                moe_layer_start_index=1, tie_word_embeddings=True, rope_parameters=ROPE,
                                                **ids),
        # llama3 rotary scaling
        "tiny-llama": LlamaConfig(hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
                                  num_key_value_heads=2, tie_word_embeddings=False,
                                  rope_parameters={"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
                                                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                   "original_max_position_embeddings": 256}, **ids),
        # linear rotary scaling, in the older form of the config: {"type": "linear", "factor": 2.5}
        "tiny-llama-linear": LlamaConfig(rope_parameters={"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.5}, **small, **ids),
        # dynamic NTK: the base grows once a sequence is longer than max_position_embeddings
        "tiny-llama-dynamic": LlamaConfig(rope_parameters={"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 4.0}, **small,
                                          **(ids | {"max_position_embeddings": 64})),
        # YaRN; pairs 0 to 7 of 16 lie on the ramp, the rest are interpolated; cos and sin are scaled by 1.1386
        "tiny-llama-yarn": LlamaConfig(head_dim=32, rope_parameters={"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0,
                                                                     "original_max_position_embeddings": 256}, **small,
                                       **(ids | {"max_position_embeddings": 1024})),
        # layer 0 sees everything, layers 1 and 2 the last 16 tokens, their own included
        "tiny-qwen2-sliding": Qwen2Config(use_sliding_window=True, sliding_window=16, max_window_layers=1, rope_parameters=ROPE,
                                          **(small | {"num_hidden_layers": 3}), **ids),
        # sizes that are no multiple of 16 or 32, heads * head_dim != hidden, biases on every linear, tied head
        "tiny-llama-odd": LlamaConfig(hidden_size=72, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                      head_dim=24, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=ROPE, **ids),
        # a shared expert behind a gate, weights of the chosen experts not renormalized, every second layer sparse
        "tiny-qwen2-moe": Qwen2MoeConfig(moe_intermediate_size=48, shared_expert_intermediate_size=96, num_experts=8, num_experts_per_tok=3, decoder_sparse_step=2,
                                         norm_topk_prob=False, rope_parameters=ROPE, **(small | {"num_hidden_layers": 4}), **ids),
        # half of each head rotated, q and k norms, biases, sigmoid routing with a correction bias and a factor
        "tiny-glm4-moe": Glm4MoeConfig(moe_intermediate_size=48, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, head_dim=32,
                                       n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True, use_qk_norm=True, attention_bias=True,
                                       rope_parameters=ROPE | {"partial_rotary_factor": 0.5}, **(small | {"num_hidden_layers": 3}), **ids),
        # latent attention without q's low-rank form, softmax routing without groups or renormalization, YaRN whose two factors differ
        "tiny-deepseek-v2-lite": DeepseekV2Config(moe_intermediate_size=48, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
                                                  n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, topk_method="greedy", norm_topk_prob=False, first_k_dense_replace=1,
                                                  rope_parameters={"rope_theta": 10000.0, "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 32,
                                                                   "beta_slow": 1, "mscale": 1.2, "mscale_all_dim": 0.707},
                                                  **(small | {"num_hidden_layers": 3, "num_key_value_heads": 4, "tie_word_embeddings": False}), **ids),
        # experts in groups scored by their best, a factor on the chosen ones' weights; no rotary scaling; 5 heads
        "tiny-deepseek-v2": DeepseekV2Config(moe_intermediate_size=48, q_lora_rank=48, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=12, v_head_dim=20,
                                             n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                                             routed_scaling_factor=4.0, norm_topk_prob=False, first_k_dense_replace=1, rope_parameters=ROPE,
                                             **(small | {"hidden_size": 80, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "tie_word_embeddings": False}), **ids),
    }


def randomize(model, seed):
    """Weights whose signals stay of order one through the network, with a few outlier channels as real models have."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        with torch.no_grad():
            if "e_score_correction_bias" in name:
                p.copy_(torch.randn(p.shape, generator=g) * 0.05)
            elif name.endswith("bias"):
                p.copy_(torch.randn(p.shape, generator=g) * 0.2)
            elif "norm" in name and p.ndim == 1:
                v = 1 + 0.2 * torch.randn(p.shape, generator=g)
                if "input_layernorm" in name or "post_attention" in name:
                    v[torch.randint(0, v.numel(), (2,), generator=g)] *= 6
                p.copy_(v)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(torch.randn(p.shape, generator=g) * (1.0 if "embed" in name else 0.25))
            else:
                p.copy_(torch.randn(p.shape, generator=g) * (1.3 / p.shape[-1] ** 0.5))
            p.copy_(p.bfloat16().float())
    for name, b in model.named_buffers():
        if "e_score_correction_bias" in name:
            with torch.no_grad():
                b.copy_(torch.randn(b.shape, generator=g) * 0.05)


def wlut4(w):
    """The rule of docs/formats/wlut4.md on [..., inputs] in FP64, where every step of it is exact; returns the values that the codes mean."""
    values = np.array([-64, -52, -40, -31, -23, -16, -10, -5, 0, 6, 12, 18, 25, 32, 41, 55], np.int64)
    middles = (values[:-1] + values[1:]) // 2
    steps = np.array([(16 + (s & 15)) << (s >> 4) for s in range(128)], np.int64)
    inputs = w.shape[-1]
    rows = np.pad(w.reshape(-1, inputs), ((0, 0), (0, -inputs % 16)))
    absmax = np.abs(rows).max(-1)
    exponent = np.clip(np.frexp(absmax)[1] - 1, -100, 126)[:, None]
    groups = rows.reshape(len(rows), -1, 16)
    most = np.abs(groups).max(-1)
    floor = np.searchsorted(steps, most / 64 / np.exp2(exponent - 16.0), side="right") - 1
    base, octave = np.clip(floor, 1, 121), np.maximum(floor, 0) >> 4
    long_sign = np.where(-groups.min(-1) >= groups.max(-1), 1, -1)
    t = np.rint(groups * np.exp2(16.0 - exponent - octave)[..., None]).astype(np.int64)
    best = np.full(most.shape, np.iinfo(np.int64).max)
    result = np.zeros(groups.shape)
    for sign, tries in ((long_sign, range(-1, 7)), (-long_sign, range(2, 6))):
        for d in tries:
            byte = base + d
            i = byte - 16 * octave
            twice = np.where(i < 0, 32 + i, np.where(i < 16, 32 + 2 * i, 4 * i))
            m = sign * ((2 ** 17 // twice + 1) >> 1)
            y = (t * m[..., None] + 2 ** 14) >> 15
            value = values[(y[..., None] > middles).sum(-1)]
            error = (16 * np.minimum(((y - value) ** 2).sum(-1), 2047) * 9 * twice ** 2) >> 16
            meant = value * (sign * steps[byte])[..., None] * np.exp2(exponent - 16.0)[..., None]
            result = np.where((error < best)[..., None], meant, result)
            best = np.minimum(best, error)
    result[most == 0] = 0
    return result.reshape(len(rows), -1)[:, :inputs].reshape(w.shape)


def quantize(w, fmt):
    """Round a weight [..., out, in] as the named format does and return it in FP32.

    wint8       per output channel: scale = absmax/127, q = round-half-away(w/scale) clipped to [-127,127]
    wint4       per output channel: scale = absmax/7,   q = round-half-away(w/scale) clipped to [-7,7]
    wint4-gN    the same over groups of N consecutive inputs, the last one ragged; q from the FP32 scale, the value from the scale in FP16
    wlut4       see wlut4()
    fp8-ocp     per tensor: scale = absmax/448, q = E4M3 round-to-nearest-even
    fp8-gaudi   per tensor: scale = absmax/240, q = E4M3 round-to-nearest-even (never above 240)
    fp8-block   blocks of 128x128 of [out, in], the last ones ragged: scale = absmax/448
    Scales are FP32 but for the groups' stored FP16.
    """
    def away(x):
        return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))
    if fmt == "wlut4":
        return torch.from_numpy(wlut4(w.double().numpy())).float()
    if fmt.startswith("wint"):
        bound = 127 if fmt.startswith("wint8") else 7
        shape = w.shape
        group = int(fmt.partition("-g")[2] or 0)
        if group and shape[-1] > group:
            whole = shape[-1] // group * group
            if whole != shape[-1]:
                return torch.cat([quantize(w[..., :whole], fmt), quantize(w[..., whole:], fmt)], dim=-1)
            w = w.reshape(*shape[:-1], shape[-1] // group, group)
        scale = w.abs().amax(-1, keepdim=True) / bound
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        stored = scale.half().float() if group else scale
        return (away(w / scale).clamp(-bound, bound) * stored).reshape(shape)
    if fmt == "fp8-block":
        out = torch.empty_like(w)
        for i in range(0, w.shape[-2], 128):
            for j in range(0, w.shape[-1], 128):
                b = w[..., i:i + 128, j:j + 128]
                s = b.abs().amax((-2, -1), keepdim=True) / 448
                s = torch.where(s == 0, torch.ones_like(s), s)
                out[..., i:i + 128, j:j + 128] = (b / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s
        return out
    bound = 448.0 if fmt == "fp8-ocp" else 240.0
    dims = tuple(range(w.ndim - 2, w.ndim))                       # one scale for each expert of a stacked tensor
    scale = w.abs().amax(dims, keepdim=True) / bound
    return (w / scale).clamp(-bound, bound).to(torch.float8_e4m3fn).float() * scale


def is_linear(name, p):
    return p.ndim >= 2 and not any(s in name for s in ("embed_tokens", "lm_head", "norm", "gate.weight", "moe_statics"))


def fake_quantize(model, fmt):
    """Quantize every linear weight but the router and the output head; fused expert tensors split gate from up first."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not is_linear(name, p):
                continue
            if name.endswith("gate_up_proj"):
                gate, up = p.chunk(2, dim=-2)
                p.copy_(torch.cat([quantize(gate, fmt), quantize(up, fmt)], dim=-2))
            else:
                p.copy_(quantize(p, fmt))


def forget_rotary_growth(model):
    """Dynamic scaling keeps the largest base it has needed; every pass over a whole sequence starts from the configured one."""
    rope = model.model.rotary_emb
    if rope.config.rope_parameters["rope_type"] == "dynamic":
        rope.inv_freq = rope.original_inv_freq
        rope.max_seq_len_cached = rope.original_max_seq_len


def logits_of(model, ids, **options):
    forget_rotary_growth(model)
    return model(input_ids=torch.tensor([ids]), use_cache=False, **options)


def top_and_margin(row):
    top = row.topk(2)
    return top.indices[0].item(), (top.values[0] - top.values[1]).item()


@torch.no_grad()
def cached_greedy(model, ids):
    forget_rotary_growth(model)
    out, margins, cache, feed = [], [], None, ids
    for _ in range(32):
        r = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache = r.past_key_values
        token, margin = top_and_margin(r.logits[0, -1].float())
        out.append(token)
        margins.append(margin)
        feed = [token]
    return torch.tensor(out), torch.tensor(margins)


@torch.no_grad()
def reference(model, prompts, out_key="logits", full=True):
    golden = {}
    for i, ids in enumerate(prompts):
        r = logits_of(model, ids, output_hidden_states=full)
        golden[f"{out_key}.{i}"] = r.logits[0].float().contiguous()
        if not full:
            continue
        golden[f"prompt.{i}"] = torch.tensor(ids)
        golden[f"hidden.{i}"] = torch.stack([h[0].float() for h in r.hidden_states])
        seq, margins = list(ids), []
        for _ in range(32):
            token, margin = top_and_margin(logits_of(model, seq).logits[0, -1].float())
            seq.append(token)
            margins.append(margin)
        golden[f"greedy.{i}"] = torch.tensor(seq[len(ids):])
        golden[f"greedy_margin.{i}"] = torch.tensor(margins)
    return golden


def hub_style_config(path):
    """Rewrite config.json in the form that published checkpoints have: rope_theta, rope_scaling and torch_dtype."""
    with open(os.path.join(path, "config.json")) as f:
        cfg = json.load(f)
    rope = cfg.pop("rope_parameters")
    cfg["rope_theta"] = rope.pop("rope_theta")
    cfg["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if "partial_rotary_factor" in rope:
        cfg["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    cfg["torch_dtype"] = cfg.pop("dtype", "bfloat16")
    if cfg["model_type"] == "qwen3_moe" and "num_local_experts" in cfg:
        cfg["num_experts"] = cfg.pop("num_local_experts")
    if rope["rope_type"] in ("linear", "yarn") and cfg["model_type"] == "llama":
        rope["type"] = rope.pop("rope_type")                       # as older checkpoints write it
    if cfg.get("use_sliding_window"):
        cfg.pop("layer_types")                                     # max_window_layers says it
    if cfg["model_type"] == "deepseek_v3":
        cfg.pop("head_dim", None)
        cfg.update(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
        cfg["rope_scaling"]["type"] = cfg["rope_scaling"].pop("rope_type")
    if cfg["model_type"] == "deepseek_v2":
        cfg.pop("head_dim", None)
        cfg.update(scoring_func="softmax", moe_layer_freq=1)
        if cfg["rope_scaling"]:
            cfg["rope_scaling"]["type"] = cfg["rope_scaling"].pop("rope_type")
    if cfg["model_type"] == "ernie4_5_moe":
        cfg["moe_use_aux_free"] = True
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(cfg, f, indent=2)


def copy_tokenizer(path):
    """Byte-level BPE of 512 pieces with ChatML special tokens: id 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>; trained once on 400 kB of
    the King James Bible and kept as files, so that every tiny checkpoint has the same one."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        source = os.path.join(TESTS, "tiny", "tiny-llama", name)
        if not os.path.exists(os.path.join(path, name)):
            shutil.copy(source, path)


def quantized_references(model, prompts, formats):
    golden = {}
    state = {n: p.detach().clone() for n, p in model.state_dict().items()}
    for fmt in formats:
        fake_quantize(model, fmt)
        golden |= reference(model, prompts[:2] if fmt in LATER else prompts, out_key=f"logits_{fmt}", full=False)
        model.load_state_dict(state)
    return golden


def add_later(path):
    from transformers import AutoModelForCausalLM
    file = os.path.join(path, "golden.safetensors")
    golden = load_file(file)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [golden[f"prompt.{i}"].tolist() for i in range(2)]
    for i, ids in enumerate(prompts):                              # this torch computes what the goldens say
        with torch.no_grad():
            assert torch.allclose(logits_of(model, ids).logits[0], golden[f"logits.{i}"], atol=1e-4), (path, i)
    save_file(golden | quantized_references(model, prompts, LATER), file)
    print(path, os.path.getsize(file), "bytes")


def main():
    adds = "--add" in sys.argv[1:]
    arguments = [a for a in sys.argv[1:] if a != "--add"]
    if len(arguments) < 2:
        sys.exit(__doc__)
    out, wanted = arguments[0], arguments[1:]
    from transformers import AutoModelForCausalLM
    unknown = set(wanted) - set(configs()) - {"all"}
    if unknown:
        sys.exit(f"no such checkpoint: {' '.join(sorted(unknown))}; known: {' '.join(configs())}")
    for k, (name, cfg) in enumerate(configs().items()):
        if name not in wanted and "all" not in wanted:
            continue
        if adds:
            add_later(os.path.join(out, name))
            continue
        rng = np.random.default_rng(7)
        lengths = PROMPTS.get(name, (5, 40, 90)) if name in FORMATS else (5, 33, 150)
        prompts = [rng.integers(3, VOCAB, n).tolist() for n in lengths]
        cfg._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32).eval()
        randomize(model, 100 + k)
        path = os.path.join(out, name)
        os.makedirs(path, exist_ok=True)
        shard = "200KB" if name == "tiny-qwen3-moe" else "1GB"
        half = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
        half.load_state_dict(model.state_dict())
        half.to(torch.bfloat16)
        for (n, p), (_, q) in zip(half.named_parameters(), model.named_parameters()):
            if "e_score_correction_bias" in n or ("ernie" in name and n.endswith("gate.weight")):
                p.data = q.data.float()
        for (n, p), (_, q) in zip(half.named_buffers(), model.named_buffers()):
            if "e_score_correction_bias" in n:
                p.data = q.data.float()
        half.save_pretrained(path, max_shard_size=shard)
        if name != "tiny-qwen2":                                   # that one keeps the newer rope_parameters form
            hub_style_config(path)
        copy_tokenizer(path)
        golden = reference(model, prompts)
        if name == "tiny-llama-dynamic":
            for i, ids in enumerate(prompts):
                golden[f"greedy_cached.{i}"], golden[f"greedy_cached_margin.{i}"] = cached_greedy(model, ids)
        again = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        for i, ids in enumerate(prompts):                          # the files say what the model in memory computed
            with torch.no_grad():
                assert torch.equal(logits_of(again, ids).logits[0], golden[f"logits.{i}"]), (name, i)
        formats = FORMATS.get(name, ALL_FORMATS)
        golden |= quantized_references(model, prompts, formats + LATER if formats else ())
        save_file({n: t.contiguous() for n, t in golden.items()}, os.path.join(path, "golden.safetensors"))
        files = sorted(f for f in os.listdir(path) if f.endswith(".safetensors") and f != "golden.safetensors")
        names = sorted(n for f in files for n in load_file(os.path.join(path, f)))
        print(name, len(names), "tensors", files, "margins", [round(golden[f"greedy_margin.{i}"].min().item(), 4) for i in range(len(prompts))])


if __name__ == "__main__":
    main()
