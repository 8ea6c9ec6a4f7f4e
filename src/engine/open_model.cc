#include "engine/open_model.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/nearest.h"
#include "checkpoint/checkpoint.h"
#include "comm/gather.h"
#include "comm/neighbours.h"
#include "engine/fp8.h"
#include "engine/memory_limit.h"
#include "engine/ranks.h"
#include "kernels/dispatch.h"
#include "loader/load.h"
#include "loader/output_files.h"
#include "models/registry.h"
#include "params/expert_placement.h"
#include "params/partition.h"

namespace inflight::engine {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Tensor;

// The tensors that the model is declared against. Where config.json ties the head and the file still has a head equal to the
// embedding, that copy is redundant; a different one is the head (as transformers decides).
Result<bool> has_redundant_head(const Checkpoint& checkpoint, const JsonView& config) {
  if (!TRY(config.boolean_or("tie_word_embeddings", false))) return false;
  const Tensor* head = checkpoint.find(models::kHeadTensor);
  const Tensor* table = checkpoint.find(models::kEmbeddingTensor);
  if (!table) table = checkpoint.find(models::kPaddleEmbeddingTensor);
  if (!head || !table || head->info.shape != table->info.shape || head->info.dtype != table->info.dtype) return false;
  constexpr std::int64_t kPiece = 4 << 20;
  std::vector<char> a(kPiece), b(kPiece);
  for (std::int64_t at = 0; at < head->info.bytes(); at += kPiece) {
    const auto bytes = static_cast<std::size_t>(std::min(kPiece, head->info.bytes() - at));
    TRY(checkpoint.shards()[static_cast<std::size_t>(head->shard)].read_at(a.data(), bytes, head->info.begin + at));
    TRY(checkpoint.shards()[static_cast<std::size_t>(table->shard)].read_at(b.data(), bytes, table->info.begin + at));
    if (std::memcmp(a.data(), b.data(), bytes) != 0) return false;
  }
  return true;
}

// A converted folder keeps its formats: asking for others, "bf16" included, is refused rather than ignored.
quant::FormatPolicy policy_with_head(quant::FormatPolicy policy, const quant::Format* head) {
  policy.head = head;
  return policy;
}

Result<void> check_stored(const Checkpoint& checkpoint, const JsonView& config, const params::ParamTable& table, const quant::FormatPolicy& policy, const EngineOptions& options) {
  const auto stored = TRY(loader::stored_policy(config));
  if (!stored) return {};
  const auto name = [](const quant::Format* format) { return format ? format->name : std::string_view("bf16"); };
  if ((!options.quantization.empty() || !options.quantization_overrides.empty()) && !policy.agrees(policy_with_head(*stored, policy.head), table))
    return fail(Code::kInvalidArgument, "{} holds weights already quantized as {}; leave out --quantization {}{} or start from the original checkpoint", checkpoint.folder(),
                name(stored->linear), options.quantization, options.quantization_overrides.empty() ? "" : " and --quantization-override");
  if (options.lm_head != "auto" && policy.head != stored->head)
    return fail(Code::kInvalidArgument, "{} holds its output head as {}; leave out --lm-head {} or start from the original checkpoint", checkpoint.folder(), name(stored->head),
                options.lm_head);
  return {};
}

// Everything that is decided before memory is taken.
struct Prepared {
  Checkpoint checkpoint;
  const kernels::Kernels* kernels;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<models::Model> model;
  quant::FormatPolicy policy;
  params::Topology topology;
  loader::LoadPlan plan;
};

// Where replicas are placed, experts have a placement from the beginning.
Result<void> place_experts(const EngineOptions& options, const models::ModelInfo& info, params::Topology& topology) {
  if (!options.enable_eplb) {
    if (options.redundant_experts != 0) return fail(Code::kInvalidArgument, "--redundant-experts {} needs --enable-eplb, which places them", options.redundant_experts);
    return {};
  }
  if (info.experts == 0) return fail(Code::kInvalidArgument, "--enable-eplb: {} has no experts", info.architecture);
  if (topology.ep_size == 1) {
    if (topology.tp_size == 1) return {};  // one rank has all experts
    return fail(Code::kInvalidArgument, "--enable-eplb moves whole experts between ranks; add --enable-expert-parallel");
  }
  if (options.redundant_experts < 0) return fail(Code::kInvalidArgument, "--redundant-experts {}: must be at least 0", options.redundant_experts);
  auto initial = params::ExpertPlacement::initial(info.layers, info.experts, topology.ep_size, options.redundant_experts);
  if (!initial) return fail(Code::kInvalidArgument, "--redundant-experts {}: {}", options.redundant_experts, initial.error().message);
  topology.placement = std::make_shared<const params::ExpertPlacement>(*std::move(initial));
  return {};
}

Result<Prepared> prepare(const std::string& folder, const EngineOptions& options, params::Topology topology, int default_threads, params::ParamTable& table, const quant::ParamStore* store) {
  Checkpoint checkpoint = TRY(Checkpoint::open(folder));
  const JsonView config{&checkpoint.config(), checkpoint.config_path()};
  quant::FormatPolicy policy = TRY(quant::make_policy(options.quantization, options.lm_head, options.quantization_overrides));
  TRY(policy.set_fp8_target(options.fp8_target));
  policy.wide_derived = options.compute == "fp32";
  const bool redundant_head = TRY(has_redundant_head(checkpoint, config));
  const loader::Forms forms = TRY(loader::Forms::of(checkpoint));
  const nn::Declarations declarations{&table, store, [&](std::string_view name) { return (!redundant_head || name != models::kHeadTensor) && forms.has(name); },
                                      [&](std::string_view name) { return checkpoint.find(name)->info.shape; }, /*transposed=*/false, topology};
  auto model = TRY(models::build_model(config, declarations));
  TRY(place_experts(options, model->info(), topology));
  TRY(params::check_ranks(table, topology));
  policy.settle(table);
  TRY(check_stored(checkpoint, config, table, policy, options));
  if (redundant_head) table.ignored.push_back({std::string(models::kHeadTensor), "equal to the embedding table that it is tied to"});
  const kernels::Kernels* chosen = TRY(kernels::choose());
  if (options.threads < 0 || options.threads > 1024) return fail(Code::kInvalidArgument, "--threads {}: must be 1 to 1024, or 0 for all usable CPUs", options.threads);
  auto pool = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : default_threads);
  auto plan = TRY(loader::plan_load(checkpoint, table, topology, policy, pool->threads()));
  return Prepared{std::move(checkpoint), chosen, std::move(pool), std::move(model), std::move(policy), std::move(topology), std::move(plan)};
}

