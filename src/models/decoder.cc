#include "models/decoder.h"

#include <algorithm>

#include "models/config_reader.h"

namespace inflight::models {
namespace {

Result<std::vector<std::int64_t>> read_windows(const JsonView& config, std::int64_t layers) {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(layers), 0);
  if (!config.has("sliding_window") || !TRY(config.boolean_or("use_sliding_window", false))) return windows;
  const std::int64_t window = TRY(config.integer("sliding_window"));
  if (window <= 0) return fail(Code::kCorrupt, "{}: sliding_window {} must be above 0", config.where, window);
  if (config.has("layer_types")) {
    const Json& types = (*config.object)["layer_types"];
    if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers)
      return fail(Code::kCorrupt, "{}: \"layer_types\" must list {} layers", config.where, layers);
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] == "sliding_attention") windows[i] = window;
      else if (types[i] != "full_attention")
        return fail(Code::kUnsupported, "{}: layer_types[{}] is {}; known: full_attention sliding_attention", config.where, i, types[i].dump());
    }
    return windows;
  }
  const std::int64_t full_layers = TRY(config.integer_or("max_window_layers", 28));  // transformers' default for Qwen2 and Qwen3
  for (std::int64_t i = full_layers; i < layers; ++i) windows[static_cast<std::size_t>(i)] = window;
  return windows;
}

}  // namespace

