#include "engine/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <unordered_map>
#include <vector>

#include "comm/agree.h"
#include "comm/gather.h"
#include "comm/neighbours.h"
#include "engine/expert_move.h"
#include "engine/rank_groups.h"

namespace inflight::engine {
namespace {

// What rank 0 tells the others: a head, then arrays.
enum class Kind : std::int32_t { kStep, kCreateCache, kDropCache, kRepeatCache, kMemory, kExpertTokens, kBeginMove, kFinishMove, kUpdate, kEnd };

struct Head {
  std::int64_t bytes = 0;    // of the whole message
  Kind kind = Kind::kEnd;
  std::int32_t model = 0;
  std::int64_t cache = 0;
  // Step: tokens, spans, rows of logits, tokens of the decode arithmetic, whether activations are observed, experts' tokens counted, hidden states wanted.
  // Caches: the shape and blocks; what repeat() takes. A move: layers, physical experts, experts of the placement; whether its end is waited for.
  std::int64_t numbers[8] = {};
};

struct SpanHead {
  std::int64_t first, count, rope_length, blocks, group;
};

// A message up to this length is one broadcast, a longer one two.
constexpr std::int64_t kFirstBytes = 4096;

template <class T>
void append(std::vector<std::byte>& message, std::span<const T> values) {
  const std::size_t at = message.size();
  message.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(message.data() + at, values.data(), values.size_bytes());
}

// Values one after another, out of a message of this process's making.
class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <class T>
  std::span<const T> take(std::int64_t count) {
    const std::span<const T> values(reinterpret_cast<const T*>(at_), static_cast<std::size_t>(count));
    at_ += values.size_bytes();
    return values;
  }

 private:
  const std::byte* at_;
};

Error out_of_memory(std::string_view what, const std::exception& error) { return {Code::kExhausted, fmt::format("{} ran out of memory: {}", what, error.what())}; }

// The part of memory_for_cache() that every rank does.
Result<MemoryLimit> smallest_share(comm::Comm& ranks) {
  struct Share {
    std::uint64_t host;
    std::int64_t bytes;
    char source[112];
  };
  Share mine{.host = comm::host_id(), .bytes = 0, .source = {}};
  if (const auto limit = available_memory()) {
    mine.bytes = limit->bytes;
    limit->source.copy(mine.source, sizeof mine.source - 1);
  } else {
    ranks.fail(limit.error());
  }
  const std::vector<Share> all = comm::gather(ranks, mine);
  if (auto error = ranks.error()) return std::unexpected(*std::move(error));
  MemoryLimit smallest;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto sharing = std::ranges::count(all, all[r].host, &Share::host);
    if (r > 0 && all[r].bytes / sharing >= smallest.bytes) continue;
    smallest = {all[r].bytes / sharing, fmt::format("{} of rank {}{}", all[r].source, r, sharing > 1 ? fmt::format(", shared by {} ranks of its host", sharing) : "")};
  }
  return smallest;
}

using ExpertTokens = std::vector<std::vector<std::int64_t>>;

// What the other ranks have counted, added on rank 0 and forgotten on the others. A collective.
void sum_expert_tokens(comm::Comm& ranks, ExpertTokens& counts) {
  std::vector<std::int64_t> mine;
  for (std::vector<std::int64_t>& layer : counts) {
    mine.insert(mine.end(), layer.begin(), layer.end());
    if (ranks.rank() != 0) std::ranges::fill(layer, 0);
  }
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(mine.data(), static_cast<std::int64_t>(mine.size() * sizeof(std::int64_t)), all.data());
  if (ranks.rank() != 0 || ranks.error()) return;
  const std::int64_t* other = all.data() + mine.size();
  for (int rank = 1; rank < ranks.size(); ++rank)
    for (std::vector<std::int64_t>& layer : counts)
      for (std::int64_t& count : layer) count += *other++;
}

