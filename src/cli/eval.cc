// inflight eval MODEL --data FILE [--reference MODEL2 [--report FILE.html]]
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/model_folder.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/comparison.h"
#include "cli/comparison_page.h"
#include "cli/console.h"
#include "cli/divergence.h"
#include "cli/expert_load.h"
#include "cli/format.h"
#include "cli/forward_runner.h"
#include "cli/html_page.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/token_text.h"
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
  std::optional<std::string> reference_compute;  // fp32 without it
  std::optional<std::string> report;
};

constexpr std::size_t kWorst = 20;     // tokens that are named
constexpr std::int64_t kBefore = 8;   // tokens of text shown before one of them

// A model with a cache of one window.
struct Side {
  std::unique_ptr<engine::OpenedModel> opened;
  std::optional<ForwardRunner> runner;
  std::vector<float> logits;  // [step, stride]
  std::vector<float> hidden;  // [layers + 1, step, H]; empty: not wanted
};

// What a side of an opened model needs to run.
Result<void> prepare(const ModelArguments& arguments, Side& side, std::int64_t window, std::int64_t step) {
  const models::ModelInfo& info = side.opened->model->info();
  if (info.max_positions > 0 && window > info.max_positions) return fail(Code::kInvalidArgument, "--window {} is more than the model's context of {}", window, info.max_positions);
  side.runner.emplace(TRY(ForwardRunner::create(*side.opened, arguments.engine, 1, window)));
  side.logits.resize(static_cast<std::size_t>(step * side.runner->stride()));
  return {};
}

Result<std::vector<std::int32_t>> encode_data(const Arguments& arguments, const text::Tokenizer& tokenizer, const std::string& folder) {
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
  const text::Tokenizer tokenizer = TRY(text::Tokenizer::load(reference_folder));
  if (TRY(encode_data(arguments, tokenizer, reference_folder)) != ids)
    return fail(Code::kInvalidArgument, "the tokenizer of the reference \"{}\" gives other ids for \"{}\": their distributions cannot be compared", *arguments.reference, arguments.data);
  return {};
}

// The reference runs plainly: what is asked of the model's formats, cache and FP8 is not asked of it.
ModelArguments reference_of(const Arguments& arguments) {
  ModelArguments reference = arguments.model;
  reference.model = *arguments.reference;
  reference.number = 1;
  engine::EngineOptions& engine = reference.engine;
  const engine::EngineOptions plain;
  engine.quantization = arguments.reference_quantization;
  engine.quantization_overrides.clear();
  engine.compute = arguments.reference_compute.value_or("fp32");
  engine.lm_head = plain.lm_head;
  engine.kv_cache_dtype = plain.kv_cache_dtype;
  engine.fp8_target = plain.fp8_target;
  engine.fp8_activations = "none";
  engine.fp8_amax = plain.fp8_amax;
  engine.fp8_sdpa = plain.fp8_sdpa;
  return reference;
}

Result<void> check(const Arguments& arguments) {
  TRY(check(arguments.model));
  TRY(check_choice("--mode", arguments.mode, {"prefill", "decode"}));
  if (arguments.window < 2) return fail(Code::kInvalidArgument, "--window must be at least 2, but is {}", arguments.window);
  if (arguments.windows < 0) return fail(Code::kInvalidArgument, "--windows must be at least 1, but is {}", arguments.windows);
  if (arguments.reference) {
    TRY(check(reference_of(arguments)));
  } else {
    if (!arguments.reference_quantization.empty()) return fail(Code::kInvalidArgument, "--reference-quantization needs --reference");
    if (arguments.reference_compute) return fail(Code::kInvalidArgument, "--reference-compute needs --reference");
    if (arguments.report) return fail(Code::kInvalidArgument, "--report needs --reference: the page compares a model with another one, or with itself in other arithmetic or formats");
  }
  if (arguments.report) {
    if (arguments.report->empty()) return fail(Code::kInvalidArgument, "--report needs the name of a file to write");
    TRY(check_writable(*arguments.report));
  }
  return {};
}

