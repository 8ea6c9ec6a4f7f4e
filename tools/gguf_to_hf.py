#!/usr/bin/env python3
"""Make a Hugging Face checkpoint folder of a GGUF of the llama architecture.

Weights are dequantized in FP32 and rounded to BF16 (nearest, ties to even), the row order of q_proj and k_proj is put back to Hugging Face's
(GGUF interleaves the two halves of each rotary pair), the tokenizer is rebuilt from the vocabulary and merges in the file. The folder appears
under its name only when it is whole.

Reads GGUF versions 2 and 3 with tensors in F32, F16, BF16, Q4_0, Q4_1 and Q8_0, and byte-level BPE tokenizers.
Format: the GGUF specification in ggml's documentation (docs/gguf.md); block layouts: ggml-common.h. Needs numpy.

Usage: gguf_to_hf.py FILE.gguf OUT_DIR
"""
import json
import math
import os
import shutil
import struct
import sys

import numpy as np


class GgufError(Exception):
    """The file cannot be converted; the text says what, where and why."""


# --- reading the container -------------------------------------------------------------------------------------------

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
MAX_ITEMS = 1 << 28     # of one array, and of the two tables: more is a damaged count
MAX_DIMENSIONS = 4


class Reader:
    """A cursor over bytes that never reads past their end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count, what):
        if count > len(self.data) - self.at:
            raise GgufError(f"{what} at byte {self.at} needs {count} bytes, but the file ends at byte {len(self.data)}: it is cut short or damaged")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, form, what):
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def string(self, what):
        raw = bytes(self.take(self.number("<Q", f"the length of {what}"), what))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise GgufError(f"{what} before byte {self.at} is not UTF-8: {e.reason}") from None

    def value(self, kind, what):
        if kind in SCALARS:
            return self.number(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            inner, count = self.number("<I", what), self.number("<Q", what)
            if inner == ARRAY or count > MAX_ITEMS:
                raise GgufError(f"{what}: an array of type {inner} with {count} items is beyond what this tool reads")
            return [self.value(inner, what) for _ in range(count)]
        raise GgufError(f"{what} before byte {self.at} has value type {kind}; types 0 to 12 exist")


def read_gguf(data):
    """(metadata, {name: (shape with the outputs first, ggml type, offset from the start of the data section)}, that start)"""
    r = Reader(data)
    magic = bytes(r.take(4, "the magic"))
    if magic != b"GGUF":
        raise GgufError(f"not a GGUF: it starts with {magic!r}, expected b'GGUF'")
    version = r.number("<I", "the version")
    if version not in (2, 3):
        raise GgufError(f"GGUF version {version}; versions 2 and 3 are read")
    tensors, pairs = r.number("<Q", "the tensor count"), r.number("<Q", "the metadata count")
    if max(tensors, pairs) > MAX_ITEMS:
        raise GgufError(f"{tensors} tensors and {pairs} metadata entries: the header is damaged")
    meta = {}
    for _ in range(pairs):
        key = r.string("a metadata key")
        meta[key] = r.value(r.number("<I", f"the type of {key}"), key)
    table = {}
    for _ in range(tensors):
        name = r.string("a tensor name")
        rank = r.number("<I", f"the rank of {name}")
        if not 1 <= rank <= MAX_DIMENSIONS:
            raise GgufError(f"tensor {name} has {rank} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(r.number("<Q", f"the shape of {name}") for _ in range(rank))[::-1]
        kind, offset = r.number("<I", f"the type of {name}"), r.number("<Q", f"the offset of {name}")
        if name in table:
            raise GgufError(f"tensor {name} is listed twice")
        table[name] = (shape, kind, offset)
    alignment = meta.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise GgufError(f"general.alignment is {alignment!r}, expected a positive number")
    return meta, table, -(-r.at // alignment) * alignment


# --- numbers ---------------------------------------------------------------------------------------------------------

def halves(block, start):
    """The FP16 at byte `start` of each block, in FP32: [blocks, 1]."""
    return np.ascontiguousarray(block[:, start:start + 2]).view("<f2").astype(np.float32)


def nibbles(block, start):
    """32 four-bit values a block: the low halves of 16 bytes, then their high halves."""
    q = block[:, start:start + 16]
    return np.concatenate([q & 15, q >> 4], axis=1).astype(np.float32)


def q4_0(block):
    return halves(block, 0) * (nibbles(block, 2) - np.float32(8))


def q4_1(block):
    return halves(block, 0) * nibbles(block, 4) + halves(block, 2)


def q8_0(block):
    return halves(block, 0) * np.ascontiguousarray(block[:, 2:]).view(np.int8).astype(np.float32)


# ggml type: name, values in a block, bytes of a block, blocks [n, bytes] u8 -> FP32 [n, values]
TYPES = {
    0: ("F32", 1, 4, lambda b: b.view("<f4")),
    1: ("F16", 1, 2, lambda b: b.view("<f2").astype(np.float32)),
    2: ("Q4_0", 32, 18, q4_0),
    3: ("Q4_1", 32, 20, q4_1),
    8: ("Q8_0", 32, 34, q8_0),
    30: ("BF16", 1, 2, lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32)),
}


def dequantize(raw, kind, shape):
    """Bytes of a tensor to FP32 of `shape`."""
    _, _, size, decode = TYPES[kind]
    return decode(np.frombuffer(raw, np.uint8).reshape(-1, size)).reshape(shape)


def bf16(x):
    """FP32 to the bits of BF16: nearest, ties to even; NaN stays NaN."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    return np.where((u & 0x7FFFFFFF) > 0x7F800000, (u >> 16) | 0x40, rounded).astype("<u2")