// The end of a move on every rank: all have loaded, or one has failed; nothing yet otherwise. A collective.
Result<bool> end_move(OpenedModel& opened, bool wait) {
  struct State {
    bool done = false, failed = false;
  };
  comm::Comm& ranks = *opened.ranks;
  if (wait) opened.expert_move->wait();
  const bool done = opened.expert_move->done();
  const std::optional<Error> mine = done ? opened.expert_move->error() : std::nullopt;
  const std::vector<State> all = comm::gather(ranks, State{.done = done, .failed = mine.has_value()});
  if (auto error = ranks.error()) return std::unexpected(*std::move(error));
  const bool failed = std::ranges::find(all, true, &State::failed) != all.end();
  if (!failed && std::ranges::find(all, false, &State::done) != all.end()) return false;
  if (!failed) {
    opened.expert_move->apply();
    opened.expert_move.reset();
    return true;
  }
  opened.expert_move.reset();  // drops what came
  const auto first = comm::first_error(ranks, mine);
  if (!first) return std::unexpected(ranks.error().value_or(Error{Code::kInternal, "a rank could not load experts"}));
  return fail(first->error.code, "rank {} could not load experts that another placement gives it, and all ranks keep the one they had: {}", first->rank, first->error.message);
}

Result<std::unique_ptr<loader::Update>> join_update(OpenedModel& opened) {
  return loader::Update::begin(opened.table, opened.plan, opened.topology, *opened.runtime->kernels, *opened.pool, opened.ranks.get());
}

class NoObserver : public nn::Observer {
 public:
  void see(std::size_t, Place, const float*, std::int64_t, std::int64_t, std::int64_t) override {}
};

}  // namespace

// Rank 0's end. The last owner to go tells the others that it is over.
class Leader : public std::enable_shared_from_this<Leader> {
 public:
  Leader(std::shared_ptr<comm::Comm> ranks, std::int32_t model, int tensor_ranks)
      : ranks_(std::move(ranks)), model_(model), group_step_(ranks_->size() / tensor_ranks, tensor_ranks), assignment_(group_step_.groups()) {}
  ~Leader() { tell({.kind = Kind::kEnd}); }

  comm::Comm& ranks() { return *ranks_; }

  // Tells the others of the step; returns the part of it that is this rank's.
  const nn::Step& step(const nn::Step& step, nn::Runtime& runtime, const models::Model& model) {
    tell_step(step, runtime);
    if (group_step_.groups() == 1 || ranks_->error()) return step;
    const nn::Step& part = group_step_.build(step, group_of_, 0, model, step.hidden != nullptr);
    runtime.group_tokens = group_step_.tokens();
    return part;
  }
  // After the part: logits of all groups.
  void collect(const nn::Step& step, const models::Model& model) {
    if (group_step_.groups() > 1) group_step_.collect(step, *ranks_, model);
  }

  void begin_move(const params::ExpertPlacement& placement) {
    begin({.kind = Kind::kBeginMove, .numbers = {placement.layers(), placement.physical(), placement.experts()}});
    for (const std::vector<std::int32_t>& layer : placement.logical()) append<std::int32_t>(message_, layer);
    send();
  }
  void begin_update() { tell({.kind = Kind::kUpdate}); }
  void finish_move(bool wait) { tell({.kind = Kind::kFinishMove, .numbers = {wait}}); }

  void collect_expert_tokens(ExpertTokens& counts) {
    if (group_step_.groups() == 1) return;  // rank 0 routes all tokens
    tell({.kind = Kind::kExpertTokens});
    sum_expert_tokens(*ranks_, counts);
  }

 private:
  void tell_step(const nn::Step& step, const nn::Runtime& runtime) {
    const bool observed = runtime.observer != nullptr;
    if (observed && (group_step_.groups() > 1 || runtime.placement))
      return ranks_->fail({Code::kUnsupported, "activations are observed on ranks that have the same tokens, and experts in equal runs; leave out --data-parallel-size and --enable-eplb"});
    const auto cache = caches_.find(step.cache);
    if (cache == caches_.end()) return ranks_->fail({Code::kInternal, "a step on a KV cache that the other ranks do not have; make it with create_cache()"});
    ranks_->state("computes a step of # tokens", static_cast<std::int64_t>(step.ids.size()));
    begin({.kind = Kind::kStep, .cache = cache->second,
           .numbers = {static_cast<std::int64_t>(step.ids.size()), static_cast<std::int64_t>(step.spans.size()), static_cast<std::int64_t>(step.logit_rows.size()), step.decode_tokens, observed,
                       runtime.expert_tokens != nullptr, step.hidden != nullptr}});
    group_of_ = assignment_.assign(step);
    const std::int64_t block_size = step.cache->shape().block_size;
    const auto blocks = [&](const nn::Span& span) { return step.positions[static_cast<std::size_t>(span.first + span.count - 1)] / block_size + 1; };
    for (std::size_t i = 0; i < step.spans.size(); ++i) {
      const nn::Span& span = step.spans[i];
      const SpanHead head{span.first, span.count, span.rope_length, blocks(span), group_of_[i]};
      append<SpanHead>(message_, {&head, 1});
    }
    append(message_, step.ids);
    append(message_, step.positions);
    append(message_, step.logit_rows);
    for (const nn::Span& span : step.spans) append<std::int32_t>(message_, {span.block_table, static_cast<std::size_t>(blocks(span))});
    send();
  }

