#include "engine/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/e4m3.h"
#include "base/file.h"
#include "checkpoint/safetensors_writer.h"
#include "engine/test_folder.h"

namespace inflight::engine {
namespace {

using testing::HasSubstr;

PointStats stats_of(const std::vector<float>& values) {
  PointStats stats;
  stats.histogram.assign(Bins::kCount, 0);
  for (const float value : values) {
    stats.amax = std::max(stats.amax, std::abs(value));
    ++stats.histogram[static_cast<std::size_t>(Bins::of(value))];
  }
  return stats;
}

void write(const std::string& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

std::string error_of(const Result<Calibration>& result) { return result ? "" : result.error().message; }

TEST(Bins, every_bin_holds_its_beginning_and_ends_below_the_next) {
  EXPECT_EQ(Bins::kCount, 642);
  EXPECT_EQ(Bins::of(0.0f), 0);
  EXPECT_EQ(Bins::of(0x1.fffffep-25f), 0);
  EXPECT_EQ(Bins::of(0x1p-24f), 1);
  EXPECT_EQ(Bins::of(1.0f), 1 + 24 * 16);
  EXPECT_EQ(Bins::of(-1.0625f), 2 + 24 * 16);
  EXPECT_EQ(Bins::of(65535.0f), 640);
  EXPECT_EQ(Bins::of(65536.0f), 641);
  EXPECT_EQ(Bins::of(3e38f), 641);
  for (int bin = 1; bin < Bins::kCount; ++bin) {
    EXPECT_EQ(Bins::of(Bins::begin(bin)), bin);
    EXPECT_EQ(Bins::of(std::nextafter(Bins::begin(bin), 0.0f)), bin - 1);
  }
}

TEST(PointStats, percentiles_of_a_known_distribution) {
  std::vector<float> values;
  for (int i = 1; i <= 10000; ++i) values.push_back(static_cast<float>(i % 2 ? -i : i) / 100);  // |x| uniform up to 100
  const PointStats stats = stats_of(values);
  EXPECT_EQ(stats.values(), 10000);
  EXPECT_EQ(stats.absmax(), 100);
  EXPECT_EQ(stats.percentile(100), 100);
  for (const double p : {1.0, 10.0, 50.0, 90.0, 99.0, 99.9}) EXPECT_NEAR(stats.percentile(p), p, 0.02 * p + 0.01) << p;
}

TEST(PointStats, without_a_histogram_every_clip_is_the_maximum) {
  const PointStats stats{.amax = 3};
  EXPECT_EQ(stats.percentile(99), 3);
  EXPECT_EQ(stats.mse_clip(kE4m3Max), 3);
  EXPECT_TRUE(std::isnan(stats.sqnr(3, kE4m3Max)));
}

TEST(PointStats, a_point_of_zeros_has_a_scale_that_divides) {
  const PointStats stats = stats_of({0, 0, 0});
  EXPECT_EQ(stats.mse_clip(kE4m3Max), 0);
  EXPECT_EQ(PointStats::scale(stats.absmax(), kE4m3Max), 1 / kE4m3Max);
  EXPECT_TRUE(std::isfinite(1 / PointStats::scale(1e-44f, kE4m3Max)));
}

// The error that the histogram promises is the error of the values themselves.
TEST(PointStats, signal_to_noise_is_that_of_the_values) {
  std::vector<float> values;
  std::uint32_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    double sum = 0;
    for (int k = 0; k < 12; ++k) sum += (state = state * 1664525u + 1013904223u) / 4294967296.0;
    values.push_back(static_cast<float>(sum - 6));  // nearly normal
  }
  const PointStats stats = stats_of(values);
  for (const float bound : {kE4m3Max, kGaudiE4m3Max})
    for (const float clip : {stats.amax, stats.amax / 4}) {
      const float scale = clip / bound;
      double signal = 0, error = 0;
      for (const float x : values) {
        const double d = static_cast<double>(x) - static_cast<double>(e4m3_to_float(float_to_e4m3(x / scale, bound)) * scale);
        signal += static_cast<double>(x) * x;
        error += d * d;
      }
      EXPECT_NEAR(stats.sqnr(clip, bound), 10 * std::log10(signal / error), 0.1) << clip << " " << bound;
    }
}

// E4M3 has 17 octaves, so one far value costs the others little; one that is further away than that must be cut off.
TEST(PointStats, the_clip_that_loses_least) {
  std::vector<float> near(100000, 0.001f), far = near;
  near.push_back(1);
  far.push_back(0.3f);
  EXPECT_GE(stats_of(near).mse_clip(kE4m3Max), 0.5f);
  for (const auto& values : {near, far}) {
    const PointStats stats = stats_of(values);
    for (const float bound : {kE4m3Max, kGaudiE4m3Max}) {
      const float best = stats.mse_clip(bound);
      for (int i = 0; i <= 48; ++i) EXPECT_GE(stats.sqnr(best, bound), stats.sqnr(stats.amax * std::exp2(-static_cast<float>(i) / 8), bound));
    }
  }
  // Values of 2^-20 that outweigh one of 1: they round to zero (below half of the least step, clip * 2^-10 / 448) unless the clip is under 448 * 2^-10.
  PointStats wide;
  wide.amax = 1;
  wide.histogram.assign(Bins::kCount, 0);
  wide.histogram[static_cast<std::size_t>(Bins::of(0x1p-20f))] = std::int64_t{1} << 50;
  wide.histogram[static_cast<std::size_t>(Bins::of(1.0f))] = 1;
  EXPECT_LT(wide.mse_clip(kE4m3Max), 448 * 0x1p-10f);
}

TEST(Calibration, runs_merge_as_if_they_were_one) {
  const std::vector<float> a = {1, -2, 0.5f, 0}, b = {3, 0.25f, -0.125f};
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  Calibration one{.points = {{"x", stats_of(a)}, {"y", stats_of(a)}}, .metadata = {{"tokens", "4"}, {"model", "m"}, {"data", "a.txt"}}};
  const Calibration two{.points = {{"x", stats_of(b)}, {"z", stats_of(b)}}, .metadata = {{"tokens", "3"}, {"model", "m"}, {"data", "b.txt"}}, .windows = {{4}}};
  one.windows = {{1, 2}, {3}};
  one.points["x"].channels = {1, 2};
  Calibration other = two;
  other.points["x"].channels = {3, 0.25f};
  ASSERT_TRUE(one.merge(other));
  EXPECT_EQ(one.points.size(), 3u);
  EXPECT_EQ(one.points["x"].histogram, stats_of(both).histogram);
  EXPECT_EQ(one.points["x"].amax, 3);
  EXPECT_EQ(one.windows, (std::vector<std::vector<std::int32_t>>{{1, 2}, {3}, {4}}));
  EXPECT_EQ(one.points["x"].channels, (std::vector<float>{3, 2}));
  EXPECT_EQ(one.metadata, (std::map<std::string, std::string>{{"tokens", "7"}, {"model", "m"}, {"data", "a.txt, b.txt"}}));
  other.points["x"].channels = {1};
  const auto refused = one.merge(other);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("x: 2 channels here and 1 there"));
}

TEST(Calibration, seen_experts_beat_forced_ones_and_those_beat_others) {
  const auto with = [](float amax, Origin origin) { return PointStats{.amax = amax, .origin = origin}; };
  for (const bool exchanged : {false, true}) {
    Calibration a{.points = {{"l.experts.0.down", with(1, Origin::kSeen)}, {"l.experts.1.down", with(9, Origin::kForced)}, {"l.experts.2.down", with(1, Origin::kOthers)}}};
    Calibration b{.points = {{"l.experts.0.down", with(5, Origin::kOthers)}, {"l.experts.1.down", with(5, Origin::kSeen)}, {"l.experts.2.down", with(5, Origin::kOthers)}}};
    if (exchanged) std::swap(a, b);
    ASSERT_TRUE(a.merge(b));
    EXPECT_EQ(a.points["l.experts.0.down"].amax, 1);
    EXPECT_EQ(a.points["l.experts.1.down"].amax, 5);
    EXPECT_EQ(a.points["l.experts.1.down"].origin, Origin::kSeen);
    EXPECT_EQ(a.points["l.experts.2.down"].amax, 5);  // of the layer's other experts, now that all are known
    EXPECT_EQ(a.points["l.experts.2.down"].origin, Origin::kOthers);
  }
}

TEST(Calibration, experts_are_told_from_their_names) {
  EXPECT_EQ(expert_point("model.layers.3.mlp.experts.17.down").layer, "model.layers.3.mlp");
  EXPECT_EQ(expert_point("model.layers.3.mlp.experts.17.down").expert, 17);
  for (const char* point : {"model.layers.3.mlp.experts.down", "model.layers.3.mlp.shared_experts.down", "a.experts.", "a.experts.1", "a.experts.x.y", "a.experts.12345678901.y", ""})
    EXPECT_EQ(expert_point(point).expert, -1) << point;
}

TEST(CalibrationFile, own_form_comes_back) {
  const ScratchFolder scratch;
  Calibration calibration{.points = {{"a.q_matmul", stats_of({1, 2, 3.5f})}, {"b", {.amax = 0.1f}}, {"l.experts.0.d", stats_of({1, 2})}, {"l.experts.1.d", stats_of({7})}},
                          .metadata = {{"model", "tiny"}, {"tokens", "12"}}};
  calibration.points["a.q_matmul"].channels = {0, 3.5f, 2};
  calibration.points["l.experts.1.d"].origin = Origin::kForced;
  calibration.windows = {{1, 2, 3}, {7}, {0, 100000}};
  ASSERT_TRUE(write_calibration(calibration, scratch.at("c.safetensors")));
  const auto read = read_calibration(scratch.at("c.safetensors"));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->metadata, calibration.metadata);
  EXPECT_EQ(read->windows, calibration.windows);
  ASSERT_EQ(read->points.size(), 4u);
  for (const auto& [point, stats] : calibration.points) {
    const PointStats& got = *read->find(point);
    EXPECT_EQ(got.amax, stats.amax) << point;
    EXPECT_EQ(got.histogram, stats.histogram) << point;
    EXPECT_EQ(got.channels, stats.channels) << point;
    EXPECT_EQ(got.origin, stats.origin) << point;
  }
  EXPECT_EQ(read->find("c"), nullptr);
}

