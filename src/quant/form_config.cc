// What config.json says of matrices that another tool quantized. One function a method; keys and rules: docs/formats/.
#include <algorithm>
#include <array>

#include "quant/name_pattern.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

constexpr std::string_view kSupported =
    "gptq, awq (gemm), compressed-tensors (pack-quantized, int-quantized, float-quantized, naive-quantized), fp8, fbgemm_fp8, and PaddlePaddle's wint8, wint4 and tensor_wise_fp8\n"
    "  hint: take the model in one of these, or its unquantized checkpoint with --quantization";

// The class that Python tools give a module.
std::string_view class_of(std::string_view module) { return module.ends_with("embed_tokens") ? "Embedding" : "Linear"; }

// One entry of a list that names modules.
struct Rule {
  enum Kind {
    kName,       // all of the name
    kPattern,    // "re:": Python's re.match
    kClass,      // "Linear"
    kComponent,  // transformers: components from the first on (a regular expression), a run of them, or the end of the name
  } kind = kName;
  std::string text;
  std::optional<NamePattern> pattern;

  bool fits(std::string_view module) const {
    switch (kind) {
      case kName: return module == text;
      case kPattern: return pattern->matches(module);
      case kClass: return class_of(module) == text;
      case kComponent: break;
    }
    if (text.empty()) return false;
    if (module.ends_with(text) || (pattern && pattern->matches_components(module))) return true;
    return fmt::format(".{}.", module).find(fmt::format(".{}.", text)) != std::string::npos;
  }
};

// GPTQModel's "dynamic": other settings for some modules, or none at all.
struct Override {
  NamePattern pattern;
  std::string text;
  std::optional<FormSettings> settings;  // nullopt: not converted
};

struct Group {
  FormSettings settings;
  bool plain = false;
  std::vector<Rule> targets;
  const StoredForm* form = nullptr;  // nullptr: that of all groups
};

Result<std::vector<std::string>> names_in(const JsonView& view, std::string_view key) {
  std::vector<std::string> names;
  if (!view.has(key)) return names;
  const Json& list = (*view.object)[std::string(key)];
  if (!list.is_array()) return fail(Code::kCorrupt, "{}: \"{}\" must be a list of names", view.where, key);
  for (const Json& name : list) {
    if (!name.is_string()) return fail(Code::kCorrupt, "{}: \"{}\" holds {}, which is not a name", view.where, key, name.dump());
    names.push_back(name.get<std::string>());
  }
  return names;
}

Result<NamePattern> pattern_of(const JsonView& view, std::string_view key, std::string_view text) {
  auto pattern = NamePattern::parse(text);
  if (!pattern) return fail_at(fmt::format("{}: \"{}\"", view.where, key), std::move(pattern).error());
  return pattern;
}

