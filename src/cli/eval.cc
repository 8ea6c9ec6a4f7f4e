// inflight eval MODEL --data FILE [--reference MODEL2]
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/model_folder.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/divergence.h"
#include "cli/format.h"
#include "cli/forward_runner.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "text/tokenizer.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string data;
  std::int64_t window = 256;
  std::int64_t windows = 0;  // 0: all that fit
  std::string mode = "prefill";
  bool json = false;
  bool bos = false;
  bool experts = false;
  std::optional<std::string> reference;
  std::string reference_quantization;
  std::string reference_compute = "fp32";
};

// A model with a cache of one window.
struct Side {
  std::unique_ptr<engine::OpenedModel> opened;
  std::optional<ForwardRunner> runner;
  std::vector<float> logits;  // [step, stride]
};

Result<Side> open_side(const ModelArguments& arguments, std::int64_t window, std::int64_t step) {
  Side side;
  side.opened = TRY(open_with_progress(arguments));
  const models::ModelInfo& info = side.opened->model->info();
  if (info.max_positions > 0 && window > info.max_positions) return fail(Code::kInvalidArgument, "--window {} is more than the model's context of {}", window, info.max_positions);
  side.runner.emplace(TRY(ForwardRunner::create(*side.opened, arguments.engine, 1, window)));
  side.logits.resize(static_cast<std::size_t>(step * side.runner->stride()));
  return side;
}

Result<std::vector<std::int32_t>> encode_data(const Arguments& arguments, const std::string& folder) {
  const text::Tokenizer tokenizer = TRY(text::Tokenizer::load(folder));
  std::string text = TRY(read_file(arguments.data));
  TRY(check_utf8(text, arguments.data));
  std::vector<std::int32_t> ids = TRY(tokenizer.encode(text, /*add_special_tokens=*/false));
  if (arguments.bos) {
    if (tokenizer.bos_id() < 0) return fail(Code::kInvalidArgument, "--bos: the tokenizer of \"{}\" names no BOS token", folder);
    ids.insert(ids.begin(), tokenizer.bos_id());
  }
  return ids;
}

// The reference must read the same ids: same vocabulary, and the same tokens for this text.
Result<void> check_same_ids(const Arguments& arguments, const std::string& reference_folder, const std::vector<std::int32_t>& ids) {
  if (TRY(encode_data(arguments, reference_folder)) != ids)
    return fail(Code::kInvalidArgument, "the tokenizer of the reference \"{}\" gives other ids for \"{}\": their distributions cannot be compared", *arguments.reference, arguments.data);
  return {};
}

struct Sums {
  double nats = 0;                // sum over windows of the window's mean
  std::vector<double> kl;         // every scored position
  std::int64_t same_top = 0;
};

// A line a layer: tokens of each expert, and how far the busiest is above the mean. Dense layers are left out.
std::string expert_text(const std::vector<std::vector<std::int64_t>>& tokens) {
  std::string text = "tokens of each expert, and the busiest against the mean:\n";
  for (std::size_t layer = 0; layer < tokens.size(); ++layer) {
    std::int64_t sum = 0, most = 0;
    for (const std::int64_t n : tokens[layer]) {
      sum += n;
      most = std::max(most, n);
    }
    if (sum == 0) continue;
    text += fmt::format("layer {:>3}  {:>5.2f}x ", layer, static_cast<double>(most) * static_cast<double>(tokens[layer].size()) / static_cast<double>(sum));
    for (const std::int64_t n : tokens[layer]) text += fmt::format(" {}", n);
    text += "\n";
  }
  return text;
}