TEST(CalibrationFile, the_text_of_fast_deploy_comes_back) {
  const ScratchFolder scratch;
  const Calibration calibration{.points = {{"l.self_attn.cachev_matmul", {.amax = 0.1f}}, {"l.self_attn.q_matmul", {.amax = 8.191875457763672f}}}};
  ASSERT_TRUE(write_calibration_text(calibration, scratch.at("c.txt")));
  EXPECT_EQ(read_file(scratch.at("c.txt")).value(),
            "l.self_attn.cachev_matmul.activation_scale\t0.100000001\nl.self_attn.s_matmul.activation_scale\t1\nl.self_attn.q_matmul.activation_scale\t8.19187546\n");
  const auto read = read_calibration(scratch.at("c.txt"));
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->points.size(), 2u);
  for (const auto& [point, stats] : calibration.points) EXPECT_EQ(read->find(point)->amax, stats.amax);
}

TEST(CalibrationFile, an_expert_of_zero_takes_the_maximum_of_its_layer) {
  const auto read = parse_calibration_text("l.1.experts.0.d.activation_scale\t2.5\nl.1.experts.1.d.activation_scale\t0.0\r\nl.1.experts.2.d.activation_scale\t4e0\n\nl.2.experts.0.d.activation_scale\t9\n", "m.txt");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->find("l.1.experts.1.d")->amax, 4);
  EXPECT_EQ(read->find("l.1.experts.1.d")->origin, Origin::kOthers);
  EXPECT_EQ(read->find("l.1.experts.0.d")->origin, Origin::kSeen);
}

