// The FP8 weight formats: E4M3 numbers (base/e4m3.h) with FP32 scales that several rows share.
#pragma once
#include <cstdint>
#include <span>

#include "base/e4m3.h"
#include "quant/format.h"

namespace inflight::quant {

inline constexpr std::int64_t kFp8Block = 128;  // rows and inputs

const Format& tensor_wise_fp8_gaudi_format();  // tensor_wise_fp8 whose codes Gaudi 2 has too: scale = absmax / 240
const Format& block_wise_fp8_gaudi_format();
const Format& tensor_wise_fp8_format();  // one scale a matrix of the checkpoint; in memory one a row: fused matrices keep those of their pieces
const Format& block_wise_fp8_format();   // one scale a block of 128 rows and 128 inputs, ragged at the ends; in memory one a row and 128 inputs

// An FP8 matrix as kernels/fp8.h takes it.
kernels::Weight fp8_view(const Matrix& matrix);

// Sets scale = fl32(absmax / bound) for rows [row_begin, row_end), of a matrix of the checkpoint or of a block of its rows: absmax holds one number
// for tensor_wise_fp8, one per 128 inputs for block_wise_fp8, over all these rows (and over all ranks that share them). bound: kE4m3Max, or kGaudiE4m3Max:
// then no code of these rows is above 240 either. store() quantizes rows whose scales are set.
void set_fp8_scales(Matrix& matrix, std::int64_t row_begin, std::int64_t row_end, std::span<const float> absmax, float bound = kE4m3Max);

// Gives codes above `bound` smaller ones under larger scales: every block of rows and inputs that share a scale and hold such a code is encoded again with
// scale' = fl32(scale * largest / bound), code' = e4m3(fl32(fl32(value(code) * scale) / scale')). The others stay. Returns how many codes changed.
std::int64_t limit_fp8_codes(Matrix& matrix, float bound);

}  // namespace inflight::quant
