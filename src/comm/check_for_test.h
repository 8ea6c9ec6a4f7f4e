// What every backend must do, as functions of one rank: run on all ranks at the same time. Each returns what is wrong, or "".
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace inflight::comm::check {

inline std::uint32_t hash(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return static_cast<std::uint32_t>(x >> 32);
}

// Element i of a rank's vector: magnitudes far apart, so that another order of a sum gives other bits.
inline float element(int salt, int rank, std::int64_t i) {
  const std::uint32_t bits = hash(static_cast<std::uint64_t>(salt) << 48 ^ static_cast<std::uint64_t>(rank) << 40 ^ static_cast<std::uint64_t>(i));
  return std::ldexp(static_cast<float>(bits & 0xffff) - 32768.0f, static_cast<int>(bits >> 28) - 16);
}

inline std::vector<float> vector(int salt, int rank, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = element(salt, rank, i);
  return values;
}

// Sums of rows of ranks, one row a host, in rank order and then in host order.
inline float sum_in_order(int salt, const std::vector<std::vector<int>>& hosts, std::int64_t i) {
  float sum = 0;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    float here = element(salt, hosts[host][0], i);
    for (std::size_t r = 1; r < hosts[host].size(); ++r) here += element(salt, hosts[host][r], i);
    sum = host == 0 ? here : sum + here;
  }
  return sum;
}

// `hosts`: the group's ranks by host. most_elements: leaves out longer vectors.
inline std::string collectives(Comm& comm, int salt, const std::vector<std::vector<int>>& hosts, std::int64_t most_elements = 1000000) {
  const int size = comm.size(), rank = comm.rank();
  const auto wrong = [&](const char* what, std::int64_t n, std::int64_t i) {
    return std::string(what) + " of " + std::to_string(n) + " is wrong on rank " + std::to_string(rank) + " at " + std::to_string(i);
  };
  for (const std::int64_t n : {0, 1, 3, 15, 17, 100, 1000, 2049, 13001, 65536, 65537, 140001, 530001}) {
    if (n > most_elements) break;
    if (auto e = comm.error()) return e->message;
    std::vector<float> sum = vector(salt, rank, n), most = sum;
    comm.all_reduce_sum(sum.data(), n);
    comm.all_reduce_max(most.data(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      const float expected = sum_in_order(salt, hosts, i);
      if (std::memcmp(&sum[static_cast<std::size_t>(i)], &expected, 4) != 0) return wrong("all_reduce_sum", n, i);
      float largest = element(salt, 0, i);
      for (int r = 1; r < size; ++r) largest = std::max(largest, element(salt, r, i));
      if (most[static_cast<std::size_t>(i)] != largest) return wrong("all_reduce_max", n, i);
    }

    const std::vector<float> all = vector(salt + 1, rank, n * size);
    std::vector<float> part(static_cast<std::size_t>(n));
    comm.reduce_scatter_sum(all.data(), n, part.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const float expected = sum_in_order(salt + 1, hosts, rank * n + i);
      if (std::memcmp(&part[static_cast<std::size_t>(i)], &expected, 4) != 0) return wrong("reduce_scatter_sum", n, i);
    }

    const auto byte = [&](int from, int to, std::int64_t i) { return static_cast<std::uint8_t>(hash(static_cast<std::uint64_t>((salt * 64 + from) * 64 + to) << 32 ^ static_cast<std::uint64_t>(i))); };
    std::vector<std::uint8_t> mine(static_cast<std::size_t>(n)), gathered(static_cast<std::size_t>(n * size));
    for (std::int64_t i = 0; i < n; ++i) mine[static_cast<std::size_t>(i)] = byte(rank, 0, i);
    for (const bool in_place : {false, true}) {
      std::uint8_t* own = gathered.data() + rank * n;
      std::ranges::fill(gathered, std::uint8_t{0});
      if (in_place) std::ranges::copy(mine, own);
      comm.all_gather(in_place ? own : mine.data(), n, gathered.data());
      for (std::int64_t i = 0; i < n * size; ++i)
        if (gathered[static_cast<std::size_t>(i)] != byte(static_cast<int>(i / n), 0, i % n)) return wrong(in_place ? "all_gather in place" : "all_gather", n, i);
    }

    for (int root = 0; root < size; ++root) {
      for (std::int64_t i = 0; i < n; ++i) mine[static_cast<std::size_t>(i)] = rank == root ? byte(root, 1, i) : 0;
      comm.broadcast(mine.data(), n, root);
      for (std::int64_t i = 0; i < n; ++i)
        if (mine[static_cast<std::size_t>(i)] != byte(root, 1, i)) return wrong("broadcast", n, i);
    }

    // Blocks of unlike sizes, some empty.
    const auto bytes = [&](int from, int to) { return (from + to) % 3 == 0 ? std::int64_t{0} : n * ((from * 5 + to * 3) % 4) + to % 2; };
    std::vector<std::int64_t> send_bytes, receive_bytes;
    std::vector<std::uint8_t> send, expected;
    for (int r = 0; r < size; ++r) {
      send_bytes.push_back(bytes(rank, r));
      receive_bytes.push_back(bytes(r, rank));
      for (std::int64_t i = 0; i < send_bytes.back(); ++i) send.push_back(byte(rank, r, i));
      for (std::int64_t i = 0; i < receive_bytes.back(); ++i) expected.push_back(byte(r, rank, i));
    }
    std::vector<std::uint8_t> received(expected.size());
    comm.all_to_all(send.data(), send_bytes, received.data(), receive_bytes);
    if (received != expected) return wrong("all_to_all", n, 0);
    comm.barrier();
  }
  const auto error = comm.error();
  return error ? error->message : "";
}

// Groups split from it, and groups split from those. `host_of`: hosts of the group's ranks.
inline std::string splits(Comm& comm, const std::vector<int>& host_of, int depth = 0) {
  const auto group = [&](auto&& color) {
    std::vector<int> members;
    for (int r = 0; r < comm.size(); ++r)
      if (color(r) == color(comm.rank())) members.push_back(r);
    return members;
  };
  const auto check = [&](int mine, const std::vector<int>& members) -> std::string {
    const std::unique_ptr<Comm> part = comm.split(mine);
    if (!part) return comm.error() ? comm.error()->message : "split gave nothing and no error";
    if (part->size() != static_cast<int>(members.size())) return "split gave a group of " + std::to_string(part->size());
    if (members[static_cast<std::size_t>(part->rank())] != comm.rank()) return "split gave rank " + std::to_string(part->rank());
    std::vector<int> part_hosts;
    std::vector<std::vector<int>> hosts;
    std::vector<int> numbers;
    for (int r = 0; r < part->size(); ++r) {
      part_hosts.push_back(host_of[static_cast<std::size_t>(members[static_cast<std::size_t>(r)])]);
      std::size_t h = 0;
      while (h < numbers.size() && numbers[h] != part_hosts.back()) ++h;
      if (h == numbers.size()) {
        numbers.push_back(part_hosts.back());
        hosts.emplace_back();
      }
      hosts[h].push_back(r);
    }
    std::string wrong = collectives(*part, depth * 10 + mine, hosts, 20000);
    if (wrong.empty() && depth < 1) wrong = splits(*part, part_hosts, depth + 1);
    return wrong;
  };
  std::string wrong = check(comm.rank() % 2, group([](int r) { return r % 2; }));
  if (wrong.empty()) wrong = check(-comm.rank() / 2, group([](int r) { return -r / 2; }));
  return wrong;
}

}  // namespace inflight::comm::check
