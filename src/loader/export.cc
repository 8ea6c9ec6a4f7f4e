#include "loader/export.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/safetensors_writer.h"
#include "loader/output_files.h"
#include "loader/plan.h"
#include "quant/matrix.h"

namespace inflight::loader {
namespace {

using checkpoint::TensorSpec;
using params::ParamSpec;
using params::Role;

constexpr int kOrder = -2;

// One tensor to write, and where its numbers are.
struct Output {
  TensorSpec spec;
  std::size_t param;
  std::int64_t first_row;   // of the piece, in the parameter
  std::int64_t rows;
  int stored;               // index into Format::stored(); -1: a vector; kOrder: the order of the matrix's inputs
  std::int64_t row_bytes;   // 0: the shape tensor
  std::int64_t bytes;
};

Result<std::vector<Output>> list_outputs(const params::ParamTable& table, const quant::ParamStore& store) {
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ParamSpec& row = table.rows[i];
    if (row.derivation) continue;
    std::int64_t first = 0;
    for (std::size_t p = 0; p < row.pieces.size(); ++p) {
      const std::int64_t rows = row.pieces[p].rows;
      if (row.role == Role::kVector) {
        outputs.push_back({{row.piece_name(p), DType::kF32, {rows}}, i, first, rows, -1, 4, 0});
      } else {
        const quant::Matrix& matrix = store.matrix(i);
        if (matrix.order) outputs.push_back({{fmt::format("{}.{}", row.piece_base(p), kOrderSuffix), DType::kI32, {row.inputs}}, i, first, rows, kOrder, 0, 0});
        const auto stored = matrix.format->stored(rows, row.inputs, matrix.group, matrix.group != 0 && !matrix.scales_fp16);
        for (std::size_t t = 0; t < stored.size(); ++t)
          outputs.push_back({{row.piece_base(p) + "." + stored[t].suffix, stored[t].dtype, stored[t].shape}, i, first, rows, static_cast<int>(t), stored[t].row_bytes, 0});
      }
      first += rows;
    }
  }
  // In the order of the table: codes and scales of a parameter lie together, so that a reader completes one before it opens the next.
  for (Output& output : outputs) output.bytes = TRY(output.spec.bytes());
  return outputs;
}

// go_on: asked every few megabytes; false ends it with kCancelled.
Result<void> write_tensor(const Output& output, const quant::ParamStore& store, checkpoint::SafetensorsWriter& writer, const std::function<bool()>& go_on) {
  if (output.stored == kOrder) return writer.write(output.spec.name, store.matrix(output.param).order->data(), static_cast<std::size_t>(output.bytes));
  if (output.stored < 0) return writer.write(output.spec.name, store.vector(output.param) + output.first_row, static_cast<std::size_t>(output.bytes));
  const quant::Matrix& matrix = store.matrix(output.param);
  if (output.row_bytes == 0) {
    const std::array<std::int64_t, 2> shape = {output.rows, matrix.inputs};
    return writer.write(output.spec.name, shape.data(), sizeof shape);
  }
  const std::int64_t batch = std::max<std::int64_t>(1, (std::int64_t{4} << 20) / output.row_bytes);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(batch, output.rows) * output.row_bytes));
  for (std::int64_t row = 0; row < output.rows; row += batch) {
    const std::int64_t count = std::min(batch, output.rows - row);
    for (std::int64_t r = 0; r < count; ++r)
      matrix.format->export_row(matrix, output.first_row + row + r, static_cast<std::size_t>(output.stored), buffer.data() + r * output.row_bytes);
    TRY(writer.write(output.spec.name, buffer.data(), static_cast<std::size_t>(count * output.row_bytes)));
    if (!go_on()) return fail(Code::kCancelled, "stopped while writing");
  }
  return {};
}

// The format that most rows of a role have, nullptr where there are none, and the rows that have another.
struct RoleFormats {
  const quant::Format* common = nullptr;
  std::vector<std::size_t> others;
};

RoleFormats formats_of(Role role, const params::ParamTable& table, const quant::ParamStore& store) {
  std::map<const quant::Format*, std::int64_t> counts;
  RoleFormats result;
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (table.rows[i].role == role) ++counts[store.matrix(i).format];
  for (const auto& [format, count] : counts)
    if (!result.common || count > counts[result.common]) result.common = format;
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (table.rows[i].role == role && store.matrix(i).format != result.common) result.others.push_back(i);
  return result;
}

