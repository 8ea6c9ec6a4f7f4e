#include "loader/export_fp8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "base/bf16.h"
#include "base/e4m3.h"
#include "base/json.h"
#include "checkpoint/safetensors_writer.h"
#include "loader/activation_scales.h"
#include "loader/plan.h"
#include "loader/export_fp8_config.h"
#include "loader/output_files.h"
#include "loader/param_reader.h"
#include "params/points.h"
#include "quant/fp8_formats.h"
#include "quant/fp8_rows.h"
#include "quant/matrix_names.h"

namespace inflight::loader {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TensorSpec;
using params::ParamSpec;
using params::Role;
using Naming = Fp8Export::Naming;

constexpr std::int64_t kReadTogether = std::int64_t{256} << 20;  // FP32 bytes of parameters that are read at once
constexpr std::size_t kNone = ~std::size_t{0};

// Consecutive tensors of the output that are made together.
struct Step {
  enum class Kind { kCopy, kNumbers, kConvert, kValue } kind = Kind::kCopy;
  std::vector<TensorSpec> tensors;
  int source = -1;            // kCopy: index into Checkpoint::tensors()
  std::size_t param = kNone;  // kNumbers, kConvert
  float value = 0;            // kValue; kConvert: of the activations' scale
  std::int64_t bytes = 0;
};

class Exporter {
 public:
  Exporter(const Checkpoint& checkpoint, const params::ParamTable& table, const LoadPlan& plan, const quant::FormatPolicy& policy, const Fp8Export& options, const quant::Kernels& kernels,
           ThreadPool& pool)
      : checkpoint_(checkpoint), table_(table), plan_(plan), policy_(policy), options_(options), kernels_(kernels), pool_(pool), reader_(checkpoint, table, plan, kernels, pool) {
    paddle_ = options.naming == Naming::kPaddle;
    if (checkpoint.config().contains("architectures")) ernie_ = checkpoint.config()["architectures"].dump().starts_with("[\"Ernie");
  }

  Result<ExportReport> run(const std::string& output_folder, const Progress& progress);

 private:
  bool converted(const ParamSpec& row) const { return row.role != Role::kVector && !row.derivation && policy_.of(row) != nullptr; }
  bool fused(const ParamSpec& row) const { return paddle_ && row.pieces.size() > 1; }
  // Matrices that PaddlePaddle stores [inputs, outputs]; look-up tables, a tied head among them, are [vocabulary, hidden].
  bool transposed(const ParamSpec& row) const {
    return paddle_ && row.role != Role::kVector && !is_table(row);
  }
  static bool is_table(const ParamSpec& row) { return row.role == Role::kEmbedding || (row.role == Role::kHead && !row.name.ends_with("lm_head")); }
  std::string renamed(const std::string& name) const {
    const std::string_view from = paddle_ ? "model." : "ernie.", to = paddle_ ? "ernie." : "model.";
    return ernie_ && name.starts_with(from) ? std::string(to) + name.substr(from.size()) : name;
  }
  static std::string own_name(const ParamSpec& row) { return row.scope.empty() ? row.name : row.scope + "." + row.name; }

  Result<void> list_steps();
  Result<void> check_row(const ParamSpec& row) const;
  Result<void> keep(std::size_t param, const std::vector<std::size_t>& routes);
  Result<void> convert(std::size_t param);
  void add_value(const std::string& point, const std::string& name);
  float absmax_of(const std::string& point);
  float scale_of(const std::string& point, bool attention);
  TensorSpec scale_spec(std::string name, std::vector<std::int64_t> shape) const { return {std::move(name), paddle_ ? DType::kBF16 : DType::kF32, std::move(shape)}; }

  Result<void> read_from(std::size_t step, std::size_t end);
  using GoOn = std::function<bool()>;
  Result<void> write(const Step& step, checkpoint::SafetensorsWriter& writer, const GoOn& go_on);
  Result<void> copy(const Step& step, checkpoint::SafetensorsWriter& writer) const;
  Result<void> write_numbers(const Step& step, checkpoint::SafetensorsWriter& writer) const;
  Result<void> write_converted(const Step& step, checkpoint::SafetensorsWriter& writer, const GoOn& go_on);
  Result<void> write_scales(const TensorSpec& spec, const std::vector<float>& scales, checkpoint::SafetensorsWriter& writer) const;