// What is added up over the windows.
struct Sums {
  double nats = 0, reference_nats = 0;  // over windows: the window's mean
  std::vector<double> kl;               // every scored position
  std::int64_t same_top = 0;
  WorstTokens worst{kWorst};
  std::vector<Noise> layers;            // empty: not compared
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

// Runs one window through both models.
class Scorer {
 public:
  Scorer(const Arguments& arguments, Side& model, Side* reference, std::int64_t step)
    : model_(model), reference_(reference), step_(step), phase_(arguments.mode == "decode" ? Phase::kDecode : Phase::kPrefill) {
    if (!reference) return;
    const models::ModelInfo &ours = model.opened->model->info(), &theirs = reference->opened->model->info();
    if (ours.layers != theirs.layers || ours.hidden != theirs.hidden) return;
    sums.layers.resize(static_cast<std::size_t>(ours.layers + 1));
    for (Side* side : {&model, reference}) side->hidden.resize(sums.layers.size() * static_cast<std::size_t>(step * ours.hidden));
  }

  Result<void> score(std::int64_t number, std::span<const std::int32_t> window) {
    const auto length = static_cast<std::int64_t>(window.size());
    double nats = 0, reference_nats = 0;
    for (std::int64_t first = 0; first < length; first += step_) {
      const std::int64_t count = std::min(step_, length - first);
      const ForwardRunner::Chunk chunk{.ids = window.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                                       .position = first,
                                       .phase = phase_,
                                       .rope_length = phase_ == Phase::kPrefill ? length : 0};
      TRY(forward(model_, chunk));
      if (reference_) TRY(forward(*reference_, chunk));
      TRY(add_noise(number, count));
      const std::int64_t scored = std::min(count, length - 1 - first);  // the last token predicts nothing that is here
      std::vector<RowScore> scores(static_cast<std::size_t>(scored));
      const std::int64_t vocabulary = model_.opened->model->info().vocabulary;
      model_.opened->pool->parallel_for(scored, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const float* logits = model_.logits.data() + row * model_.runner->stride();
          const float* other = reference_ ? reference_->logits.data() + row * reference_->runner->stride() : nullptr;
          scores[static_cast<std::size_t>(row)] = score_row(logits, other, vocabulary, window[static_cast<std::size_t>(first + row + 1)]);
        }
      });
      for (std::int64_t row = 0; row < scored; ++row) {
        const RowScore& score = scores[static_cast<std::size_t>(row)];
        if (!std::isfinite(score.nats) || !std::isfinite(score.kl)) return fail(Code::kInternal, "the logits of window {}, position {} are not finite", number, first + row);
        nats += score.nats;
        if (!reference_) continue;
        reference_nats += score.reference_nats;
        sums.kl.push_back(score.kl);
        sums.same_top += score.same_top;
        sums.worst.add({.window = number, .position = first + row + 1, .target = window[static_cast<std::size_t>(first + row + 1)], .score = score});
      }
    }
    sums.nats += nats / static_cast<double>(length - 1);
    sums.reference_nats += reference_nats / static_cast<double>(length - 1);
    return {};
  }

  Sums sums;

 private:
  Result<void> forward(Side& side, ForwardRunner::Chunk chunk) {
    chunk.logits = side.logits.data();
    chunk.hidden = side.hidden.empty() ? nullptr : side.hidden.data();
    return side.runner->forward(chunk);
  }

  // A layer is one thread's, and tokens come in their order: the sums do not depend on the threads.
  Result<void> add_noise(std::int64_t number, std::int64_t count) {
    const std::int64_t values = count * model_.opened->model->info().hidden;
    const auto layers = static_cast<std::int64_t>(sums.layers.size());
    if (layers == 0) return {};
    model_.opened->pool->parallel_for(layers, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t layer = begin; layer < end; ++layer)
        sums.layers[static_cast<std::size_t>(layer)].add(model_.hidden.data() + layer * values, reference_->hidden.data() + layer * values, values);
    });
    for (std::int64_t layer = 0; layer < layers; ++layer)
      if (const Noise& noise = sums.layers[static_cast<std::size_t>(layer)]; !std::isfinite(noise.signal) || !std::isfinite(noise.noise))
        return fail(Code::kInternal, "a hidden state of window {} is not finite {}", number, layer == 0 ? "after the embedding" : fmt::format("after layer {}", layer - 1));
    return {};
  }

  Side& model_;
  Side* reference_;
  std::int64_t step_;
  Phase phase_;
};

