#include "cli/format.h"

#include <gtest/gtest.h>

namespace inflight::cli {
namespace {

TEST(Format, bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(999'499), "999 kB");
  EXPECT_EQ(human_bytes(999'500), "1.00 MB");
  EXPECT_EQ(human_bytes(12'345'678), "12.3 MB");
  EXPECT_EQ(human_bytes(1'234'567'890), "1.23 GB");
  EXPECT_EQ(human_bytes(9'223'372'036'854'775'807), "9223 PB");
  EXPECT_EQ(human_bytes(-1500), "-1.50 kB");
}

TEST(Format, seconds) {
  EXPECT_EQ(human_seconds(0), "0.0 ms");
  EXPECT_EQ(human_seconds(0.00042), "0.4 ms");
  EXPECT_EQ(human_seconds(0.85), "850 ms");
  EXPECT_EQ(human_seconds(0.99999), "1.00 s");
  EXPECT_EQ(human_seconds(1.236), "1.24 s");
  EXPECT_EQ(human_seconds(59.999), "1 min 00 s");
  EXPECT_EQ(human_seconds(125), "2 min 05 s");
  EXPECT_EQ(human_seconds(3725), "1 h 02 min");
}

TEST(Format, rates_and_groups) {
  EXPECT_EQ(human_rate(0), "0");
  EXPECT_EQ(human_rate(0.4321), "0.43");
  EXPECT_EQ(human_rate(12.34), "12.3");
  EXPECT_EQ(human_rate(1234.5), "1234");
  EXPECT_EQ(gigabytes_per_second(3.41e9, 1), "3.41 GB/s");
  EXPECT_EQ(gigabytes_per_second(1, 0), "");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123456), "-123,456");
}

}  // namespace
}  // namespace inflight::cli