  const Checkpoint& checkpoint_;
  const params::ParamTable& table_;
  const LoadPlan& plan_;
  const quant::FormatPolicy& policy_;
  const Fp8Export& options_;
  const quant::Kernels& kernels_;
  ThreadPool& pool_;
  ParamReader reader_;
  bool paddle_ = false, ernie_ = false;
  std::vector<Step> steps_;
  std::set<std::string> missing_;           // points without absmax
  std::set<std::string> named_;             // values that experts share
  std::vector<std::string> plain_modules_;  // matrices that stay as they are, under the output's names
};

// A calibration of the same model under its other names will do.
float Exporter::absmax_of(const std::string& point) {
  auto found = options_.absmax.find(point);
  if (found == options_.absmax.end() && point.starts_with("ernie.")) found = options_.absmax.find("model." + point.substr(6));
  else if (found == options_.absmax.end() && point.starts_with("model.")) found = options_.absmax.find("ernie." + point.substr(6));
  if (found != options_.absmax.end()) return found->second > 0 ? found->second : 1.0f;
  missing_.insert(point);
  return 1;
}

// attention: FastDeploy stores the absmax itself of what belongs to self_attn.
float Exporter::scale_of(const std::string& point, bool attention) {
  const float absmax = absmax_of(point);
  return paddle_ && attention ? absmax : absmax / options_.bound;
}

void Exporter::add_value(const std::string& point, const std::string& name) {
  if (!named_.insert(name).second) return;
  Step step{.kind = Step::Kind::kValue, .value = scale_of(point, point.find("self_attn") != std::string::npos)};
  step.tensors.push_back(scale_spec(name, {1}));
  steps_.push_back(std::move(step));
}

Result<void> Exporter::check_row(const ParamSpec& row) const {
  if (!paddle_ || row.role == Role::kVector || row.derivation) return {};
  const bool known = row.role != Role::kLinear || std::ranges::find(quant::kDenseMatrices, row.name) != quant::kDenseMatrices.end();
  if (!known)
    return fail(Code::kUnsupported, "{}: FastDeploy's names are known for {}, but this model has {}; use --naming hf", checkpoint_.folder(), fmt::join(quant::kDenseMatrices, ", "), row.full_name());
  return {};
}

// A row that stays: tensor by tensor, or through its numbers where the layout becomes another.
Result<void> Exporter::keep(std::size_t param, const std::vector<std::size_t>& routes) {
  const ParamSpec& row = table_.rows[param];
  DType dtype = DType::kF32;
  for (const std::size_t r : routes) {
    if (plan_.routes[r].form >= 0)
      return fail(Code::kUnsupported, "{} is already quantized and would stay so beside FP8 weights; convert the checkpoint that it was made from, or leave out the override", row.full_name());
    dtype = checkpoint_.tensors()[static_cast<std::size_t>(plan_.routes[r].tensor)].info.dtype;
  }
  const bool is_vector = row.role == Role::kVector;
  const bool same_axes = is_vector || row.transposed == transposed(row);
  const auto in_fused = [&](const params::Piece& piece) { return piece.source.tensor == own_name(row) + "." + row.suffix; };
  const bool same_pieces = fused(row) ? std::ranges::all_of(row.pieces, in_fused) : std::ranges::all_of(row.pieces, [](const params::Piece& piece) { return piece.source.tensor.empty(); });
  if (!is_vector && !is_table(row))
    for (std::size_t p = 0; p < row.pieces.size(); ++p) plain_modules_.push_back(renamed(row.piece_base(p)));
  if (same_axes && same_pieces) {
    std::set<int> tensors;
    for (const std::size_t r : routes) {
      const int place = plan_.routes[r].tensor;
      if (!tensors.insert(place).second) continue;
      const checkpoint::TensorInfo& info = checkpoint_.tensors()[static_cast<std::size_t>(place)].info;
      steps_.push_back({.kind = Step::Kind::kCopy, .tensors = {{renamed(info.name), info.dtype, info.shape}}, .source = place});
    }
    return {};
  }
  Step step{.kind = Step::Kind::kNumbers, .param = param};
  const auto add = [&](const std::string& base, std::int64_t rows) {
    std::vector<std::int64_t> shape = {rows};
    if (!is_vector) shape = transposed(row) ? std::vector{row.inputs, rows} : std::vector{rows, row.inputs};
    step.tensors.push_back({renamed(base) + "." + row.suffix, dtype, std::move(shape)});
  };
  if (fused(row)) add(own_name(row), row.outputs());
  else
    for (std::size_t p = 0; p < row.pieces.size(); ++p) add(row.piece_base(p), row.pieces[p].rows);
  steps_.push_back(std::move(step));
  return {};
}

Result<void> Exporter::convert(std::size_t param) {
  const ParamSpec& row = table_.rows[param];
  const std::string point = params::input_point(row);
  const bool channels = row.role == Role::kExpert && options_.expert_channels, shared = row.role == Role::kExpert && point != own_name(row);
  Step step{.kind = Step::Kind::kConvert, .param = param};
  if (options_.activations) step.value = scale_of(point, point.find("self_attn") != std::string::npos);
  const auto add = [&](const std::string& base, std::int64_t rows) {
    const std::string name = renamed(base);
    if (paddle_) {
      step.tensors.push_back({name + ".quant_weight", DType::kI8, {row.inputs, rows}});
      step.tensors.push_back(scale_spec(name + ".weight_scale", {channels ? rows : 1}));
      if (options_.activations && !shared) step.tensors.push_back(scale_spec(name + ".activation_scale", {1}));
      return;
    }
    step.tensors.push_back({name + ".weight", DType::kF8E4M3, {rows, row.inputs}});
    const std::int64_t block = quant::kFp8Block;
    if (options_.blocks) step.tensors.push_back(scale_spec(name + ".weight_scale_inv", {(rows + block - 1) / block, (row.inputs + block - 1) / block}));
    else step.tensors.push_back(scale_spec(name + ".weight_scale", channels ? std::vector<std::int64_t>{rows, 1} : std::vector<std::int64_t>{1}));
    if (options_.activations) step.tensors.push_back(scale_spec(name + ".input_scale", {1}));
  };
  if (fused(row)) add(own_name(row), row.outputs());
  else
    for (std::size_t p = 0; p < row.pieces.size(); ++p) add(row.piece_base(p), row.pieces[p].rows);
  steps_.push_back(std::move(step));
  if (paddle_ && options_.activations && shared) add_value(point, renamed(point) + ".activation_scale");
  return {};
}

Result<void> Exporter::list_steps() {
  std::vector<std::vector<std::size_t>> routes(table_.rows.size());
  std::set<int> used;
  for (std::size_t r = 0; r < plan_.routes.size(); ++r) {
    routes[plan_.routes[r].param].push_back(r);
    used.insert(plan_.routes[r].tensor);
  }
  for (const FormSource& form : plan_.forms) used.insert(form.places.begin(), form.places.end());
  for (const ScaleTensor& scale : scale_tensors(checkpoint_, table_, {&checkpoint_.config(), checkpoint_.config_path()})) used.insert(scale.tensor);

  bool same_layout = true;
  for (std::size_t i = 0; i < table_.rows.size(); ++i) {
    const ParamSpec& row = table_.rows[i];
    if (row.derivation) continue;
    TRY(check_row(row));
    if (row.role == Role::kLinear) same_layout &= row.transposed == paddle_;
    TRY(converted(row) ? convert(i) : keep(i, routes[i]));
    if (!options_.activations || row.name != quant::kQkvProj || row.role != Role::kLinear) continue;
    const auto value = [&](std::string_view point, std::string_view short_name) {
      add_value(fmt::format("{}.{}", row.scope, point), paddle_ ? fmt::format("{}.{}.activation_scale", renamed(row.scope), point) : fmt::format("{}.{}", renamed(row.scope), short_name));
    };
    value(params::kQueryPoint, "q_scale");
    value(params::kKeyPoint, "k_scale");
    value(params::kValuePoint, "v_scale");
    if (!paddle_) continue;
    Step step{.kind = Step::Kind::kValue, .value = 1};  // attention weights are at most 1
    step.tensors.push_back(scale_spec(renamed(row.scope) + ".s_matmul.activation_scale", {1}));
    steps_.push_back(std::move(step));
  }
  for (std::size_t t = 0; same_layout && t < checkpoint_.tensors().size(); ++t) {  // what this program does not use
    if (used.contains(static_cast<int>(t))) continue;
    const checkpoint::TensorInfo& info = checkpoint_.tensors()[t].info;
    steps_.push_back({.kind = Step::Kind::kCopy, .tensors = {{renamed(info.name), info.dtype, info.shape}}, .source = static_cast<int>(t)});
    if (info.shape.size() == 2 && info.name.ends_with(".weight")) plain_modules_.push_back(renamed(info.name.substr(0, info.name.size() - 7)));
  }
  for (Step& step : steps_)
    for (const TensorSpec& spec : step.tensors) step.bytes += TRY(spec.bytes());
  if (!missing_.empty()) {
    return fail(Code::kInvalidArgument, "{} of the points that have static scales are not in the calibration:{}\n  hint: a calibration of another model, or one that stopped early? `inflight calibrate` makes a new one",
                missing_.size(), name_list({missing_.begin(), missing_.end()}));
  }
  return {};
}

Result<void> Exporter::copy(const Step& step, checkpoint::SafetensorsWriter& writer) const {
  const checkpoint::Tensor& tensor = checkpoint_.tensors()[static_cast<std::size_t>(step.source)];
  constexpr std::int64_t kPiece = std::int64_t{4} << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPiece, tensor.info.bytes())));
  for (std::int64_t at = 0; at < tensor.info.bytes(); at += kPiece) {
    const auto bytes = static_cast<std::size_t>(std::min(kPiece, tensor.info.bytes() - at));
    TRY(checkpoint_.shards()[static_cast<std::size_t>(tensor.shard)].read_at(buffer.data(), bytes, tensor.info.begin + at));
    TRY(writer.write(step.tensors[0].name, buffer.data(), bytes));
  }
  return checkpoint_.verify_unchanged(tensor.shard);
}