Result<int> run(const Arguments& arguments) {
  TRY(check(arguments.model));
  TRY(check_choice("--mode", arguments.mode, {"prefill", "decode"}));
  if (arguments.window < 2) return fail(Code::kInvalidArgument, "--window must be at least 2, but is {}", arguments.window);
  if (arguments.windows < 0) return fail(Code::kInvalidArgument, "--windows must be at least 1, but is {}", arguments.windows);
  ModelArguments reference_arguments = arguments.model;
  if (arguments.reference) {
    reference_arguments.model = *arguments.reference;
    reference_arguments.engine.quantization = arguments.reference_quantization;
    reference_arguments.engine.compute = arguments.reference_compute;
    reference_arguments.engine.lm_head = "auto";
    reference_arguments.engine.kv_cache_dtype = "auto";
    TRY(check(reference_arguments));
  } else if (!arguments.reference_quantization.empty()) {
    return fail(Code::kInvalidArgument, "--reference-quantization needs --reference");
  }

  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  const std::vector<std::int32_t> ids = TRY(encode_data(arguments, folder));
  if (arguments.reference) TRY(check_same_ids(arguments, TRY(checkpoint::resolve_model_folder(*arguments.reference)), ids));
  const std::int64_t whole = static_cast<std::int64_t>(ids.size()) / arguments.window;
  if (whole == 0) return fail(Code::kInvalidArgument, "\"{}\" has {} tokens, less than one window of {}", arguments.data, ids.size(), arguments.window);
  if (arguments.windows > whole) return fail(Code::kInvalidArgument, "--windows {}: \"{}\" has {} tokens, which are {} windows of {}", arguments.windows, arguments.data, ids.size(), whole, arguments.window);
  const std::int64_t windows = arguments.windows > 0 ? arguments.windows : whole;

  const std::int64_t step = std::min<std::int64_t>(arguments.window, std::min<std::int64_t>(64, arguments.model.engine.max_num_batched_tokens));
  Side model = TRY(open_side(arguments.model, arguments.window, step));
  std::optional<Side> reference;
  if (arguments.reference) {
    reference = TRY(open_side(reference_arguments, arguments.window, step));
    const std::int64_t ours = model.opened->model->info().vocabulary, theirs = reference->opened->model->info().vocabulary;
    if (ours != theirs) return fail(Code::kInvalidArgument, "the vocabulary has {} rows, the reference's {}: their distributions cannot be compared", ours, theirs);
  }
  const models::ModelInfo& info = model.opened->model->info();
  std::vector<std::vector<std::int64_t>> expert_tokens;  // [layer][expert]
  if (arguments.experts) {
    if (info.experts == 0) return fail(Code::kInvalidArgument, "--experts: {} has no experts", info.architecture);
    expert_tokens.assign(static_cast<std::size_t>(info.layers), std::vector<std::int64_t>(static_cast<std::size_t>(info.experts)));
    model.opened->runtime->expert_tokens = &expert_tokens;
  }
  const std::int64_t vocabulary = info.vocabulary;
  for (std::int64_t i = 0; i < windows * arguments.window; ++i)
    if (ids[static_cast<std::size_t>(i)] >= vocabulary)
      return fail(Code::kCorrupt, "the tokenizer gives id {}, but the model's vocabulary has {} rows", ids[static_cast<std::size_t>(i)], vocabulary);

  const Phase phase = arguments.mode == "decode" ? Phase::kDecode : Phase::kPrefill;
  const InterruptGuard guard;
  Sums sums;
  ProgressBar bar("eval");
  for (std::int64_t w = 0; w < windows; ++w) {
    const std::span<const std::int32_t> window(ids.data() + w * arguments.window, static_cast<std::size_t>(arguments.window));
    double window_nats = 0;
    for (std::int64_t first = 0; first < arguments.window; first += step) {
      const std::int64_t count = std::min(step, arguments.window - first);
      const ForwardRunner::Chunk chunk{.ids = window.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                                       .position = first,
                                       .phase = phase,
                                       .rope_length = phase == Phase::kPrefill ? arguments.window : 0};
      ForwardRunner::Chunk ours = chunk;
      ours.logits = model.logits.data();
      model.runner->forward(ours);
      if (reference) {
        ForwardRunner::Chunk theirs = chunk;
        theirs.logits = reference->logits.data();
        reference->runner->forward(theirs);
      }
      const std::int64_t scored = std::min(count, arguments.window - 1 - first);  // the last token predicts nothing that is here
      std::vector<RowScore> scores(static_cast<std::size_t>(scored));
      model.opened->pool->parallel_for(scored, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const float* logits = model.logits.data() + row * model.runner->stride();
          const float* other = reference ? reference->logits.data() + row * reference->runner->stride() : nullptr;
          scores[static_cast<std::size_t>(row)] = score_row(logits, other, vocabulary, window[static_cast<std::size_t>(first + row + 1)]);
        }
      });
      for (std::int64_t row = 0; row < scored; ++row) {
        const RowScore& score = scores[static_cast<std::size_t>(row)];
        if (!std::isfinite(score.nats) || !std::isfinite(score.kl)) return fail(Code::kInternal, "the logits of window {}, position {} are not finite", w, first + row);
        window_nats += score.nats;
        if (!reference) continue;
        sums.kl.push_back(score.kl);
        sums.same_top += score.same_top;
      }
    }
    sums.nats += window_nats / static_cast<double>(arguments.window - 1);
    bar.steps(w + 1, windows);
    if (interrupted()) return fail(Code::kCancelled, "interrupted after {} of {} windows", w + 1, windows);
  }
  bar.wipe();

  const double nats = sums.nats / static_cast<double>(windows);
  double kl_mean = 0, kl_p99 = 0, top1 = 0;
  if (reference) {
    for (const double kl : sums.kl) kl_mean += kl;
    kl_mean /= static_cast<double>(sums.kl.size());  // windows have equally many positions: the mean of the windows' means
    kl_p99 = percentile(sums.kl, 0.99);
    top1 = static_cast<double>(sums.same_top) / static_cast<double>(sums.kl.size());
  }
  if (arguments.json) {
    OrderedJson json = {{"nats_per_token", nats}, {"perplexity", std::exp(nats)}, {"windows", windows}};
    if (reference) json.update(OrderedJson{{"kl_mean", kl_mean}, {"kl_p99", kl_p99}, {"top1", top1}});
    if (arguments.experts) json["experts"] = expert_tokens;
    print(json.dump() + "\n");
  } else {
    print(fmt::format("{:.6f} nats per token, perplexity {:.4f}, over {} windows of {} tokens\n", nats, std::exp(nats), windows, arguments.window));
    if (reference) print(fmt::format("against the reference: mean KL {:.6g}, 99th percentile {:.6g}, same first choice {:.2f} %\n", kl_mean, kl_p99, 100 * top1));
    if (arguments.experts) print(expert_text(expert_tokens));
  }
  return kDone;
}

}  // namespace

Action declare_eval(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("--data", arguments->data, "Text file, UTF-8")->required();
  app.add_option("--window", arguments->window, "Tokens of a window; windows follow each other without overlap")->capture_default_str();
  app.add_option("--windows", arguments->windows, "Windows to score; without it, all whole ones");
  app.add_option("--mode", arguments->mode, "Arithmetic of all tokens: prefill or decode")->capture_default_str();
  app.add_flag("--bos", arguments->bos, "Put the BOS token before the text");
  app.add_option("--reference", arguments->reference, "Model to compare the distributions with: kl_mean, kl_p99, top1");
  app.add_option("--reference-quantization", arguments->reference_quantization, "Weight format of the reference; without it, as stored");
  app.add_option("--reference-compute", arguments->reference_compute, "Arithmetic of the reference")->capture_default_str();
  app.add_flag("--experts", arguments->experts, "Also how many tokens each expert of each layer got (mixtures of experts)");
  app.add_flag("--json", arguments->json, "One JSON object");
  return [arguments] { return run(*arguments); };
}

}  // namespace inflight::cli