Result<void> add_stop_ids(const Json& json, const std::string& where, std::set<std::int32_t>& ids) {
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return {};
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > INT32_MAX)
      return fail(Code::kCorrupt, "{}: \"eos_token_id\" must be a token id or a list of them, but holds {}", where, id.dump());
    ids.insert(id.get<std::int32_t>());
  }
  return {};
}

Result<bool> streaming_road(const EngineOptions& options) {
  if (options.load_choices == "default_v1") return true;
  if (options.load_choices == "default") return false;
  constexpr std::string_view kKnown[] = {"default_v1", "default"};
  return fail(Code::kInvalidArgument, "unknown --load-choices \"{}\"; {}", options.load_choices, known_names_hint(options.load_choices, kKnown));
}

// The place of one of data_parallel_size groups of tensor_parallel_size ranks.
params::Topology topology_of(const EngineOptions& options, int rank) {
  const bool experts_apart = options.enable_expert_parallel || options.data_parallel_size > 1;
  return {.tp_rank = rank % options.tensor_parallel_size, .tp_size = options.tensor_parallel_size, .ep_rank = experts_apart ? rank : 0,
          .ep_size = experts_apart ? options.tensor_parallel_size * options.data_parallel_size : 1};
}

}  // namespace

Result<ModelPlan> plan_model(const std::string& folder, const EngineOptions& options) {
  ModelPlan plan;
  Prepared prepared = TRY(prepare(folder, options, {}, usable_threads(), plan.table, nullptr));
  plan.folder = folder;
  plan.config = prepared.checkpoint.config();
  plan.info = prepared.model->info();
  plan.notes = plan.info.notes;
  const nn::KvShape kv = plan.info.kv_shape(16, TRY(kv_cache_dtype(options)));
  const int size = options.tensor_parallel_size * options.data_parallel_size;
  for (int rank = 0; rank < size; ++rank) {
    params::Topology topology = topology_of(options, rank);
    TRY(place_experts(options, plan.info, topology));
    auto local = size == 1 ? std::move(prepared.plan) : TRY(loader::plan_load(prepared.checkpoint, plan.table, topology, prepared.policy, prepared.pool->threads()));
    const std::int64_t heads = kv.latent ? 1 : std::max<std::int64_t>(kv.kv_heads / options.tensor_parallel_size, 1);
    plan.ranks.push_back({local.params.weight_bytes, local.source_bytes, local.staging_bytes, kv.token_bytes() / std::max<std::int64_t>(kv.kv_heads, 1) * heads});
    if (rank == 0) plan.ignored = local.ignored;
    if (size == 1) plan.plan = std::move(local.params);
  }
  if (size > 1) plan.plan = std::move(prepared.plan.params);
  return plan;
}

