#include "quant/apply.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/nearest.h"
#include "kernels/fp8.h"
#include "kernels/lut4.h"
#include "kernels/offsets.h"
#include "quant/fp8_formats.h"
#include "quant/integer_formats.h"

namespace inflight::quant {
namespace {

std::size_t round_up64(std::size_t n) { return (n + 63) / 64 * 64; }

// Columns of a BF16 or rounded copy of the activations.
std::int64_t copy_stride(const Matrix& w) { return (w.inputs + 31) / 32 * 32; }

// Weights that are integers, and multiply such.
bool takes_int8(const Matrix& w) { return w.format->quantized() && w.format->codes != Codes::kE4M3; }
bool is_int8(Arithmetic arithmetic) { return arithmetic == Arithmetic::kInt8 || arithmetic == Arithmetic::kInt8Grouped; }

// Tokens that one worker converts at a time; int8 activation tiles ask for multiples of 16.
constexpr std::int64_t kTokenGrain = 16;

// Panels that one worker takes at a time: enough that the range is a long stream, few enough to share a small matrix.
// Even, since the products work on pairs of panels.
std::int64_t panel_grain(const Matrix& w, int threads) { return std::clamp<std::int64_t>(w.panels() / (threads * 8), 2, 16) / 2 * 2; }

// Inputs that a scale of the weights covers, as prompt activations are made for.
std::int64_t prompt_group(const Matrix& w) { return w.format->codes == Codes::kLut4 ? kernels::kLut4Group : w.group; }

// What apply_scratch() holds: the activations as the arithmetic takes them, then, for matrices that have such, inputs in the order of the columns
// [tokens][gathered_stride] and the sums of groups [tokens][groups], of FP32 activations whatever the arithmetic: offsets do not see its rounding.
struct Scratch {
  std::size_t gathered = 0, sums = 0, bytes = 0;  // where they begin
};

std::int64_t gathered_stride(const Matrix& w) { return (w.inputs + 15) / 16 * 16; }

std::size_t converted_bytes(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, std::int64_t tokens);

Scratch scratch_of(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, std::int64_t tokens) {
  Scratch scratch;
  scratch.gathered = converted_bytes(w, arithmetic, kernels, tokens);
  scratch.sums = scratch.gathered + (w.order ? round_up64(static_cast<std::size_t>(tokens * gathered_stride(w)) * sizeof(float)) : 0);
  scratch.bytes = scratch.sums + (w.offsets ? round_up64(static_cast<std::size_t>(tokens * w.groups()) * sizeof(float)) : 0);
  return scratch;
}

// Prompt tokens lie in tiles: one that was converted by itself has a form of its own.
bool lies_in_tiles(const Matrix& w, Arithmetic arithmetic) { return arithmetic == Arithmetic::kInt8Grouped && takes_int8(w); }

// What token_scratch() holds.
Scratch token_of(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels) {
  Scratch scratch = scratch_of(w, arithmetic, kernels, 1);
  if (!lies_in_tiles(w, arithmetic)) return scratch;
  scratch.gathered = scratch.sums = round_up64(kernels.linear->token_bytes(w.inputs, prompt_group(w)));
  scratch.bytes = scratch.sums + (w.offsets ? round_up64(static_cast<std::size_t>(w.groups()) * sizeof(float)) : 0);
  return scratch;
}

// Rows that one thread prepares sooner than several that have to meet.
constexpr std::int64_t kRowsOfOne = 2;

// What an idle worker brings into its second-level cache at most.
constexpr std::int64_t kFetchAhead = 256 * 1024;

template <class Done>
void fetch_until(const std::byte* from, std::int64_t bytes, const Done& done) {
  constexpr std::int64_t kLine = 64, kLines = 8;  // lines between two looks at whether it is time
  for (std::int64_t at = 0; at < bytes && !done(); at += kLines * kLine)
    for (std::int64_t i = 0; i < kLines; ++i) __builtin_prefetch(from + at + i * kLine, 0, 2);
}

}  // namespace

std::string_view arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFp32: return "fp32";
    case Arithmetic::kBf16: return "bf16";
    case Arithmetic::kInt8:
    case Arithmetic::kInt8Grouped: return "int8";
    case Arithmetic::kFp8: return "fp8";
  }
  return "?";
}

