"""The GGUF converter against values worked out by hand, and against files that lie."""
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))
import gguf_to_hf as converter  # noqa: E402

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q4_1, TYPE_Q8_0, TYPE_BF16 = 0, 1, 2, 3, 8, 30


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, x):
    if kind == STRING:
        return string(x)
    if isinstance(kind, tuple):
        return struct.pack("<IQ", kind[1], len(x)) + b"".join(value(kind[1], v) for v in x)
    return struct.pack({U32: "<I", 5: "<i", F32: "<f", BOOL: "<?"}[kind], x)


def pair(key, kind, x):
    return string(key) + struct.pack("<I", ARRAY if isinstance(kind, tuple) else kind) + value(kind, x)


def gguf(meta, tensors, version=3, magic=b"GGUF"):
    """meta: {key: (type, value)}; tensors: {name: (shape with the outputs first, ggml type, bytes)}"""
    head = magic + struct.pack("<IQQ", version, len(tensors), len(meta)) + b"".join(pair(k, *v) for k, v in meta.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape[::-1]) + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    return head + b"\0" * (-len(head) % 32) + data


META = {
    "general.architecture": (STRING, "llama"), "llama.block_count": (U32, 1), "llama.context_length": (U32, 64), "llama.embedding_length": (U32, 32),
    "llama.feed_forward_length": (U32, 64), "llama.attention.head_count": (U32, 8), "llama.attention.head_count_kv": (U32, 4),
    "llama.rope.freq_base": (F32, 100000.0), "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, "smollm"), "tokenizer.ggml.tokens": ((ARRAY, STRING), ["<|end|>", "a", "b", "ab"]),
    "tokenizer.ggml.token_type": ((ARRAY, 5), [3, 1, 1, 1]), "tokenizer.ggml.merges": ((ARRAY, STRING), ["a b"]),
    "tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.eos_token_id": (U32, 0), "tokenizer.chat_template": (STRING, "{{ messages }}"),
}

# 32 values of Q4_1: scale 0.5 (FP16 0x3800), minimum -1 (0xBC00); byte j holds value j in its low half, value 16 + j in its high half.
Q4_1_BLOCK = bytes([0x00, 0x38, 0x00, 0xBC]) + bytes(range(16))
# Byte j is j: low half j, high half 0. So values 0..15 are 0.5 j - 1, values 16..31 are -1.
Q4_1_VALUES = [0.5 * j - 1 for j in range(16)] + [-1.0] * 16


def f32(rows, columns, start=0):
    """Row r, column c holds start + r: exact in BF16 below 256."""
    return np.repeat(np.arange(start, start + rows, dtype="<f4")[:, None], columns, 1).tobytes()


def tensors():
    return {
        "token_embd.weight": ((4, 32), TYPE_Q4_1, Q4_1_BLOCK * 4), "blk.0.attn_norm.weight": ((32,), TYPE_F32, f32(32, 1)),
        "blk.0.attn_q.weight": ((32, 32), TYPE_F32, f32(32, 32)), "blk.0.attn_k.weight": ((16, 32), TYPE_F32, f32(16, 32)),
        "blk.0.attn_v.weight": ((16, 32), TYPE_F32, f32(16, 32)), "blk.0.attn_output.weight": ((32, 32), TYPE_F32, f32(32, 32)),
        "blk.0.ffn_norm.weight": ((32,), TYPE_F32, f32(32, 1)), "blk.0.ffn_gate.weight": ((64, 32), TYPE_F32, f32(64, 32)),
        "blk.0.ffn_up.weight": ((64, 32), TYPE_F32, f32(64, 32)), "blk.0.ffn_down.weight": ((32, 64), TYPE_F32, f32(32, 64)),
        "output_norm.weight": ((32,), TYPE_F32, f32(32, 1)),
    }