 public:
  Result<std::shared_ptr<nn::KvCache>> create_cache(const nn::KvShape& shape, std::int64_t blocks) {
    auto cache = std::make_unique<nn::KvCache>(TRY(nn::KvCache::create(shape, blocks)));
    const std::int64_t id = next_cache_++;
    tell({.kind = Kind::kCreateCache, .cache = id,
          .numbers = {shape.layers, shape.kv_heads, shape.head_dim, shape.block_size, static_cast<std::int64_t>(shape.dtype), shape.latent, blocks}});
    ranks_->barrier();
    if (auto error = ranks_->error()) return std::unexpected(*std::move(error));
    caches_.emplace(cache.get(), id);
    return std::shared_ptr<nn::KvCache>(cache.release(), [leader = weak_from_this()](nn::KvCache* dropped) {
      if (const auto alive = leader.lock()) alive->drop(dropped);
      delete dropped;
    });
  }

  void repeat(const nn::KvCache& cache, std::int64_t sequences, std::int64_t blocks_per_sequence, std::int64_t filled, std::int64_t upto) {
    if (const auto found = caches_.find(&cache); found != caches_.end()) tell({.kind = Kind::kRepeatCache, .cache = found->second, .numbers = {sequences, blocks_per_sequence, filled, upto}});
  }

  Result<MemoryLimit> memory() {
    tell({.kind = Kind::kMemory});
    return smallest_share(*ranks_);
  }

 private:
  void drop(const nn::KvCache* cache) {
    tell({.kind = Kind::kDropCache, .cache = caches_.at(cache)});
    caches_.erase(cache);
    assignment_.forget(cache);
  }
  void tell(const Head& head) {
    begin(head);
    send();
  }
  void begin(Head head) {
    head.model = model_;
    message_.clear();
    append<Head>(message_, {&head, 1});
  }
  void send() {
    const auto bytes = static_cast<std::int64_t>(message_.size());
    std::memcpy(message_.data(), &bytes, sizeof bytes);
    if (bytes < kFirstBytes) message_.resize(kFirstBytes);
    ranks_->broadcast(message_.data(), kFirstBytes, 0);
    if (bytes > kFirstBytes) ranks_->broadcast(message_.data() + kFirstBytes, bytes - kFirstBytes, 0);
  }

  std::shared_ptr<comm::Comm> ranks_;
  std::int32_t model_;
  std::int64_t next_cache_ = 1;
  std::unordered_map<const nn::KvCache*, std::int64_t> caches_;
  std::vector<std::byte> message_;
  GroupStep group_step_;
  GroupAssignment assignment_;
  std::vector<std::int32_t> group_of_;  // of the step's spans
};

namespace {

// The model of rank 0: a step of it is a step of all ranks.
class LeadingModel : public models::Model {
 public:
  LeadingModel(std::unique_ptr<models::Model> model, std::shared_ptr<Leader> leader) : model_(std::move(model)), leader_(std::move(leader)) { info_ = model_->info(); }
  void forward(const nn::Step& step, nn::Runtime& runtime) const override {
    const nn::Step& part = leader_->step(step, runtime, *model_);
    if (leader_->ranks().error()) return;
    try {
      model_->forward(part, runtime);
      leader_->collect(step, *model_);
    } catch (const std::exception& error) {  // the others are in the middle of the step and cannot end it without this rank
      leader_->ranks().fail(out_of_memory("the step", error));
    }
    leader_->ranks().state("is between steps");
  }