def undo_rotary_order(w, heads):
    """[heads * D, K] whose rows within a head run 0, D/2, 1, D/2 + 1, ... back to 0, 1, 2, ..."""
    rows = w.shape[0]
    return w.reshape(heads, rows // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


# --- the model -------------------------------------------------------------------------------------------------------

TYPE_WORDS = {int: "a whole number", float: "a number", str: "text", list: "an array"}


def need(meta, key, kind=int):
    if key not in meta:
        raise GgufError(f"the file has no {key}, which a llama-architecture GGUF needs")
    if not isinstance(meta[key], kind) or isinstance(meta[key], bool):
        raise GgufError(f"{key} is {meta[key]!r}, expected {TYPE_WORDS[kind]}")
    return meta[key]


def size_of(meta, key, default=None):
    if key not in meta and default is not None:
        return default
    if not 0 < need(meta, key) < 1 << 31:
        raise GgufError(f"{key} is {meta[key]}, expected a positive number below 2^31")
    return meta[key]


def shortest(x):
    """The shortest decimal that is the same FP32: 9.999999747378752e-06 -> 1e-05."""
    return float(str(np.float32(x)))


def config_of(meta, tied):
    if meta.get("general.architecture") != "llama":
        raise GgufError(f"general.architecture is {meta.get('general.architecture')!r}; only llama is converted")
    for key in ("llama.expert_count", "llama.rope.scaling.factor"):
        if meta.get(key, 0):
            raise GgufError(f"{key} is {meta[key]}: experts and rotary scaling are not converted")
    hidden, heads = size_of(meta, "llama.embedding_length"), size_of(meta, "llama.attention.head_count")
    if "llama.attention.key_length" not in meta and hidden % heads:
        raise GgufError(f"llama.embedding_length {hidden} is not a multiple of llama.attention.head_count {heads}")
    head_dim = size_of(meta, "llama.attention.key_length", hidden // heads)
    if meta.get("llama.rope.dimension_count", head_dim) != head_dim or head_dim % 2:
        raise GgufError(f"llama.rope.dimension_count is {meta.get('llama.rope.dimension_count')}, but the heads have {head_dim} values (which must be even)")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(need(meta, "tokenizer.ggml.tokens", list)),
        "hidden_size": hidden, "intermediate_size": size_of(meta, "llama.feed_forward_length"),
        "num_hidden_layers": size_of(meta, "llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": size_of(meta, "llama.attention.head_count_kv", heads), "head_dim": head_dim,
        "max_position_embeddings": size_of(meta, "llama.context_length"), "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "rms_norm_eps": shortest(need(meta, "llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": shortest(need(meta, "llama.rope.freq_base", float)) if "llama.rope.freq_base" in meta else 10000.0, "rope_scaling": None, "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    return config | special_ids(meta)


def special_ids(meta):
    names = {"bos_token_id": "tokenizer.ggml.bos_token_id", "eos_token_id": "tokenizer.ggml.eos_token_id", "pad_token_id": "tokenizer.ggml.padding_token_id"}
    return {ours: need(meta, theirs) for ours, theirs in names.items() if theirs in meta}


def routes(c, tied):
    """(Hugging Face name, GGUF name, shape, heads whose rotary row order is undone or 0)"""
    h, i, d, v = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["vocab_size"]
    q, kv = c["num_attention_heads"], c["num_key_value_heads"]
    yield "model.embed_tokens.weight", "token_embd.weight", (v, h), 0
    for n in range(c["num_hidden_layers"]):
        for ours, theirs, shape, heads in (
                ("input_layernorm", "attn_norm", (h,), 0), ("self_attn.q_proj", "attn_q", (q * d, h), q),
                ("self_attn.k_proj", "attn_k", (kv * d, h), kv), ("self_attn.v_proj", "attn_v", (kv * d, h), 0),
                ("self_attn.o_proj", "attn_output", (h, q * d), 0), ("post_attention_layernorm", "ffn_norm", (h,), 0),
                ("mlp.gate_proj", "ffn_gate", (i, h), 0), ("mlp.up_proj", "ffn_up", (i, h), 0), ("mlp.down_proj", "ffn_down", (h, i), 0)):
            yield f"model.layers.{n}.{ours}.weight", f"blk.{n}.{theirs}.weight", shape, heads
    yield "model.norm.weight", "output_norm.weight", (h,), 0
    if not tied:
        yield "lm_head.weight", "output.weight", (v, h), 0


def check_tensors(wanted, table, start, size):
    """Every tensor there, none left over, of the shape the metadata says, of a type this tool reads, inside the file."""
    left = sorted(set(table) - {theirs for _, theirs, _, _ in wanted})
    if left:
        raise GgufError(f"tensor {left[0]} has no place in a Llama checkpoint ({len(left)} such tensors): this GGUF is of a kind that is not converted")
    for _, name, shape, _ in wanted:
        if name not in table:
            raise GgufError(f"tensor {name} is missing")
        got, kind, offset = table[name]
        if got != shape:
            raise GgufError(f"tensor {name} has shape {list(got)}, but the metadata says {list(shape)}")
        if kind not in TYPES:
            raise GgufError(f"tensor {name} has ggml type {kind}; read are {', '.join(f'{k} ({t[0]})' for k, t in TYPES.items())}")
        if shape[-1] % TYPES[kind][1]:
            raise GgufError(f"tensor {name} has rows of {shape[-1]} values, not a multiple of the {TYPES[kind][1]} in a block of {TYPES[kind][0]}")
        end = start + offset + bytes_of(kind, shape)
        if end > size:
            raise GgufError(f"tensor {name} ends at byte {end}, but the file has {size}: it is cut short")


def bytes_of(kind, shape):
    return math.prod(shape) // TYPES[kind][1] * TYPES[kind][2]


# --- writing ---------------------------------------------------------------------------------------------------------

PRE_TOKENIZERS = {      # by tokenizer.ggml.pre
    "gpt-2": [],
    "smollm": [{"type": "Digits", "individual_digits": True}],
}
CONTROL, USER_DEFINED = 3, 4    # tokenizer.ggml.token_type


def tokenizer_of(meta):
    """tokenizer.json of a byte-level BPE."""
    model, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise GgufError(f"tokenizer {model!r} with pre-tokenizer {pre!r} is not converted; known: 'gpt2' with {', '.join(map(repr, PRE_TOKENIZERS))}")
    tokens, merges = need(meta, "tokenizer.ggml.tokens", list), need(meta, "tokenizer.ggml.merges", list)
    kinds = need(meta, "tokenizer.ggml.token_type", list)
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise GgufError(f"{len(tokens)} tokens ({len(set(tokens))} different) with {len(kinds)} types: the vocabulary is damaged")
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [m.split(" ") for m in merges]
    for pair in pairs:
        if len(pair) != 2 or not all(p in vocab for p in (*pair, "".join(pair))):
            raise GgufError(f"merge {' '.join(pair)!r} does not join two tokens of the vocabulary into a third")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kinds[i] == CONTROL}
                         for i, t in enumerate(tokens) if kinds[i] in (CONTROL, USER_DEFINED)],
        "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre] + [byte_level]}, "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": pairs},
    }


