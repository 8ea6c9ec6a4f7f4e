#!/usr/bin/env python3
"""Write a Hugging Face checkpoint of a published model's exact shape, with random weights, for benchmarks.

Speed and memory do not depend on what the weights say, so this stands in for a download. BF16, sharded like the
published checkpoints, with the Qwen3 tokenizer. Needs only numpy.

Usage: make_checkpoint.py PRESET OUT_DIR [--layers N] [--experts N] [--shard-gb G] [--seed S]
Presets: qwen3-0.6b  qwen3-1.7b  qwen3-4b  qwen3-30b-a3b (use --layers/--experts to fit a machine)
"""
import argparse
import json
import os
import shutil

import numpy as np

PRESETS = {
    "qwen3-0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "qwen3-1.7b": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "qwen3-4b": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "qwen3-30b-a3b": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32,
                          num_key_value_heads=4, head_dim=128, tie_word_embeddings=False, num_experts=128,
                          num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1,
                          mlp_only_layers=[]),
}
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "tokenizers", "qwen3")


def tensor_list(c):
    """Names, shapes and standard deviations (None marks a norm weight), in the order published shards hold them."""
    h, d = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (c["vocab_size"], h), 0.02
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "self_attn.q_proj.weight", (q, h), h ** -0.5
        yield p + "self_attn.k_proj.weight", (kv, h), h ** -0.5
        yield p + "self_attn.v_proj.weight", (kv, h), h ** -0.5
        yield p + "self_attn.o_proj.weight", (h, q), q ** -0.5
        yield p + "self_attn.q_norm.weight", (d,), None
        yield p + "self_attn.k_norm.weight", (d,), None
        blocks = [("mlp.", c["intermediate_size"])]
        if "num_experts" in c:
            yield p + "mlp.gate.weight", (c["num_experts"], h), h ** -0.5
            blocks = [(f"mlp.experts.{e}.", c["moe_intermediate_size"]) for e in range(c["num_experts"])]
        for b, m in blocks:
            yield p + b + "gate_proj.weight", (m, h), h ** -0.5
            yield p + b + "up_proj.weight", (m, h), h ** -0.5
            yield p + b + "down_proj.weight", (h, m), m ** -0.5
        yield p + "input_layernorm.weight", (h,), None
        yield p + "post_attention_layernorm.weight", (h,), None
    yield "model.norm.weight", (h,), None
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], h), 0.02


def bf16(x):
    """Round FP32 to nearest-even BF16, as uint16."""
    u = x.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("preset", choices=PRESETS)
    a.add_argument("out")
    a.add_argument("--layers", type=int)
    a.add_argument("--experts", type=int)
    a.add_argument("--shard-gb", type=float, default=2.0)
    a.add_argument("--seed", type=int, default=0)
    o = a.parse_args()
    c = dict(PRESETS[o.preset])
    moe = "num_experts" in c
    c.update(architectures=["Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM"],
             model_type="qwen3_moe" if moe else "qwen3", vocab_size=151936, max_position_embeddings=40960,
             rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None, hidden_act="silu", attention_bias=False,
             torch_dtype="bfloat16", bos_token_id=151643, eos_token_id=151645)
    if o.layers:
        c["num_hidden_layers"] = o.layers
    if o.experts and moe:
        c["num_experts"] = o.experts
    final, o.out = o.out.rstrip("/"), o.out.rstrip("/") + ".part"    # renamed when whole
    shutil.rmtree(o.out, ignore_errors=True)
    os.makedirs(o.out)
    with open(os.path.join(o.out, "config.json"), "w") as f:
        json.dump(c, f, indent=2)
    with open(os.path.join(o.out, "generation_config.json"), "w") as f:
        json.dump(dict(do_sample=True, eos_token_id=[151645, 151643], temperature=0.6, top_k=20, top_p=0.95), f)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(TOKENIZER, name), o.out)

    shards, size = [[]], 0
    for t in tensor_list(c):
        n = 2 * int(np.prod(t[1]))
        if size and size + n > o.shard_gb * 1e9:
            shards.append([])
            size = 0
        shards[-1].append(t)
        size += n
    rng = np.random.default_rng(o.seed)
    pool = bf16(rng.standard_normal(1 << 24, dtype=np.float32))      # drawn from at random offsets: fast, still unordered
    wide = (pool.astype(np.uint32) << 16).view(np.float32)
    index, total = {}, 0
    for k, tensors in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{k + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for n, shape, _ in tensors:
            size = 2 * int(np.prod(shape))
            header[n] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
            index[n] = name
        total += at
        blob = json.dumps(header, separators=(",", ":")).encode()
        blob += b" " * (-len(blob) % 8)
        with open(os.path.join(o.out, name), "wb") as f:
            f.write(len(blob).to_bytes(8, "little") + blob)
            for _, shape, std in tensors:
                count = int(np.prod(shape))
                if std is None:
                    f.write(np.full(count, 0x3F80, "<u2").tobytes())
                    continue
                scaled = bf16(wide * np.float32(std))
                while count:
                    start = int(rng.integers(0, scaled.size // 2))
                    part = scaled[start:start + count]
                    f.write(part.tobytes())
                    count -= part.size
    if len(shards) > 1:
        with open(os.path.join(o.out, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": index}, f, indent=1)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(o.out, final)
    print(f"{final}: {total / 1e9:.2f} GB in {len(shards)} file(s)")


if __name__ == "__main__":
    main()