// Lists of compressed-tensors: names, "re:" patterns, classes.
Result<std::vector<Rule>> exact_rules(const JsonView& view, std::string_view key) {
  std::vector<Rule> rules;
  for (std::string& text : TRY(names_in(view, key))) {
    Rule rule{.kind = Rule::kName, .text = std::move(text), .pattern = {}};
    if (rule.text.starts_with("re:")) {
      rule.kind = Rule::kPattern;
      rule.pattern = TRY(pattern_of(view, key, std::string_view(rule.text).substr(3)));
    } else if (!rule.text.empty() && rule.text.find('.') == std::string::npos && rule.text[0] >= 'A' && rule.text[0] <= 'Z') {
      rule.kind = Rule::kClass;
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

Result<std::vector<Rule>> component_rules(const JsonView& view, std::string_view key) {
  std::vector<Rule> rules;
  for (std::string& text : TRY(names_in(view, key))) {
    auto pattern = NamePattern::parse(text);  // what is no expression is a name
    rules.push_back({.kind = Rule::kComponent, .text = std::move(text), .pattern = pattern ? std::optional(*std::move(pattern)) : std::nullopt});
  }
  return rules;
}

Result<std::int64_t> group_size(const JsonView& view, std::string_view key) {
  const std::int64_t size = TRY(view.integer(key));
  if (size == -1) return 0;
  if (size < 1) return fail(Code::kCorrupt, "{}: \"{}\" is {}; expected -1 (one group) or a number of inputs", view.where, key, size);
  return size;
}

Result<void> set_bits(const JsonView& view, std::string_view key, std::int64_t bits, FormSettings& settings) {
  if (bits != 4 && bits != 8) return fail(Code::kUnsupported, "{}: \"{}\" is {}; codes of 4 and 8 bits are read", view.where, key, bits);
  settings.bits = static_cast<int>(bits);
  settings.kind = bits == 4 ? CodeKind::kU4 : CodeKind::kU8;
  return {};
}

}  // namespace

struct FormConfig::Rules {
  std::string method;
  const StoredForm* form = nullptr;
  std::vector<Group> groups;
  bool by_target = false;           // a group is for its targets; else there is one group, for all linear modules
  std::vector<Rule> ignored;
  std::vector<Override> overrides;
  std::vector<std::string> only;    // ends of the names that are converted; empty: all
};

namespace {

using Rules = FormConfig::Rules;

Result<void> read_gptq(const JsonView& view, Rules& rules) {
  rules.form = &gptq_form();
  FormSettings settings;
  TRY(set_bits(view, "bits", TRY(view.integer("bits")), settings));
  settings.group = TRY(group_size(view, "group_size"));
  settings.offsets = !TRY(view.boolean_or("sym", false));
  settings.ordered = TRY(view.boolean_or("desc_act", false));
  const std::string_view key = view.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format = TRY(view.string_or(key, "gptq"));
  if ((format != "gptq" && format != "gptq_v2") || TRY(view.boolean_or("is_marlin_format", false)))
    return fail(Code::kUnsupported, "{}: GPTQ's checkpoint format \"{}\" is not read; read are \"gptq\" and \"gptq_v2\"", view.where, format == "gptq" ? "marlin" : format);
  if (const std::string words = TRY(view.string_or("pack_dtype", "int32")); words != "int32")
    return fail(Code::kUnsupported, "{}: codes packed in {} are not read, only in int32", view.where, words);
  settings.zero_bias = format == "gptq" ? 1 : 0;
  rules.groups.push_back({.settings = settings, .plain = false, .targets = {}});
  if (!TRY(view.boolean_or("lm_head", false))) rules.ignored.push_back({.kind = Rule::kName, .text = "lm_head", .pattern = {}});
  if (view.has("modules_in_block_to_quantize")) {
    const Json& lists = (*view.object)["modules_in_block_to_quantize"];
    for (const Json& list : lists.is_array() ? lists : Json::array())
      for (const Json& name : list.is_array() ? list : Json::array({list})) {
        if (!name.is_string()) return fail(Code::kCorrupt, "{}: \"modules_in_block_to_quantize\" holds {}, which is not a name", view.where, name.dump());
        rules.only.push_back(name.get<std::string>());
      }
  }
  if (!view.has("dynamic")) return {};
  const Json& dynamic = (*view.object)["dynamic"];
  if (!dynamic.is_object()) return fail(Code::kCorrupt, "{}: \"dynamic\" must be an object of patterns and settings", view.where);
  for (const auto& [pattern, changes] : dynamic.items()) {
    const bool excluded = pattern.starts_with("-:");
    const std::string_view text = excluded || pattern.starts_with("+:") ? std::string_view(pattern).substr(2) : std::string_view(pattern);
    Override change{.pattern = TRY(pattern_of(view, "dynamic", text)), .text = pattern, .settings = {}};
    if (!excluded) {
      if (!changes.is_object()) return fail(Code::kCorrupt, "{}: dynamic: \"{}\" must be an object", view.where, pattern);
      const JsonView own{&changes, fmt::format("{}: dynamic: \"{}\"", view.where, pattern)};
      FormSettings changed = settings;
      if (own.has("bits")) TRY(set_bits(own, "bits", TRY(own.integer("bits")), changed));
      if (own.has("group_size")) changed.group = TRY(group_size(own, "group_size"));
      if (own.has("sym")) changed.offsets = !TRY(own.boolean_or("sym", false));
      if (own.has("desc_act")) changed.ordered = TRY(own.boolean_or("desc_act", false));
      change.settings = changed;
    }
    rules.overrides.push_back(std::move(change));
  }
  return {};
}

Result<void> read_awq(const JsonView& view, Rules& rules) {
  rules.form = &awq_form();
  FormSettings settings;
  const std::int64_t bits = TRY(view.integer("bits"));
  if (bits != 4) return fail(Code::kUnsupported, "{}: \"bits\" is {}; AWQ has 4", view.where, bits);
  std::string version = TRY(view.string_or("version", "gemm"));
  std::ranges::transform(version, version.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  if (version != "gemm" && version != "exllama" && version != "ipex")
    return fail(Code::kUnsupported, "{}: AWQ's version \"{}\" is not read; its weights lie in another order than those of \"gemm\", which is read", view.where, version);
  if (const std::string backend = TRY(view.string_or("backend", "autoawq")); backend != "autoawq" && backend != "auto")
    return fail(Code::kUnsupported, "{}: AWQ's backend \"{}\" is not read; read is \"autoawq\"", view.where, backend);
  settings.group = TRY(group_size(view, "group_size"));
  settings.offsets = TRY(view.boolean_or("zero_point", true));
  rules.groups.push_back({.settings = settings, .plain = false, .targets = {}});
  rules.ignored = TRY(component_rules(view, "modules_to_not_convert"));
  if (!view.has("modules_to_not_convert")) rules.ignored.push_back({.kind = Rule::kName, .text = "lm_head", .pattern = {}});
  return {};
}

Result<std::array<std::int64_t, 2>> block_size(const JsonView& view, std::string_view key) {
  const Json& block = (*view.object)[std::string(key)];
  const auto side = [&](std::size_t i) { return block.is_array() && block.size() == 2 && block[i].is_number_integer() ? block[i].get<std::int64_t>() : 0; };
  if (side(0) < 1 || side(1) < 1) return fail(Code::kCorrupt, "{}: \"{}\" is {}; expected two sides of a block, [128, 128]", view.where, key, block.dump());
  return std::array{side(0), side(1)};
}

Result<void> read_fp8(const JsonView& view, Rules& rules) {
  rules.form = &fp8_form();
  FormSettings settings{.kind = CodeKind::kE4M3, .bits = 8, .group = 0, .group_rows = rules.method == "fbgemm_fp8" ? 1 : 0, .order = {}};
  if (const std::string fmt = TRY(view.string_or("fmt", "e4m3")); fmt != "e4m3" && fmt != "float8_e4m3fn")
    return fail(Code::kUnsupported, "{}: FP8 of the kind \"{}\" is not read; read is \"e4m3\"", view.where, fmt);
  if (view.has("weight_block_size")) {
    const auto [rows, columns] = TRY(block_size(view, "weight_block_size"));
    settings.group = columns;
    settings.group_rows = rows;
  }
  rules.groups.push_back({.settings = settings, .plain = false, .targets = {}});
  for (const std::string_view key : {"modules_to_not_convert", "ignored_layers"}) std::ranges::move(TRY(component_rules(view, key)), std::back_inserter(rules.ignored));
  return {};
}

// PaddlePaddle names no method: "quantization" is that of all linear modules, or "mix_quant" with one for experts and one for the others.
Result<bool> read_paddle(const JsonView& view, Rules& rules) {
  rules.form = &paddle_form();
  rules.by_target = true;
  const bool stored = TRY(view.boolean_or("is_quantized", TRY(view.boolean_or("is_moe_quantized", !view.has("kv_cache_quant_type")))));
  if (!stored) return false;  // a wish for loading: weights are plain
  const bool permuted = TRY(view.boolean_or("is_permuted", true));
  const auto add = [&](std::string_view key, std::string name, const char* targets) -> Result<void> {
    Group group{.settings = {}, .plain = name.empty(), .targets = {}};
    if (name == "weight_only") name = TRY(view.string_or("algo", "weight_only_int8")) == "weight_only_int4" ? "wint4" : "wint8";
    if (!group.plain && name != "wint8" && name != "wint4" && name != "tensor_wise_fp8")
      return fail(Code::kUnsupported, "{}: \"{}\" is \"{}\", which is not read; read are {}", view.where, key, name, kSupported);
    if (name == "tensor_wise_fp8") {
      group.form = &paddle_fp8_form();
      group.settings = {.kind = CodeKind::kE4M3, .bits = 8, .group = 0, .group_rows = 0, .order = {}};
    } else {
      TRY(set_bits(view, key, name == "wint4" ? 4 : 8, group.settings));
      group.settings.interleaved = permuted;
    }
    group.targets.push_back({.kind = Rule::kPattern, .text = targets, .pattern = TRY(NamePattern::parse(targets))});
    rules.groups.push_back(std::move(group));
    return {};
  };
  constexpr const char *kExperts = R"(.*\.experts\..*)", *kOthers = R"((?!.*\.experts\.).*)";
  if (TRY(view.string("quantization")) == "mix_quant") {
    TRY(add("dense_quant_type", TRY(view.string_or("dense_quant_type", "")), kOthers));
    TRY(add("moe_quant_type", TRY(view.string_or("moe_quant_type", "")), kExperts));
  } else {
    TRY(add("quantization", TRY(view.string("quantization")), "(?!.*embed_tokens).*"));
  }
  rules.ignored = TRY(component_rules(view, "modules_to_not_convert"));
  return true;
}

// One of compressed-tensors' config_groups.
Result<Group> read_group(const JsonView& view, const std::string& common_format) {
  Group group{.settings = {}, .plain = false, .targets = TRY(exact_rules(view, "targets"))};
  if (!view.has("weights")) {
    group.plain = true;  // of activations or caches alone
    return group;
  }
  const JsonView weights{&(*view.object)["weights"], view.where + ": weights"};
  if (!weights.object->is_object()) return fail(Code::kCorrupt, "{} must be an object", weights.where);
  FormSettings& s = group.settings;
  const std::string format = TRY(view.string_or("format", common_format)), type = TRY(weights.string_or("type", "int"));
  const std::int64_t bits = TRY(weights.integer_or("num_bits", 8));
  if (format == "dense") {
    group.plain = true;
    return group;
  }
  s.packed = format == "pack-quantized";
  const bool naive = format == "naive-quantized";
  if (!s.packed && !naive && format != "int-quantized" && format != "float-quantized")
    return fail(Code::kUnsupported, "{}: the format \"{}\" of compressed-tensors is not read; read are pack-quantized, int-quantized, float-quantized and naive-quantized", view.where, format);
  if (type == "float") {
    if (bits != 8 || s.packed || format == "int-quantized") return fail(Code::kUnsupported, "{}: float numbers of {} bits in the format \"{}\" are not read", weights.where, bits, format);
    s.kind = CodeKind::kE4M3;
    s.bits = 8;
  } else if (type == "int" && format != "float-quantized") {
    TRY(set_bits(weights, "num_bits", bits, s));
  } else {
    return fail(Code::kUnsupported, "{}: numbers of type \"{}\" in the format \"{}\" are not read", weights.where, type, format);
  }
  s.offsets = !TRY(weights.boolean_or("symmetric", true));
  if (s.offsets && s.kind == CodeKind::kE4M3) return fail(Code::kUnsupported, "{}: float numbers with zero points are not read", weights.where);
  const bool sized = weights.has("group_size") && TRY(weights.integer("group_size")) > 0;
  const std::string strategy = TRY(weights.string_or("strategy", sized ? "group" : "tensor"));
  if (strategy == "group") {
    if (!sized) return fail(Code::kCorrupt, "{}: strategy \"group\" without a \"group_size\"", weights.where);
    s.group = TRY(weights.integer("group_size"));
  } else if (strategy == "block") {
    if (!weights.has("block_structure")) return fail(Code::kCorrupt, "{}: strategy \"block\" without a \"block_structure\"", weights.where);
    const auto [rows, columns] = TRY(block_size(weights, "block_structure"));
    s.group = columns;
    s.group_rows = rows;
  } else if (strategy == "tensor") {
    s.group_rows = 0;
  } else if (strategy != "channel") {
    return fail(Code::kUnsupported, "{}: strategy \"{}\" is not read; read are tensor, channel, group and block", weights.where, strategy);
  }
  if (s.packed && s.group_rows != 1) return fail(Code::kUnsupported, "{}: strategy \"{}\" in the format pack-quantized is not read; read are channel and group", weights.where, strategy);
  if (weights.has("actorder")) {
    const Json& order = (*weights.object)["actorder"];
    s.ordered = order == "group" || order == "dynamic" || order == true;  // "weight", "static": groups stayed as they were
    if (s.ordered && !s.packed) return fail(Code::kUnsupported, "{}: inputs sorted into groups in the format \"{}\" are not read", weights.where, format);
  }
  return group;
}

Result<void> read_compressed(const JsonView& view, Rules& rules) {
  rules.form = &compressed_form();
  rules.by_target = true;
  if (view.has("sparsity_config")) {
    const Json& sparsity = (*view.object)["sparsity_config"];
    const JsonView own{&sparsity, view.where + ": sparsity_config"};
    if (!sparsity.is_object()) return fail(Code::kCorrupt, "{} must be an object", own.where);
    if (const std::string format = TRY(own.string_or("format", "dense")); format != "dense")
      return fail(Code::kUnsupported, "{}: sparse weights (\"{}\") of compressed-tensors are not read; read are pack-quantized, int-quantized, float-quantized and naive-quantized", own.where, format);
  }
  const Json* transforms = view.has("transform_config") ? &(*view.object)["transform_config"] : nullptr;
  if (transforms && !transforms->empty() && !(transforms->is_object() && transforms->contains("config_groups") && (*transforms)["config_groups"].empty()))
    return fail(Code::kUnsupported, "{}: rotations of activations (\"transform_config\") are not computed", view.where);
  const std::string format = TRY(view.string_or("format", "?"));
  if (format == "dense" && !view.has("config_groups")) return {};
  if (!view.has("config_groups") || !(*view.object)["config_groups"].is_object()) return fail(Code::kCorrupt, "{}: \"config_groups\" must be an object", view.where);
  for (const auto& [name, group] : (*view.object)["config_groups"].items()) {
    const JsonView own{&group, fmt::format("{}: config_groups: {}", view.where, name)};
    if (!group.is_object()) return fail(Code::kUnsupported, "{} must be an object; schemes by name are not read", own.where);
    rules.groups.push_back(TRY(read_group(own, format)));
  }
  rules.ignored = TRY(exact_rules(view, "ignore"));
  return {};
}

// The group for a module: names go before patterns, patterns in alphabetical order, then classes.
const Group* group_for(const Rules& rules, std::string_view module) {
  const Group* best = nullptr;
  std::pair<int, std::string_view> rank;
  for (const Group& group : rules.groups)
    for (const Rule& rule : group.targets)
      if (const std::pair<int, std::string_view> own{rule.kind, rule.text}; rule.fits(module) && (!best || own < rank)) {
        best = &group;
        rank = own;
      }
  return best;
}

}  // namespace

Result<std::optional<FormConfig>> FormConfig::parse(const JsonView& config) {
  const std::string_view key = config.has("quantization_config") ? "quantization_config" : "compression_config";
  if (!config.has(key)) return std::nullopt;
  const Json& block = (*config.object)[std::string(key)];
  if (!block.is_object()) return fail(Code::kCorrupt, "{}: \"{}\" must be an object", config.where, key);
  if (block.contains("inflight")) return std::nullopt;
  const JsonView view{&block, fmt::format("{}: {}", config.where, key)};
  auto rules = std::make_shared<Rules>();
  rules->method = TRY(view.string_or("quant_method", key == "compression_config" ? "compressed-tensors" : ""));
  if (rules->method.empty() && view.has("quantization")) {
    rules->method = "PaddlePaddle weight-only";
    if (!TRY(read_paddle(view, *rules))) return std::nullopt;
    FormConfig read;
    read.rules_ = std::move(rules);
    return read;
  }
  if (rules->method.empty()) return fail(Code::kUnsupported, "{} names no \"quant_method\"; read are {}", view.where, kSupported);
  if (rules->method == "gptq") TRY(read_gptq(view, *rules));
  else if (rules->method == "awq") TRY(read_awq(view, *rules));
  else if (rules->method == "compressed-tensors") TRY(read_compressed(view, *rules));
  else if (rules->method == "fp8" || rules->method == "fbgemm_fp8") TRY(read_fp8(view, *rules));
  else return fail(Code::kUnsupported, "{}: quantization method \"{}\" is not read; read are {}", view.where, rules->method, kSupported);
  FormConfig read;
  read.rules_ = std::move(rules);
  return read;
}

Result<std::optional<FormChoice>> FormConfig::choice(std::string_view module) const {
  const Rules& rules = *rules_;
  if (std::ranges::any_of(rules.ignored, [&](const Rule& rule) { return rule.fits(module); })) return std::nullopt;
  if (!rules.only.empty() && std::ranges::none_of(rules.only, [&](const std::string& end) { return module == end || module.ends_with("." + end); })) return std::nullopt;
  if (rules.by_target) {
    const Group* group = group_for(rules, module);
    return group && !group->plain ? std::optional(FormChoice{group->form ? group->form : rules.form, group->settings}) : std::nullopt;
  }
  if (class_of(module) == "Embedding") return std::nullopt;
  const Override* found = nullptr;
  for (const Override& change : rules.overrides) {
    if (!change.pattern.matches(module)) continue;
    if (found) return fail(Code::kUnsupported, "quantization_config: dynamic: both \"{}\" and \"{}\" fit {}; which of them its tool took is not known", found->text, change.text, module);
    found = &change;
  }
  if (found) return found->settings ? std::optional(FormChoice{rules.form, *found->settings}) : std::nullopt;
  return FormChoice{rules.form, rules.groups[0].settings};
}

std::vector<std::string> FormConfig::unused(std::span<const std::string> modules) const {
  std::vector<std::string> unused;
  for (const Rule& rule : rules_->ignored)
    if (std::ranges::none_of(modules, [&](const std::string& module) { return rule.fits(module); })) unused.push_back(rule.text);
  for (const Override& change : rules_->overrides)
    if (std::ranges::none_of(modules, [&](const std::string& module) { return change.pattern.matches(module); })) unused.push_back(change.text);
  return unused;
}

std::string_view FormConfig::method() const { return rules_->method; }

}  // namespace inflight::quant