void put(float value, DType dtype, std::byte* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, &value, 4);
    return;
  }
  const std::uint16_t half = dtype == DType::kBF16 ? float_to_bf16(value) : float_to_fp16(value);
  std::memcpy(out, &half, 2);
}

// Numbers of the type that they came in, so that nothing is rounded.
Result<void> Exporter::write_numbers(const Step& step, checkpoint::SafetensorsWriter& writer) const {
  const ParamSpec& row = table_.rows[step.param];
  const bool is_vector = row.role == Role::kVector;
  const std::int64_t inputs = is_vector ? 1 : row.inputs;
  std::int64_t first = 0;
  for (const TensorSpec& spec : step.tensors) {
    const std::int64_t width = dtype_bits(spec.dtype) / 8, bytes = TRY(spec.bytes()), rows = bytes / width / inputs;
    std::vector<std::byte> out(static_cast<std::size_t>(bytes));
    std::vector<float> numbers(static_cast<std::size_t>(inputs));
    for (std::int64_t r = 0; r < rows; ++r) {
      if (is_vector) numbers[0] = reader_.vector(step.param)[first + r];
      else reader_.matrix(step.param).format->dequantize(reader_.matrix(step.param), first + r, numbers.data());
      for (std::int64_t k = 0; k < inputs; ++k) put(numbers[static_cast<std::size_t>(k)], spec.dtype, out.data() + (transposed(row) ? k * rows + r : r * inputs + k) * width);
    }
    TRY(writer.write(spec.name, out.data(), out.size()));
    first += rows;
  }
  return {};
}

