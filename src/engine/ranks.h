// Several ranks that run one model: rank 0 leads, the others follow. Rank 0 alone schedules, samples and talks to anyone; its model's forward() tells the others
// of the step, and then every rank computes its share of it.
//
//     auto opened = TRY(open_model(folder, options, progress, ranks));          // on every rank
//     if (ranks->rank() != 0) return follow(*opened);                           // until rank 0 drops its model, or a rank fails
//     auto engine = TRY(Engine::create(std::move(opened), options));            // as on one rank
//
// A rank that fails ends the group: every later collective returns at once, forward() gives nothing sensible, and failure() says which rank and why.
#pragma once
#include <memory>
#include <optional>
#include <span>

#include "engine/memory_limit.h"
#include "engine/open_model.h"
#include "loader/update.h"
#include "nn/kv_cache.h"

namespace inflight::engine {

// A KV cache for the model's steps; on rank 0 of several, the other ranks make theirs too. Dropping it drops theirs. It must not outlive the model.
Result<std::shared_ptr<nn::KvCache>> create_cache(OpenedModel& opened, const nn::KvShape& shape, std::int64_t blocks);
// nn::KvCache::repeat of a cache that create_cache made, on every rank.
void repeat_cache(OpenedModel& opened, nn::KvCache& cache, std::int64_t sequences, std::int64_t blocks_per_sequence, std::int64_t filled, std::int64_t upto);

// What the KV cache of each rank may take from: of several ranks the smallest of all, where ranks of one host share what is free there equally.
Result<MemoryLimit> memory_for_cache(OpenedModel& opened);

// Why the ranks that run the model can go on no more. nullopt: they can, or there is one rank.
std::optional<Error> failure(const OpenedModel& opened);

// Does what rank 0 says, for each of the models, until it has dropped all of them. Given in the order in which they were opened; they share one group.
// An error: a rank failed, this one perhaps.
Result<void> follow(std::span<OpenedModel* const> models);
Result<void> follow(OpenedModel& opened);

// Where Runtime::expert_tokens counts on rank 0: adds what other groups of ranks (data-parallel attention) have counted since the last call.
void collect_expert_tokens(const OpenedModel& opened);

// On rank 0: every rank begins to move to the placement (expert_move.h), and computes on meanwhile.
void begin_expert_move(OpenedModel& opened, std::shared_ptr<const params::ExpertPlacement> placement);
// On rank 0, between steps: true once all ranks have what comes to them and have switched; false: some still load. wait: not before it is over. An error: a rank could
// not load its experts; then all keep the placement they had.
Result<bool> finish_expert_move(OpenedModel& opened, bool wait);

// On rank 0, or one rank alone, between steps: new weights begin to come, to every rank. It must not outlive the model, which makes no step meanwhile.
Result<std::unique_ptr<loader::Update>> begin_update(OpenedModel& opened);

// For open_model(). On rank 0 of a group: makes the opened model's forward() lead. On others: remembers which model of rank 0's it is. A collective.
void join(OpenedModel& opened);

}  // namespace inflight::engine