ComparedModel described(const ModelArguments& arguments, const Side& side, double nats) {
  const engine::EngineOptions& engine = arguments.engine;
  std::string weights = engine.quantization.empty() ? "as stored" : side.opened->quantization;
  for (const std::string& exception : engine.quantization_overrides) weights += ", " + exception;
  return {.name = arguments.model,
          .facts = {{"weights", weights},
                    {"output head", engine.lm_head},
                    {"arithmetic", engine.compute},
                    {"KV cache", std::string(dtype_name(side.runner->kv_shape().dtype))},
                    {"FP8 activations", engine.fp8_activations + (engine.fp8_amax.empty() ? "" : ", scales of " + engine.fp8_amax)},
                    {"FP8 attention", engine.fp8_sdpa ? "yes" : "no"}},
          .nats = nats};
}

// The worst tokens with their texts.
Result<std::vector<ComparedToken>> named(const std::vector<WorstToken>& worst, const text::Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::int64_t window) {
  std::vector<ComparedToken> tokens;
  for (const WorstToken& token : worst) {
    const std::int64_t shown = std::min(kBefore, token.position);
    const std::span<const std::int32_t> before = ids.subspan(static_cast<std::size_t>(token.window * window + token.position - shown), static_cast<std::size_t>(shown));
    const auto text = [&](std::int32_t id) { return token_text(tokenizer, before, id); };
    const RowScore& score = token.score;
    tokens.push_back({.window = token.window,
                      .position = token.position,
                      .kl = score.kl,
                      .before = TRY(tokenizer.decode(before, /*skip_special=*/false)),
                      .id = token.target,
                      .text = TRY(text(token.target)),
                      .p = std::exp(-score.nats),
                      .reference_p = std::exp(-score.reference_nats),
                      .model = {.id = score.top, .text = TRY(text(score.top)), .p = score.top_p},
                      .reference = {.id = score.reference_top, .text = TRY(text(score.reference_top)), .p = score.reference_top_p}});
  }
  return tokens;
}