def tokenizer_config_of(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id", "unk_token": "unknown_token_id"}
    config = {"add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)), "add_prefix_space": False, "clean_up_tokenization_spaces": False,
              "model_max_length": meta["llama.context_length"], "tokenizer_class": "PreTrainedTokenizerFast"}
    for ours, theirs in named.items():
        if f"tokenizer.ggml.{theirs}" in meta:
            at = need(meta, f"tokenizer.ggml.{theirs}")
            if not 0 <= at < len(tokens):
                raise GgufError(f"tokenizer.ggml.{theirs} is {at}, but there are {len(tokens)} tokens")
            config[ours] = tokens[at]
    return config


def write_weights(path, data, start, table, wanted):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for ours, _, shape, _ in wanted:
        size = 2 * math.prod(shape)
        header[ours] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    blob = json.dumps(header, separators=(",", ":")).encode()
    blob += b" " * (-len(blob) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(blob)) + blob)
        for _, theirs, shape, heads in wanted:
            _, kind, offset = table[theirs]
            w = dequantize(data[start + offset:start + offset + bytes_of(kind, shape)], kind, shape)
            if not np.isfinite(w).all():
                raise GgufError(f"tensor {theirs} holds a value that is not finite, at flat index {int(np.flatnonzero(~np.isfinite(w))[0])}")
            f.write(bf16(undo_rotary_order(w, heads) if heads else w).tobytes())


