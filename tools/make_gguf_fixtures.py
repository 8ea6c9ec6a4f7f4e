#!/usr/bin/env python3
"""GGUF files for the tests, with what other implementations make of them.

OUT/blocks.bin       for each block type, in the order of TYPES: 4 rows of 512 inputs as ggml packs them (scales over many magnitudes, codes random), then the same
                     in FP32 as the `gguf` package dequantizes them
OUT/sentence-piece.gguf, .json   a vocabulary of SentencePiece's BPE, and the ids that the library gives to texts
OUT/<model>.gguf     a model of tests/tiny/ (or one made here, with rows of whole 256-blocks) as llama.cpp's convert_hf_to_gguf.py and llama-quantize make it
OUT/<model>.safetensors  prompt int64 [T]; logits fp32 [T, V]: transformers in FP32 with the weights that the `gguf` package dequantizes

Needs: torch, transformers>=5.24, safetensors, numpy, gguf, sentencepiece; a built checkout of llama.cpp.
Usage: make_gguf_fixtures.py OUT LLAMA_CPP LLAMA_QUANTIZE [NAME...]
"""
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests")
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
# File: folder of tests/tiny, type asked of llama-quantize (None: as converted).
MODELS = {
    "llama": ("tiny-llama", "Q4_0"),
    "llama-yarn": ("tiny-llama-yarn", "Q5_0"),
    "qwen2": ("tiny-qwen2", "Q4_1"),
    "qwen3": ("tiny-qwen3", "Q5_1"),
    "qwen3-moe": ("made", "Q4_0"),   # llama.cpp knows no dense layers among the sparse ones
    "qwen2-moe": ("made", "Q8_0"),
    "glm4-moe": ("tiny-glm4-moe", "Q8_0"),
    "ernie4_5": ("tiny-ernie4_5", "Q8_0"),
    "ernie4_5-moe": ("tiny-ernie4_5-moe", "Q4_0"),
    "deepseek-v3": ("made", "Q8_0"),
    "deepseek-v2-lite": ("made", None),
    "qwen3-q4_k_m": ("made", "Q4_K_M"),
    "qwen3-q2_k": ("made", "Q2_K"),
    "qwen3-q5_k_m": ("made", "Q5_K_M"),
}
PROMPT = 24


