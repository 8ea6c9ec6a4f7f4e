#include "comm/agree.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "comm/gather.h"

namespace inflight::comm {
namespace {

void put(std::string& bytes, std::string_view text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.append(text);
}

std::string_view take(std::string_view& bytes) {
  std::uint32_t length = 0;
  if (bytes.size() < sizeof length) return {};
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string_view text = bytes.substr(sizeof length, length);
  bytes.remove_prefix(sizeof length + text.size());
  return text;
}

std::vector<Fact> unpacked(std::string_view bytes) {
  std::vector<Fact> facts;
  while (!bytes.empty()) {
    const std::string_view name = take(bytes), value = take(bytes);
    facts.emplace_back(name, value);
  }
  return facts;
}

const std::string* value_of(std::span<const Fact> facts, const std::string& name) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) { return fact.first == name; });
  return found == facts.end() ? nullptr : &found->second;
}

// "": none.
std::string difference(int rank, std::span<const Fact> mine, std::span<const Fact> first) {
  for (const auto& [name, value] : first) {
    const std::string* own = value_of(mine, name);
    if (own == nullptr) return fmt::format("rank {} knows no {}; that of rank 0 is \"{}\"", rank, name, value);
    if (*own != value) return fmt::format("{} of rank {} is \"{}\", that of rank 0 \"{}\"; all ranks need the same", name, rank, *own, value);
  }
  for (const auto& [name, value] : mine)
    if (value_of(first, name) == nullptr) return fmt::format("{} of rank {} is \"{}\"; rank 0 knows none", name, rank, value);
  return "";
}

}  // namespace

Result<void> agree(Comm& comm, std::span<const Fact> facts) {
  comm.state("comparing options and checkpoints of the ranks");
  std::string bytes;
  for (const auto& [name, value] : facts) {
    put(bytes, name);
    put(bytes, value);
  }
  auto length = static_cast<std::int64_t>(bytes.size());
  comm.broadcast(&length, sizeof length, 0);
  if (auto error = comm.error()) return std::unexpected(*error);
  if (comm.rank() != 0) bytes.resize(static_cast<std::size_t>(length));
  comm.broadcast(bytes.data(), length, 0);
  if (auto error = comm.error()) return std::unexpected(*error);

  using Text = std::array<char, 1024>;
  Text mine{};
  const std::string found = difference(comm.rank(), facts, unpacked(bytes));
  std::copy_n(found.begin(), std::min(found.size(), mine.size() - 1), mine.begin());
  std::vector<Text> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(mine.data(), sizeof mine, all.data());
  if (auto error = comm.error()) return std::unexpected(*error);
  for (const Text& text : all)
    if (text[0] != 0) return fail(Code::kInvalidArgument, "{}", text.data());
  return {};
}

std::optional<RankError> first_error(Comm& comm, const std::optional<Error>& mine) {
  struct Outcome {
    bool failed = false;
    Code code = Code::kInternal;
    char message[1024] = {};
  };
  Outcome own{.failed = mine.has_value()};
  if (mine) {
    own.code = mine->code;
    mine->message.copy(own.message, sizeof own.message - 1);
  }
  const std::vector<Outcome> all = gather(comm, own);
  if (comm.error()) return std::nullopt;
  const auto failed = std::find_if(all.begin(), all.end(), [](const Outcome& outcome) { return outcome.failed; });
  if (failed == all.end()) return std::nullopt;
  return RankError{static_cast<int>(failed - all.begin()), {failed->code, failed->message}};
}

}  // namespace inflight::comm