Result<void> Exporter::write_scales(const TensorSpec& spec, const std::vector<float>& scales, checkpoint::SafetensorsWriter& writer) const {
  const std::int64_t width = dtype_bits(spec.dtype) / 8;
  std::vector<std::byte> out(scales.size() * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < scales.size(); ++i) put(scales[i], spec.dtype, out.data() + static_cast<std::int64_t>(i) * width);
  return writer.write(spec.name, out.data(), out.size());
}

Result<void> Exporter::write_converted(const Step& step, checkpoint::SafetensorsWriter& writer, const GoOn& go_on) {
  const ParamSpec& row = table_.rows[step.param];
  quant::Fp8Rule rule{.bound = options_.bound, .bf16_scales = paddle_, .transposed = paddle_};
  if (options_.blocks) rule.scales = quant::Fp8Rule::Scales::kBlocks;
  else if (row.role == Role::kExpert && options_.expert_channels) rule.scales = quant::Fp8Rule::Scales::kOutput;
  if (options_.factors && !options_.blocks) rule.factor = TRY(options_.factors(params::input_point(row), go_on));
  std::int64_t first = 0;
  quant::Fp8Rows rows;
  for (std::size_t t = 0; t < step.tensors.size(); ++t) {
    const TensorSpec& spec = step.tensors[t];
    if (spec.name.ends_with("_scale") && !spec.name.ends_with(".weight_scale")) {
      TRY(write_scales(spec, {step.value}, writer));
    } else if (spec.name.ends_with(".weight_scale") || spec.name.ends_with(".weight_scale_inv")) {
      TRY(write_scales(spec, rows.scales, writer));
    } else {
      const std::int64_t count = spec.shape[paddle_ ? 1 : 0];
      rows = quant::quantize_rows(reader_.matrix(step.param), first, count, rule, kernels_, pool_);
      first += count;
      TRY(writer.write(spec.name, rows.codes.data(), rows.codes.size()));
    }
  }
  return {};
}