def make_blocks(path):
    rng = np.random.default_rng(1)
    with open(path, "wb") as f:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (4, 512 // elements, size), np.uint8)
            for i, at in enumerate(HALVES[name]):
                numbers = rng.standard_normal(blocks.shape[:2]) * 10.0 ** rng.uniform(-4, 0, blocks.shape[:2]) * (8 if i else 1)
                blocks[:, :, at:at + 2] = numbers.astype("<f2")[..., None].view(np.uint8)
            raw = blocks.reshape(4, -1)
            f.write(raw.tobytes())
            f.write(gguf.quants.dequantize(raw, kind).astype("<f4").tobytes())


def made_model(name, folder):
    """A model that tests/tiny/ has not: "qwen3-*" with rows of whole 256-blocks, "*-moe" whose layers are all sparse, "deepseek-*" with heads
    that block types fit, and no mscale without mscale_all_dim, which GGUF cannot say."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config
    import shutil
    import make_goldens
    if name.endswith("-moe"):
        config = make_goldens.configs()["tiny-" + name]
        config.num_hidden_layers, config.mlp_only_layers, config.decoder_sparse_step, config.layer_types = 2, [], 1, ["full_attention"] * 2
    elif name.startswith("deepseek"):
        config = make_goldens.configs()["tiny-" + name]
        config.num_hidden_layers, config.v_head_dim, config.qk_nope_head_dim = 2, 32, 32
        if "mscale" in config.rope_parameters:
            config.rope_parameters["mscale"] = config.rope_parameters["mscale_all_dim"] = 0.707
    else:
        config = Qwen3Config(vocab_size=512, bos_token_id=None, eos_token_id=2, pad_token_id=0, max_position_embeddings=2048, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
                             num_attention_heads=4, num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    model = AutoModelForCausalLM.from_config(config).eval()
    make_goldens.randomize(model, 7)
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(TESTS, "tiny", "tiny-qwen3", name), folder)


def convert(folder, out, llama_cpp):
    """convert_hf_to_gguf.py, told the name of the tokenizer's pre-tokenizer, which it otherwise looks up by a hash of published ones."""
    program = ("import sys, runpy; sys.path.insert(0, %r); sys.path.insert(0, %r)\n"
               "from conversion import base\n"
               "base.TextModel.get_vocab_base_pre = lambda self, tokenizer: 'gpt-2'\n"
               "base.TextModel._set_vocab_sentencepiece = base.TextModel._set_vocab_glm = lambda self, *a, **k: self._set_vocab_gpt2()\n"
               "sys.argv = ['convert', %r, '--outfile', %r, '--outtype', 'bf16']\n"
               "runpy.run_path(%r, run_name='__main__')\n") % (os.path.join(llama_cpp, "gguf-py"), llama_cpp, folder, out, os.path.join(llama_cpp, "convert_hf_to_gguf.py"))
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_sentence_piece(out):
    """A vocabulary of SentencePiece's BPE with what the library makes of texts."""
    import io
    import json
    import sentencepiece as sp
    corpus = open(os.path.join(TESTS, "text", "heldout.txt"), encoding="utf-8").read().splitlines()[:3000]
    model = io.BytesIO()
    sp.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, vocab_size=600, model_type="bpe", byte_fallback=True, split_digits=True, character_coverage=0.9995,
                                  normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, user_defined_symbols=["<tool>"], minloglevel=2)
    tool = sp.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = [2 if tool.IsUnknown(i) else 3 if tool.IsControl(i) else 6 if tool.IsByte(i) else 5 if tool.IsUnused(i) else 1 for i in range(tool.vocab_size())]
    pieces = [tool.IdToPiece(i) for i in range(tool.vocab_size())]
    kinds[pieces.index("<tool>")] = 4
    w = gguf.GGUFWriter(os.path.join(out, "sentence-piece.gguf"), "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list(pieces)
    w.add_token_scores([tool.GetScore(i) for i in range(tool.vocab_size())])
    w.add_token_types(kinds)
    w.add_bos_token_id(tool.bos_id())
    w.add_eos_token_id(tool.eos_id())
    w.add_unk_token_id(tool.unk_id())
    w.add_add_bos_token(True)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    texts = ["In the beginning", "a  b   c", " leading", "trailing ", "1234567", "caf\u00e9 \u4f60\u597d \U0001f642", "line\nbreak\ttab", "", "x", "unbelievable", *corpus[10:40]]
    cases = [{"text": t, "ids": tool.EncodeAsIds(t)} for t in texts]
    with open(os.path.join(out, "sentence-piece.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f, indent=0)


def permuted(w, heads):
    """Rows of q and k as the llama architecture stores them, put back."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def logits_of(path, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    reader = gguf.GGUFReader(path)
    arch = reader.get_field("general.architecture").contents()
    numbers = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(tuple(t.shape)[::-1]) for t in reader.tensors}
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], config.num_hidden_layers)
    used = {"rope_freqs.weight"}

    def theirs(name, suffix=None):
        suffixes = (".weight", ".bias")
        base = names.get_name(name, try_suffixes=suffixes)
        if base is None and name.endswith("e_score_correction_bias"):
            base = f"blk.{name.split('.')[2]}.exp_probs_b.bias"
        assert base in numbers, (name, base)
        used.add(base)
        return numbers[base]

    with torch.no_grad():
        for name, p in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if "e_score_correction_bias" in n)]:
            if name.endswith("experts.gate_up_proj"):
                stem = name.removesuffix("gate_up_proj")
                value = np.concatenate([theirs(stem + "gate_proj.weight"), theirs(stem + "up_proj.weight")], axis=1)
            elif name.endswith("experts.down_proj"):
                value = theirs(name + ".weight")
            elif name.endswith("kv_b_proj.weight") and names.get_name(name, try_suffixes=(".weight",)) not in numbers:
                k, v = theirs(name.replace("kv_b", "k_b")), theirs(name.replace("kv_b", "v_b"))
                value = np.concatenate([k.swapaxes(1, 2), v], axis=1).reshape(-1, k.shape[1])
            else:
                value = theirs(name)
                if arch == "llama" and "self_attn.q_proj" in name:
                    value = permuted(value, config.num_attention_heads)
                if arch == "llama" and "self_attn.k_proj" in name:
                    value = permuted(value, config.num_key_value_heads)
            p.copy_(torch.from_numpy(np.ascontiguousarray(value)).reshape(p.shape))
        assert used >= set(numbers), set(numbers) - used
        prompt = torch.randint(3, 512, (PROMPT,), generator=torch.Generator().manual_seed(5))
        return prompt, model(prompt[None]).logits[0]


def main():
    out, llama_cpp, quantize, *only = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    os.makedirs(out, exist_ok=True)
    if not only or "blocks" in only:
        make_blocks(os.path.join(out, "blocks.bin"))
    if not only or "sentence-piece" in only:
        make_sentence_piece(out)
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as scratch:
        for name, (folder, kind) in MODELS.items():
            if only and name not in only:
                continue
            source = os.path.join(TESTS, "tiny", folder)
            if folder == "made":
                source = os.path.join(scratch, "model-" + name)
                made_model(name, source)
            converted, path = os.path.join(scratch, name + ".gguf"), os.path.join(out, name + ".gguf")
            convert(source, path if kind is None else converted, llama_cpp)
            if kind is not None:
                pure = [] if "_M" in kind else ["--pure"]
                subprocess.run([quantize, *pure, converted, path, kind], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            prompt, logits = logits_of(path, source)
            save_file({"prompt": prompt, "logits": logits.contiguous()}, os.path.join(out, name + ".safetensors"))
            print(name, os.path.getsize(path), sorted({t.tensor_type.name for t in gguf.GGUFReader(path).tensors}), flush=True)


if __name__ == "__main__":
    main()