Result<ComputePolicy> make_compute_policy(std::string_view compute, std::string_view isa) {
  using enum Arithmetic;
  if (compute == "fp32") return ComputePolicy{kFp32, kFp32, kFp32, kFp32, kFp32, kFp32};
  if (compute == "bf16") return ComputePolicy{kBf16, kBf16, kBf16, kBf16, kBf16, kBf16};
  // Weights that stay BF16 gain nothing from integers. Where BF16 dot instructions exist they double the prefill rate at a KL of 0.0001;
  // elsewhere FP32 activations cost the same and are exact. Decode waits for memory either way.
  const Arithmetic plain_prefill = isa == "avx512_bf16" ? kBf16 : kFp32;
  // FP8 weights are exact in BF16 and multiply as BF16 weights do: never integers.
  // Quantized weights: prefill waits for arithmetic, so all but few activations make do with one byte; decode waits for memory and has two.
  if (compute == "int8" || compute == "auto") return ComputePolicy{kInt8Grouped, kInt8, plain_prefill, kFp32, plain_prefill, kFp32};
  constexpr std::array<std::string_view, 4> kKnown = {"auto", "fp32", "bf16", "int8"};
  return fail(Code::kInvalidArgument, "unknown --compute \"{}\"; {}", compute, known_names_hint(compute, kKnown));
}

namespace {

std::size_t converted_bytes(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, std::int64_t tokens) {
  if (w.format->codes == Codes::kLut4 && arithmetic == Arithmetic::kInt8) return round_up64(kernels.lut4->int8_bytes(tokens, w.inputs));
  if (arithmetic == Arithmetic::kInt8 && takes_int8(w)) return round_up64(kernels.linear->int8_bytes(tokens, w.inputs, w.group));
  if (arithmetic == Arithmetic::kInt8Grouped && takes_int8(w)) return round_up64(kernels.linear->grouped_bytes(tokens, w.inputs, prompt_group(w)));
  if (arithmetic == Arithmetic::kBf16) return round_up64(static_cast<std::size_t>(tokens * copy_stride(w)) * sizeof(float));
  if (arithmetic == Arithmetic::kFp8) return round_up64(static_cast<std::size_t>(tokens * (copy_stride(w) * 2 + 4)));  // E4M3 numbers in BF16, then a scale a token
  return 0;
}

float* token_scales(const Matrix& w, std::int64_t tokens, std::byte* scratch) { return reinterpret_cast<float*>(scratch + tokens * copy_stride(w) * 2); }

// Tokens [begin, end) as E4M3 numbers, with what brings products back.
void convert_fp8(const Matrix& w, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t begin, std::int64_t end, std::byte* scratch) {
  const std::int64_t stride = copy_stride(w);
  auto* numbers = reinterpret_cast<std::uint16_t*>(scratch);
  float* scales = token_scales(w, tokens, scratch);
  for (std::int64_t t = begin; t < end; ++t) {
    float scale = w.fp8_input.scale;
    if (w.fp8_input.kind == Fp8Input::Scale::kToken) {
      float most = 0;
      for (std::int64_t k = 0; k < w.inputs; ++k) most = std::max(most, std::fabs(x[t * ldx + k]));
      scale = most / w.fp8_input.bound;
    }
    scales[t] = scale;
    kernels.fp8->encode_bf16(x + t * ldx, w.inputs, scale == 0 ? 0.0f : 1.0f / scale, w.fp8_input.bound, numbers + t * stride);
    std::fill(numbers + t * stride + w.inputs, numbers + (t + 1) * stride, std::uint16_t{0});
  }
}

void convert(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t begin, std::int64_t end,
             std::byte* scratch) {
  const Codes codes = w.format->codes;
  if (arithmetic == Arithmetic::kInt8 && codes == Codes::kLut4) return kernels.lut4->quantize_int8(x, ldx, tokens, w.inputs, begin, end, scratch);
  if (is_int8(arithmetic) && takes_int8(w)) {
    if (arithmetic == Arithmetic::kInt8Grouped) return kernels.linear->quantize_grouped(x, ldx, tokens, w.inputs, prompt_group(w), begin, end, scratch);
    return kernels.linear->quantize_int8(x, ldx, tokens, w.inputs, w.group, begin, end, scratch);
  }
  if (arithmetic == Arithmetic::kFp8) return convert_fp8(w, kernels, x, ldx, tokens, begin, end, scratch);
  if (arithmetic != Arithmetic::kBf16) return;
  const std::int64_t stride = copy_stride(w);
  if (codes != Codes::kBf16 && codes != Codes::kE4M3) {  // no integer or FP32 product takes BF16 activations: they are rounded and used as FP32
    for (std::int64_t t = begin; t < end; ++t) kernels.vector->round_bf16(x + t * ldx, w.inputs, reinterpret_cast<float*>(scratch) + t * stride);
    return;
  }
  auto* rounded = reinterpret_cast<std::uint16_t*>(scratch);
  for (std::int64_t t = begin; t < end; ++t) {
    kernels.vector->to_bf16(x + t * ldx, w.inputs, rounded + t * stride);
    std::fill(rounded + t * stride + w.inputs, rounded + (t + 1) * stride, std::uint16_t{0});
  }
}

void multiply(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin,
              std::int64_t panel_end, float* y, std::int64_t ldy, const std::byte* scratch) {
  const kernels::LinearKernels& linear = *kernels.linear;
  const Codes codes = w.format->codes;
  if (is_int8(arithmetic) && codes == Codes::kLut4) {
    const auto gemm = arithmetic == Arithmetic::kInt8Grouped ? kernels.lut4->gemm_prompt : kernels.lut4->gemm_int8;
    return gemm(lut4_view(w), scratch, tokens, panel_begin, panel_end, y, ldy);
  }
  if (codes == Codes::kE4M3) {
    if (arithmetic == Arithmetic::kFp8) {
      kernels.fp8->gemm_e4m3_bf16(fp8_view(w), reinterpret_cast<const std::uint16_t*>(scratch), copy_stride(w), tokens, panel_begin, panel_end, y, ldy);
      const float* scales = token_scales(w, tokens, const_cast<std::byte*>(scratch));
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t n = panel_begin * kPanelRows; n < panel_end * kPanelRows; ++n) y[t * ldy + n] *= scales[t];
      return;
    }
    if (arithmetic == Arithmetic::kBf16)
      return kernels.fp8->gemm_e4m3_bf16(fp8_view(w), reinterpret_cast<const std::uint16_t*>(scratch), copy_stride(w), tokens, panel_begin, panel_end, y, ldy);
    return kernels.fp8->gemm_e4m3(fp8_view(w), x, ldx, tokens, panel_begin, panel_end, y, ldy);
  }
  const kernels::Weight view = w.view();
  if (is_int8(arithmetic) && takes_int8(w)) {
    const bool grouped = arithmetic == Arithmetic::kInt8Grouped, wide = codes == Codes::kU8;
    const auto gemm = grouped ? (wide ? linear.gemm_u8_grouped : linear.gemm_u4_grouped) : wide ? linear.gemm_u8_int8 : linear.gemm_u4_int8;
    return gemm(view, scratch, tokens, panel_begin, panel_end, y, ldy);
  }
  if (arithmetic == Arithmetic::kBf16 && codes == Codes::kBf16)
    return linear.gemm_bf16_bf16(view, reinterpret_cast<const std::uint16_t*>(scratch), copy_stride(w), tokens, panel_begin, panel_end, y, ldy);
  const float* input = arithmetic == Arithmetic::kBf16 ? reinterpret_cast<const float*>(scratch) : x;
  const std::int64_t stride = arithmetic == Arithmetic::kBf16 ? copy_stride(w) : ldx;
  if (codes == Codes::kLut4) return kernels.lut4->gemm(lut4_view(w), input, stride, tokens, panel_begin, panel_end, y, ldy);
  const auto gemm = codes == Codes::kF32 ? linear.gemm_f32 : codes == Codes::kBf16 ? linear.gemm_bf16 : codes == Codes::kU8 ? linear.gemm_u8 : linear.gemm_u4;
  gemm(view, input, stride, tokens, panel_begin, panel_end, y, ldy);
}

}  // namespace

