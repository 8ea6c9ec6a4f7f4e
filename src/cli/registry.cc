#include "cli/command.h"

namespace inflight::cli {

Action declare_generate(CLI::App& app);
Action declare_chat(CLI::App& app);
Action declare_inspect(CLI::App& app);
Action declare_logits(CLI::App& app);
Action declare_eval(CLI::App& app);
Action declare_bench(CLI::App& app);
Action declare_convert(CLI::App& app);
Action declare_calibrate(CLI::App& app);

std::span<const Command> commands() {
  static constexpr Command kAll[] = {
      {"generate", "Answer a prompt, or a file of prompts in one batch", declare_generate},
      {"chat", "Talk with a model in the terminal", declare_chat},
      {"inspect", "Show what loading would do, without reading any weight", declare_inspect},
      {"logits", "Write the logits (and hidden states) of given token ids to a file", declare_logits},
      {"eval", "Measure loss and perplexity on a text, and the distance to a reference model", declare_eval},
      {"bench", "Measure load, prefill and decode speed against what this machine can do", declare_bench},
      {"convert", "Write a quantized checkpoint folder", declare_convert},
      {"calibrate", "Measure activations over a text, for FP8 scales", declare_calibrate},
  };
  return kAll;
}

}  // namespace inflight::cli