Result<DType> kv_cache_dtype(const EngineOptions& options) {
  if (options.kv_cache_dtype == "auto") return options.compute == "fp32" ? DType::kF32 : DType::kBF16;
  if (options.kv_cache_dtype == "bf16" || options.kv_cache_dtype == "bfloat16") return DType::kBF16;
  if (options.kv_cache_dtype == "fp32" || options.kv_cache_dtype == "float32") return DType::kF32;
  if (options.kv_cache_dtype == "float8_e4m3" || options.kv_cache_dtype == "fp8") return DType::kF8E4M3;
  constexpr std::string_view kKnown[] = {"auto", "bf16", "fp32", "float8_e4m3"};
  return fail(Code::kInvalidArgument, "unknown --kv-cache-dtype \"{}\"; {}", options.kv_cache_dtype, known_names_hint(options.kv_cache_dtype, kKnown));
}

namespace {

Result<params::Topology> check_topology(const EngineOptions& options, const comm::Comm* ranks) {
  const int size = ranks ? ranks->size() : 1;
  for (const auto& [flag, value] : {std::pair("--tensor-parallel-size", options.tensor_parallel_size), std::pair("--data-parallel-size", options.data_parallel_size)})
    if (value < 1) return fail(Code::kInvalidArgument, "{} {}: must be at least 1", flag, value);
  if (const std::int64_t needed = std::int64_t{options.tensor_parallel_size} * options.data_parallel_size; needed != size)
    return fail(Code::kInvalidArgument, "--tensor-parallel-size {}{} needs {} rank{}, but {} {} running; start as many (mpirun -n {} ...)", options.tensor_parallel_size,
                options.data_parallel_size == 1 ? "" : fmt::format(" with --data-parallel-size {}", options.data_parallel_size), needed, needed == 1 ? "" : "s", size, size == 1 ? "is" : "are", needed);
  return topology_of(options, ranks ? ranks->rank() : 0);
}

// Ranks that were started on other folders, or with other options, would compute nonsense together.
Result<void> check_same(comm::Comm* ranks, const Prepared& prepared, const params::ParamTable& table, const EngineOptions& options, const Fp8Scales& scales) {
  if (!ranks) return {};
  const params::Topology& topology = prepared.topology;
  std::string all = fmt::format("{} {} {} {} {} {} {}", prepared.checkpoint.config().dump(), options.compute, options.kv_cache_dtype, options.fp8_sdpa, topology.tp_size, topology.ep_size,
                                topology.placement ? topology.placement->physical() : 0);
  all += fmt::format(" {} {} {}\n", options.fp8_activations, scales.bound, scales.plain_queries);
  for (const auto& [point, scale] : scales.scales.scale) all += fmt::format("{} {}\n", point, scale);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const quant::Format* format = prepared.plan.params.slots[i].format;
    all += fmt::format("{} {} {} {}\n", table.rows[i].full_name(), table.rows[i].outputs(), table.rows[i].inputs, format ? format->name : "vector");
  }
  const std::uint64_t mine = std::hash<std::string>{}(all);
  const std::vector<std::uint64_t> hashes = comm::gather(*ranks, mine);
  if (ranks->error() || hashes[0] == mine) return {};
  return fail(Code::kInvalidArgument, "this rank opened another model than rank 0, or with other options: the parameters, their formats, how they are cut, the FP8 scales or config.json differ; give all ranks the same folder and options");
}