std::size_t apply_scratch(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, std::int64_t tokens) { return scratch_of(w, arithmetic, kernels, tokens).bytes; }

void convert_activations(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t begin,
                         std::int64_t end, std::byte* scratch) {
  if (w.order || w.offsets) {
    const Scratch at = scratch_of(w, arithmetic, kernels, tokens);
    if (w.order) {
      auto* gathered = reinterpret_cast<float*>(scratch + at.gathered);
      const std::int64_t stride = gathered_stride(w);
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t k = 0; k < w.inputs; ++k) gathered[t * stride + k] = k < w.lead ? 0 : x[t * ldx + (*w.order)[static_cast<std::size_t>(k)]];
      x = gathered;
      ldx = stride;
    }
    auto* sums = reinterpret_cast<float*>(scratch + at.sums);
    if (w.offsets)
      for (std::int64_t t = begin; t < end; ++t) kernels.offsets->group_sums(x + t * ldx, w.inputs, w.group, sums + t * w.groups());
  }
  convert(w, arithmetic, kernels, x, ldx, tokens, begin, end, scratch);
}

std::size_t token_scratch(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels) {
  return w.order || converted_bytes(w, arithmetic, kernels, 1) == 0 ? 0 : token_of(w, arithmetic, kernels).bytes;
}

bool token_is_scratch(const Matrix& w, Arithmetic arithmetic) { return !lies_in_tiles(w, arithmetic); }

// Tiles of two int8 planes are made of rows alone.
bool gathers(const Matrix& w, Arithmetic arithmetic) { return arithmetic != Arithmetic::kInt8 || !takes_int8(w); }