def write_json(folder, name, value, indent=2):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=indent, ensure_ascii=False)
        f.write("\n")


def convert(source, out):
    if os.path.exists(out):
        raise GgufError(f"{out} exists already; remove it or give another name")
    if os.path.getsize(source) == 0:
        raise GgufError("the file is empty")
    data = np.memmap(source, np.uint8, "r")
    meta, table, start = read_gguf(memoryview(data))
    tied = "output.weight" not in table
    config = config_of(meta, tied)
    wanted = list(routes(config, tied))
    check_tensors(wanted, table, start, len(data))
    tokenizer, tokenizer_config = tokenizer_of(meta), tokenizer_config_of(meta)
    part = out.rstrip("/") + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        write_json(part, "config.json", config)
        write_json(part, "generation_config.json", special_ids(meta))
        write_json(part, "tokenizer.json", tokenizer)
        write_json(part, "tokenizer_config.json", tokenizer_config)
        if "tokenizer.chat_template" in meta:
            with open(os.path.join(part, "chat_template.jinja"), "w", encoding="utf-8") as f:
                f.write(need(meta, "tokenizer.chat_template", str))
        write_weights(os.path.join(part, "model.safetensors"), data, start, table, wanted)
        os.rename(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f"{out}: {len(wanted)} tensors")


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        convert(sys.argv[1], sys.argv[2])
    except (GgufError, OSError) as e:
        print(f"cannot convert {sys.argv[1]}: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
