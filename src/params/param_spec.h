// What a parameter is: one row per parameter, declared once by its model. Everything else derives from the rows:
// checkpoint names and routes (partition.h), slices over ranks, memory plan, export, and the forward pass's handles.
// A row holds no storage and does no arithmetic.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace inflight::params {

class ExpertPlacement;

// Which axis of W [outputs, inputs] is cut over the tensor-parallel ranks.
// kVocabulary: outputs in equal runs of whole panels, the last ranks' parts may be shorter or empty (embedding and head).
enum class Split { kReplicate, kOutputs, kInputs, kVocabulary };

// What kind of parameter a row is. The quantization policy decides by role alone.
enum class Role {
  kLinear,     // W [outputs, inputs]: takes the quantization format
  kExpert,     // W of one routed expert: takes the experts' format
  kRouter,     // W [experts, inputs] that scores experts, and the like: FP32, never quantized
  kHead,       // the output head, or the table shared with it when tied: follows --lm-head
  kEmbedding,  // a look-up table of its own: never quantized
  kVector,     // norm weight or bias, [outputs]: kept FP32
  kDerived,    // W made from another row once that is complete (Derivation): BF16, or FP32 where that is asked for; no checkpoint tensor, not exported
};

// How a derived row follows from another. The source's outputs are equal units (heads); of unit u, outputs [first, first + rows) are taken, dequantized.
//   transposed: derived output u * source.inputs + k, input n  =  source output u * unit + first + n, input k
//   else:       derived output u * step + n, input k           =  source output u * unit + first + n, input k;  step = rows rounded up to 16, zeros between
struct Derivation {
  std::size_t source = 0;    // an earlier row of the table
  std::int64_t unit = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  bool transposed = false;
};

// Where a piece's numbers lie when several pieces share one checkpoint tensor: a fused qkv_proj, or all experts of a layer in one [E, ...].
struct Source {
  std::string tensor;                // full name; "": the piece has a tensor of its own
  std::vector<std::int64_t> shape;   // of the whole tensor
  std::int64_t first_output = 0;     // of the piece, in the tensor seen as a matrix (leading dimensions folded into its rows)
  std::int64_t first_input = 0;      // transposed only: the tensor's row that is input 0 (an expert's place in [E, inputs, outputs])
};

// One checkpoint tensor, or part of one, that fills part of a parameter.
struct Piece {
  std::string name;          // last path part in the checkpoint before the suffix, e.g. "q_proj"; "" when the scope itself is the name
  std::int64_t rows = 0;     // outputs it contributes, over all ranks
  bool kv = false;           // key/value heads: a rank keeps at least one, so heads are replicated when ranks outnumber them
  Source source = {};
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
  bool transposed = false;         // checkpoint tensors are [inputs, outputs]
  std::int64_t expert = -1;        // which of `experts` routed experts this belongs to; -1: none. Experts are dealt whole to expert-parallel ranks
  std::int64_t experts = 0;
  std::int64_t layer = 0;          // of an expert: whose row of the placement counts
  std::optional<Derivation> derivation = {};  // of kDerived rows, whose one piece states the outputs

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
  // The tensor that holds the piece.
  std::string piece_name(std::size_t piece) const { return pieces[piece].source.tensor.empty() ? piece_base(piece) + "." + suffix : pieces[piece].source.tensor; }
};

// Checkpoint tensors that no parameter wants, and why that is right. A name that fits no route and no rule is an error.
struct IgnoreRule {
  std::string pattern;  // of the tensor's name: `*` stands for anything, dots included (fnmatch)
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
  int ep_rank = 0;  // above 1 expert-parallel rank, experts are whole: tensor parallelism does not cut them
  int ep_size = 1;
  // Which rank has which experts, replicas among them; nullptr: equal runs. Ranks keep room for all experts then, so that a placement can change.
  std::shared_ptr<const ExpertPlacement> placement = nullptr;

  // This rank's share of n equal things that must divide: attention heads, intermediate channels.
  std::int64_t share(std::int64_t n) const { return n / tp_size; }
  // KV heads: at least one, shared by neighbours where ranks outnumber them.
  std::int64_t kv_share(std::int64_t n) const { return n < tp_size ? 1 : n / tp_size; }
  // Intermediate channels of a routed expert: all of them where experts are dealt out whole.
  std::int64_t expert_share(std::int64_t n) const { return ep_size > 1 ? n : n / tp_size; }
};

}  // namespace inflight::params
