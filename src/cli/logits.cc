// inflight logits MODEL --tokens 1,2,3|FILE.json --output OUT.safetensors
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/forward_runner.h"
#include "cli/format.h"
#include "cli/input.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string tokens;
  std::string output;
  bool hidden = false;
  std::string mode = "prefill";
};

Result<int> run(const Arguments& arguments) {
  TRY(check(arguments.model));
  TRY(check_choice("--mode", arguments.mode, {"prefill", "decode"}));
  const std::vector<std::int32_t> ids = TRY(read_token_ids(arguments.tokens));
  const std::unique_ptr<engine::OpenedModel> opened = TRY(open_with_progress(arguments.model));
  const models::ModelInfo& info = opened->model->info();
  const auto tokens = static_cast<std::int64_t>(ids.size());
  TRY(check_ids(ids, info));

  const Phase phase = arguments.mode == "decode" ? Phase::kDecode : Phase::kPrefill;
  ForwardRunner runner = TRY(ForwardRunner::create(*opened, arguments.model.engine, 1, tokens));
  std::vector<checkpoint::TensorSpec> tensors = {{"logits", DType::kF32, {tokens, info.vocabulary}}};
  if (arguments.hidden) tensors.push_back({"hidden", DType::kF32, {info.layers + 1, tokens, info.hidden}});
  checkpoint::SafetensorsWriter writer = TRY(checkpoint::SafetensorsWriter::create(arguments.output, tensors));

  const std::int64_t step = std::min<std::int64_t>(tokens, std::min<std::int64_t>(arguments.model.engine.max_num_batched_tokens, 512));
  std::vector<float> logits(static_cast<std::size_t>(step * runner.stride()));
  std::vector<float> chunk_hidden(arguments.hidden ? static_cast<std::size_t>((info.layers + 1) * step * info.hidden) : 0);
  std::vector<float> hidden(arguments.hidden ? static_cast<std::size_t>((info.layers + 1) * tokens * info.hidden) : 0);
  ProgressBar bar("forward");
  for (std::int64_t first = 0; first < tokens; first += step) {
    const std::int64_t count = std::min(step, tokens - first);
    TRY(runner.forward({.ids = std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                    .position = first,
                    .phase = phase,
                    .rope_length = phase == Phase::kPrefill ? tokens : 0,
                    .logits = logits.data(),
                    .hidden = arguments.hidden ? chunk_hidden.data() : nullptr}));
    for (std::int64_t row = 0; row < count; ++row) TRY(writer.write("logits", logits.data() + row * runner.stride(), static_cast<std::size_t>(info.vocabulary) * sizeof(float)));
    for (std::int64_t layer = 0; arguments.hidden && layer <= info.layers; ++layer)
      std::copy_n(chunk_hidden.data() + layer * count * info.hidden, count * info.hidden, hidden.data() + (layer * tokens + first) * info.hidden);
    bar.steps(first + count, tokens);
  }
  if (arguments.hidden) TRY(writer.write("hidden", hidden.data(), hidden.size() * sizeof(float)));
  TRY(writer.commit());
  bar.wipe();
  note("wrote logits{} of {} tokens to {}", arguments.hidden ? " and hidden states" : "", tokens, arguments.output);
  return kDone;
}

}  // namespace

Action declare_logits(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("--tokens", arguments->tokens, "Token ids: 1,2,3 or a file with a JSON list")->required();
  app.add_option("--output", arguments->output, "File to write: `logits` F32 [tokens, vocabulary]")->required();
  app.add_flag("--hidden", arguments->hidden, "Also `hidden` F32 [layers + 1, tokens, hidden]: the embedding, then after each layer, the last after the final norm");
  app.add_option("--mode", arguments->mode, "Arithmetic of all tokens: prefill or decode")->capture_default_str();
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}};
}

}  // namespace inflight::cli