// How readers of the field's own form are told of a format.
Json config_group(const quant::Format& format, Json targets) {
  if (format.codes == quant::Codes::kLut4 || format.bytes(1, 1, format.group).offsets != 0) return {{"targets", std::move(targets)}, {"format", format.name}};  // no form that others have
  const bool packed = format.codes == quant::Codes::kU4;
  Json weights = {{"num_bits", packed ? 4 : 8}, {"type", "int"}, {"symmetric", true}, {"dynamic", false}, {"strategy", format.group ? "group" : "channel"},
                  {"group_size", format.group ? Json(format.group) : Json(nullptr)}, {"actorder", nullptr}, {"observer", "minmax"}};
  return {{"targets", std::move(targets)}, {"weights", std::move(weights)}, {"input_activations", nullptr}, {"output_activations", nullptr},
          {"format", packed ? "pack-quantized" : "int-quantized"}};
}

// The quantization_config: the field's own form for other readers, and our block, which is what we read back.
Json describe(const params::ParamTable& table, const quant::ParamStore& store) {
  const RoleFormats linear = formats_of(Role::kLinear, table, store), expert = formats_of(Role::kExpert, table, store), head = formats_of(Role::kHead, table, store);
  bool wide_scales = false, any_quantized = false, own = false, transposed = false;
  std::string head_name, embedding;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ParamSpec& row = table.rows[i];
    transposed |= row.transposed;
    if (row.role == Role::kVector) continue;
    const quant::Matrix& matrix = store.matrix(i);
    wide_scales |= matrix.group != 0 && !matrix.scales_fp16;
    any_quantized |= matrix.format->quantized();
    own |= matrix.format->codes == quant::Codes::kLut4 || matrix.offsets || matrix.order;
    if (row.role == Role::kEmbedding && matrix.format->quantized()) {
      embedding = matrix.format->name;
      own = true;
    }
    if (row.role == Role::kHead) head_name = row.piece_base(0);
  }
  if (!any_quantized && !transposed) return nullptr;  // tensors written [outputs, inputs] where config.json alone would say otherwise need the block too

  const auto name = [](const quant::Format* format) { return format && format->quantized() ? format->name : std::string_view("bf16"); };
  Json block = {{"version", 1}, {"linear", name(linear.common)}, {"lm_head", name(head.common)}, {"scales", wide_scales ? "fp32 where fp16 would lose them" : "as the formats say"}};
  if (!embedding.empty()) block["embedding"] = embedding;
  if (expert.common && expert.common != linear.common) block["experts"] = name(expert.common);
  Json groups = Json::object(), ignored = Json::array();
  const auto add_group = [&](const quant::Format* format, Json targets) {
    if (!format) return;
    if (format->quantized()) groups[fmt::format("group_{}", groups.size())] = config_group(*format, std::move(targets));
    else
      for (const Json& target : targets) ignored.push_back(target);
  };
  std::map<const quant::Format*, Json> exceptions;
  for (const std::vector<std::size_t>& others : {linear.others, expert.others})
    for (const std::size_t i : others) {
      const ParamSpec& row = table.rows[i];
      block["overrides"][row.scope.empty() ? row.name : row.scope + "." + row.name] = name(store.matrix(i).format);
      for (std::size_t piece = 0; piece < row.pieces.size(); ++piece) exceptions[store.matrix(i).format].push_back(row.piece_base(piece));
    }
  for (auto& [format, targets] : exceptions) add_group(format, std::move(targets));  // names before kinds: the first group that fits is taken
  if (!head_name.empty()) add_group(head.common, Json::array({head_name}));
  if (block.contains("experts")) add_group(expert.common, Json::array({R"(re:.*\.experts\..*)"}));
  add_group(linear.common ? linear.common : expert.common, Json::array({"Linear"}));
  if (block.contains("experts") || block.contains("overrides")) block["version"] = 2;
  const quant::Format* main = linear.common && linear.common->quantized() ? linear.common : head.common;
  const bool uniform = !own && groups.size() <= 2 && main && main->quantized();
  return {{"quant_method", own ? "inflight" : "compressed-tensors"},
          {"format", !uniform ? "mixed-precision" : main->codes == quant::Codes::kU4 ? "pack-quantized" : "int-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", std::move(groups)},
          {"ignore", std::move(ignored)},
          {"inflight", std::move(block)}};
}