Result<void> Exporter::write(const Step& step, checkpoint::SafetensorsWriter& writer, const GoOn& go_on) {
  switch (step.kind) {
    case Step::Kind::kCopy: return copy(step, writer);
    case Step::Kind::kNumbers: return write_numbers(step, writer);
    case Step::Kind::kConvert: return write_converted(step, writer, go_on);
    case Step::Kind::kValue: return write_scales(step.tensors[0], {step.value}, writer);
  }
  return {};
}

// Parameters of this step and of those after it, before `end`, as many as are read together.
Result<void> Exporter::read_from(std::size_t step, std::size_t end) {
  std::vector<std::size_t> params;
  std::int64_t bytes = 0;
  for (std::size_t next = step; next < end && (params.empty() || bytes < kReadTogether); ++next)
    if (const std::size_t param = steps_[next].param; param != kNone) {
      bytes += ParamReader::bytes(table_.rows[param]);
      if (params.empty() || bytes <= kReadTogether) params.push_back(param);
    }
  return reader_.load(params);
}

Result<ExportReport> Exporter::run(const std::string& output_folder, const Progress& progress) {
  TRY(list_steps());
  std::vector<std::int64_t> bytes;
  for (const Step& step : steps_) bytes.push_back(step.bytes);
  comm::Comm* ranks = options_.ranks;
  const std::vector<FileCut> files = cut_files(bytes, ranks ? deal_out(bytes, ranks->size()) : std::vector<int>(), options_.max_shard_bytes);
  const int rank = ranks ? ranks->rank() : 0;
  std::int64_t total = 0, own = 0, done = 0;
  for (const FileCut& file : files) {
    total += file.bytes;
    if (file.rank == rank) own += file.bytes;
  }
  const auto name_of = [&](std::size_t file) { return files.size() == 1 && !paddle_ ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files.size()); };
  const Json config = TRY(fp8_config(checkpoint_.config(), table_, policy_, options_, plain_modules_));

  const auto write_own = [&](const std::string& folder) -> Result<void> {
    const auto go_on = [&] { return (!progress || progress(done, own)) && !(ranks && ranks->error()); };
    for (std::size_t f = 0; f < files.size(); ++f) {
      if (files[f].rank != rank) continue;
      std::vector<TensorSpec> specs;
      for (std::size_t s = files[f].begin; s < files[f].end; ++s) specs.insert(specs.end(), steps_[s].tensors.begin(), steps_[s].tensors.end());
      checkpoint::SafetensorsWriter writer = TRY(checkpoint::SafetensorsWriter::create(folder + "/" + name_of(f), std::move(specs), {{"format", paddle_ ? "np" : "pt"}}));
      for (std::size_t s = files[f].begin; s < files[f].end; ++s) {
        if (steps_[s].param != kNone && !reader_.holds(steps_[s].param)) TRY(read_from(s, files[f].end));
        TRY(write(steps_[s], writer, go_on));
        done += steps_[s].bytes;
        if (!go_on()) return fail(Code::kCancelled, "stopped while writing \"{}\": nothing is left there", output_folder);
      }
      TRY(writer.commit());
    }
    return {};
  };
  const auto finish = [&](const std::string& folder) -> Result<void> {
    Json weight_map = Json::object();
    for (std::size_t f = 0; f < files.size(); ++f)
      for (std::size_t s = files[f].begin; s < files[f].end; ++s)
        for (const TensorSpec& spec : steps_[s].tensors) weight_map[spec.name] = name_of(f);
    if (files.size() > 1 || paddle_) TRY(write_json(folder + "/model.safetensors.index.json", {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}}));
    TRY(copy_companions(checkpoint_.folder(), folder));
    return write_json(folder + "/config.json", config);
  };
  TRY(make_folder(output_folder, ranks, write_own, finish));
  return ExportReport{total, static_cast<int>(files.size())};
}

}  // namespace

