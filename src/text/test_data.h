// For this room's tests: test data, digests, throw-away model folders.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace inflight::text {

inline std::string data_path(const std::string& relative) { return std::string(INFLIGHT_TEST_DATA) + "/" + relative; }

// Loaded once per program: Qwen3's tokenizer.json takes about half a second.
inline const Tokenizer& real_tokenizer(const std::string& family) {
  static const Tokenizer qwen3 = Tokenizer::load(data_path("tokenizers/qwen3")).value();
  static const Tokenizer smollm2 = Tokenizer::load(data_path("tokenizers/smollm2")).value();
  return family == "qwen3" ? qwen3 : smollm2;
}

// SHA-256, FIPS 180-4, in hexadecimal.
inline std::string sha256(std::string_view text) {
  // The first 32 bits of the fractional parts of the cube roots of the first 64 primes, and of the square roots of the first 8.
  std::array<std::uint32_t, 64> k{};
  std::array<std::uint32_t, 8> h{};
  const auto root_bits = [](std::uint64_t prime, bool cube) {
    // floor(root * 2^32) mod 2^32, by bisection in integers.
    unsigned __int128 low = 0, high = static_cast<unsigned __int128>(1) << 37;
    const int shift = cube ? 96 : 64;
    const auto fits = [&](unsigned __int128 x) {
      if (!cube) return x * x <= static_cast<unsigned __int128>(prime) << shift;
      return x * x <= (static_cast<unsigned __int128>(prime) << shift) / (x == 0 ? 1 : x);
    };
    while (high - low > 1) {
      const auto middle = (low + high) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return static_cast<std::uint32_t>(low);
  };
  for (std::uint64_t prime = 2, n = 0; n < 64; ++prime) {
    bool is_prime = true;
    for (std::uint64_t d = 2; d * d <= prime; ++d) is_prime = is_prime && prime % d != 0;
    if (!is_prime) continue;
    k[n] = root_bits(prime, true);
    if (n < 8) h[n] = root_bits(prime, false);
    ++n;
  }

  std::string padded(text);
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  for (int i = 7; i >= 0; --i) padded += static_cast<char>((static_cast<std::uint64_t>(text.size()) * 8) >> (8 * i));

  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<std::uint8_t>(padded[block + i * 4 + b]);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto v = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = v[7] + (std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const std::uint32_t t2 = (std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string hex;
  for (const std::uint32_t word : h) hex += fmt::format("{:08x}", word);
  return hex;
}

inline std::string comma_joined(std::span<const std::int32_t> ids) {
  std::string text;
  for (const std::int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

inline std::string sha256_of_ids(std::span<const std::int32_t> ids) { return sha256(comma_joined(ids)); }

// A folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "inflight-text-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ + "/" + name, std::ios::binary) << text; }

 private:
  std::string path_;
};

}  // namespace inflight::text
