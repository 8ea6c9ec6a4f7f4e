#include "cli/supported.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "models/registry.h"
#include "quant/format.h"

namespace inflight::cli {
namespace {

// Every ISA that was compiled in, whether this CPU has it or not.
std::vector<std::string_view> compiled_isas() {
  return {
#define ISA(name, flags, supported) #name,
#include "kernels/isa.def"
#undef ISA
  };
}

}  // namespace

std::string supported_table() {
  const std::string isas = fmt::format("{}", fmt::join(compiled_isas(), ", "));
  std::string text = "| architecture |";
  std::string rule = "|---|";
  for (const quant::Format* format : quant::formats()) {
    text += fmt::format(" {} |", format->name);
    rule += "---|";
  }
  text += "\n" + rule + "\n";
  for (const std::string_view architecture : models::known_architectures()) {
    text += fmt::format("| {} |", architecture);
    for (std::size_t i = 0; i < quant::formats().size(); ++i) text += " yes |";
    text += "\n";
  }
  return text + fmt::format("\nInstruction sets, each with every architecture and format: {}\n", isas);
}

}  // namespace inflight::cli
