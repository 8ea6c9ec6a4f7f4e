// inflight bench MODEL: load, prefill and decode speed against what the same threads can do at most, measured around each run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "cli/bench_load.h"
#include "cli/bench_ranks.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/expert_load.h"
#include "cli/format.h"
#include "cli/forward_runner.h"
#include "cli/html_page.h"
#include "cli/machine.h"
#include "cli/traffic.h"

namespace inflight::cli {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Arguments {
  ModelArguments model;
  std::int64_t prompt_tokens = 512;
  std::int64_t decode_tokens = 128;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  int repeat = 5;
  bool json = false;
};

// Peaks of this machine, sampled again and again; a run is compared with the samples next to it.
class Roofline {
 public:
  static Result<Roofline> create(engine::OpenedModel& opened) {
    Roofline roofline(opened, TRY(ReadProbe::create(*opened.pool, std::int64_t{1} << 30)));
    roofline.read();
    return roofline;
  }
  double read() { return keep(read_, probe_.sample(*opened_->runtime->kernels, *opened_->pool, 1)); }
  double peak(quant::Arithmetic arithmetic) {
    const kernels::RooflineKernels& kernels = *opened_->runtime->kernels->roofline;
    switch (arithmetic) {
      case quant::Arithmetic::kInt8:
      case quant::Arithmetic::kInt8Grouped: return keep(int8_, arithmetic_peak(kernels.int8, *opened_->pool, 0.05));
      case quant::Arithmetic::kFp8:
      case quant::Arithmetic::kBf16: return keep(bf16_, arithmetic_peak(kernels.bf16, *opened_->pool, 0.05));
      case quant::Arithmetic::kFp32: return keep(fp32_, arithmetic_peak(kernels.fp32, *opened_->pool, 0.05));
    }
    return 0;
  }
  // Seconds that the work takes at the peaks of this moment.
  double seconds_at_peak(const std::vector<Work>& work) {
    double seconds = 0;
    for (const Work& part : work) seconds += part.operations / peak(part.arithmetic);
    return seconds;
  }
  void sample_all() {
    read();
    for (const auto arithmetic : {quant::Arithmetic::kInt8, quant::Arithmetic::kBf16, quant::Arithmetic::kFp32}) peak(arithmetic);
  }
  double median_read() const { return median(read_); }
  double median_int8() const { return median(int8_); }
  double median_bf16() const { return median(bf16_); }
  double median_fp32() const { return median(fp32_); }

 private:
  Roofline(engine::OpenedModel& opened, ReadProbe probe) : opened_(&opened), probe_(std::move(probe)) {}
  static double keep(std::vector<double>& samples, double value) { return samples.emplace_back(value); }

