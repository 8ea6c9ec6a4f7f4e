// y = x . W^T for any format, in the arithmetic asked for.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "quant/matrix.h"

namespace inflight::quant {

// Arithmetic on activations. kFp32: as they are. kBf16: rounded to BF16. Of integer weights only (FP8 ones take it as kFp32): kInt8: two int8 planes a token;
// kInt8Grouped: one plane with one scale a token; values that stand out have 16 bits (kernels/kernels.h).
// kFp8: activations are E4M3 numbers too (Matrix::fp8_input).
enum class Arithmetic { kFp32, kBf16, kInt8, kInt8Grouped, kFp8 };

// Both int8 kinds are "int8".
std::string_view arithmetic_name(Arithmetic arithmetic);

// Which arithmetic a matrix of a format uses, for prefill and for decode tokens.
struct ComputePolicy {
  Arithmetic quantized_prefill = Arithmetic::kFp32, quantized_decode = Arithmetic::kFp32;  // wint8, wint4...
  Arithmetic plain_prefill = Arithmetic::kFp32, plain_decode = Arithmetic::kFp32;          // bf16, f32
  Arithmetic fp8_prefill = Arithmetic::kFp32, fp8_decode = Arithmetic::kFp32;              // E4M3 codes: not kInt8
  Arithmetic prefill(const Matrix& w) const { return w.fp8_input.kind != Fp8Input::Scale::kNone ? Arithmetic::kFp8 : prefill(*w.format); }
  Arithmetic decode(const Matrix& w) const { return w.fp8_input.kind != Fp8Input::Scale::kNone ? Arithmetic::kFp8 : decode(*w.format); }
  // The same where activations stay as they are.
  Arithmetic prefill(const Format& format) const { return format.codes == Codes::kE4M3 ? fp8_prefill : format.quantized() ? quantized_prefill : plain_prefill; }
  Arithmetic decode(const Format& format) const { return format.codes == Codes::kE4M3 ? fp8_decode : format.quantized() ? quantized_decode : plain_decode; }
};

// --compute auto|fp32|bf16|int8. `auto` is a table fixed in source from measurement (docs/performance.md), per ISA class.
Result<ComputePolicy> make_compute_policy(std::string_view compute, std::string_view isa);

// Scratch bytes that apply() needs for `tokens` tokens.
std::size_t apply_scratch(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, std::int64_t tokens);

// Makes rows [begin, end) of a product's input, just before they are needed; ranges may run on different threads.
using PrepareRows = std::function<void(std::int64_t begin, std::int64_t end)>;

// x: [tokens, ldx] f32, inputs columns used, of which the first w.lead are zeros. y: [tokens, ldy] f32, ldy >= 16 * panels. scratch: apply_scratch() bytes, 64-byte aligned.
// prepare: nothing, or what fills x. Row t of y depends on row t of x alone: bits do not change with `tokens` or threads.
void apply(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, ThreadPool& pool, const float* x, std::int64_t ldx,
           std::int64_t tokens, float* y, std::int64_t ldy, std::byte* scratch, const PrepareRows& prepare = {});

// The two steps of apply(), for callers that share them out themselves. First tokens [begin, end) of x are converted into scratch
// (begin % 16 == 0, and end % 16 == 0 or end == tokens; nothing to do where apply_scratch() is 0), then panels are multiplied.
void convert_activations(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t begin,
                         std::int64_t end, std::byte* scratch);
void multiply_panels(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin,
                     std::int64_t panel_end, float* y, std::int64_t ldy, const std::byte* scratch);

// Tokens that several products take, each beside other tokens, are converted once, each by itself, and copied to where a product takes them.
// token_scratch(): bytes of such a token; 0 where there is nothing to convert, or a matrix has an order of its inputs to itself.
std::size_t token_scratch(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels);
// token_is_scratch(): as it lies, it is what multiply_panels() takes for one token. gathers(): gather_activations() may be called.
bool token_is_scratch(const Matrix& w, Arithmetic arithmetic);
bool gathers(const Matrix& w, Arithmetic arithmetic);
// x: [inputs] f32. token: token_scratch() bytes, 64-byte aligned.
void convert_token(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const float* x, std::byte* token);
// As convert_activations() of `tokens` rows, the same bits, where row r is the converted token rows[r] of those that lie token_scratch() bytes apart.
void gather_activations(const Matrix& w, Arithmetic arithmetic, const kernels::Kernels& kernels, const std::byte* converted, const std::int32_t* rows, std::int64_t tokens,
                        std::int64_t begin, std::int64_t end, std::byte* scratch);

}  // namespace inflight::quant