class Numbers(unittest.TestCase):
    def decode(self, kind, raw):
        return converter.dequantize(raw, kind, (-1,)).tolist()

    def test_q4_1_is_scale_times_code_plus_minimum(self):
        self.assertEqual(self.decode(TYPE_Q4_1, Q4_1_BLOCK), Q4_1_VALUES)
        self.assertEqual(self.decode(TYPE_Q4_1, bytes([0x00, 0x38, 0x00, 0xBC]) + b"\xf1" * 16), [-0.5] * 16 + [6.5] * 16)

    def test_q4_0_is_scale_times_code_less_eight(self):
        # scale 2 (0x4000); 0x0f: low half 15 -> 14, high half 0 -> -16
        self.assertEqual(self.decode(TYPE_Q4_0, bytes([0x00, 0x40]) + b"\x0f" * 16), [14.0] * 16 + [-16.0] * 16)

    def test_q8_0_is_scale_times_signed_byte(self):
        # scale 0.25 (0x3400)
        self.assertEqual(self.decode(TYPE_Q8_0, bytes([0x00, 0x34, 0x80, 0x7F, 0x01, 0xFF]) + b"\0" * 28), [-32.0, 31.75, 0.25, -0.25] + [0.0] * 28)

    def test_two_blocks_keep_their_own_scales(self):
        raw = bytes([0x00, 0x34]) + b"\x01" * 32 + bytes([0x00, 0x40]) + b"\x01" * 32
        self.assertEqual(self.decode(TYPE_Q8_0, raw), [0.25] * 32 + [2.0] * 32)

    def test_floats_are_what_they_are(self):
        self.assertEqual(self.decode(TYPE_F32, struct.pack("<2f", 1.5, -2.25)), [1.5, -2.25])
        self.assertEqual(self.decode(TYPE_F16, bytes([0x00, 0x3C, 0x01, 0x00])), [1.0, 2.0 ** -24])
        self.assertEqual(self.decode(TYPE_BF16, bytes([0x80, 0x3F, 0x49, 0xC0])), [1.0, -3.140625])

    def test_bf16_rounds_to_nearest_ties_to_even(self):
        bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000, 0x7F7FFFFF, 0x7FC00001, 0x7F800001], np.uint32)
        self.assertEqual(converter.bf16(bits.view(np.float32)).tolist(), [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF80, 0x7F80, 0x7FC0, 0x7FC0])

    def test_rotary_rows_are_put_back_in_halves(self):
        # Two heads of 4 rows. GGUF holds them as 0, 2, 1, 3 (row, row + D/2, ...), so reading that order gives back 0, 1, 2, 3.
        w = np.array([[0], [2], [1], [3], [10], [12], [11], [13]])
        self.assertEqual(converter.undo_rotary_order(w, 2)[:, 0].tolist(), [0, 1, 2, 3, 10, 11, 12, 13])


