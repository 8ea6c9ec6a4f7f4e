// Which format each parameter takes: a choice per role, and exceptions by name.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "params/param_spec.h"
#include "quant/format.h"

namespace inflight::quant {

inline constexpr std::string_view kOverrideExample = "model.layers.*.mlp.down_proj=wint8";

struct FormatPolicy {
  struct Override {
    std::string pattern;              // shell pattern (`*`, `?`, `[...]`; `*` crosses dots) over names without suffix
    const Format* format = nullptr;   // nullptr: as stored
  };
  const Format* linear = nullptr;  // nullptr: as stored
  const Format* expert = nullptr;  // routed experts
  const Format* head = nullptr;
  const Format* embedding = nullptr;  // look-up tables of converted folders alone: a table that another tool quantized is kept so
  std::vector<Override> overrides;  // the last that matches wins
  bool mix = false;                 // wlut4-mix: settle() adds overrides that follow from the table
  bool wide_derived = false;        // derived parameters are FP32 rather than BF16

  // The format of a row, nullptr: as stored. Vectors and routers always stay as they are.
  // An override applies to a row when it matches the row's own name ("...self_attn.qkv_proj") or that of one of its pieces ("...q_proj"): a fused row has one format.
  const Format* of(const params::ParamSpec& row) const;
  // An error names an override that no row of the table takes.
  Result<void> check_overrides(const params::ParamTable& table) const;
  // Chooses what depends on the whole table. Before of() and check_overrides().
  void settle(const params::ParamTable& table);
  // "ocp": E4M3 codes up to 448; "gaudi": up to 240.
  Result<void> set_fp8_target(std::string_view target);
  // Both give every row of the table the same format.
  bool agrees(const FormatPolicy& other, const params::ParamTable& table) const;
};

// quantization: "" (as stored), a format's name, "wlut4-mix" (mix.h), or a JSON object as FastDeploy takes it:
//   {"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4"}; a missing type leaves that part as stored.
// lm_head: `auto` makes the head wint8 beside an in-flight wint format, as stored otherwise (beside FP8 too).
// overrides: "pattern=format" each.
Result<FormatPolicy> make_policy(std::string_view quantization, std::string_view lm_head, const std::vector<std::string>& overrides = {});

}  // namespace inflight::quant