 private:
  std::unique_ptr<models::Model> model_;
  std::shared_ptr<Leader> leader_;
};

// One model of a rank that follows.
class Follower {
 public:
  explicit Follower(OpenedModel& opened) : opened_(&opened), group_step_(opened.ranks->size() / opened.topology.tp_size, opened.topology.tp_size) {}
  std::int32_t number() const { return opened_->number; }

  void obey(const Head& head, const std::byte* arrays) {
    comm::Comm& ranks = *opened_->ranks;
    const std::int64_t* n = head.numbers;
    switch (head.kind) {
      case Kind::kStep: return step(head, arrays);
      case Kind::kCreateCache: {
        auto cache = nn::KvCache::create({.layers = n[0], .kv_heads = n[1], .head_dim = n[2], .block_size = n[3], .dtype = static_cast<DType>(n[4]), .latent = n[5] != 0}, n[6]);
        if (cache) caches_.emplace(head.cache, *std::move(cache));
        else ranks.fail(std::move(cache).error());
        return ranks.barrier();
      }
      case Kind::kDropCache: caches_.erase(head.cache); return;
      case Kind::kRepeatCache: return caches_.at(head.cache).repeat(n[0], n[1], n[2], n[3]);
      case Kind::kMemory: (void)smallest_share(ranks); return;
      case Kind::kExpertTokens: make_counts(); return sum_expert_tokens(ranks, expert_tokens_);
      case Kind::kBeginMove: return begin_move(head, arrays);
      case Kind::kFinishMove: (void)end_move(*opened_, n[0] != 0); return;  // rank 0 knows as much
      case Kind::kUpdate:
        if (const auto update = join_update(*opened_)) (void)(*update)->follow(opened_->store);  // rank 0 knows as much
        return;
      case Kind::kEnd: caches_.clear(); return;
    }
  }

 private:
  void step(const Head& head, const std::byte* arrays) {
    const std::int64_t tokens = head.numbers[0], spans = head.numbers[1], rows = head.numbers[2];
    opened_->ranks->state("computes a step of # tokens", tokens);
    Reader reader(arrays);
    const auto span_heads = reader.take<SpanHead>(spans);
    nn::Step step{.ids = reader.take<std::int32_t>(tokens), .positions = reader.take<std::int32_t>(tokens)};
    step.logit_rows = reader.take<std::int32_t>(rows);
    spans_.clear();
    group_of_.clear();
    for (const SpanHead& span : span_heads) group_of_.push_back(static_cast<std::int32_t>(span.group));
    for (const SpanHead& span : span_heads) spans_.push_back({span.first, span.count, reader.take<std::int32_t>(span.blocks).data(), span.rope_length});
    step.spans = spans_;
    step.decode_tokens = head.numbers[3];
    step.cache = &caches_.at(head.cache);
    nn::Runtime& runtime = *opened_->runtime;
    runtime.observer = head.numbers[4] != 0 ? &observer_ : nullptr;
    if (group_step_.groups() == 1) {
      opened_->model->forward(step, runtime);
    } else {
      make_counts();
      runtime.expert_tokens = head.numbers[5] != 0 ? &expert_tokens_ : nullptr;
      const nn::Step& part = group_step_.build(step, group_of_, opened_->ranks->rank(), *opened_->model, head.numbers[6] != 0);
      runtime.group_tokens = group_step_.tokens();
      opened_->model->forward(part, runtime);
      group_step_.collect(step, *opened_->ranks, *opened_->model);
    }
    runtime.observer = nullptr;
  }
  void begin_move(const Head& head, const std::byte* arrays) {
    Reader reader(arrays);
    std::vector<std::vector<std::int32_t>> logical;
    for (std::int64_t layer = 0; layer < head.numbers[0]; ++layer) {
      const auto experts = reader.take<std::int32_t>(head.numbers[1]);
      logical.emplace_back(experts.begin(), experts.end());
    }
    auto placement = params::ExpertPlacement::create(head.numbers[2], opened_->ranks->size(), std::move(logical));
    if (!placement) return opened_->ranks->fail(placement.error());
    opened_->expert_move = std::make_shared<ExpertMove>(*opened_, std::make_shared<const params::ExpertPlacement>(*std::move(placement)));
  }
  void make_counts() {
    const models::ModelInfo& info = opened_->model->info();
    if (expert_tokens_.empty()) expert_tokens_.assign(static_cast<std::size_t>(info.layers), std::vector<std::int64_t>(static_cast<std::size_t>(info.experts)));
  }