  engine::OpenedModel* opened_;
  ReadProbe probe_;
  std::vector<double> read_, int8_, bf16_, fp32_;
};

struct Speed {
  double tokens_per_s = 0;
  double bytes_per_s = 0;
  std::vector<double> fractions;  // one of each run, against the samples around it
  std::string peak;
  SentInSteps sent;  // to other ranks
};

quant::Arithmetic main_arithmetic(const std::vector<Work>& work) { return std::ranges::max_element(work, {}, &Work::operations)->arithmetic; }

Result<Speed> measure_prefill(engine::OpenedModel& opened, const Arguments& arguments, Roofline& roofline) {
  Speed speed;
  const std::int64_t tokens = arguments.prompt_tokens;
  if (tokens == 0) return speed;
  ForwardRunner runner = TRY(ForwardRunner::create(opened, arguments.model.engine, 1, tokens));
  const std::vector<Work> work = prefill_work(opened, tokens, runner.kv_shape().dtype);
  speed.peak = quant::arithmetic_name(main_arithmetic(work));
  const std::vector<std::int32_t> ids = synthetic_ids(tokens, opened.model->info().vocabulary);
  std::vector<float> logits(static_cast<std::size_t>(runner.stride()));
  const std::int64_t step = std::min(tokens, arguments.model.engine.max_num_batched_tokens);
  const auto once = [&]() -> Result<double> {
    const Clock::time_point start = Clock::now();
    for (std::int64_t first = 0; first < tokens; first += step) {
      const std::int64_t count = std::min(step, tokens - first);
      const bool last = first + count == tokens;
      TRY(runner.forward({.ids = std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                      .position = first,
                      .phase = Phase::kPrefill,
                      .rope_length = tokens,
                      .logits_from = count - 1,
                      .logits = last ? logits.data() : nullptr}));
    }
    return since(start);
  };
  const double warm_up = TRY(once());  // workspace and cache become resident
  const int runs = warm_up > 10 ? 3 : 5;
  const TrafficWatch traffic(opened);
  std::vector<double> seconds;
  double before = roofline.seconds_at_peak(work);
  for (int run = 0; run < runs; ++run) {
    seconds.push_back(TRY(once()));
    const double after = roofline.seconds_at_peak(work);
    speed.fractions.push_back((before + after) / 2 / seconds.back());
    before = after;
  }
  speed.sent = traffic.end(runs * ((tokens + step - 1) / step), runs * tokens, runs);
  speed.tokens_per_s = static_cast<double>(tokens) / median(seconds);
  return speed;
}

Result<Speed> measure_decode(engine::OpenedModel& opened, const Arguments& arguments, Roofline& roofline) {
  Speed speed;
  const std::int64_t tokens = arguments.decode_tokens, batch = arguments.batch;
  if (tokens == 0) return speed;
  const models::ModelInfo& info = opened.model->info();
  const std::int64_t warm_up = 2;
  ForwardRunner runner = TRY(ForwardRunner::create(opened, arguments.model.engine, batch, arguments.context + tokens + warm_up));
  if (arguments.context > 0) {  // what is in the cache does not matter, but it must be there: a first part is computed, the rest copied
    const std::int64_t filled = std::min<std::int64_t>(arguments.context, std::max<std::int64_t>(arguments.model.engine.block_size, 256));
    const std::int64_t whole = std::min(filled, arguments.model.engine.max_num_batched_tokens);
    const std::vector<std::int32_t> ids = synthetic_ids(whole, info.vocabulary);
    TRY(runner.forward({.ids = ids, .phase = Phase::kPrefill}));
    runner.repeat_cache(whole, arguments.context);
  }
  std::vector<std::int32_t> ids = synthetic_ids(batch, info.vocabulary);
  std::vector<float> logits(static_cast<std::size_t>(batch * runner.stride()));
  const auto step = [&](std::int64_t position) -> Result<void> {
    TRY(runner.decode(ids, position, logits.data()));
    for (std::int64_t i = 0; i < batch; ++i)
      ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::max<std::int64_t>(0, opened.runtime->kernels->vector->argmax(logits.data() + i * runner.stride(), info.vocabulary)));
    return {};
  };
  for (std::int64_t i = 0; i < warm_up; ++i) TRY(step(arguments.context + i));

  // Eight stretches with a bandwidth sample before, between and after.
  const std::int64_t stretch = std::max<std::int64_t>(1, (tokens + 7) / 8);
  const auto weights = static_cast<double>(decode_bytes(opened, batch));
  double total_seconds = 0, total_bytes = 0;
  const TrafficWatch traffic(opened);
  double before = roofline.read();
  for (std::int64_t first = 0; first < tokens; first += stretch) {
    const std::int64_t count = std::min(stretch, tokens - first);
    double bytes = 0;
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = first; i < first + count; ++i) {
      TRY(step(arguments.context + i));
      bytes += weights + static_cast<double>(batch * (arguments.context + i + 1) * runner.kv_shape().token_bytes());
    }
    const double seconds = since(start);
    const double after = roofline.read();
    speed.fractions.push_back(bytes / seconds / ((before + after) / 2));
    before = after;
    total_seconds += seconds;
    total_bytes += bytes;
  }
  speed.sent = traffic.end(tokens, tokens * batch, tokens * batch);
  speed.tokens_per_s = static_cast<double>(tokens * batch) / total_seconds;
  speed.bytes_per_s = total_bytes / total_seconds;
  return speed;
}