Result<DecoderConfig> read_decoder_config(const JsonView& config, const DecoderDefaults& defaults, const nn::Declarations& declarations) {
  DecoderConfig c;
  c.vocabulary = TRY(positive(config, "vocab_size"));
  c.intermediate = TRY(positive(config, "intermediate_size"));
  c.layers = TRY(positive(config, "num_hidden_layers"));
  if (c.layers > 10000) return fail(Code::kCorrupt, "{}: num_hidden_layers {} is not believable (at most 10000)", config.where, c.layers);
  nn::AttentionSizes& a = c.attention;
  a.hidden = TRY(positive(config, "hidden_size"));
  a.heads = TRY(positive(config, "num_attention_heads"));
  a.kv_heads = TRY(config.integer_or("num_key_value_heads", a.heads));
  if (a.kv_heads <= 0 || a.heads % a.kv_heads != 0)
    return fail(Code::kCorrupt, "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", config.where, a.heads, a.kv_heads);
  if (defaults.rotary_head_dim > 0) {
    a.head_dim = defaults.rotary_head_dim;
  } else if (config.has("head_dim")) {
    a.head_dim = TRY(positive(config, "head_dim"));
  } else {
    if (a.hidden % a.heads != 0)
      return fail(Code::kCorrupt, "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim", config.where, a.hidden, a.heads);
    a.head_dim = a.hidden / a.heads;
  }
  if (a.head_dim % 2 != 0) return fail(Code::kUnsupported, "{}: head_dim {} is odd; rotary embeddings need pairs", config.where, a.head_dim);
  a.norm_eps = static_cast<float>(TRY(config.number_or("rms_norm_eps", defaults.norm_eps)));
  a.qk_norm = defaults.qk_norm;
  const std::string activation = TRY(config.string_or("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") return fail(Code::kUnsupported, "{}: hidden_act \"{}\" is not supported here; known: silu swish", config.where, activation);

  c.rope = TRY(nn::Rope::parse(config, a.head_dim, {.theta = defaults.rope_theta, .partial = defaults.partial_rotary}, TRY(positive(config, "max_position_embeddings"))));
  c.windows = TRY(read_windows(config, c.layers));

  // The tensors decide; a config that says otherwise is worth a note.
  const bool says_tied = TRY(config.boolean_or("tie_word_embeddings", false));
  c.tied = !declarations.has_tensor(kHeadTensor);
  if (c.tied && !says_tied) c.notes.push_back("tie_word_embeddings is false, but there is no lm_head.weight: the head shares the embedding table");
  if (!c.tied && says_tied) c.notes.push_back("tie_word_embeddings is true, but the checkpoint has a different lm_head.weight: it is used");
  if (TRY(config.boolean_or("attention_bias", false)) && !declarations.has_tensor("model.layers.0.self_attn.q_proj.bias"))
    c.notes.push_back("attention_bias is true, but the checkpoint has no q_proj.bias: no bias is applied");
  return c;
}

Result<void> read_sparse_layers(const JsonView& config, DecoderConfig& decoder) {
  constexpr std::string_view key = "mlp_only_layers";
  const std::int64_t step = config.has("decoder_sparse_step") ? TRY(positive(config, "decoder_sparse_step")) : 1;
  for (std::int64_t i = 0; i < decoder.layers; ++i) decoder.sparse_layers.push_back((i + 1) % step == 0);
  if (!config.has(key)) return {};
  const Json& list = (*config.object)[std::string(key)];
  if (!list.is_array()) return fail(Code::kCorrupt, "{}: \"{}\" must be a list of layers, not {}", config.where, key, list.dump());
  for (const Json& layer : list) {
    if (!layer.is_number_integer()) return fail(Code::kCorrupt, "{}: \"{}\" must hold layer numbers, not {}", config.where, key, layer.dump());
    const auto index = layer.get<std::int64_t>();
    if (index >= 0 && index < decoder.layers) decoder.sparse_layers[static_cast<std::size_t>(index)] = false;
  }
  return {};
}

Result<void> ignore_further_layers(const JsonView& config, const DecoderConfig& decoder, const nn::Declarations& declarations) {
  const std::int64_t further = std::min<std::int64_t>(TRY(config.integer_or("num_nextn_predict_layers", 0)), 64);
  for (std::int64_t i = decoder.layers; i < decoder.layers + further; ++i)
    declarations.table->ignored.push_back({fmt::format("{}.layers.{}.*", decoder.scope, i), "a layer that predicts further tokens; generation here does not use it"});
  return {};
}

Result<void> check_sparse(const JsonView& config, const DecoderConfig& decoder) {
  const nn::Routing& r = decoder.sparse.routing;
  if (r.experts > 65536) return fail(Code::kCorrupt, "{}: {} experts are not believable (at most 65536)", config.where, r.experts);
  if (r.top_k > r.experts) return fail(Code::kCorrupt, "{}: {} experts a token, but only {} exist", config.where, r.top_k, r.experts);
  if (r.groups > 1 && (r.experts % r.groups != 0 || r.top_groups < 1 || r.top_groups > r.groups || r.top_k > r.experts / r.groups * r.top_groups))
    return fail(Code::kCorrupt, "{}: {} experts in {} groups, of which {} stay, cannot give {} experts a token", config.where, r.experts, r.groups, r.top_groups, r.top_k);
  return {};
}

Decoder::Layer::Layer(const nn::Scope& scope, const DecoderConfig& c, std::int64_t index)
    : input_norm(scope, "input_layernorm", c.attention.hidden, c.attention.norm_eps),
      attention([&]() -> std::variant<nn::Attention, nn::LatentAttention> {
        if (c.latent.rank > 0) return nn::LatentAttention(scope.at("self_attn"), c.attention, c.latent, index);
        return nn::Attention(scope.at("self_attn"), c.attention, index, c.windows[static_cast<std::size_t>(index)]);
      }()),
      post_attention_norm(scope, "post_attention_layernorm", c.attention.hidden, c.attention.norm_eps),
      mlp([&]() -> std::variant<nn::Mlp, nn::SparseMlp> {
        if (c.is_sparse(index)) return nn::SparseMlp(scope.at("mlp"), c.sparse, index);
        return nn::Mlp(scope.at("mlp"), c.attention.hidden, c.intermediate);
      }()) {}

Decoder::Decoder(std::string architecture, DecoderConfig config, const nn::Declarations& declarations)
    : config_(std::move(config)),
      embedding_(nn::Scope(declarations, config_.scope), "embed_tokens", config_.vocabulary, config_.attention.hidden, config_.tied),
      layers_([&] {
        std::vector<Layer> layers;
        for (std::int64_t i = 0; i < config_.layers; ++i) layers.emplace_back(nn::Scope(declarations, config_.scope).at("layers", i), config_, i);
        return layers;
      }()),
      final_norm_(nn::Scope(declarations, config_.scope), "norm", config_.attention.hidden, config_.attention.norm_eps),
      head_(config_.tied ? nn::Head(nn::Scope(declarations), embedding_) : nn::Head(nn::Scope(declarations), "lm_head", config_.vocabulary, config_.attention.hidden)) {
  declarations.table->ignored.push_back({"*.rotary_emb.inv_freq", "a cache of rotary frequencies; they are computed from the config"});
  info_ = {.architecture = std::move(architecture), .layers = config_.layers, .hidden = config_.attention.hidden, .vocabulary = config_.vocabulary,
           .heads = config_.attention.heads, .kv_heads = config_.attention.kv_heads, .head_dim = config_.attention.head_dim,
           .experts = config_.sparse_layers.empty() ? 0 : config_.sparse.routing.experts, .experts_per_token = config_.sparse_layers.empty() ? 0 : config_.sparse.routing.top_k,
           .topology = declarations.topology, .max_positions = config_.rope.max_positions(), .notes = config_.notes};
  if (config_.latent.rank > 0) {
    info_.kv_heads = 1;
    info_.head_dim = config_.latent.row_dim();
    info_.value_dim = config_.latent.rank;
    info_.query_dim = config_.latent.query_dim();
    if (nn::LatentAttention::expands(config_.latent.nope_dim, config_.latent.value_dim)) info_.expanded_value_dim = config_.latent.value_dim;
  }
}

void Decoder::forward(const nn::Step& step, nn::Runtime& rt) const {
  rt.workspace.reset();
  const nn::Pass pass{rt, static_cast<std::int64_t>(step.ids.size()), step.decode_tokens};
  if (pass.tokens == 0) {  // of several groups of ranks this one has no work; the experts here still serve the others' tokens
    for (const Layer& layer : layers_)
      if (const auto* sparse = std::get_if<nn::SparseMlp>(&layer.mlp); sparse && rt.expert_ranks) (*sparse)(pass, nullptr, config_.attention.hidden, nullptr, nn::padded(config_.attention.hidden));
    return;
  }
  const std::int64_t hidden = config_.attention.hidden, stride = nn::padded(hidden);
  const kernels::VectorKernels& vector = *rt.kernels->vector;

  float* x = rt.workspace.floats(pass.tokens * hidden);       // the residual stream
  float* normed = rt.workspace.floats(pass.tokens * hidden);
  float* update = rt.workspace.floats(pass.tokens * stride);  // what a block adds to it
  bool pending = false;  // `update` is still to be added to x
  const auto add_update = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) vector.add(x + t * hidden, update + t * stride, hidden);
  };
  // One block: update = block(norm(x)), where x first takes the update of the block before. A block whose first product can do so makes its own input on the way.
  const auto run_block = [&](const nn::RmsNorm& norm, const auto& block, const auto& call) {
    const bool add_first = pending;
    const quant::PrepareRows prepare = [&, add_first](std::int64_t begin, std::int64_t end) {
      if (add_first) add_update(begin, end);
      for (std::int64_t t = begin; t < end; ++t) norm(*rt.kernels, x + t * hidden, normed + t * hidden);
    };
    using Block = std::decay_t<decltype(block)>;
    if constexpr (std::is_same_v<Block, nn::Attention> || std::is_same_v<Block, nn::Mlp>) {
      call(block, prepare);
    } else {
      rt.pool->parallel_for(pass.tokens, 4, prepare);
      call(block);
    }
    pending = true;
  };
  const auto record = [&](std::int64_t index, const float* state) {
    if (step.hidden) std::copy_n(state, pass.tokens * hidden, step.hidden + index * pass.tokens * hidden);
  };

  const nn::RopeTable rope = nn::rope_table(step, config_.rope, rt);
  embedding_.lookup(pass, step.ids.data(), x);
  record(0, x);
  comm::Comm* told = rt.tensor_ranks ? rt.tensor_ranks : rt.expert_ranks;  // what this rank does, should it be lost
  const std::size_t mark = rt.workspace.mark();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    rt.workspace.rewind(mark);  // every layer uses the same scratch
    if (told) told->state("computes layer # of a step of # tokens", static_cast<std::int64_t>(i), pass.tokens);
    const Layer& layer = layers_[i];
    std::visit([&](const auto& attention) {
      run_block(layer.input_norm, attention, [&](const auto& a, const auto&... prepare) { a(pass, step, rope, normed, hidden, update, stride, prepare...); });
    }, layer.attention);
    std::visit([&](const auto& mlp) {
      run_block(layer.post_attention_norm, mlp, [&](const auto& m, const auto&... prepare) { m(pass, normed, hidden, update, stride, prepare...); });
    }, layer.mlp);
    if (step.hidden || i + 1 == layers_.size()) {
      rt.pool->parallel_for(pass.tokens, 8, add_update);
      pending = false;
    }
    if (i + 1 < layers_.size()) record(static_cast<std::int64_t>(i) + 1, x);
  }
  if (step.hidden || rt.observer) final_norm_(pass, x, hidden, normed, hidden);
  if (step.hidden) record(config_.layers, normed);
  if (rt.observer) rt.observer->see(head_.row(), nn::Observer::Place::kInput, normed, hidden, pass.tokens, hidden);

  // Only the rows that are sampled from go through the head; each keeps its token's arithmetic.
  const auto rows = static_cast<std::int64_t>(step.logit_rows.size());
  if (rows == 0) return;
  const auto decode_rows = std::ranges::lower_bound(step.logit_rows, step.decode_tokens) - step.logit_rows.begin();
  const nn::Pass head_pass{rt, rows, decode_rows};
  float* chosen = rt.workspace.floats(rows * hidden);
  head_(head_pass, chosen, hidden, step.logits, logits_stride(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) final_norm_(*rt.kernels, x + step.logit_rows[static_cast<std::size_t>(r)] * hidden, chosen + r * hidden);
  });
}

}  // namespace inflight::models
