// inflight convert MODEL --quantization NAME --output DIR
#include <chrono>
#include <memory>
#include <string>

#include "checkpoint/safetensors_writer.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "loader/export.h"
#include "text/gguf_tokenizer.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string output;
};

Result<int> run(const Arguments& arguments) {
  if (arguments.model.engine.quantization.empty()) return fail(Code::kInvalidArgument, "convert needs --quantization NAME");
  TRY(check(arguments.model));
  // Its embedding table would stay in blocks, which a converted folder has no place for.
  if (text::is_gguf_file(arguments.model.model))
    return fail(Code::kUnsupported, "\"{}\" is a GGUF file, which cannot be converted yet; run it as it is, or with --quantization", arguments.model.model);
  TRY(checkpoint::OutputFolder::create(arguments.output));  // and removed again: a bad --output shows before minutes of loading
  const std::unique_ptr<engine::OpenedModel> opened = TRY(open_with_progress(arguments.model));
  const auto start = std::chrono::steady_clock::now();
  loader::ExportReport written;
  {
    const InterruptGuard guard(/*hard_second=*/false, /*termination=*/true);
    ProgressBar bar("writing");
    written = TRY(loader::export_model(opened->folder, opened->table, opened->store, arguments.output, [&bar](std::int64_t done, std::int64_t total) { return bar.bytes(done, total), !interrupted(); }));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  note("wrote {}: {} in {} file{}, {} ({})", arguments.output, human_bytes(written.bytes), written.files, written.files == 1 ? "" : "s", human_seconds(seconds),
       gigabytes_per_second(static_cast<double>(written.bytes), seconds));
  return kDone;
}

}  // namespace

Action declare_convert(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("--output", arguments->output, "Folder to make: config, tokenizer and quantized weights")->required();
  return [arguments] { return run(*arguments); };
}

}  // namespace inflight::cli