std::pair<double, double> spread(const std::vector<double>& values) {
  if (values.empty()) return {0, 0};
  const auto [low, high] = std::ranges::minmax(values);
  return {low, high};
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

OrderedJson bench_json(const Arguments& arguments, const engine::OpenedModel& opened, const LoadMeasurement& load, const Roofline& roofline, const Speed& prefill, const Speed& decode) {
  const auto source = static_cast<double>(load.source_bytes);
  const auto rate = [&](double seconds) { return seconds > 0 ? rounded(source / seconds / 1e9) : 0; };
  OrderedJson json;
  json["model"] = arguments.model.model;
  json["quantization"] = opened.quantization;
  json["compute"] = arguments.model.engine.compute;
  json["isa"] = opened.runtime->kernels->isa;
  json["threads"] = opened.pool->threads();
  json["load"] = {{"seconds", load.median_seconds()},
                  {"source_bytes", load.source_bytes},
                  {"source_gb_per_s", rate(load.median_seconds())},
                  {"best_source_gb_per_s", rate(load.best_seconds())},
                  {"plain_gb_per_s", rounded(load.median_plain() / 1e9)},
                  {"weight_bytes", load.weight_bytes},
                  {"peak_anon_bytes", load.peak_anon_bytes}};
  json["roofline"] = {{"read_gb_per_s", rounded(roofline.median_read() / 1e9)},
                      {"int8_tops", rounded(roofline.median_int8() / 1e12)},
                      {"bf16_tflops", rounded(roofline.median_bf16() / 1e12)},
                      {"fp32_tflops", rounded(roofline.median_fp32() / 1e12)}};
  json["prefill"] = {{"tokens", arguments.prompt_tokens},
                     {"tokens_per_s", rounded(prefill.tokens_per_s)},
                     {"peak", prefill.peak},
                     {"fraction_of_peak", rounded(median(prefill.fractions))},
                     {"fraction_spread", {rounded(spread(prefill.fractions).first), rounded(spread(prefill.fractions).second)}}};
  json["decode"] = {{"tokens", arguments.decode_tokens},
                    {"context", arguments.context},
                    {"batch", arguments.batch},
                    {"tokens_per_s", rounded(decode.tokens_per_s)},
                    {"gb_per_s", rounded(decode.bytes_per_s / 1e9)},
                    {"fraction_of_bandwidth", rounded(median(decode.fractions))},
                    {"fraction_spread", {rounded(spread(decode.fractions).first), rounded(spread(decode.fractions).second)}}};
  if (opened.ranks) json["ranks"] = ranks_json(opened, prefill.sent, decode.sent);
  return json;
}

std::string bench_text(const OrderedJson& json) {
  const auto number = [&](const char* part, const char* key) { return json[part][key].get<double>(); };
  const auto bytes = [&](const char* key) { return human_bytes(json["load"][key].get<std::int64_t>()); };
  const auto share = [&](const char* part, const char* key) {
    return fmt::format("{:.1f} % ({:.1f} to {:.1f} %)", 100 * number(part, key), 100 * json[part]["fraction_spread"][0].get<double>(), 100 * json[part]["fraction_spread"][1].get<double>());
  };
  std::string text = fmt::format("{}, {}, compute {}, {}, {} threads\n", json["model"].get<std::string>(), json["quantization"].get<std::string>(), json["compute"].get<std::string>(),
                                 json["isa"].get<std::string>(), json["threads"].get<int>());
  text += fmt::format("load      {} of source in {}: {:.2f} GB/s (best {:.2f}; plain read {:.2f}); weights {}, peak anonymous memory {}\n", bytes("source_bytes"), human_seconds(number("load", "seconds")),
                      number("load", "source_gb_per_s"), number("load", "best_source_gb_per_s"), number("load", "plain_gb_per_s"), bytes("weight_bytes"), bytes("peak_anon_bytes"));
  text += fmt::format("roofline  read {:.2f} GB/s, int8 {:.3f} TOP/s, bf16 {:.3f} TFLOP/s, fp32 {:.3f} TFLOP/s\n", number("roofline", "read_gb_per_s"), number("roofline", "int8_tops"),
                      number("roofline", "bf16_tflops"), number("roofline", "fp32_tflops"));
  if (number("prefill", "tokens") > 0)
    text += fmt::format("prefill   {} tokens: {:.1f} tokens/s, {} of the {} peak\n", json["prefill"]["tokens"].get<std::int64_t>(), number("prefill", "tokens_per_s"),
                        share("prefill", "fraction_of_peak"), json["prefill"]["peak"].get<std::string>());
  if (number("decode", "tokens") > 0)
    text += fmt::format("decode    {} tokens, context {}, batch {}: {:.2f} tokens/s, {:.2f} GB/s, {} of read bandwidth\n", json["decode"]["tokens"].get<std::int64_t>(),
                        json["decode"]["context"].get<std::int64_t>(), json["decode"]["batch"].get<std::int64_t>(), number("decode", "tokens_per_s"), number("decode", "gb_per_s"),
                        share("decode", "fraction_of_bandwidth"));
  if (json.contains("ranks")) text += ranks_text(json["ranks"]);
  return text;
}

Result<void> check_sizes(const Arguments& arguments, const models::ModelInfo& info) {
  for (const auto& [flag, tokens] : {std::pair("--prompt-tokens", arguments.prompt_tokens), std::pair("--context plus --decode-tokens plus 2", arguments.context + arguments.decode_tokens + 2)})
    if (info.max_positions > 0 && tokens > info.max_positions) return fail(Code::kInvalidArgument, "{} is {}, more than the model's context of {}", flag, tokens, info.max_positions);
  return {};
}

Result<int> run(const Arguments& arguments) {
  AnonWatch watch;
  TRY(check(arguments.model));
  for (const auto& [flag, value, least] : {std::tuple("--prompt-tokens", arguments.prompt_tokens, 0), std::tuple("--decode-tokens", arguments.decode_tokens, 0), std::tuple("--context", arguments.context, 0),
                                           std::tuple("--batch", arguments.batch, 1), std::tuple("--repeat", static_cast<std::int64_t>(arguments.repeat), 1)})
    if (value < least || value > (std::int64_t{1} << 31)) return fail(Code::kInvalidArgument, "{} must be at least {}, but is {}", flag, least, value);
  TRY(check_writable(arguments.model.expert_load));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  std::unique_ptr<engine::OpenedModel> opened;
  const LoadMeasurement load = TRY(measure_load(arguments.model, folder, arguments.repeat, watch, opened));
  TRY(check_sizes(arguments, opened->model->info()));
  ExpertLoad expert_load(arguments.model);
  TRY(expert_load.count(*opened));

  Roofline roofline = TRY(Roofline::create(*opened));
  roofline.sample_all();
  const Speed prefill = TRY(measure_prefill(*opened, arguments, roofline));
  roofline.sample_all();
  const Speed decode = TRY(measure_decode(*opened, arguments, roofline));
  roofline.sample_all();
  TRY(expert_load.write());
  const OrderedJson json = bench_json(arguments, *opened, load, roofline, prefill, decode);
  print(arguments.json ? json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n" : bench_text(json));
  return kDone;
}

}  // namespace

Action declare_bench(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("--prompt-tokens", arguments->prompt_tokens, "Tokens of the measured prompt; 0: no prefill")->capture_default_str();
  app.add_option("--decode-tokens", arguments->decode_tokens, "Tokens generated by each sequence; 0: no decode")->capture_default_str();
  app.add_option("--context", arguments->context, "Tokens in the cache before decode starts")->capture_default_str();
  app.add_option("--batch", arguments->batch, "Sequences that decode together")->capture_default_str();
  app.add_option("--repeat", arguments->repeat, "Loads to measure")->capture_default_str();
  add_expert_load_argument(app, arguments->model);
  app.add_flag("--json", arguments->json, "One JSON object");
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}};
}

}  // namespace inflight::cli
