// What a parameter is: one row per parameter, declared once by its model. Everything else derives from the rows:
// checkpoint names and routes (partition.h), slices over ranks, memory plan, export, and the forward pass's handles.
// A row holds no storage and does no arithmetic.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace inflight::params {

// Which axis of W [outputs, inputs] is cut over the tensor-parallel ranks.
enum class Split { kReplicate, kOutputs, kInputs };

// What kind of parameter a row is. The quantization policy decides by role alone.
enum class Role {
  kLinear,     // W [outputs, inputs]: takes the quantization format
  kHead,       // the output head, or the table shared with it when tied: follows --lm-head
  kEmbedding,  // a look-up table of its own: never quantized
  kVector,     // norm weight or bias, [outputs]: kept FP32
};

// One checkpoint tensor that fills part of a parameter.
struct Piece {
  std::string name;          // last path part in the checkpoint before the suffix, e.g. "q_proj"; "" when the scope itself is the name
  std::int64_t rows = 0;     // outputs it contributes, over all ranks
  bool kv = false;           // key/value heads: a rank keeps at least one, so heads are replicated when ranks outnumber them
};

struct ParamSpec {
  std::string scope = {};    // "model.layers.3.self_attn"; set by nn::Scope
  std::string name = {};     // our name: "qkv_proj"
  Role role = Role::kLinear;
  Split split = Split::kReplicate;
  std::vector<Piece> pieces = {};  // in order along the outputs
  std::int64_t inputs = 1;   // columns; 1 for vectors
  std::int64_t unit = 1;     // indivisible step along the split axis (head_dim)
  std::string suffix = "weight";   // "weight" or "bias"

  std::int64_t outputs() const {
    std::int64_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.rows;
    return sum;
  }
  std::string full_name() const { return scope.empty() ? name + "." + suffix : scope + "." + name + "." + suffix; }
  // The checkpoint's name of one piece, without suffix: "model.layers.3.self_attn.q_proj".
  std::string piece_base(std::size_t piece) const {
    if (pieces[piece].name.empty()) return scope;
    return scope.empty() ? pieces[piece].name : scope + "." + pieces[piece].name;
  }
  std::string piece_name(std::size_t piece) const { return piece_base(piece) + "." + suffix; }
};

// Checkpoint tensors that no parameter wants, and why that is right. A name that fits no route and no rule is an error.
struct IgnoreRule {
  std::string suffix;  // the tensor's name ends with this
  std::string reason;
};

struct ParamTable {
  std::vector<ParamSpec> rows;
  std::vector<IgnoreRule> ignored;
};

// Which slice of the model this process holds.
struct Topology {
  int tp_rank = 0;
  int tp_size = 1;
};

}  // namespace inflight::params
