// From a checkpoint's names to a plan: which tensor fills which rows of which parameter. Everything is checked here, before any data
// is read: every needed tensor exists, shapes and dtypes fit, and no tensor is left over without a rule that says why.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "loader/forms.h"
#include "params/param_spec.h"
#include "params/partition.h"
#include "quant/store.h"

namespace inflight::loader {

// One checkpoint tensor, or part of one, on its way into a parameter. The tensor is seen as a matrix: leading dimensions are folded into its rows.
struct Route {
  int tensor = 0;               // index into Checkpoint::tensors()
  std::size_t param = 0;        // row of the ParamTable
  params::Slice slice;          // which outputs (row_begin, row_end) and inputs (col_begin, col_end) of the tensor, and to which local rows
  int stored = -1;              // -1: numbers to be quantized or copied; else the index into Format::stored()
  bool matrix = true;           // false: a vector or a shape, taken whole
  bool transposed = false;      // the tensor's rows are inputs, its columns outputs
  std::int64_t first_input = 0; // transposed: the tensor's row that is input 0
  int form = -1;                // index into LoadPlan::forms, whose codes `tensor` holds; slice rows are outputs of that matrix
  std::int64_t rows = 0, inputs = 0;  // of the whole piece
  std::size_t piece = 0;        // of the parameter
  bool exchange = false;        // loaded in LoadPlan::batches
  bool shared_read = false;     // loaded in LoadPlan::shared_reads
  std::int64_t first_row = 0;   // of the whole piece, in the tensor seen as a matrix
  InputRange read;              // form >= 0: the inputs that are read, around those of the slice
};

// In a converted folder, of a matrix whose columns are not in the order of its inputs: "<matrix>.weight_order" I32 [inputs], column k holds the weights of input order[k].
inline constexpr std::string_view kOrderSuffix = "weight_order";

// A line for each of at most eight names, then a count: for the end of a message.
std::string name_list(const std::vector<std::string>& names);

// Some outputs of a piece whose scales' numbers lie on several ranks (exchange.h).
struct Exchange {
  std::size_t route = 0;
  std::int64_t first = 0, rows = 0;       // of the piece, over all ranks
  std::int64_t magnitudes = 0;            // where its own begin among those of the batch: [runs of rows that share scales][groups of inputs]
};

// What is exchanged at once: the same on all ranks, in the same order.
struct ExchangeBatch {
  std::vector<Exchange> parts;
  std::int64_t magnitudes = 0;
  std::int64_t bytes = 0;                 // of numbers that wait meanwhile, at most of any rank
  bool twice = false;                     // they do not wait, but are read again
};

// Outputs of a piece in a stored form of which every rank needs all inputs (shared_reads.h).
struct SharedRead {
  std::size_t route = 0;
  std::int64_t first = 0, rows = 0;       // of the piece
  std::int64_t place = 0;                 // of its bytes among those of the batch
};

// What is read and gathered at once: the same on all ranks, in the same order.
struct SharedBatch {
  std::vector<SharedRead> reads;
  std::int64_t bytes = 0;                 // that wait meanwhile on every rank
};

struct LoadPlan {
  quant::ParamPlan params;
  std::vector<Route> routes;             // in shard, then offset order
  std::vector<FormSource> forms;         // matrices in stored forms of other tools
  std::vector<ExchangeBatch> batches;    // loaded after the routes that are in none
  std::vector<SharedBatch> shared_reads; // loaded after those
  bool wide_scales = false;              // group scales stay FP32, whatever they are
  std::int64_t source_bytes = 0;         // bytes of the checkpoint that will be read
  std::int64_t tensors_loaded = 0;       // tensors of which this rank reads some
  std::int64_t tensors_elsewhere = 0;    // tensors of which this rank reads nothing
  std::vector<std::int64_t> derive_bytes;  // temporary memory of each derived parameter's completion
  std::int64_t staging_bytes = 0;        // temporary memory at most, for `threads` threads
  std::vector<std::string> ignored;      // "name (reason)"
  std::string quantization;              // the format of the linears in effect
};

// The format that a converted folder's config.json names ("quantization_config" with our own block), or nullopt for any other checkpoint.
Result<std::optional<quant::FormatPolicy>> stored_policy(const JsonView& config);

// `policy` applies to plain numbers and to stored forms of other tools, which are kept as they are where it asks for nothing else (FP32 where no format of
// ours holds them); a converted folder keeps its own formats.
Result<LoadPlan> plan_load(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology,
                           const quant::FormatPolicy& policy, int threads);

// What of the plan of all parameters concerns the rows of the table that are kept; the others get no memory (quant::keep_params).
void keep_params(const checkpoint::Checkpoint& checkpoint, const std::vector<bool>& kept, int threads, LoadPlan& plan);

}  // namespace inflight::loader