// The rank of each parameter, by the bytes of their codes and scales; what follows from another is where that is.
std::vector<int> deal_out(const params::ParamTable& table, const quant::ParamPlan& plan, int ranks) {
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < table.rows.size(); ++i) bytes.push_back(table.rows[i].derivation ? 0 : plan.slots[i].bytes.codes + plan.slots[i].bytes.scales + plan.slots[i].bytes.offsets);
  std::vector<int> owners = loader::deal_out(bytes, ranks);
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (table.rows[i].derivation) owners[i] = owners[table.rows[i].derivation->source];
  return owners;
}

// Which group scales stayed FP32 on the ranks that have them.
void agree_on_scales(comm::Comm& ranks, const std::vector<int>& owners, quant::ParamStore& store) {
  std::vector<float> wide(owners.size());
  const auto grouped = [&](std::size_t i) { return !store.vector(i) && store.matrix(i).group != 0; };
  for (std::size_t i = 0; i < owners.size(); ++i) wide[i] = owners[i] == ranks.rank() && grouped(i) && !store.matrix(i).scales_fp16 ? 1.0f : 0.0f;
  ranks.all_reduce_max(wide.data(), static_cast<std::int64_t>(wide.size()));
  for (std::size_t i = 0; i < owners.size(); ++i)
    if (grouped(i)) store.matrix(i).scales_fp16 = wide[i] == 0;
}

// share: whole parameters, see open_share().
Result<std::unique_ptr<OpenedModel>> open_rank(const std::string& folder, const EngineOptions& options, const LoadProgress& progress, const std::shared_ptr<comm::Comm>& group, bool share = false) {
  auto opened = std::make_unique<OpenedModel>();
  comm::Comm* ranks = group.get();
  const bool streaming = TRY(streaming_road(options));
  params::Topology topology = share ? params::Topology{} : TRY(check_topology(options, ranks));
  int threads = usable_threads();
  if (ranks) threads = std::max(1, threads / std::max(comm::neighbours(*ranks).same_cpus, 1));
  std::shared_ptr<comm::Comm> tensor_ranks = group;  // groups of ranks one after another share each matrix
  if (ranks && !share && topology.tp_size < ranks->size()) {
    tensor_ranks = ranks->split(ranks->rank() / topology.tp_size);
    if (!tensor_ranks) return std::unexpected(ranks->error().value_or(Error{Code::kInternal, "the ranks could not be grouped"}));
  }
  Prepared prepared = TRY(prepare(folder, options, topology, threads, opened->table, &opened->store));
  topology = prepared.topology;
  const Fp8Scales scales = TRY(find_scales(prepared.checkpoint, opened->table, options));
  TRY(check_same(ranks, prepared, opened->table, options, scales));
  if (share) {
    opened->owners = deal_out(opened->table, prepared.plan.params, ranks->size());
    std::vector<bool> kept;
    for (const int owner : opened->owners) kept.push_back(owner == ranks->rank());
    loader::keep_params(prepared.checkpoint, kept, prepared.pool->threads(), prepared.plan);
  }
  const quant::ComputePolicy compute = TRY(quant::make_compute_policy(options.compute, prepared.kernels->isa));
  TRY(kv_cache_dtype(options));  // refused before minutes of loading

  std::set<std::int32_t> stop_ids;
  TRY(add_stop_ids(prepared.checkpoint.config(), prepared.checkpoint.config_path(), stop_ids));
  if (auto generation = TRY(prepared.checkpoint.generation_config())) {
    TRY(add_stop_ids(*generation, folder + "/generation_config.json", stop_ids));
    opened->generation_config = std::make_unique<Json>(std::move(*generation));
  }

  const std::int64_t weights = prepared.plan.params.weight_bytes, loading = streaming ? prepared.plan.staging_bytes : prepared.plan.source_bytes;
  const std::int64_t needed = ranks ? comm::sum_on_host(*ranks, weights + loading) : weights + loading;
  const MemoryLimit limit = TRY(available_memory());
  if (ranks && ranks->error()) return std::unexpected(*ranks->error());
  if (needed > limit.bytes)
    return fail(Code::kExhausted, "{} does not fit in memory: {} of weights and {} while loading are needed{}, {} are available ({}){}", folder, format_bytes(weights), format_bytes(loading),
                needed > weights + loading ? fmt::format(", {} by all ranks of this host", format_bytes(needed)) : "", format_bytes(limit.bytes), limit.source,
                options.quantization.empty() ? "; try --quantization wint8 or wint4-g128" : streaming ? "; try a smaller format" : "; try --load-choices default_v1");

  TRY(opened->store.allocate(prepared.plan.params));
  const loader::LoadContext context{prepared.checkpoint, prepared.plan, opened->table, *prepared.kernels, *prepared.pool, opened->store, share ? nullptr : tensor_ranks.get()};
  opened->report = TRY(streaming ? loader::load_streaming(context, progress) : loader::load_whole(context, progress));

  if (share) agree_on_scales(*ranks, opened->owners, opened->store);

  limit_codes(options, opened->store, opened->table.rows.size(), opened->notes);
  TRY(assign_inputs(opened->table, options, scales, opened->store));

  opened->folder = folder;
  opened->config = prepared.checkpoint.config();
  opened->config_stop_ids.assign(stop_ids.begin(), stop_ids.end());
  opened->quantization = prepared.plan.quantization;
  opened->plan = std::move(prepared.plan.params);
  opened->model = std::move(prepared.model);
  opened->pool = std::move(prepared.pool);
  opened->runtime = std::make_unique<nn::Runtime>();
  opened->runtime->kernels = prepared.kernels;
  opened->runtime->pool = opened->pool.get();
  opened->runtime->compute = compute;
  opened->runtime->attention_scales = TRY(attention_scales(opened->table, options, opened->model->info().layers, scales.scales, opened->notes));
  opened->runtime->fp8_bound = scales.bound;
  opened->runtime->fp8_attention = options.fp8_sdpa && !scales.plain_queries;
  if (options.fp8_sdpa && scales.plain_queries) opened->notes.push_back("queries and probabilities are not rounded to FP8, as config.json asks (fp8_queries); keys and values are");
  if (!share) opened->ranks = group;
  opened->topology = topology;
  opened->options = options;
  opened->policy = std::move(prepared.policy);
  opened->runtime->placement = topology.placement;
  if (topology.placement) {
    opened->expert_tokens.assign(static_cast<std::size_t>(opened->model->info().layers), std::vector<std::int64_t>(static_cast<std::size_t>(opened->model->info().experts)));
    opened->runtime->expert_tokens = &opened->expert_tokens;
  }
  if (!share) opened->tensor_ranks = tensor_ranks;
  opened->runtime->tensor_ranks = topology.tp_size > 1 ? tensor_ranks.get() : nullptr;
  if (options.data_parallel_size > 1 && opened->model->info().experts > 0) opened->runtime->expert_ranks = ranks;
  return opened;
}

}  // namespace

