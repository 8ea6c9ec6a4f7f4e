// The integer weight formats, and what they share.
#pragma once
#include "kernels/lut4.h"
#include "quant/format.h"

namespace inflight::quant {

const Format& wint8_format();
const Format& wint4_format();       // one scale per output channel
const Format& wint4_g128_format();  // one per 128, 64 or 32 consecutive inputs
const Format& wint4_g64_format();
const Format& wint4_g32_format();
const Format& wlut4_format();  // a table of 16 values

kernels::Lut4Weight lut4_view(const Matrix& matrix);  // of a wlut4 matrix

// Reads one stored scale (F32 or F16) into FP32; an error unless it is finite and not negative.
Result<void> import_scale(const void* bytes, DType dtype, float* scale);

}  // namespace inflight::quant
