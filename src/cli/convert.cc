// inflight convert MODEL --quantization NAME --output DIR [--tensor-parallel-size N]
// inflight convert MODEL --quantization tensor_wise_fp8 --scales FILE [--target gaudi --naming ernie] --output DIR
#include <fmt/ranges.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/ranks.h"
#include "engine/convert_fp8.h"
#include "loader/export.h"
#include "loader/output_files.h"
#include "text/gguf_tokenizer.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string output;
  engine::Fp8Conversion fp8;
  bool names_fp8() const { return !fp8.scales.empty() || !fp8.naming.empty() || fp8.expert_scales != "auto" || fp8.percentile != 0 || fp8.mse || fp8.rounding != "auto" || fp8.plain_share >= 0 || fp8.queries != "auto"; }
};

Result<void> check_fp8(const engine::Fp8Conversion& fp8) {
  if (!fp8.naming.empty()) TRY(check_choice("--naming", fp8.naming, {"hf", "ernie"}));
  TRY(check_choice("--queries", fp8.queries, {"auto", "fp8", "plain"}));
  TRY(check_choice("--rounding", fp8.rounding, {"auto", "compensated", "nearest"}));
  TRY(check_choice("--expert-scales", fp8.expert_scales, {"auto", "tensor", "channel"}));
  if (fp8.plain_share > 1) return fail(Code::kInvalidArgument, "--plain-share {}: must be from 0 to 1", fp8.plain_share);
  if (fp8.scales.empty() && (fp8.rounding == "compensated" || fp8.plain_share > 0 || fp8.queries == "plain"))
    return fail(Code::kInvalidArgument, "--rounding, --plain-share and --queries say what is made of a calibration; give --scales FILE too");
  if (fp8.percentile < 0 || fp8.percentile > 100) return fail(Code::kInvalidArgument, "--percentile {}: must be above 0 and at most 100", fp8.percentile);
  if (fp8.percentile != 0 && fp8.mse) return fail(Code::kInvalidArgument, "--percentile and --mse are two ways to cut; give one");
  if ((fp8.percentile != 0 || fp8.mse) && fp8.scales.empty()) return fail(Code::kInvalidArgument, "{} says where --scales FILE is cut; give that too", fp8.mse ? "--mse" : "--percentile");
  return {};
}

// Whether FP8 is all that is asked for: then other programs' names are written.
Result<bool> takes_fp8_road(const Arguments& arguments, const std::string& folder) {
  if (arguments.names_fp8()) return true;
  if (arguments.model.engine.quantization.find("fp8") == std::string::npos) return false;
  const loader::Fp8Policy policy = TRY(engine::fp8_policy(folder, arguments.model.engine));
  return policy == loader::Fp8Policy::kTensors || policy == loader::Fp8Policy::kBlocks;
}

// Whether the checkpoint holds weights that another tool quantized.
Result<bool> is_stored_form(const std::string& model) {
  if (text::is_gguf_file(model)) return true;
  const Json config = TRY(read_json_file(TRY(checkpoint::resolve_model_folder(model)) + "/config.json"));
  const JsonView view{&config, "config.json"};
  return TRY(quant::FormConfig::parse(view)).has_value();
}

// What ranks must have the same beside the checkpoint and the engine's options.
Result<Facts> facts_of_conversion(const Arguments& arguments) {
  const engine::Fp8Conversion& fp8 = arguments.fp8;
  Facts facts = {{"--output", arguments.output},
                 {"--naming", fp8.naming},
                 {"--expert-scales", fp8.expert_scales},
                 {"--percentile", fmt::format("{}", fp8.percentile)},
                 {"--mse", fp8.mse ? "yes" : "no"},
                 {"--rounding", fp8.rounding},
                 {"--queries", fp8.queries},
                 {"--plain-share", fmt::format("{}", fp8.plain_share)}};
  if (!fp8.scales.empty()) {
    const std::string text = TRY(read_file(fp8.scales, std::int64_t{4} << 30));
    facts.emplace_back("--scales, its bytes' hash", fmt::format("{:016x}", std::hash<std::string>{}(text)));
  }
  return facts;
}

struct Written {
  engine::Fp8Report report;
  double seconds = 0;  // without those of loading
};

