// Numbers as people read them. Decimal units: 1 GB is 10^9 bytes.
#pragma once
#include <cstdint>
#include <string>

namespace inflight::cli {

std::string human_bytes(std::int64_t bytes);              // "999 B", "1.23 MB", "1.23 GB"
std::string human_seconds(double seconds);                // "0.4 ms", "850 ms", "1.24 s", "2 min 05 s"
std::string human_rate(double per_second);                // "0.43", "12.3", "1234": three digits or more
std::string gigabytes_per_second(double bytes, double seconds);  // "3.41 GB/s"; "" when no time passed
std::string grouped(std::int64_t number);                 // "1,234,567"

}  // namespace inflight::cli
