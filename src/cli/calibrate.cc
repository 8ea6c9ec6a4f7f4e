// inflight calibrate MODEL --data FILE --output SCALES.safetensors
// inflight calibrate --merge A B... --output C.safetensors
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "api/prompt.h"
#include "base/e4m3.h"
#include "checkpoint/model_folder.h"
#include "cli/calibration_data.h"
#include "cli/calibration_report.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/forward_runner.h"
#include "cli/html_page.h"
#include "cli/interrupt.h"
#include "engine/calibration.h"
#include "engine/collector.h"

namespace inflight::cli {
namespace {

// A crash loses what came after the last save. Where a save takes long, so does the time to the next: ten times as long.
constexpr std::chrono::steady_clock::duration kBetweenSaves = std::chrono::seconds(2);

struct Arguments {
  ModelArguments model;
  std::string data, output, text, report;
  std::vector<std::string> merge;
  std::int64_t window = 256, windows = 0, decode_tokens = 0;
  std::string unseen = "force";
};

struct Counts {
  std::int64_t windows = 0, prefill = 0, decode = 0;
};

using Windows = std::vector<std::vector<std::int32_t>>;

float bound_of(const Arguments& arguments) { return arguments.model.engine.fp8_target == "gaudi" ? kGaudiE4m3Max : kE4m3Max; }

// What is left to do once the numbers are there.
Result<void> write_all(const Arguments& arguments, const engine::Calibration& calibration) {
  TRY(engine::write_calibration(calibration, arguments.output));
  if (!arguments.text.empty()) TRY(engine::write_calibration_text(calibration, arguments.text));
  if (!arguments.report.empty()) TRY(write_text_file(arguments.report, calibration_page(calibration, bound_of(arguments))));
  return {};
}

Result<int> merge(const Arguments& arguments) {
  if (!arguments.model.model.empty() || !arguments.data.empty()) return fail(Code::kInvalidArgument, "--merge takes calibration files alone, no MODEL and no --data");
  engine::Calibration all = TRY(engine::read_calibration(arguments.merge[0]));
  for (std::size_t i = 1; i < arguments.merge.size(); ++i)
    if (auto merged = all.merge(TRY(engine::read_calibration(arguments.merge[i]))); !merged) return fail_at(arguments.merge[i], std::move(merged).error());
  TRY(write_all(arguments, all));
  print(calibration_table(all, bound_of(arguments)));
  note("merged {} file{} into {}: {} points", arguments.merge.size(), arguments.merge.size() == 1 ? "" : "s", arguments.output, all.points.size());
  return kDone;
}

// One window: its tokens as a prompt, then generated ones.
Result<void> run_window(const Arguments& arguments, ForwardRunner& runner, const std::vector<std::int32_t>& ids, std::int64_t vocabulary, std::vector<float>& logits) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const std::int64_t step = arguments.model.engine.max_num_batched_tokens;
  for (std::int64_t first = 0; first < tokens; first += step) {
    const std::int64_t count = std::min(step, tokens - first);
    const bool last = arguments.decode_tokens > 0 && first + count == tokens;
    TRY(runner.forward({.ids = std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                    .position = first,
                    .rope_length = tokens,
                    .logits_from = count - 1,
                    .logits = last ? logits.data() : nullptr}));
  }
  for (std::int64_t i = 0; i < arguments.decode_tokens; ++i) {
    const auto best = static_cast<std::int32_t>(std::max_element(logits.data(), logits.data() + vocabulary) - logits.data());
    TRY(runner.decode({&best, 1}, tokens + i, logits.data()));
  }
  return {};
}

void note_coverage(const std::vector<engine::ExpertCoverage>& coverage) {
  std::int64_t whole = 0;
  for (const engine::ExpertCoverage& layer : coverage) {
    whole += layer.seen == layer.experts;
    if (layer.seen < layer.experts) note("{} of {} experts seen in layer {}", layer.seen, layer.experts, layer.number);
  }
  if (whole > 0) note("all experts seen in {} of {} layers that have some", whole, coverage.size());
}

Result<int> run(const Arguments& arguments) {
  TRY(check(arguments.model));
  TRY(check_choice("--unseen", arguments.unseen, {"force", "max"}));
  for (const auto& [flag, value, least] : {std::tuple{"--window", arguments.window, 1}, {"--windows", arguments.windows, 0}, {"--decode-tokens", arguments.decode_tokens, 0}})
    if (value < least || value > (std::int64_t{1} << 30)) return fail(Code::kInvalidArgument, "{} must be from {} to 2^30, but is {}", flag, least, value);
  for (const std::string& path : {arguments.output, arguments.text, arguments.report}) TRY(check_writable(path));
  if (!arguments.merge.empty()) return merge(arguments);
  if (arguments.model.model.empty()) return fail(Code::kInvalidArgument, "calibrate needs a MODEL (or --merge FILES)");
  if (arguments.data.empty()) return fail(Code::kInvalidArgument, "calibrate needs --data FILE: text, or .jsonl with a prompt, text, messages or ids a line");

  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  const Windows windows = TRY(read_calibration_data(arguments.data, folder, arguments.window, arguments.windows));
  std::size_t longest = 0;
  for (const auto& window : windows) longest = std::max(longest, window.size());
  const std::int64_t context = static_cast<std::int64_t>(longest) + arguments.decode_tokens;

  const std::unique_ptr<engine::OpenedModel> opened = TRY(open_with_progress(arguments.model));
  const models::ModelInfo& info = opened->model->info();
  if (info.max_positions > 0 && context > info.max_positions)
    return fail(Code::kInvalidArgument, "a window of {} tokens and --decode-tokens {} are more than the model's context of {}", longest, arguments.decode_tokens, info.max_positions);
  for (const auto& window : windows) TRY(check_ids(window, info));
  ForwardRunner runner = TRY(ForwardRunner::create(*opened, arguments.model.engine, 1, context));
  std::vector<float> logits(arguments.decode_tokens > 0 ? static_cast<std::size_t>(runner.stride()) : 0);

  engine::Collector collector(opened->table, *opened->pool);
  opened->runtime->observer = &collector;
  Counts counts;
  const auto snapshot = [&] {
    engine::Calibration calibration = collector.snapshot();
    calibration.metadata = {{"model", arguments.model.model}, {"architecture", info.architecture}, {"data", arguments.data}, {"windows", std::to_string(counts.windows)},
                            {"prefill_tokens", std::to_string(counts.prefill)}, {"decode_tokens", std::to_string(counts.decode)}, {"compute", arguments.model.engine.compute},
                            {"weights", opened->quantization}};
    calibration.windows.assign(windows.begin(), windows.begin() + counts.windows);
    return calibration;
  };

  const InterruptGuard guard(/*hard_second=*/true, /*termination=*/true);
  auto next_save = std::chrono::steady_clock::time_point{};
  // Returns whether all windows went through; otherwise Ctrl-C came.
  const auto pass = [&](std::string title, bool counting) -> Result<bool> {
    ProgressBar bar(std::move(title));
    for (std::size_t w = 0; w < windows.size(); ++w) {
      TRY(run_window(arguments, runner, windows[w], info.vocabulary, logits));
      if (!collector.not_finite().empty())
        return fail(Code::kCorrupt, "{} is infinite or no number in window {}: nothing can be scaled to that; is the checkpoint sound? (--compute fp32 rules out rounding)", collector.not_finite(), w);
      if (counting) {
        ++counts.windows;
        counts.prefill += static_cast<std::int64_t>(windows[w].size());
        counts.decode += arguments.decode_tokens;
      }
      bar.steps(static_cast<std::int64_t>(w) + 1, static_cast<std::int64_t>(windows.size()));
      if (const auto now = std::chrono::steady_clock::now(); now >= next_save) {
        TRY(engine::write_calibration(snapshot(), arguments.output));
        const auto saved = std::chrono::steady_clock::now();
        next_save = saved + std::max(kBetweenSaves, 10 * (saved - now));
      }
      if (interrupted()) return false;
    }
    return true;
  };

  bool whole = TRY(pass("calibrating", true));
  const std::vector<engine::ExpertCoverage> coverage = collector.coverage();
  if (whole && arguments.unseen == "force" && collector.begin_forced_pass()) whole = TRY(pass("unseen experts", false));
  opened->runtime->observer = nullptr;
  const engine::Calibration calibration = snapshot();
  TRY(write_all(arguments, calibration));
  print(calibration_table(calibration, bound_of(arguments)));
  note_coverage(coverage);
  const auto with = [&](engine::Origin origin) { return std::ranges::count_if(calibration.points, [&](const auto& entry) { return entry.second.origin == origin; }); };
  if (with(engine::Origin::kForced) > 0) note("{} unseen experts saw all tokens in a second pass", with(engine::Origin::kForced));
  if (with(engine::Origin::kOthers) > 0) note("{} unseen experts took the numbers of their layer's others", with(engine::Origin::kOthers));
  note("wrote {}: {} points over {} prompt tokens{}", arguments.output, calibration.points.size(), grouped(counts.prefill), counts.decode > 0 ? fmt::format(" and {} generated ones", grouped(counts.decode)) : "");
  if (!whole) return fail(Code::kCancelled, "interrupted after {} of {} windows; {} holds what they gave", counts.windows, windows.size(), arguments.output);
  return kDone;
}

}  // namespace

Action declare_calibrate(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model, /*model_required=*/false);
  app.add_option("--data", arguments->data, "Text (UTF-8), or .jsonl: an object with prompt, text, messages or ids a line");
  app.add_option("--output", arguments->output, "File to write: maxima, histograms and channels of every point (.safetensors)")->required();
  app.add_option("--window", arguments->window, "Longest run of tokens that see each other")->capture_default_str();
  app.add_option("--windows", arguments->windows, "Windows to run; without it, all");
  app.add_option("--decode-tokens", arguments->decode_tokens, "Tokens generated after each window, measured too")->capture_default_str();
  app.add_option("--unseen", arguments->unseen, "Experts that no token was routed to: force (all tokens go through them in a second pass) or max (the layer's other experts')")->capture_default_str();
  app.add_option("--merge", arguments->merge, "Calibration files of any form, to be made one")->expected(1, -1)->type_name("FILE");
  app.add_option("--text", arguments->text, "Also write FastDeploy's text form: name<TAB>maximum");
  app.add_option("--report", arguments->report, "Also write a page about it (HTML)");
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}};
}

}  // namespace inflight::cli
