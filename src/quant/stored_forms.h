// Every stored form, and what a checkpoint's config.json says of the forms that its matrices are in.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "quant/stored_form.h"

namespace inflight::quant {

struct FormChoice {
  const StoredForm* form = nullptr;
  FormSettings settings;  // `order` is not known yet: set_order()
};

class FormConfig {
 public:
  struct Rules;  // what was read

  // config: the whole config.json. nullopt: no quantization_config (or compression_config), that of our own converted folders (an "inflight" block), or one
  // of a checkpoint whose weights are plain numbers.
  // kUnsupported: a method or setting that is not read, by name, with those that are. kCorrupt: settings that contradict each other.
  static Result<std::optional<FormConfig>> parse(const JsonView& config);
  // The form that the matrix "<module>.weight" ("model.layers.0.mlp.down_proj") has if it is not plain numbers; nullopt: config.json says that it is not
  // converted. Tools leave modules as they are (routers, heads) without saying so: where tensors hold plain numbers, tensors are right.
  // kUnsupported: rules that contradict each other about this module.
  Result<std::optional<FormChoice>> choice(std::string_view module) const;
  // Names and patterns of config.json's exceptions that fit none of these modules: usually a sign of other names than the tool had.
  std::vector<std::string> unused(std::span<const std::string> modules) const;
  // "gptq", as config.json says it.
  std::string_view method() const;

 private:
  std::shared_ptr<const Rules> rules_;
};

// Suffixes under which codes lie, other than "weight".
std::span<const std::string_view> codes_suffixes();

// From a tensor that says which group each input belongs to: settings.order, or none where groups are consecutive inputs. An error where a group is out of range
// or has not settings.group inputs (the last one may have fewer).
Result<void> set_order(FormSettings& settings, std::span<const std::int32_t> group_of_input);

const StoredForm& gptq_form();
const StoredForm& awq_form();
const StoredForm& compressed_form();        // compressed-tensors, every format of it that is read
const StoredForm& fp8_form();               // FP8 of transformers, DeepSeek and AutoFP8: blocks, outputs or whole matrices
const StoredForm& paddle_form();            // PaddlePaddle's weight-only int8 and int4
const StoredForm& paddle_fp8_form();        // PaddlePaddle's tensor_wise_fp8; settings.group_rows 1: one scale an output
const StoredForm& gguf_form();              // blocks of a GGUF file, by the tensor's dtype
FormSettings gguf_settings(DType block);

}  // namespace inflight::quant
