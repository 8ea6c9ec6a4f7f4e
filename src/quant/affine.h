// The formats of integer weights that another tool made.
#pragma once
#include <span>

#include "quant/format.h"

namespace inflight::quant {

// int4 and int8, per channel and in groups, without and with offsets ("-zp").
std::span<const Format* const> affine_formats();

}  // namespace inflight::quant