void convert_token(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::byte* token) {
  if (!lies_in_tiles(w, arithmetic)) return convert_activations(w, arithmetic, kernels, x, w.inputs, 1, 0, 1, token);
  kernels.linear->quantize_token(x, w.inputs, prompt_group(w), token);
  if (w.offsets) kernels.offsets->group_sums(x, w.inputs, w.group, reinterpret_cast<float*>(token + token_of(w, arithmetic, kernels).sums));
}

void gather_activations(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const std::byte* converted, const std::int32_t* rows, std::int64_t tokens,
                        std::int64_t begin, std::int64_t end, std::byte* scratch) {
  const Scratch from = token_of(w, arithmetic, kernels), to = scratch_of(w, arithmetic, kernels, tokens);
  const auto token = [&](std::int64_t r) { return converted + static_cast<std::size_t>(rows[r]) * from.bytes; };
  if (w.offsets) {
    const std::size_t bytes = static_cast<std::size_t>(w.groups()) * sizeof(float);
    for (std::int64_t r = begin; r < end; ++r) std::memcpy(scratch + to.sums + static_cast<std::size_t>(r) * bytes, token(r) + from.sums, bytes);
  }
  if (lies_in_tiles(w, arithmetic))
    return kernels.linear->gather_grouped(converted, static_cast<std::int64_t>(from.bytes), w.inputs, prompt_group(w), rows, tokens, begin, end, scratch);
  const bool numbers = w.format->codes == Codes::kBf16 || w.format->codes == Codes::kE4M3;  // of BF16, else BF16 ones in FP32
  const std::size_t bytes = static_cast<std::size_t>(copy_stride(w)) * (numbers ? sizeof(std::uint16_t) : sizeof(float));
  for (std::int64_t r = begin; r < end; ++r) std::memcpy(scratch + static_cast<std::size_t>(r) * bytes, token(r), bytes);
  if (arithmetic != Arithmetic::kFp8) return;
  for (std::int64_t r = begin; r < end; ++r) std::memcpy(token_scales(w, tokens, scratch) + r, token(r) + bytes, sizeof(float));
}

void multiply_panels(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin,
                     std::int64_t panel_end, float* y, std::int64_t ldy, const std::byte* scratch) {
  if (!w.order && !w.offsets) return multiply(w, arithmetic, kernels, x, ldx, tokens, panel_begin, panel_end, y, ldy, scratch);
  const Scratch at = scratch_of(w, arithmetic, kernels, tokens);
  if (w.order) {
    x = reinterpret_cast<const float*>(scratch + at.gathered);
    ldx = gathered_stride(w);
  }
  multiply(w, arithmetic, kernels, x, ldx, tokens, panel_begin, panel_end, y, ldy, scratch);
  if (w.offsets) kernels.offsets->add_offsets(w.offsets, w.groups(), reinterpret_cast<const float*>(scratch + at.sums), tokens, panel_begin, panel_end, y, ldy);
}

void apply(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, ThreadPool& pool, const float* x, std::int64_t ldx,
           std::int64_t tokens, float* y, std::int64_t ldy, std::byte* scratch, const PrepareRows& prepare) {
  if (tokens == 0) return;
  const bool converts = apply_scratch(w, arithmetic, kernels, tokens) != 0;
  const auto ready = [&](std::int64_t begin, std::int64_t end) {
    if (prepare) prepare(begin, end);
    if (converts) convert_activations(w, arithmetic, kernels, x, ldx, tokens, begin, end, scratch);
  };
  const auto product = [&](std::int64_t begin, std::int64_t end) { multiply_panels(w, arithmetic, kernels, x, ldx, tokens, begin, end, y, ldy, scratch); };
  const std::int64_t grain = panel_grain(w, pool.threads());
  if (tokens > kTokenGrain) {
    if (prepare || converts) pool.parallel_for(tokens, kTokenGrain, ready);
    return pool.parallel_for(w.panels(), grain, product);
  }
  // One thread makes the rows; the others fetch what they multiply first. Many rows are worth a region of their own, but for their conversion.
  const bool apart = prepare && tokens > kRowsOfOne;
  if (apart) pool.parallel_for(tokens, prepare);
  const std::int64_t panel_bytes = w.format->bytes(w.outputs, w.inputs, w.group).codes / w.panels();
  const auto fetch = [&](std::int64_t begin, std::int64_t end, const auto& done) { fetch_until(w.codes + begin * panel_bytes, std::min((end - begin) * panel_bytes, kFetchAhead), done); };
  const auto first = [&] {
    if (!apart) return ready(0, tokens);
    if (converts) convert_activations(w, arithmetic, kernels, x, ldx, tokens, 0, tokens, scratch);
  };
  pool.parallel_for_after(first, w.panels(), grain, fetch, product);
}

}  // namespace inflight::quant
