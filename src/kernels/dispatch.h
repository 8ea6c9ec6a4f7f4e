// Which instruction set runs: the strongest this CPU has, or the one that INFLIGHT_ISA names.
#pragma once
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"

namespace inflight::kernels {

// The chosen table. An unknown or unavailable INFLIGHT_ISA is an error that lists what there is.
Result<const Kernels*> choose();

// The table of one ISA by name; an error when this binary or this CPU lacks it.
Result<const Kernels*> find(std::string_view isa);

// Names of the ISAs that this CPU can run, weakest first.
std::vector<std::string_view> available();

}  // namespace inflight::kernels