// config.json, and what lies beside it, of a folder or of a GGUF file.
struct Source {
  std::string path;
  bool gguf = false;
  Json config;
  std::optional<Json> generation_config;  // of a GGUF file
};
Result<Source> read_source(const std::string& path) {
  if (!checkpoint::is_gguf_path(path) || is_directory(path)) return Source{.path = path, .config = TRY(read_json_file(path + "/config.json"))};
  checkpoint::GgufModel model = TRY(checkpoint::open_gguf(path));
  return Source{path, true, std::move(model.config), std::move(model.generation_config)};
}

}  // namespace

Result<ExportReport> export_model(const std::string& source_folder, const params::ParamTable& table, const quant::ParamStore& store,
                                  const std::string& output_folder, const Progress& progress, std::int64_t max_shard_bytes,
                                  const std::vector<std::pair<std::string, std::string>>& companions, const ExportRanks& on) {
  const Result<std::vector<Output>> listed = list_outputs(table, store);
  TRY(together(on.ranks, listed ? Result<void>() : std::unexpected(listed.error())));
  const std::vector<Output>& outputs = *listed;
  std::vector<std::int64_t> bytes;
  std::vector<int> owners;
  for (const Output& output : outputs) {
    bytes.push_back(output.bytes);
    if (on.ranks) owners.push_back(on.owners[output.param]);
  }
  const std::vector<FileCut> files = cut_files(bytes, owners, max_shard_bytes);
  const int rank = on.ranks ? on.ranks->rank() : 0;
  std::int64_t total = 0, own = 0, done = 0;
  for (const FileCut& file : files) {
    total += file.bytes;
    if (file.rank == rank) own += file.bytes;
  }
  const auto name_of = [&](std::size_t file) { return files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files.size()); };

  Source source;
  Json config;
  const auto write = [&](const std::string& folder) -> Result<void> {
    if (rank == 0) {  // what is wrong with it shows before the work
      source = TRY(read_source(source_folder));
      config = source.config;
      Json quantization = describe(table, store);
      if (!quantization.is_null()) config["quantization_config"] = std::move(quantization);
      else config.erase("quantization_config");
    }
    const auto go_on = [&] { return (!progress || progress(done, own)) && !(on.ranks && on.ranks->error()); };
    for (std::size_t f = 0; f < files.size(); ++f) {
      if (files[f].rank != rank) continue;
      std::vector<TensorSpec> specs;
      for (std::size_t i = files[f].begin; i < files[f].end; ++i) specs.push_back(outputs[i].spec);
      checkpoint::SafetensorsWriter writer = TRY(checkpoint::SafetensorsWriter::create(folder + "/" + name_of(f), std::move(specs), {{"format", "pt"}}));
      for (std::size_t i = files[f].begin; i < files[f].end; ++i) {
        const auto written = write_tensor(outputs[i], store, writer, go_on);
        if (!written && written.error().code != Code::kCancelled) return written;
        if (written) done += bytes[i];
        if (!written || !go_on()) return fail(Code::kCancelled, "stopped while writing \"{}\": nothing is left there", output_folder);
      }
      TRY(writer.commit());
    }
    return {};
  };
  const auto finish = [&](const std::string& folder) -> Result<void> {
    Json weight_map = Json::object();
    for (std::size_t f = 0; f < files.size(); ++f)
      for (std::size_t i = files[f].begin; i < files[f].end; ++i) weight_map[outputs[i].spec.name] = name_of(f);
    if (files.size() > 1) TRY(write_json(folder + "/model.safetensors.index.json", {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}}));
    if (!source.gguf) TRY(copy_companions(source_folder, folder));
    if (source.generation_config) TRY(write_json(folder + "/generation_config.json", *source.generation_config));
    for (const auto& [name, text] : companions) TRY(write_text(folder + "/" + name, text));
    return write_json(folder + "/config.json", config);
  };
  TRY(make_folder(output_folder, on.ranks, write, finish));
  return ExportReport{total, static_cast<int>(files.size())};
}

}  // namespace inflight::loader