class Conversion(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source, self.out = self.folder / "a.gguf", self.folder / "out"

    def convert(self, raw):
        self.source.write_bytes(raw)
        with unittest.mock.patch("builtins.print"):
            converter.convert(str(self.source), str(self.out))

    def assert_refused(self, raw, text):
        with self.assertRaises(converter.GgufError) as caught:
            self.convert(raw)
        self.assertIn(text, str(caught.exception))
        self.assertEqual([p.name for p in self.folder.iterdir()], ["a.gguf"])

    def changed(self, **meta):
        return META | {k.replace("__", "."): v for k, v in meta.items()}

    def weights(self):
        raw = (self.out / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
        header.pop("__metadata__")
        self.assertEqual(max(t["data_offsets"][1] for t in header.values()), len(data))
        read = {}
        for name, t in header.items():
            self.assertEqual(t["dtype"], "BF16")
            bits = np.frombuffer(data[slice(*t["data_offsets"])], "<u2").astype(np.uint32) << 16
            read[name] = bits.view(np.float32).reshape(t["shape"])
        return read

    def test_a_whole_file_becomes_a_whole_folder(self):
        self.convert(gguf(META, tensors()))
        w = self.weights()
        self.assertEqual(len(w), 11)
        self.assertEqual(w["model.embed_tokens.weight"].tolist(), [Q4_1_VALUES] * 4)
        # 8 query heads of 4 rows and 4 key heads of 4: rows 4h + (0, 2, 1, 3) of the file become rows 4h + (0, 1, 2, 3)
        self.assertEqual(w["model.layers.0.self_attn.q_proj.weight"][:, 5].tolist(), [4 * h + r for h in range(8) for r in (0, 2, 1, 3)])
        self.assertEqual(w["model.layers.0.self_attn.k_proj.weight"][:, 0].tolist(), [4 * h + r for h in range(4) for r in (0, 2, 1, 3)])
        self.assertEqual(w["model.layers.0.self_attn.v_proj.weight"][:, 0].tolist(), list(range(16)))
        self.assertEqual(w["model.layers.0.mlp.down_proj.weight"].shape, (32, 64))
        self.assertEqual(w["model.norm.weight"].tolist(), list(range(32)))
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual(config, {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4, "max_position_embeddings": 64, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-05, "rope_theta": 100000.0, "rope_scaling": None, "tie_word_embeddings": True,
            "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 0})
        self.assertEqual(json.loads((self.out / "generation_config.json").read_text()), {"bos_token_id": 1, "eos_token_id": 0})
        self.assertEqual((self.out / "chat_template.jinja").read_text(), "{{ messages }}")
        tokenizer = json.loads((self.out / "tokenizer.json").read_text())
        self.assertEqual(tokenizer["model"]["vocab"], {"<|end|>": 0, "a": 1, "b": 2, "ab": 3})
        self.assertEqual(tokenizer["model"]["merges"], [["a", "b"]])
        self.assertEqual([(t["id"], t["content"], t["special"]) for t in tokenizer["added_tokens"]], [(0, "<|end|>", True)])
        self.assertEqual([p["type"] for p in tokenizer["pre_tokenizer"]["pretokenizers"]], ["Digits", "ByteLevel"])
        named = json.loads((self.out / "tokenizer_config.json").read_text())
        self.assertEqual((named["bos_token"], named["eos_token"], named.get("pad_token")), ("a", "<|end|>", None))

    def test_an_output_tensor_unties_the_head(self):
        self.convert(gguf(META, tensors() | {"output.weight": ((4, 32), TYPE_F32, f32(4, 32, 7))}))
        self.assertFalse(json.loads((self.out / "config.json").read_text())["tie_word_embeddings"])
        self.assertEqual(self.weights()["lm_head.weight"][:, 0].tolist(), [7, 8, 9, 10])

    def test_a_file_cut_anywhere_is_refused(self):
        raw = gguf(META, tensors())
        for cut in [*range(0, 1600, 7), len(raw) // 2, len(raw) - 33]:
            with self.subTest(cut=cut):
                self.assert_refused(raw[:cut], "empty" if cut == 0 else "")

    def test_a_damaged_byte_never_ends_in_another_kind_of_error(self):
        raw = bytearray(gguf(META, tensors()))
        header = raw.index(b"output_norm.weight") + 60
        for at in range(0, header, 3):
            damaged = bytes(raw[:at]) + bytes([raw[at] ^ 0x81]) + bytes(raw[at + 1:])
            self.source.write_bytes(damaged)
            try:
                with unittest.mock.patch("builtins.print"):
                    converter.convert(str(self.source), str(self.out))
            except converter.GgufError:
                continue
            for p in self.out.iterdir():
                p.unlink()
            self.out.rmdir()

    def test_refusals_say_what_is_wrong(self):
        good = tensors()
        without = {k: v for k, v in good.items() if k != "blk.0.ffn_up.weight"}
        infinite = np.ones(32, "<f4")
        infinite[3] = np.inf
        cases = [
            (gguf(META, good, magic=b"GGML"), "it starts with b'GGML', expected b'GGUF'"),
            (gguf(META, good, version=1), "GGUF version 1"),
            (gguf(self.changed(general__architecture=(STRING, "mamba")), good), "general.architecture is 'mamba'"),
            (gguf({k: v for k, v in META.items() if k != "llama.block_count"}, good), "no llama.block_count"),
            (gguf(self.changed(llama__block_count=(STRING, "1")), good), "llama.block_count is '1', expected a whole number"),
            (gguf(self.changed(llama__attention__head_count_kv=((ARRAY, U32), [4])), good), "llama.attention.head_count_kv is [4], expected a whole number"),
            (gguf(self.changed(tokenizer__ggml__eos_token_id=(STRING, "x")), good), "tokenizer.ggml.eos_token_id is 'x'"),
            (gguf(self.changed(tokenizer__ggml__eos_token_id=(U32, 4)), good), "tokenizer.ggml.eos_token_id is 4, but there are 4 tokens"),
            (gguf(self.changed(llama__expert_count=(U32, 8)), good), "llama.expert_count is 8"),
            (gguf(self.changed(llama__attention__head_count=(U32, 5)), good), "32 is not a multiple of llama.attention.head_count 5"),
            (gguf(self.changed(tokenizer__ggml__pre=(STRING, "llama-bpe")), good), "pre-tokenizer 'llama-bpe' is not converted"),
            (gguf(self.changed(tokenizer__ggml__merges=((ARRAY, STRING), ["a x"])), good), "merge 'a x' does not join"),
            (gguf(META, without), "tensor blk.0.ffn_up.weight is missing"),
            (gguf(META, good | {"rope_freqs.weight": ((4,), TYPE_F32, b"\0" * 16)}), "tensor rope_freqs.weight has no place"),
            (gguf(META, good | {"blk.0.ffn_up.weight": ((32, 64), TYPE_F32, f32(32, 64))}), "has shape [32, 64], but the metadata says [64, 32]"),
            (gguf(META, good | {"output_norm.weight": ((32,), 14, b"\0" * 210)}), "ggml type 14; read are 0 (F32)"),
            (gguf(META, good | {"output_norm.weight": ((32,), TYPE_F32, infinite.tobytes())}), "not finite, at flat index 3"),
            (gguf(META, good | {"blk.0.attn_norm.weight": ((32,) * 5, TYPE_F32, b"")}), "has 5 dimensions"),
        ]
        for raw, text in cases:
            with self.subTest(text):
                self.assert_refused(raw, text)

    def test_a_folder_that_exists_is_left_alone(self):
        self.out.mkdir()
        (self.out / "mine").write_text("x")
        with self.assertRaisesRegex(converter.GgufError, "exists already"):
            self.convert(gguf(META, tensors()))
        self.assertEqual((self.out / "mine").read_text(), "x")


@unittest.skipUnless(os.environ.get("INFLIGHT_SMOLLM2"), "INFLIGHT_SMOLLM2 does not name the converted SmolLM2")
class RealModel(unittest.TestCase):
    """The weights' hash is checked where ./dev makes them; it was taken from transformers' own reading of the same file."""

    def test_the_tokenizer_is_the_published_one(self):
        published = REPOSITORY / "tests" / "tokenizers" / "smollm2" / "tokenizer.json"
        if not published.exists():
            self.skipTest(f"{published} is not there")
        ours = pathlib.Path(os.environ["INFLIGHT_SMOLLM2"]) / "tokenizer.json"
        self.assertEqual(json.loads(ours.read_text(encoding="utf-8")), json.loads(published.read_text(encoding="utf-8")))


if __name__ == "__main__":
    unittest.main()
