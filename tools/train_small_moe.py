#!/usr/bin/env python3
"""Train a small ERNIE-4.5-MoE on text and save it as a Hugging Face checkpoint (BF16). tests/small-ernie4_5-moe was made by it.

    train_small_moe.py OUT_DIR MINUTES TEXT HELDOUT

The routing is trained aux-free as the family is: a correction bias per expert, moved against its load after each step.
Writes OUT_DIR: config.json, model.safetensors, tokenizer files, and heldout.json with the reference's loss on HELDOUT
(nats per token, FP32 maths, windows of 256 tokens that do not overlap). tests/small-ernie4_5-moe was trained on the King James Bible
(public domain) without tests/text/heldout.txt. Needs torch, transformers>=5.24, tokenizers.
"""
import json
import math
import os
import sys
import time

import torch

from make_goldens import hub_style_config
from train_small_dense import train_tokenizer

SEQ, BATCH = 256, 8


def main():
    out, minutes, train_file, heldout_file = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]
    from transformers import AutoModelForCausalLM, Ernie4_5_MoeConfig
    torch.manual_seed(1)
    with open(train_file, encoding="utf-8") as f:
        text = f.read()
    with open(heldout_file, encoding="utf-8") as f:
        heldout = f.read()
    tokenizer = train_tokenizer(text)
    cfg = Ernie4_5_MoeConfig(vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
                             num_attention_heads=8, num_key_value_heads=2, moe_intermediate_size=128, moe_num_experts=16,
                             moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1, tie_word_embeddings=True,
                             bos_token_id=None, eos_token_id=2, pad_token_id=0, max_position_embeddings=2048,
                             rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    print(sum(p.numel() for p in model.parameters()) / 1e6, "M parameters", flush=True)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    print(len(ids), "tokens", flush=True)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    gates = [m.mlp.gate for m in model.model.layers if hasattr(m.mlp, "gate")]
    counts = {}

    def watch(k):
        def hook(_, __, output):
            counts[k] = torch.bincount(output[-1].reshape(-1), minlength=cfg.moe_num_experts).float()
        return hook
    for k, gate in enumerate(gates):
        gate.register_forward_hook(watch(k))
    start, step = time.time(), 0
    while (done := (time.time() - start) / 60 / minutes) < 1:
        at = torch.randint(0, len(ids) - SEQ - 1, (BATCH,))
        x = torch.stack([ids[a:a + SEQ] for a in at])
        for group in opt.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * done))
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            for k, gate in enumerate(gates):
                gate.moe_statics.e_score_correction_bias += 1e-3 * torch.sign(counts[k].mean() - counts[k])
        if step % 50 == 0:
            print(step, round(loss.item(), 3), counts[1].int().tolist(), flush=True)
        step += 1
    model.eval()
    keep = {n: p.data.clone() for n, p in model.named_parameters() if "e_score" in n or n.endswith("gate.weight")}
    model.to(torch.bfloat16)
    for n, p in model.named_parameters():
        if n in keep:
            p.data = keep[n]
    model.save_pretrained(out)
    hub_style_config(out)
    tokenizer.save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = torch.tensor(tokenizer(heldout)["input_ids"])
    with torch.no_grad():
        losses = [model(input_ids=w[None], labels=w[None]).loss.item() for w in ids.split(SEQ) if len(w) == SEQ]
    result = {"windows": len(losses), "window": SEQ, "nats_per_token": sum(losses) / len(losses)}
    with open(os.path.join(out, "heldout.json"), "w") as f:
        json.dump(result, f, indent=2)
    print(step, "steps", result)


if __name__ == "__main__":
    main()