TEST(CalibrationFile, maxima_in_json) {
  const auto read = read_calibration(std::string(INFLIGHT_TEST_DATA) + "/tiny/tiny-ernie4_5-moe/fp8_amax.json");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->find("model.layers.0.self_attn.qkv_proj")->amax, 16.257991790771484f);
  EXPECT_EQ(read->find("model.layers.1.mlp.experts.6.down_proj")->amax, 51.68907165527344f);
}

TEST(CalibrationFile, texts_that_are_none) {
  EXPECT_THAT(error_of(parse_calibration_text("", "f")), HasSubstr("f: holds no calibrated point"));
  EXPECT_THAT(error_of(parse_calibration_text("a.activation_scale\t1\nb.weight\t2\n", "f")), HasSubstr("f line 2: expected `name.activation_scale<TAB>maximum`"));
  EXPECT_THAT(error_of(parse_calibration_text("a.activation_scale 1\n", "f")), HasSubstr("line 1"));
  EXPECT_THAT(error_of(parse_calibration_text("\n.activation_scale\t1\n", "f")), HasSubstr("line 2: a point is called \"\""));
  for (const char* value : {"", "x", "1x", "nan", "inf", "-1", "1e99", "0x1"}) EXPECT_NE(error_of(parse_calibration_text(std::string("a.activation_scale\t") + value, "f")), "") << value;
  EXPECT_THAT(error_of(parse_calibration_text("a.activation_scale\t1\na.activation_scale\t2\n", "f")), HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(error_of(parse_calibration_text("<html>\x80\n", "f")), HasSubstr("\\x80"));
}

TEST(CalibrationFile, json_that_is_none) {
  for (const char* text : {"{}", "{", "[1]", "3", R"({"a": "1"})", R"({"a": null})", R"({"a": [1]})", R"({"a": {}})", R"({"a": -1})", R"({"a": 1e39})", R"({"a": 1e999})", R"({"": 1})", R"({"a": 1} x)",
                           R"({"a": 1, "a": 2})", R"({"a.activation_scale": 1, "a": 2})"})
    EXPECT_NE(error_of(parse_calibration_json(text, "f.json")), "") << text;
  EXPECT_THAT(error_of(parse_calibration_json(R"({"a": 1, "a": 2})", "f.json")), HasSubstr("f.json: point \"a\" is there twice"));
}

struct Own {
  std::vector<checkpoint::TensorSpec> tensors;
  std::map<std::string, std::vector<char>> data;
  std::map<std::string, std::string> metadata = {{"format", "inflight-calibration"}, {"version", "1"}};

  template <class T>
  Own& add(const std::string& name, DType dtype, const std::vector<T>& values) {
    tensors.push_back({name, dtype, {static_cast<std::int64_t>(values.size())}});
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    data[name].assign(bytes, bytes + values.size() * sizeof(T));
    return *this;
  }
  Result<Calibration> read() const {
    const ScratchFolder scratch;
    auto writer = checkpoint::SafetensorsWriter::create(scratch.at("c"), tensors, metadata).value();
    for (const auto& tensor : tensors) writer.write(tensor.name, data.at(tensor.name).data(), data.at(tensor.name).size()).value();
    writer.commit().value();
    return read_calibration(scratch.at("c"));
  }
};

TEST(CalibrationFile, own_form_that_contradicts_itself) {
  const std::vector<float> one = {1};
  std::vector<std::int64_t> histogram(Bins::kCount);
  histogram[static_cast<std::size_t>(Bins::of(1.0f))] = 3;
  EXPECT_EQ(error_of(Own().add("a.activation_histogram", DType::kI64, histogram).add("a.activation_amax", DType::kF32, one).read()), "");
  EXPECT_THAT(error_of(Own().read()), HasSubstr("holds no calibrated point"));
  Own weights = Own().add("a.weight", DType::kF32, one);
  EXPECT_THAT(error_of(weights.read()), HasSubstr("\"a.weight\" has no place"));
  weights.metadata = {{"format", "pt"}};
  EXPECT_THAT(error_of(weights.read()), HasSubstr("but no calibration: its \"format\" is \"pt\""));
  weights.metadata = {{"format", "inflight-calibration"}, {"version", "2"}};
  EXPECT_THAT(error_of(weights.read()), HasSubstr("calibration of version \"2\""));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, std::vector<float>{1, 2}).read()), HasSubstr("expected one F32"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kI32, std::vector<std::int32_t>{1}).read()), HasSubstr("expected one F32"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, std::vector<float>{-1}).read()), HasSubstr("which no |x| can be"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, std::vector<float>{NAN}).read()), HasSubstr("which no |x| can be"));
  EXPECT_THAT(error_of(Own().add("b.activation_histogram", DType::kI64, histogram).add("a.activation_amax", DType::kF32, one).read()), HasSubstr("\"b.activation_amax\" is not"));
  EXPECT_THAT(error_of(Own().add("a.activation_histogram", DType::kI64, std::vector<std::int64_t>{1}).add("a.activation_amax", DType::kF32, one).read()), HasSubstr("expected I64 of 642 bins"));
  for (const std::int64_t count : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    auto bad = histogram;
    bad[0] = count;
    EXPECT_THAT(error_of(Own().add("a.activation_histogram", DType::kI64, bad).add("a.activation_amax", DType::kF32, one).read()), HasSubstr("values in a bin"));
  }
  EXPECT_THAT(error_of(Own().add("a.activation_histogram", DType::kI64, histogram).add("a.activation_amax", DType::kF32, std::vector<float>{2}).read()), HasSubstr("its histogram ends at"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, one).add("a.activation_channels", DType::kF32, std::vector<float>{0.5f, 1.5f}).read()), HasSubstr("all together 1"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, one).add("a.activation_channels", DType::kF32, std::vector<float>{NAN}).read()), HasSubstr("has maximum nan"));
  Own listed = Own().add("a.activation_amax", DType::kF32, one);
  listed.metadata["forced_points"] = "b\n";
  EXPECT_THAT(error_of(listed.read()), HasSubstr("\"forced_points\" names \"b\""));
  const auto with_tokens = [&](const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& lengths) {
    return error_of(Own().add("a.activation_amax", DType::kF32, one).add("tokens", DType::kI32, tokens).add("windows", DType::kI32, lengths).read());
  };
  EXPECT_EQ(with_tokens({1, 2, 3}, {1, 2}), "");
  EXPECT_THAT(with_tokens({1, 2, 3}, {1, 1}), HasSubstr("its 2 windows are not of the 3 tokens"));
  EXPECT_THAT(with_tokens({1, 2, 3}, {1, 2147483647}), HasSubstr("its 2 windows are not of the 3 tokens"));
  EXPECT_THAT(with_tokens({1, 2, 3}, {0, 3}), HasSubstr("\"windows\" holds 0, expected 1 or more"));
  EXPECT_THAT(with_tokens({1, -2, 3}, {3}), HasSubstr("\"tokens\" holds -2, expected 0 or more"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, one).add("tokens", DType::kI32, std::vector<std::int32_t>{1}).read()), HasSubstr("its 0 windows are not of the 1 tokens"));
  EXPECT_THAT(error_of(Own().add("a.activation_amax", DType::kF32, one).add("tokens", DType::kF32, one).read()), HasSubstr("expected I32"));
}

TEST(CalibrationFile, a_cut_file_is_refused) {
  const ScratchFolder scratch;
  ASSERT_TRUE(write_calibration({.points = {{"a", stats_of({1, 2})}}}, scratch.at("c")));
  const std::string bytes = read_file(scratch.at("c")).value();
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{60}, bytes.size() - 1}) {
    write(scratch.at("cut"), bytes.substr(0, size));
    EXPECT_FALSE(read_calibration(scratch.at("cut"))) << size;
  }
  EXPECT_EQ(read_calibration(scratch.at("missing")).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace inflight::engine