Fp8Policy fp8_policy(const quant::FormatPolicy& policy, const params::ParamTable& table) {
  Fp8Policy result = Fp8Policy::kNone;
  for (const ParamSpec& row : table.rows) {
    const quant::Format* format = row.derivation ? nullptr : policy.of(row);
    if (!format || format == &quant::bf16_format()) continue;
    const bool tensors = format == &quant::tensor_wise_fp8_format() || format == &quant::tensor_wise_fp8_gaudi_format();
    const bool blocks = format == &quant::block_wise_fp8_format() || format == &quant::block_wise_fp8_gaudi_format();
    const Fp8Policy own = tensors ? Fp8Policy::kTensors : blocks ? Fp8Policy::kBlocks : Fp8Policy::kMixed;
    if (own == Fp8Policy::kMixed || row.role == Role::kHead || (result != Fp8Policy::kNone && result != own)) return Fp8Policy::kMixed;
    result = own;
  }
  return result;
}

Result<ExportReport> export_fp8(const Checkpoint& checkpoint, const params::ParamTable& table, const LoadPlan& plan, const quant::FormatPolicy& policy, const Fp8Export& options,
                                const quant::Kernels& kernels, ThreadPool& pool, const std::string& output_folder, const Progress& progress) {
  if (options.bound != kE4m3Max && options.bound != kGaudiE4m3Max) return fail(Code::kInvalidArgument, "FP8 codes end at 448 or 240, not at {}", options.bound);
  if (options.plain_queries && (options.naming == Naming::kPaddle || !options.activations))
    return fail(Code::kInvalidArgument, "--queries plain goes with --naming hf and --scales");
  if (options.naming == Naming::kPaddle && options.blocks) return fail(Code::kInvalidArgument, "--naming ernie holds tensor_wise_fp8 weights; block_wise_fp8 goes with --naming hf");
  if (options.naming == Naming::kPaddle && !options.activations)
    return fail(Code::kInvalidArgument, "--naming ernie needs static scales of activations: give --scales FILE (`inflight calibrate` makes it)");
  if (options.blocks && options.activations) return fail(Code::kInvalidArgument, "block_wise_fp8 has no static scales of activations; leave out --scales");
  if (options.blocks && options.expert_channels) return fail(Code::kInvalidArgument, "--expert-scales channel goes with tensor_wise_fp8");
  Exporter exporter(checkpoint, table, plan, policy, options, kernels, pool);
  return exporter.run(output_folder, progress);
}

}  // namespace inflight::loader