// Opens and writes the model; with several ranks, this one's share of it, on all of them at once.
Result<Written> write(const Arguments& arguments) {
  ModelArguments model = arguments.model;
  comm::Comm* ranks = model.ranks.get();
  const bool first = !ranks || ranks->rank() == 0;
  const auto folder = checkpoint::resolve_model_folder(model.model);
  if (ranks) {
    const auto facts = facts_of_conversion(arguments);
    TRY(loader::together(ranks, !folder ? std::unexpected(folder.error()) : facts ? Result<void>() : std::unexpected(facts.error())));
    TRY(agree_on_checkpoint(model, *folder, *facts));
    model.by_shares = true;
  }
  const Result<bool> fp8 = folder ? takes_fp8_road(arguments, *folder) : std::unexpected(folder.error());
  TRY(loader::together(ranks, fp8 ? Result<void>() : std::unexpected(fp8.error())));
  std::unique_ptr<engine::OpenedModel> opened;
  std::vector<std::pair<std::string, std::string>> companions;
  if (!*fp8) {
    opened = TRY(first ? open_with_progress(model) : open_on_ranks(model, *folder, {}));
    const auto more = text::is_gguf_file(opened->folder) ? text::gguf_companions(opened->folder) : Result<decltype(companions)>();
    TRY(loader::together(ranks, more ? Result<void>() : std::unexpected(more.error())));
    companions = *more;
  }
  const std::optional<InterruptGuard> guard = first ? std::optional<InterruptGuard>(std::in_place, /*hard_second=*/false, /*termination=*/true) : std::nullopt;
  std::optional<ProgressBar> bar;
  if (first) bar.emplace("writing");
  const auto progress = [&](std::int64_t done, std::int64_t total) {
    if (ranks) ranks->tick();
    if (bar) bar->bytes(done, total);
    return !first || !interrupted();
  };
  engine::Fp8Conversion conversion = arguments.fp8;
  if (conversion.naming.empty()) conversion.naming = "hf";
  Written written;
  const auto start = std::chrono::steady_clock::now();
  if (*fp8) {
    written.report = TRY(engine::convert_fp8(*folder, model.engine, conversion, arguments.output, progress, engine::kFp8ShardBytes, ranks));
  } else {
    constexpr std::int64_t kMaxFileBytes = std::int64_t{5} << 30;
    written.report.written = TRY(loader::export_model(opened->folder, opened->table, opened->store, arguments.output, progress, kMaxFileBytes, companions, {ranks, opened->owners}));
  }
  written.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return written;
}

Result<int> run(const Arguments& arguments) {
  TRY(check(arguments.model));
  TRY(check_fp8(arguments.fp8));
  if (arguments.model.engine.quantization.empty() && arguments.model.engine.quantization_overrides.empty() && !TRY(is_stored_form(arguments.model.model)))
    return fail(Code::kInvalidArgument, "convert needs --quantization NAME (without it, checkpoints that another tool has quantized keep their numbers)");
  TRY(checkpoint::OutputFolder::create(arguments.output));  // and removed again: a bad --output shows before minutes of loading
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  Arguments mine = arguments;
  if (arguments.model.ranks && TRY(takes_fp8_road(arguments, folder)) && TRY(engine::runs_model(folder, arguments.model.engine, arguments.fp8))) {
    note("note: \"{}\" holds tokens, over which the model runs to round its weights: rank 0 does that alone, the others wait (--rounding nearest is shared by all)", arguments.fp8.scales);
    mine.model.ranks = nullptr;
    mine.model.engine.tensor_parallel_size = mine.model.engine.data_parallel_size = 1;
    mine.model.engine.enable_expert_parallel = false;
  } else {
    share_work(arguments.model);
  }
  const auto [report, seconds] = TRY(write(mine));
  const loader::ExportReport& written = report.written;
  note("wrote {}: {} in {} file{}, {} ({})", arguments.output, human_bytes(written.bytes), written.files, written.files == 1 ? "" : "s", human_seconds(seconds),
       gigabytes_per_second(static_cast<double>(written.bytes), seconds));
  if (report.moment_tokens > 0) note("weights are rounded with the second moments of their inputs over {} calibration tokens (--rounding nearest: each by itself)", grouped(report.moment_tokens));
  else if (!arguments.fp8.scales.empty()) note("weights are rounded to the nearest");
  if (report.plain_queries) note("attention leaves queries and probabilities unrounded (--queries fp8: it rounds them)");
  if (!report.plain.empty()) note("{} matrices stay as stored, where FP8 was measured to cost most: {}", report.plain.size(), fmt::join(report.plain, ", "));
  return kDone;
}

}  // namespace

Action declare_convert(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("--output", arguments->output, "Folder to make: config, tokenizer and quantized weights")->required();
  const std::string group = "FP8 (tensor_wise_fp8, block_wise_fp8)";
  app.add_option("--scales", arguments->fp8.scales, "Calibration file: static scales of activations are written")->group(group);
  app.add_option("--naming", arguments->fp8.naming, "Whose names: hf (compressed-tensors, blocks: DeepSeek's) or ernie (FastDeploy's)")->default_str("hf")->group(group);
  app.add_option("--target", arguments->model.engine.fp8_target, "The same as --fp8-target")->group(group)->excludes(app.get_option("--fp8-target"));
  app.add_option("--expert-scales", arguments->fp8.expert_scales, "Of routed experts' weights: tensor, channel; auto: channel with ernie's names")->capture_default_str()->group(group);
  app.add_option("--percentile", arguments->fp8.percentile, "Activations are cut at this percentile of their magnitudes rather than at the largest")->group(group);
  app.add_flag("--mse", arguments->fp8.mse, "Activations are cut where that loses least")->group(group);
  app.add_option("--rounding", arguments->fp8.rounding, "Of weights: compensated (errors make up for one another over the calibration's tokens), nearest; auto: compensated where --scales holds tokens")->capture_default_str()->group(group);
  app.add_option("--plain-share", arguments->fp8.plain_share, "Share of the weights that stays as stored, where FP8 is measured to cost most; without it 0.2 beside compensated rounding with hf names, else 0")->group(group);
  app.add_option("--queries", arguments->fp8.queries, "Of attention: fp8, plain (queries and probabilities are not rounded, also with --fp8-sdpa); auto: plain where rounding them is measured to cost much")->capture_default_str()->group(group);
  const auto share = [arguments]() -> Result<void> {
    TRY(write(*arguments));
    return {};
  };
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}, {}, share};
}

}  // namespace inflight::cli
