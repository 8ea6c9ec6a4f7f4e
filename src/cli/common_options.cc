#include "cli/common_options.h"

#include "base/nearest.h"
#include "checkpoint/model_folder.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/ranks.h"
#include "quant/format.h"
#include "quant/store.h"

namespace inflight::cli {
namespace {

std::string quantization_help() {
  std::string text = "Weight format made while loading; without it, as stored. One of:";
  for (const quant::Format* format : quant::formats()) text += fmt::format("\n{}: {}", format->name, format->summary);
  text += "\nwlut4-mix: wlut4 with the first layer in wint8 as far as 4.6 bits a weight allow (the most accurate of 4 bits)";
  return text;
}

Result<void> at_least(std::string_view flag, std::int64_t value, std::int64_t least) {
  if (value < least) return fail(Code::kInvalidArgument, "{} must be at least {}, but is {}", flag, least, value);
  return {};
}

}  // namespace

void add_model_arguments(CLI::App& app, ModelArguments& arguments, bool model_required) {
  engine::EngineOptions& engine = arguments.engine;
  CLI::Option* model = app.add_option("MODEL", arguments.model, "Checkpoint folder, or the id of a model in the local Hugging Face cache");
  if (model_required) model->required();
  const std::string load = "Loading";
  app.add_option("--quantization", engine.quantization, quantization_help())->group(load);
  app.add_option("--quantization-override", engine.quantization_overrides, fmt::format("PATTERN=FORMAT for the weights whose names match, e.g. '{}'; may be repeated, the last that matches wins", quant::kOverrideExample))
      ->type_name("TEXT")->expected(1)->take_all()->group(load);
  app.add_option("--lm-head", engine.lm_head, "Format of the output head: auto, bf16, wint8, ... (auto: wint8 with a wint format, else as stored)")->capture_default_str()->group(load);
  app.add_option("--fp8-target", engine.fp8_target, "Whose FP8 numbers: ocp (up to 448) or gaudi (up to 240)")->capture_default_str()->group(load);
  app.add_option("--fp8-activations", engine.fp8_activations, "Of FP8 weights: static (calibrated scales), dynamic (a scale a token), none (activations are not rounded to FP8), auto: as the checkpoint says")->capture_default_str()->group(load);
  app.add_option("--fp8-amax", engine.fp8_amax, "Calibration file whose scales are used rather than the checkpoint's")->group(load);
  app.add_flag("--fp8-sdpa", engine.fp8_sdpa, "Attention on FP8 queries, keys, probabilities and values (with --kv-cache-dtype float8_e4m3)")->group(load);
  app.add_option("--load-choices", engine.load_choices, "default_v1: stream and quantize in flight; default: all of it in memory, then quantize")->capture_default_str()->group(load);
  app.add_option("--tensor-parallel-size", engine.tensor_parallel_size, "Ranks that share each matrix; without mpirun or srun they are started on this host")->capture_default_str()->group(load);
  app.add_flag("--enable-expert-parallel", engine.enable_expert_parallel, "Whole experts are spread over the ranks, rather than parts of each")->group(load);
  app.add_option("--data-parallel-size", engine.data_parallel_size, "Groups of --tensor-parallel-size ranks, each with its own sequences; experts are spread over all")->capture_default_str()->group(load);
  app.add_flag("--enable-eplb", engine.enable_eplb, "Experts and replicas of them are placed on the ranks by their loads (with --enable-expert-parallel or --data-parallel-size)")->group(load);
  app.add_option("--redundant-experts", engine.redundant_experts, "Replicas of experts in each layer, beside one of each (with --enable-eplb, or inspect --eplb)")->capture_default_str()->group(load);
  app.add_option("--eplb-interval", engine.eplb_interval, "Steps of the engine from one placement of experts to the next; 0: they stay where they are first")->capture_default_str()->group(load);
  const std::string run = "Running";
  app.add_option("--compute", engine.compute, "Arithmetic on activations: auto, fp32, bf16, int8")->capture_default_str()->group(run);
  app.add_option("--kv-cache-dtype", engine.kv_cache_dtype, "auto (fp32 with --compute fp32, else bf16), bf16, fp32, float8_e4m3")->capture_default_str()->group(run);
  app.add_option("--threads", engine.threads, "Threads; 0: as many as the affinity mask and the cgroup quota allow")->capture_default_str()->group(run);
  app.add_option("--max-model-len", engine.max_model_len, "Longest prompt and answer together, in tokens; 0: what the model promises and memory holds")->capture_default_str()->group(run);
  app.add_option("--max-num-seqs", engine.max_num_seqs, "Sequences in one step")->capture_default_str()->group(run);
  app.add_option("--max-num-batched-tokens", engine.max_num_batched_tokens, "Tokens in one step; longer prompts are cut into chunks")->capture_default_str()->group(run);
  app.add_option("--block-size", engine.block_size, "Tokens of a KV cache block, a multiple of 16")->capture_default_str()->group(run);
  app.add_flag("--verbose", arguments.verbose, "Say more on standard error");
}

Result<void> check_choice(std::string_view flag, std::string_view value, const std::vector<std::string_view>& known) {
  for (const std::string_view name : known)
    if (name == value) return {};
  return fail(Code::kInvalidArgument, "unknown value \"{}\" of {}; {}", value, flag, known_names_hint(value, known));
}

Result<void> check(const ModelArguments& arguments, bool only_plan) {
  const engine::EngineOptions& engine = arguments.engine;
  TRY(quant::make_policy(engine.quantization, engine.lm_head, engine.quantization_overrides));
  TRY(check_choice("--fp8-target", engine.fp8_target, {"ocp", "gaudi"}));
  TRY(check_choice("--fp8-activations", engine.fp8_activations, {"auto", "static", "dynamic", "none"}));
  TRY(check_choice("--load-choices", engine.load_choices, {"default_v1", "default"}));
  TRY(check_choice("--compute", engine.compute, {"auto", "fp32", "bf16", "int8"}));
  TRY(check_choice("--kv-cache-dtype", engine.kv_cache_dtype, {"auto", "bf16", "bfloat16", "fp32", "float32", "float8_e4m3", "fp8"}));
  TRY(at_least("--tensor-parallel-size", engine.tensor_parallel_size, 1));
  if (engine.tensor_parallel_size > 4096) return fail(Code::kInvalidArgument, "--tensor-parallel-size {} is more than 4096", engine.tensor_parallel_size);
  TRY(at_least("--data-parallel-size", engine.data_parallel_size, 1));
  if (engine.data_parallel_size > 4096 / engine.tensor_parallel_size)
    return fail(Code::kInvalidArgument, "--data-parallel-size {} by --tensor-parallel-size {} are more than 4096 ranks", engine.data_parallel_size, engine.tensor_parallel_size);
  TRY(at_least("--redundant-experts", engine.redundant_experts, 0));
  if (engine.redundant_experts > 65536) return fail(Code::kInvalidArgument, "--redundant-experts {} is more than 65536", engine.redundant_experts);
  TRY(at_least("--eplb-interval", engine.eplb_interval, 0));
  if (!only_plan && !engine.enable_eplb && engine.redundant_experts != 0)
    return fail(Code::kInvalidArgument, "--redundant-experts {} needs --enable-eplb, which places them", engine.redundant_experts);
  if (!engine.enable_eplb && engine.eplb_interval != 0) return fail(Code::kInvalidArgument, "--eplb-interval {} needs --enable-eplb", engine.eplb_interval);
  TRY(at_least("--threads", engine.threads, 0));
  if (engine.threads > 1024) return fail(Code::kInvalidArgument, "--threads {} is more than 1024", engine.threads);
  TRY(at_least("--max-model-len", engine.max_model_len, 0));
  TRY(at_least("--max-num-seqs", engine.max_num_seqs, 1));
  TRY(at_least("--max-num-batched-tokens", engine.max_num_batched_tokens, 1));
  TRY(at_least("--block-size", engine.block_size, 16));
  if (engine.block_size % 16 != 0) return fail(Code::kInvalidArgument, "--block-size must be a multiple of 16, but is {}", engine.block_size);
  return {};
}

void add_sampling_arguments(CLI::App& app, SamplingArguments& arguments) {
  api::SamplingFields& fields = arguments.fields;
  const std::string group = "Sampling (without a flag: what the model's generation_config.json says)";
  app.add_option("--temperature", fields.temperature, "0: greedy")->group(group);
  app.add_option("--top-p", fields.top_p, "Smallest set of tokens with this much probability; 1: off, 0: greedy")->group(group);
  app.add_option("--top-k", fields.top_k, "The k most probable tokens; 0: off, 1: greedy")->group(group);
  app.add_option("--min-p", fields.min_p, "Tokens with at least this share of the largest probability")->group(group);
  app.add_option("--repetition-penalty", fields.repetition_penalty, "Of tokens in the prompt and the answer; 1: off")->group(group);
  app.add_option("--presence-penalty", fields.presence_penalty, "Subtracted once from tokens of the answer")->group(group);
  app.add_option("--frequency-penalty", fields.frequency_penalty, "Subtracted per occurrence in the answer")->group(group);
  app.add_option("--max-tokens", fields.max_tokens, "Longest answer; without it, what is left of the context")->group(group);
  app.add_option("--min-tokens", fields.min_tokens, "Shortest answer")->group(group);
  app.add_option("--seed", fields.seed, "Of the random numbers; without it, fresh ones")->group(group);
  app.add_option_function<std::vector<std::string>>("--stop", [&fields](const std::vector<std::string>& strings) {
       fields.stop.emplace();
       for (const std::string& string : strings)
         if (!string.empty()) fields.stop->push_back(string);
     }, "End the answer before this text; may be given several times")
      ->group(group)
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag_function("--ignore-eos", [&fields](std::int64_t) { fields.ignore_eos = true; }, "Do not end at the end-of-sequence token")->group(group);
  app.add_flag("--ignore-generation-config", arguments.ignore_generation_config, "Take no defaults from generation_config.json")->group(group);
}

Result<std::unique_ptr<engine::OpenedModel>> open_with_progress(const ModelArguments& arguments, const std::function<bool()>& unwanted) {
  TRY(check(arguments));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model));
  std::unique_ptr<engine::OpenedModel> opened;
  {
    ProgressBar bar("loading");
    opened = TRY(open_on_ranks(arguments, folder, [&](std::int64_t done, std::int64_t total) {
      bar.bytes(done, total);
      return !unwanted || !unwanted();
    }));
  }
  if (arguments.engine.enable_expert_parallel && !arguments.ranks) note("note: --enable-expert-parallel changes nothing with one rank");
  for (const std::string& line : opened->model->info().notes) note("note: {}", line);
  for (const std::string& line : opened->notes) note("note: {}", line);
  if (arguments.verbose) {
    note("loaded {} in {} ({} read, {} of weights, {})", opened->folder, human_seconds(opened->report.seconds), human_bytes(opened->report.source_bytes),
         human_bytes(opened->report.weight_bytes), opened->report.direct_io ? "past the page cache" : "through the page cache");
    for (const std::string& line : opened->report.ignored) note("ignored tensor {}", line);
  }
  return opened;
}

}  // namespace inflight::cli