Result<std::unique_ptr<OpenedModel>> open_model(const std::string& folder, const EngineOptions& options, const LoadProgress& progress, std::shared_ptr<comm::Comm> ranks) {
  if (ranks && ranks->size() == 1) ranks.reset();
  if (!ranks) return open_rank(folder, options, progress, nullptr);
  ranks->state("opens the model");
  auto opened = open_rank(folder, options, progress, ranks);
  if (!opened) ranks->fail(opened.error());
  ranks->barrier();  // all of them are ready, or none
  if (auto error = ranks->error()) return std::unexpected(*std::move(error));
  join(**opened);
  return opened;
}

Result<std::unique_ptr<OpenedModel>> open_share(const std::string& folder, const EngineOptions& options, const LoadProgress& progress, std::shared_ptr<comm::Comm> ranks) {
  ranks->state("opens its share of the model");
  EngineOptions whole = options;
  whole.tensor_parallel_size = whole.data_parallel_size = 1;
  whole.enable_expert_parallel = whole.enable_eplb = false;
  auto opened = open_rank(folder, whole, [&](std::int64_t done, std::int64_t total) {
    ranks->tick();
    return (!progress || progress(done, total)) && !ranks->error();
  }, ranks, /*share=*/true);
  if (!opened) ranks->fail(opened.error());
  ranks->barrier();
  if (auto error = ranks->error()) return std::unexpected(*std::move(error));
  return opened;
}

}  // namespace inflight::engine
