// A model ready to answer: engine, tokenizer, chat template, stop set and sampling defaults.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/prompt.h"
#include "api/sampling.h"
#include "api/stop_set.h"
#include "api/text_session.h"
#include "base/result.h"
#include "cli/common_options.h"
#include "engine/engine.h"

namespace inflight::cli {

struct TextArguments {
  bool raw = false;
  bool plain_content = false;
  std::string template_variables;  // --chat-template-kwargs, a JSON object
};

void add_template_arguments(CLI::App& app, TextArguments& arguments);

// Tokenizer and chat template of a folder, loaded on a thread of their own while the weights are read.
class TextLoading {
 public:
  // What a command does with its prompts before it needs the model; runs on that thread as soon as the text side is there.
  using Prepare = std::function<Result<void>(const api::PromptEncoder& encoder)>;

  TextLoading(std::string folder, TextArguments arguments, Prepare prepare);
  ~TextLoading() = default;  // waits
  TextLoading(const TextLoading&) = delete;
  TextLoading& operator=(const TextLoading&) = delete;

  bool failed() const { return failed_; }  // wait() will give an error
  Result<api::PromptEncoder> wait();                                       // once

 private:
  std::atomic<bool> failed_{false};
  std::future<Result<api::PromptEncoder>> outcome_;
};

// An error when --max-model-len alone shows that a prompt is too long: no weights are read for it.
Result<void> check_prompt_length(std::size_t tokens, const engine::EngineOptions& options);

struct TextModel {
  api::PromptEncoder encoder;
  std::unique_ptr<engine::Engine> engine;
  std::vector<api::StopId> stops;
  api::SamplingDefaults defaults;
};

// Weights and engine, then the text side, stop set and defaults; the latter two are printed with --verbose. An error of `text` stops the
// reading of weights.
Result<TextModel> open_text_model(const ModelArguments& arguments, TextLoading& text, bool ignore_generation_config);

// Where text deltas go; false: nobody wants more.
using Emit = std::function<bool(std::string_view delta)>;

// Runs one request to its end, to a stop, to Ctrl-C, or until `emit` refuses. The engine must be idle. A request that failed in the
// middle is an error after the text so far was emitted; session.finish_reason() is then "error".
Result<engine::RequestStats> answer(engine::Engine& engine, engine::Request request, api::TextSession& session, const Emit& emit);

// Sums over requests, for the closing line.
struct Totals {
  std::int64_t requests = 0;
  engine::RequestStats stats;
  void add(const engine::RequestStats& one);
};

// "load 1.24 s (3.41 GB/s), peak memory 1.3 GB, prompt 512 tokens (900 tokens/s), answer 128 tokens (30.1 tokens/s, 82 % of read bandwidth)".
// wall_seconds > 0: rates over that time instead (a batch, whose requests overlap).
std::string closing_line(const engine::Engine& engine, const Totals& totals, double wall_seconds);

}  // namespace inflight::cli
