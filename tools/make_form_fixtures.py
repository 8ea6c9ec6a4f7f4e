#!/usr/bin/env python3
"""Tiny checkpoints in the stored forms of other tools, packed by those tools' own code, with reference outputs.

Each DIR/<name>/ is a Hugging Face checkpoint without a tokenizer: config.json with its quantization_config, model.safetensors, and golden.safetensors:

  prompt.0   int64 [T]     token ids
  logits.0   fp32  [T, V]  transformers, in FP32, on the weights as the form's own library takes them apart in FP32

Packers: auto-gptq's and AutoAWQ's linear layers, compressed-tensors' compressors, Paddle's weight_quantize (the inverse of its byte order is
computed here and checked against the rounding error). paddle-wint4-row-major is paddle-wint4 in another order. Block FP8 has no packer: torch casts, scales are amax/448 of a block.

Needs: torch, transformers>=5.24, safetensors, numpy, auto-gptq 0.7.1, autoawq 0.2.9, compressed-tensors 0.20 (these three --no-deps: only their
packing code is imported), paddlepaddle 3.3.   Usage: make_form_fixtures.py OUT_DIR NAME...     (all: every name)
"""
import importlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import types
import zlib

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from make_goldens import hub_style_config, randomize

VOCAB = 32
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
IDS = dict(vocab_size=VOCAB, bos_token_id=None, eos_token_id=2, pad_token_id=0, max_position_embeddings=256)


def without_its_init(*packages):
    """Packages whose __init__ imports what packing does not need."""
    for name in packages:
        if name in sys.modules:
            continue
        parent, _, last = name.rpartition(".")
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(sys.modules[parent].__path__[0], last) if parent else os.path.dirname(importlib.util.find_spec(name).origin)]
        sys.modules[name] = module


def steps(w, group, bits, symmetric):
    """Scales and zero points [N, G] by the range of each group, scales rounded to FP16; codes lie in 0 .. 2^bits - 1."""
    n, k = w.shape
    group = group if group > 0 else k
    pad = -k % group
    parts = torch.nn.functional.pad(w, (0, pad)).reshape(n, -1, group)
    top = 2 ** bits - 1
    if symmetric:
        scale = parts.abs().amax(-1) * 2 / top
        zero = torch.full_like(scale, (top + 1) // 2)
        return scale.half().float(), zero
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / top).half().float()
    return scale, (-low / scale).round().clamp(1, top)      # 0 is left out: auto-gptq stores zero points less one and cannot hold it


