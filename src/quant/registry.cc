// Every weight format, one line each, in the order of --help.
#include <array>

#include "base/nearest.h"
#include "quant/affine.h"
#include "quant/format.h"
#include "quant/fp8_formats.h"
#include "quant/integer_formats.h"

namespace inflight::quant {
namespace {

std::span<const Format* const> all() {
  static const std::array kFormats = {
      &bf16_format(),        //
      &wint8_format(),       //
      &wint4_format(),       //
      &wint4_g128_format(),  //
      &wint4_g64_format(),   //
      &wint4_g32_format(),   //
      &wlut4_format(),       //
      &tensor_wise_fp8_format(),  //
      &block_wise_fp8_format(),   //
  };
  return kFormats;
}

}  // namespace

std::span<const Format* const> formats() { return all(); }

std::span<const Format* const> forms() { return affine_formats(); }

namespace {

// What --fp8-target gaudi makes of the FP8 formats: a converted folder may name them.
std::span<const Format* const> gaudi_formats() {
  static const std::array kFormats = {&tensor_wise_fp8_gaudi_format(), &block_wise_fp8_gaudi_format()};
  return kFormats;
}

}  // namespace

Result<const Format*> find_format(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Format* format : all()) {
    if (format->name == name) return format;
    names.push_back(format->name);
  }
  for (const auto more : {forms(), gaudi_formats()})
    for (const Format* format : more)
      if (format->name == name) return format;
  return fail(Code::kInvalidArgument, "unknown quantization \"{}\"; {}", name, known_names_hint(name, names));
}

}  // namespace inflight::quant
