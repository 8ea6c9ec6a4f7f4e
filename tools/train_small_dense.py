#!/usr/bin/env python3
"""Train a small Qwen3 on text and save it as a Hugging Face checkpoint in BF16: weights that were never on a coarse grid.

    train_small_dense.py OUT_DIR MINUTES TEXT... [--heldout FILE] [--hidden N] [--layers N]

For comparing weight formats (bench/accuracy.py): every matrix has rows of a multiple of 256, as all of GGUF's formats want. Weights, gradients
and the optimizer are FP32, products BF16; the weights are saved as BF16. Sequences of 256 tokens, AdamW, a cosine down to nothing over MINUTES. The tokenizer, byte-level BPE of 4096
pieces, is trained on the same text. With --heldout, heldout.json gets the loss there: nats a token in FP32 over windows of 256 tokens that do
not overlap, and beside it the loss of knowing the frequencies of tokens alone. Needs torch, transformers>=5.24, tokenizers. OMP_NUM_THREADS says how many threads.
"""
import argparse
import json
import math
import pathlib
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

SEQ, BATCH, VOCABULARY, RATE = 256, 8, 4096, 2e-3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train_tokenizer(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])


def learning_rate(step, done):
    return RATE * min(1, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * done))


def train(model, ids, minutes):
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=RATE, betas=(0.9, 0.95))
    begin, step = time.process_time(), 0   # of the processor: a pause costs no training
    while (done := (time.process_time() - begin) / 60 / minutes) < 1:
        starts = torch.randint(0, len(ids) - SEQ, (BATCH,)).tolist()
        batch = torch.stack([ids[at:at + SEQ] for at in starts])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, done)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {100 * done:.0f} %", flush=True)
        step += 1
    return step


def unigram_loss(ids, heldout):
    counts = torch.bincount(ids, minlength=VOCABULARY).double() + 1
    return -(counts / counts.sum()).log()[heldout].mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("minutes", type=float)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--heldout")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(1)
    text = "\n".join(pathlib.Path(path).read_text(encoding="utf-8") for path in args.text)
    tokenizer = train_tokenizer(text)
    config = Qwen3Config(vocab_size=VOCABULARY, hidden_size=args.hidden, intermediate_size=3 * args.hidden, num_hidden_layers=args.layers,
                         num_attention_heads=args.hidden // 64, num_key_value_heads=args.hidden // 128, head_dim=64, tie_word_embeddings=True,
                         max_position_embeddings=2048, bos_token_id=None, eos_token_id=2, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(ids)} tokens of text", flush=True)
    steps = train(model, ids, args.minutes)
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    result = {"steps": steps, "tokens": steps * SEQ * BATCH}
    if args.heldout:
        model = AutoModelForCausalLM.from_pretrained(args.out, dtype=torch.float32).eval()
        heldout = torch.tensor(tokenizer(pathlib.Path(args.heldout).read_text(encoding="utf-8"))["input_ids"])
        with torch.no_grad():
            losses = [model(input_ids=w[None], labels=w[None]).loss.item() for w in heldout.split(SEQ) if len(w) == SEQ]
        result |= {"windows": len(losses), "window": SEQ, "nats_per_token": sum(losses) / len(losses), "unigram": unigram_loss(ids, heldout)}
        (pathlib.Path(args.out) / "heldout.json").write_text(json.dumps(result, indent=2))
    print(result)


if __name__ == "__main__":
    main()