class Gptq:
    def __init__(self, bits=4, group=32, symmetric=True, act_order=False, version=1, head=False, alike=False):
        self.bits, self.group, self.symmetric, self.act_order, self.version, self.head = bits, group, symmetric, act_order, version, head
        self.alike = alike                                     # matrices with the same inputs are sorted alike, as GPTQ does; others each in its own way
        without_its_init("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear")
        self.layer = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear

    def config(self):
        c = dict(quant_method="gptq", bits=self.bits, group_size=self.group, desc_act=self.act_order, sym=self.symmetric, damp_percent=0.01, true_sequential=True,
                 lm_head=self.head)
        if self.version == 2:
            c["checkpoint_format"] = "gptq_v2"
        return c

    def wants(self, name):
        return self.head or name != "lm_head"

    def pack(self, name, w):
        n, k = w.shape
        group = self.group if self.group > 0 else k
        g_idx = torch.arange(k) // group
        if self.act_order:
            seed = zlib.crc32(re.sub("(q|k|v|gate|up)_proj", "fused", name).encode()) if self.alike else len(name)
            g_idx = g_idx[torch.randperm(k, generator=torch.Generator().manual_seed(seed))]
        by_group = w[:, torch.argsort(g_idx, stable=True)]
        scale, zero = steps(by_group, group, self.bits, self.symmetric)
        top = 2 ** self.bits - 1
        code = (w / scale[:, g_idx] + zero[:, g_idx]).round().clamp(0, top)
        linear = torch.nn.Linear(k, n, bias=False)
        linear.weight.data = (code - zero[:, g_idx]) * scale[:, g_idx]
        layer = self.layer(self.bits, group, k, n, False, weight_dtype=torch.float32)
        layer.pack(linear, scale.clone(), zero.clone(), g_idx.to(torch.int32))
        layer.g_idx = g_idx.to(torch.int32)
        layer.kernel_switch_threshold, layer.autogptq_cuda_available = 0, False
        truth = layer(torch.eye(k)).T.contiguous()             # W^T comes out of the layer's own FP32 arithmetic
        assert torch.equal(truth, linear.weight.data), name
        zeros = layer.qzeros
        if self.version == 2:                                  # the zero points as they are: words of ones added
            ones = sum(1 << (i * self.bits) for i in range(32 // self.bits))
            zeros = torch.from_numpy((zeros.numpy().view(np.uint32).astype(np.uint64) + ones).astype(np.uint32).view(np.int32))
        return {"qweight": layer.qweight, "qzeros": zeros, "scales": layer.scales.half(), "g_idx": layer.g_idx}, truth


class Awq:
    def __init__(self, group=32):
        self.group = group
        without_its_init("awq", "awq.modules", "awq.modules.linear", "awq.utils")
        self.layer = importlib.import_module("awq.modules.linear.gemm").WQLinear_GEMM
        self.dequantize = importlib.import_module("awq.utils.packing_utils").dequantize_gemm

    def config(self):
        return dict(quant_method="awq", bits=4, group_size=self.group, zero_point=True, version="gemm", modules_to_not_convert=["mlp.down_proj"])

    def wants(self, name):
        return name != "lm_head" and "down_proj" not in name

    def pack(self, name, w):
        n, k = w.shape
        scale, zero = steps(w, self.group, 4, False)
        code = (w / scale.repeat_interleave(self.group, 1)[:, :k] + zero.repeat_interleave(self.group, 1)[:, :k]).round().clamp(0, 15)
        linear = torch.nn.Linear(k, n, bias=False)
        linear.weight.data = (code - zero.repeat_interleave(self.group, 1)[:, :k]) * scale.repeat_interleave(self.group, 1)[:, :k]
        layer = self.layer.from_linear(linear, 4, self.group, False, scale.T.contiguous(), zero.T.contiguous())
        truth = self.dequantize(layer.qweight, layer.qzeros, layer.scales.float(), 4, self.group).T.contiguous()
        assert torch.equal(truth, linear.weight.data), name
        return {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}, truth


class Compressed:
    def __init__(self, format, weights, act_order=False, static=False, ignore=("lm_head",), scale_type=torch.bfloat16, **group):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        self.format, self.act_order, self.static, self.ignore, self.scale_type = format, act_order, static, list(ignore), scale_type
        self.args = QuantizationArgs(**weights)
        self.scheme = QuantizationScheme(targets=["Linear"], weights=self.args, **group)
        self.compressor = BaseCompressor.get_value_from_registry(format)

    def config(self):
        group = json.loads(self.scheme.model_dump_json())
        group["format"] = self.format
        if self.act_order:
            group["weights"]["actorder"] = "group"
        return dict(quant_method="compressed-tensors", format=self.format, quantization_status="compressed", config_groups={"group_0": group}, ignore=self.ignore,
                    kv_cache_scheme=None, sparsity_config={}, transform_config={}, version="0.20.1")

    def wants(self, name):
        return not any(re.match(i[3:], name) if i.startswith("re:") else i == name for i in self.ignore)

    def pack(self, name, w):
        from compressed_tensors.quantization.utils import calculate_qparams
        n, k = w.shape
        state, by_group, g_idx = {}, w, None
        if self.act_order:
            g_idx = (torch.arange(k) // self.args.group_size)[torch.randperm(k, generator=torch.Generator().manual_seed(len(name)))]
            state["weight_g_idx"] = g_idx.to(torch.int32)
            by_group = w[:, torch.argsort(g_idx, stable=True)]
        strategy = getattr(self.args.strategy, "value", self.args.strategy)
        if strategy == "tensor":
            low, high = w.amin().reshape(1), w.amax().reshape(1)
        elif strategy == "channel":
            low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
        elif strategy == "group":
            parts = by_group.reshape(n, -1, self.args.group_size)
            low, high = parts.amin(-1), parts.amax(-1)
        else:
            rows, columns = self.args.block_structure
            parts = torch.nn.functional.pad(w, (0, -k % columns, 0, -n % rows)).reshape((n + rows - 1) // rows, rows, -1, columns)
            low, high = parts.amin((1, 3)), parts.amax((1, 3))
        scale, zero = calculate_qparams(low, high, self.args)
        scale = scale.to(self.scale_type).float()              # the stored numbers, in FP32: the library's arithmetic is then FP32
        full = dict(state, weight=w.clone(), weight_scale=scale, weight_zero_point=zero)
        if g_idx is not None:                                  # the library packs by place: groups are made consecutive, and put back
            order = torch.argsort(g_idx, stable=True)
            back = torch.argsort(order)
            full["weight"] = by_group.contiguous()
        from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
        code = quantize(full["weight"], scale, zero, self.args, dtype=torch.int8 if self.args.type == "int" else torch.float8_e4m3fn) if strategy != "block" else None
        if g_idx is not None:
            from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
            packed = self.compressor.compress({k_: v for k_, v in full.items() if k_ != "weight_g_idx"}, self.scheme)
            packed["weight_packed"] = pack_to_int32(code[:, back].contiguous(), self.args.num_bits)
            packed["weight_g_idx"] = state["weight_g_idx"]
            truth = dequantize(code, scale, zero, self.args)[:, back].contiguous()
        else:
            packed = self.compressor.compress(dict(full), self.scheme)
            truth = self.compressor.decompress(dict(packed), self.scheme)["weight"]
        assert truth.dtype == torch.float32 and (truth - w).abs().max() < w.abs().max() / 4, name
        packed["weight_scale"] = packed["weight_scale"].to(self.scale_type)
        if self.static:
            packed["input_scale"] = torch.tensor([0.05], dtype=self.scale_type)
        return packed, truth


class BlockFp8:
    def __init__(self, block, keep=None, scale_type=torch.float32):
        self.block, self.keep, self.scale_type = block, keep, scale_type

    def config(self):
        c = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=list(self.block))
        if self.keep is not None:
            c["modules_to_not_convert"] = self.keep
        return c

    def wants(self, name):
        return name != "lm_head" and not name.endswith("mlp.gate") and not any(k in name for k in self.keep or [])

    def pack(self, name, w):
        n, k = w.shape
        rows, columns = self.block
        scale = torch.empty((n + rows - 1) // rows, (k + columns - 1) // columns)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                scale[i, j] = w[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns].abs().amax() / 448
        scale = scale.to(self.scale_type)
        spread = scale.float().repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
        code = (w / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": code, "weight_scale_inv": scale}, code.float() * spread


class Paddle:
    """Of linears [in, out], as Paddle has them; q, k, v and gate, up are fused first."""

    def __init__(self, bits):
        self.bits = bits

    def config(self):
        return dict(quantization=f"wint{self.bits}", is_quantized=True)

    def wants(self, name):
        return name != "lm_head"

    def pack(self, name, w):
        import paddle
        from paddle.nn.quant import weight_quantize
        n, k = w.shape
        packed, scale = weight_quantize(paddle.to_tensor(w.T.contiguous().numpy()).astype("float16"), algo=f"weight_only_int{self.bits}", arch=80)
        scale = torch.from_numpy(scale.numpy()).float()
        code = self.codes(packed.numpy(), k, n)
        truth = torch.from_numpy(code).float().T * scale[:, None]
        assert (truth - w).abs().max() < scale.max() * 0.51 + 1e-3, name
        return {"quant_weight": torch.from_numpy(packed.numpy()), "weight_scale": scale.half()}, truth.contiguous()

    def codes(self, packed, k, n):
        """Codes [K, N] of bytes in the order of GPU kernels."""
        b = packed.reshape(-1).view(np.uint8).astype(int)
        code = np.zeros((k, n), int)
        for c in range(n):
            for r in range(k if self.bits == 8 else k // 2):
                if self.bits == 8:
                    p = 16 * (r // 16) + 2 * (r % 8) + r % 16 // 8
                    code[r, c] = b[p % 64 + 128 * (p // 64) + 64 * (c % 2) + 2 * k * (c // 2)] - 128
                    continue
                p = 16 * (r // 16) + 2 * (2 * (r % 4) + r % 8 // 4) + r % 16 // 8
                at = p % 32 + 128 * (p // 32) + 32 * (c % 4) + 2 * k * (c // 4)
                word, i = at // 4 * 4, at % 4
                for odd in (0, 1):
                    code[2 * r + odd, c] = (b[word + i % 2 + 2 * odd] >> (4 if i > 1 else 0) & 15) - 8
        return code


def make_row_major(out, source="paddle-wint4", name="paddle-wint4-row-major"):
    """The same codes and logits as OUT/<source>, row-major: experts a row an output, other matrices a row two inputs."""
    path = os.path.join(out, name)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(os.path.join(out, source), path)
    stored = load_file(os.path.join(path, "model.safetensors"))
    for key, t in stored.items():
        if key.endswith(".quant_weight"):
            code = Paddle(4).codes(t.numpy(), t.shape[1], 2 * t.shape[0])
            code = code.T if ".experts." in key else code
            even, odd = (code[:, 0::2], code[:, 1::2]) if ".experts." in key else (code[0::2], code[1::2])
            stored[key] = torch.from_numpy(np.ascontiguousarray((even & 15 | (odd & 15) << 4).astype(np.uint8).view(np.int8)))
    save_file(stored, os.path.join(path, "model.safetensors"))
    with open(os.path.join(path, "config.json")) as f:
        text = json.load(f)
    text["quantization_config"] = dict(quantization="mix_quant", dense_quant_type="wint4", moe_quant_type="wint4", is_quantized=True, is_permuted=False)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(text, f, indent=2)


def qwen3(**changes):
    from transformers import Qwen3Config
    return Qwen3Config(**(dict(hidden_size=32, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=False,
                               rope_parameters=ROPE) | IDS | changes))


def wide():
    return qwen3(hidden_size=64)                  # two groups of 32 inputs in q, k, v: fused matrices have groups to sort


def odd():
    return qwen3(hidden_size=40, intermediate_size=52, head_dim=20)


def qwen3_moe():
    from transformers import Qwen3MoeConfig
    return Qwen3MoeConfig(hidden_size=136, intermediate_size=160, moe_intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                          num_experts=3, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=False, rope_parameters=ROPE, **IDS)


def qwen2_moe():
    from transformers import Qwen2MoeConfig
    return Qwen2MoeConfig(hidden_size=64, intermediate_size=64, moe_intermediate_size=96, shared_expert_intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          num_experts=4, num_experts_per_tok=2, norm_topk_prob=False, tie_word_embeddings=False, rope_parameters=ROPE, **IDS)


def deepseek():
    from transformers import DeepseekV3Config
    return DeepseekV3Config(hidden_size=48, intermediate_size=56, moe_intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=24,
                            kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24, n_routed_experts=4, n_shared_experts=1, n_group=2, topk_group=1,
                            num_experts_per_tok=2, routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1, tie_word_embeddings=False,
                            rope_parameters={"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
                                             "mscale": 1.0, "mscale_all_dim": 1.0}, **IDS)


def ernie():
    from transformers import Ernie4_5_MoeConfig
    return Ernie4_5_MoeConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32, moe_intermediate_size=64,
                              moe_num_experts=2, moe_k=1, moe_num_shared_experts=1, moe_layer_start_index=1, tie_word_embeddings=True, rope_parameters=ROPE, **IDS)


INT4, INT8 = dict(num_bits=4, type="int"), dict(num_bits=8, type="int")
FP8 = dict(num_bits=8, type="float")
GROUP = dict(strategy="group", group_size=32)
FIXTURES = {
    "gptq-4bit-sym": (qwen3, lambda: Gptq()),
    "gptq-4bit-asym": (qwen3, lambda: Gptq(symmetric=False)),
    "gptq-4bit-act-order": (wide, lambda: Gptq(symmetric=False, act_order=True)),
    "gptq-8bit-v2-channel": (qwen3, lambda: Gptq(bits=8, group=-1, symmetric=False, version=2, head=True)),
    "awq-g32": (qwen3, lambda: Awq()),
    "ct-w4a16-group": (qwen3, lambda: Compressed("pack-quantized", INT4 | GROUP | dict(symmetric=True))),
    "ct-w4a16-channel-zero": (odd, lambda: Compressed("pack-quantized", INT4 | dict(strategy="channel", symmetric=False))),
    "ct-w4a16-g-idx": (wide, lambda: Compressed("pack-quantized", INT4 | GROUP | dict(symmetric=False), act_order=True, scale_type=torch.float16)),
    "ct-w8a16-group-zero": (qwen3, lambda: Compressed("pack-quantized", INT8 | GROUP | dict(symmetric=False), ignore=["lm_head", "re:.*down_proj$"])),
    "ct-w8a8-int8": (odd, lambda: Compressed("int-quantized", INT8 | dict(strategy="channel", symmetric=True))),
    "ct-fp8-tensor": (qwen3, lambda: Compressed("float-quantized", FP8 | dict(strategy="tensor", symmetric=True), static=True)),
    "ct-fp8-channel": (odd, lambda: Compressed("float-quantized", FP8 | dict(strategy="channel", symmetric=True))),
    "ct-fp8-block": (odd, lambda: Compressed("float-quantized", FP8 | dict(strategy="block", block_structure=[32, 32], symmetric=True))),
    "fp8-block-qwen3-moe": (qwen3_moe, lambda: BlockFp8((128, 128), keep=["lm_head", "model.layers.0.mlp.gate", "model.layers.0.self_attn.o_proj"], scale_type=torch.bfloat16)),
    "fp8-block-deepseek-v3": (deepseek, lambda: BlockFp8((32, 32))),
    "paddle-wint8": (ernie, lambda: Paddle(8)),
    "paddle-wint4": (ernie, lambda: Paddle(4)),
    "gptq-4bit-act-order-moe": (qwen2_moe, lambda: Gptq(symmetric=False, act_order=True, alike=True)),
}


def paddle_form(w):
    """Paddle's names and fusions of an ERNIE checkpoint; matrices still [out, in]."""
    new = {}
    for name, t in w.items():
        p = name.replace("model.", "ernie.", 1)
        if name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
            continue
        if name.endswith("q_proj.weight"):
            new[p.replace("q_proj", "qkv_proj")] = torch.cat([w[name.replace("q_proj", x)] for x in ("q_proj", "k_proj", "v_proj")])
        elif name.endswith("gate_proj.weight"):
            new[p.replace("gate_proj", "up_gate_proj")] = torch.cat([t, w[name.replace("gate_proj", "up_proj")]])
        else:
            new[p] = t
    return new


def unfused(name, truth, w):
    """The dequantized rows of a fused matrix, under the names that transformers has."""
    names = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "up_gate_proj": ("gate_proj", "up_proj")}
    p = name.replace("ernie.", "model.", 1)
    for fused, parts in names.items():
        if p.endswith(fused + ".weight"):
            at = 0
            for part in parts:
                own = p.replace(fused, part)
                yield own, truth[at:at + w[own].shape[0]].contiguous()
                at += w[own].shape[0]
            return
    yield p, truth


@torch.no_grad()
def make(name, out, seed):
    from transformers import AutoModelForCausalLM
    make_config, make_form = FIXTURES[name]
    form, config = make_form(), make_config()
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomize(model, seed)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        w = load_file(os.path.join(scratch, "model.safetensors"))
        paddle = isinstance(form, Paddle)
        stored, truth = {}, dict(w)
        for key, t in (paddle_form(w) if paddle else w).items():
            module = key.removesuffix(".weight")
            linear = t.ndim == 2 and key.endswith("_proj.weight") or key.endswith(("_proj_with_mqa.weight", "q_a_proj.weight", "lm_head.weight"))
            if linear and form.wants(module):
                tensors, exact = form.pack(module, t)
                stored.update({f"{module}.{suffix}": v.contiguous().clone() for suffix, v in tensors.items()})
                truth.update(unfused(key, exact, w) if paddle else {key: exact.contiguous()})
            elif paddle and (linear or key.endswith("mlp.gate.weight")):
                stored[key] = t.T.contiguous().to(torch.float32 if "gate" in key else torch.bfloat16)
            else:
                stored[key] = t if "e_score_correction_bias" in key or (paddle and t.ndim == 1) else t.to(torch.bfloat16)
        save_file(truth, os.path.join(scratch, "model.safetensors"), metadata={"format": "pt"})
        reference = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32, attn_implementation="eager").eval()
        hub_style_config(scratch)
        with open(os.path.join(scratch, "config.json")) as f:
            text = json.load(f)
    path = os.path.join(out, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    text["torch_dtype"] = "bfloat16"
    if paddle:
        text["dtype"] = text.pop("torch_dtype")
        text.pop("transformers_version", None)
    text["quantization_config"] = form.config()
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(text, f, indent=2)
    save_file(stored, os.path.join(path, "model.safetensors"))
    ids = np.random.default_rng(seed).integers(3, VOCAB, 12).tolist()
    logits = reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().contiguous()
    save_file({"prompt.0": torch.tensor(ids), "logits.0": logits}, os.path.join(path, "golden.safetensors"))
    size = sum(os.path.getsize(os.path.join(path, n)) for n in os.listdir(path))
    print(f"{name}: {size / 1000:.0f} kB, largest logit {logits.abs().max():.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    for k, fixture in enumerate(FIXTURES):
        if fixture in sys.argv[2:] or "all" in sys.argv[2:]:
            make(fixture, sys.argv[1], 300 + k)
    if "paddle-wint4-row-major" in sys.argv[2:] or "all" in sys.argv[2:]:
        make_row_major(sys.argv[1])