  OpenedModel* opened_;
  std::map<std::int64_t, nn::KvCache> caches_;
  std::vector<nn::Span> spans_;
  NoObserver observer_;
  GroupStep group_step_;
  std::vector<std::int32_t> group_of_;  // of the step's spans
  ExpertTokens expert_tokens_;          // since rank 0 collected them
};

}  // namespace

Result<std::shared_ptr<nn::KvCache>> create_cache(OpenedModel& opened, const nn::KvShape& shape, std::int64_t blocks) {
  if (opened.leader) return opened.leader->create_cache(shape, blocks);
  return std::make_shared<nn::KvCache>(TRY(nn::KvCache::create(shape, blocks)));
}

void repeat_cache(OpenedModel& opened, nn::KvCache& cache, std::int64_t sequences, std::int64_t blocks_per_sequence, std::int64_t filled, std::int64_t upto) {
  if (opened.leader) opened.leader->repeat(cache, sequences, blocks_per_sequence, filled, upto);
  cache.repeat(sequences, blocks_per_sequence, filled, upto);
}

Result<MemoryLimit> memory_for_cache(OpenedModel& opened) { return opened.leader ? opened.leader->memory() : available_memory(); }

std::optional<Error> failure(const OpenedModel& opened) { return opened.ranks ? opened.ranks->error() : std::nullopt; }

Result<void> follow(std::span<OpenedModel* const> models) {
  if (models.empty()) return {};
  comm::Comm& ranks = *models[0]->ranks;
  std::vector<Follower> followers;
  for (OpenedModel* model : models) followers.emplace_back(*model);
  std::vector<std::byte> message(kFirstBytes);
  while (!followers.empty()) {
    ranks.state("waits for rank 0");
    ranks.broadcast(message.data(), kFirstBytes, 0);
    if (auto error = ranks.error()) return std::unexpected(*std::move(error));
    Head head;
    std::memcpy(&head, message.data(), sizeof head);
    if (head.bytes > static_cast<std::int64_t>(message.size())) message.resize(static_cast<std::size_t>(head.bytes));
    if (head.bytes > kFirstBytes) ranks.broadcast(message.data() + kFirstBytes, head.bytes - kFirstBytes, 0);
    if (auto error = ranks.error()) return std::unexpected(*std::move(error));
    const auto follower = std::ranges::find(followers, head.model, &Follower::number);
    if (follower == followers.end()) {
      ranks.fail({Code::kInternal, fmt::format("rank 0 runs model {}, which this rank does not follow", head.model)});
      continue;
    }
    try {
      follower->obey(head, message.data() + sizeof head);
    } catch (const std::exception& error) {
      ranks.fail(out_of_memory("the step", error));
    }
    if (head.kind == Kind::kEnd) followers.erase(follower);
  }
  return {};
}

Result<void> follow(OpenedModel& opened) {
  OpenedModel* const one[] = {&opened};
  return follow(one);
}

void begin_expert_move(OpenedModel& opened, std::shared_ptr<const params::ExpertPlacement> placement) {
  opened.leader->begin_move(*placement);
  opened.expert_move = std::make_shared<ExpertMove>(opened, std::move(placement));
}

Result<bool> finish_expert_move(OpenedModel& opened, bool wait) {
  opened.leader->finish_move(wait);
  return end_move(opened, wait);
}

Result<std::unique_ptr<loader::Update>> begin_update(OpenedModel& opened) {
  if (opened.leader) opened.leader->begin_update();
  return join_update(opened);
}

void collect_expert_tokens(const OpenedModel& opened) {
  if (opened.leader && opened.runtime->expert_tokens) opened.leader->collect_expert_tokens(*opened.runtime->expert_tokens);
}

void join(OpenedModel& opened) {
  static std::atomic<std::int32_t> last{0};
  comm::Comm& ranks = *opened.ranks;
  opened.number = ranks.rank() == 0 ? last.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
  ranks.broadcast(&opened.number, sizeof opened.number, 0);
  if (ranks.rank() != 0 || ranks.error()) return;
  opened.leader = std::make_shared<Leader>(opened.ranks, opened.number, opened.topology.tp_size);
  opened.model = std::make_unique<LeadingModel>(std::move(opened.model), opened.leader);
}

}  // namespace inflight::engine