Result<int> run(const Arguments& arguments) {
  TRY(check(arguments));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  const text::Tokenizer tokenizer = TRY(text::Tokenizer::load(folder));
  const std::vector<std::int32_t> ids = TRY(encode_data(arguments, tokenizer, folder));
  if (arguments.reference) TRY(check_same_ids(arguments, TRY(checkpoint::resolve_model_folder(*arguments.reference)), ids));
  const std::int64_t whole = static_cast<std::int64_t>(ids.size()) / arguments.window;
  if (whole == 0) return fail(Code::kInvalidArgument, "\"{}\" has {} tokens, less than one window of {}", arguments.data, ids.size(), arguments.window);
  if (arguments.windows > whole) return fail(Code::kInvalidArgument, "--windows {}: \"{}\" has {} tokens, which are {} windows of {}", arguments.windows, arguments.data, ids.size(), whole, arguments.window);
  const std::int64_t windows = arguments.windows > 0 ? arguments.windows : whole;

  const std::int64_t step = std::min<std::int64_t>(arguments.window, std::min<std::int64_t>(64, arguments.model.engine.max_num_batched_tokens));
  Side model{.opened = TRY(open_with_progress(arguments.model)), .runner = {}, .logits = {}, .hidden = {}};
  std::optional<Side> reference;
  if (arguments.reference) reference.emplace(Side{.opened = TRY(open_with_progress(reference_of(arguments))), .runner = {}, .logits = {}, .hidden = {}});
  TRY(prepare(arguments.model, model, arguments.window, step));  // once all are open: other ranks open them before they run any
  if (reference) {
    TRY(prepare(reference_of(arguments), *reference, arguments.window, step));
    const std::int64_t ours = model.opened->model->info().vocabulary, theirs = reference->opened->model->info().vocabulary;
    if (ours != theirs) return fail(Code::kInvalidArgument, "the vocabulary has {} rows, the reference's {}: their distributions cannot be compared", ours, theirs);
  }
  const models::ModelInfo& info = model.opened->model->info();
  if (arguments.experts && info.experts == 0) return fail(Code::kInvalidArgument, "--experts: {} has no experts", info.architecture);
  ExpertLoad load(arguments.model);
  TRY(load.count(*model.opened, /*wanted=*/arguments.experts));
  for (std::int64_t i = 0; i < windows * arguments.window; ++i)
    if (ids[static_cast<std::size_t>(i)] >= info.vocabulary)
      return fail(Code::kCorrupt, "the tokenizer gives id {}, but the model's vocabulary has {} rows", ids[static_cast<std::size_t>(i)], info.vocabulary);

  const InterruptGuard guard(/*hard_second=*/true, /*termination=*/true);
  if (arguments.model.verbose) note("scoring {} windows of {} tokens", windows, arguments.window);
  Scorer scorer(arguments, model, reference ? &*reference : nullptr, step);
  ProgressBar bar("eval");
  for (std::int64_t w = 0; w < windows; ++w) {
    TRY(scorer.score(w, std::span(ids).subspan(static_cast<std::size_t>(w * arguments.window), static_cast<std::size_t>(arguments.window))));
    bar.steps(w + 1, windows);
    if (interrupted()) return fail(Code::kCancelled, "interrupted after {} of {} windows", w + 1, windows);
  }
  bar.wipe();

  Sums& sums = scorer.sums;
  const double nats = sums.nats / static_cast<double>(windows);
  std::optional<Comparison> comparison;
  if (reference) {
    comparison = Comparison{.model = described(arguments.model, model, nats),
                            .reference = described(reference_of(arguments), *reference, sums.reference_nats / static_cast<double>(windows)),
                            .data = arguments.data,
                            .mode = arguments.mode,
                            .windows = windows,
                            .window = arguments.window,
                            .kl = std::move(sums.kl),
                            .same_top = sums.same_top,
                            .worst = TRY(named(sums.worst.sorted(), tokenizer, ids, arguments.window)),
                            .layers = std::move(sums.layers)};
    if (arguments.report) TRY(write_text_file(*arguments.report, comparison_page(*comparison)));
  }
  TRY(load.write());
  if (arguments.json) {
    OrderedJson json = {{"nats_per_token", nats}, {"perplexity", std::exp(nats)}, {"windows", windows}};
    if (comparison) json.update(comparison_json(*comparison));
    if (arguments.experts) json["experts"] = load.loads();
    print(json.dump() + "\n");
  } else {
    print(comparison ? comparison_text(*comparison)
                     : fmt::format("{:.6f} nats per token, perplexity {:.4f}, over {} windows of {} tokens\n", nats, std::exp(nats), windows, arguments.window));
    if (arguments.experts) print(expert_text(load.loads()));
  }
  if (arguments.report) note("wrote {}", *arguments.report);
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
  app.add_option("--reference", arguments->reference,
                 "Model to compare with: divergence, first choices, hidden states; it may be the same one. It runs plainly: none of the flags on formats, cache and FP8 are its");
  app.add_option("--reference-quantization", arguments->reference_quantization, "Weight format of the reference; without it, as stored");
  app.add_option("--reference-compute", arguments->reference_compute, "Arithmetic of the reference")->default_str("fp32");
  app.add_option("--report", arguments->report, "Also write a page about the comparison (HTML)");
  app.add_flag("--experts", arguments->experts, "Also how many tokens each expert of each layer got (mixtures of experts)");
  add_expert_load_argument(app, arguments->model);
  app.add_flag("--json", arguments->json, "One JSON object");
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}, [arguments] {
            std::vector<ModelArguments> models = {arguments->model};
            if (arguments->reference) models.push_back(reference_of(*arguments));
            return models;
          }};
}

}  // namespace inflight::cli
