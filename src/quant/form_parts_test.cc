// Stored forms taken apart. Codes are made by a rule, laid out here as docs/formats/ says, and must come back, for rows in the middle as for all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/bf16.h"
#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

using testing::HasSubstr;

int code_at(std::int64_t n, std::int64_t k, int codes) { return static_cast<int>((3 * n + 5 * k + n * k) % codes); }
int zero_at(std::int64_t n, std::int64_t g, int codes) { return static_cast<int>((7 * n + 3 * g + 2) % codes); }
float scale_at(std::int64_t n, std::int64_t g) { return 0.0625f * static_cast<float>(1 + n % 5 + 2 * g); }  // exact in FP16 and BF16

// A tensor of a form in memory, rows of `stride` bytes.
struct File {
  std::vector<std::byte> bytes;
  std::int64_t stride = 0;
  DType dtype = DType::kI32;

  File() = default;
  File(std::int64_t rows, std::int64_t row_bytes, DType type) : bytes(static_cast<std::size_t>(rows * row_bytes + 1)), stride(row_bytes), dtype(type) {}
  std::byte* at(std::int64_t row) { return bytes.data() + 1 + row * stride; }  // no alignment
  void add_word(std::int64_t row, std::int64_t word, std::uint32_t bits) {
    const std::uint32_t now = word_at(at(row) + word * 4) | bits;
    std::memcpy(at(row) + word * 4, &now, 4);
  }
  void set_half(std::int64_t row, std::int64_t i, std::uint16_t half) { std::memcpy(at(row) + i * 2, &half, 2); }
  void set_float(std::int64_t row, std::int64_t i, float value) { std::memcpy(at(row) + i * 4, &value, 4); }
  // As the loader gives it for outputs from `first` on.
  FormBytes view(Reach reach, std::int64_t unit, std::int64_t first, std::int64_t rows) {
    if (bytes.empty()) return {};
    const std::int64_t step = first / unit;
    if (reach == Reach::kRows) return {at(step * rows), stride * rows, step * unit, dtype};
    if (reach == Reach::kColumns) return {at(0) + step * dtype_bits(dtype) / 8, stride, step * unit, dtype};
    return {at(0), stride, 0, dtype};
  }
};

// A matrix in a form: settings, its tensors in the form's order.
struct Stored {
  const StoredForm* form;
  FormSettings settings;
  std::int64_t outputs, inputs;
  std::vector<File> files;

  std::vector<FormTensor> tensors() const { return form->tensors(settings, outputs, inputs).value(); }
};

struct Taken {
  Result<void> result;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, offsets, numbers;
};

Taken take(Stored& stored, std::int64_t first, int rows, std::int64_t origin_back = 0) {
  const FormSettings& s = stored.settings;
  RowParts parts{.kind = s.kind, .rows = rows, .inputs = stored.inputs, .group = s.group};
  Taken taken;
  taken.codes.resize(static_cast<std::size_t>(rows * stored.inputs));
  taken.scales.resize(static_cast<std::size_t>(rows * parts.groups()));
  taken.offsets.resize(taken.scales.size());
  taken.numbers.resize(taken.codes.size());
  parts.codes = taken.codes.data();
  parts.scales = taken.scales.data();
  if (s.offsets) parts.offsets = taken.offsets.data();
  if (s.order) parts.order = s.order->data();
  std::vector<FormBytes> bytes;
  const auto tensors = stored.tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) bytes.push_back(t < stored.files.size() ? stored.files[t].view(tensors[t].reach, tensors[t].unit, first - origin_back, tensors[t].rows) : FormBytes{});
  taken.result = stored.form->take_apart(s, bytes, first, parts);
  if (taken.result) dequantize_parts(parts, taken.numbers.data());
  return taken;
}

// Every row of `stored`, taken in several ways, is `value(n, k)`.
template <class Value>
void expect_numbers(Stored& stored, Value value) {
  struct Span { std::int64_t first; int rows; std::int64_t back; };
  for (const Span span : {Span{0, 16, 0}, Span{0, 1, 0}, Span{16, 8, 0}, Span{13, 3, 0}, Span{21, 3, 5}, Span{5, 11, 5}}) {
    ASSERT_LE(span.first + span.rows, stored.outputs);
    const Taken taken = take(stored, span.first, span.rows, span.back);
    ASSERT_TRUE(taken.result) << taken.result.error().message;
    for (int r = 0; r < span.rows; ++r)
      for (std::int64_t k = 0; k < stored.inputs; ++k)
        ASSERT_EQ(taken.numbers[static_cast<std::size_t>(r * stored.inputs + k)], value(span.first + r, k)) << "output " << span.first + r << ", input " << k << ", from " << span.first;
  }
}

Stored gptq(int bits, std::int64_t group, bool offsets, int zero_bias, std::vector<std::int32_t> groups = {}) {
  const std::int64_t N = 24, K = 48, per = 32 / bits, G = group == 0 ? 1 : (K + group - 1) / group;
  const int codes = 1 << bits, bias = zero_bias;
  Stored s{&gptq_form(), {.kind = bits == 4 ? CodeKind::kU4 : CodeKind::kU8, .bits = bits, .group = group, .offsets = offsets, .zero_bias = zero_bias, .order = {}}, N, K, {}};
  File codes_file(K / per, N * 4, DType::kI32), zeros(G, N / per * 4, DType::kI32), scales(G, N * 2, DType::kF16);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t k = 0; k < K; ++k) codes_file.add_word(k / per, n, static_cast<std::uint32_t>(code_at(n, k, codes)) << (k % per * bits));
    for (std::int64_t g = 0; g < G; ++g) {
      const int zero = offsets ? std::max(zero_at(n, g, codes), 1) : codes / 2;
      zeros.add_word(g, n / per, static_cast<std::uint32_t>(zero - bias) << (n % per * bits));
      scales.set_half(g, n, float_to_fp16(scale_at(n, g)));
    }
  }
  s.files = {codes_file, zeros, scales};
  if (!groups.empty()) {
    EXPECT_TRUE(set_order(s.settings, groups));
    EXPECT_TRUE(s.settings.order);
  }
  return s;
}

TEST(Gptq, codes_scales_and_zero_points_come_back) {
  for (const int bits : {4, 8})
    for (const std::int64_t group : {0, 16, 32})
      for (const int bias : {0, 1}) {
        Stored asymmetric = gptq(bits, group, true, bias);
        const std::int64_t per_group = group == 0 ? 48 : group;
        expect_numbers(asymmetric, [&](std::int64_t n, std::int64_t k) {
          return scale_at(n, k / per_group) * static_cast<float>(code_at(n, k, 1 << bits) - std::max(zero_at(n, k / per_group, 1 << bits), 1));
        });
        Stored symmetric = gptq(bits, group, false, bias);
        expect_numbers(symmetric, [&](std::int64_t n, std::int64_t k) { return scale_at(n, k / per_group) * static_cast<float>(code_at(n, k, 1 << bits) - (1 << (bits - 1))); });
      }
}

TEST(Gptq, codes_come_sorted_by_group_where_groups_are_not_consecutive) {
  std::vector<std::int32_t> groups;
  for (std::int32_t k = 0; k < 48; ++k) groups.push_back(k * 5 % 3);  // every third input
  Stored stored = gptq(4, 16, true, 1, groups);
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) {
    const int g = groups[static_cast<std::size_t>(k)];
    return scale_at(n, g) * static_cast<float>(code_at(n, k, 16) - std::max(zero_at(n, g, 16), 1));
  });
  const Taken taken = take(stored, 0, 1);
  EXPECT_EQ(taken.codes[1], code_at(0, 3, 16));  // the second input of group 0 is input 3
}

TEST(Gptq, a_zero_point_of_zero_borrowed_from_its_neighbours) {
  Stored stored = gptq(4, 0, true, 1);
  const std::uint32_t stored_words = 0x00000010u - 0x11111111u;  // output 1 has 1, all others 0, less one each
  for (std::int64_t w = 0; w < 3; ++w) std::memcpy(stored.files[1].at(0) + w * 4, &stored_words, 4);
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, 0) * static_cast<float>(code_at(n, k, 16) - (n % 8 == 1 ? 1 : 0)); });
}

TEST(Gptq, what_contradicts_itself_is_an_error) {
  Stored symmetric = gptq(4, 16, false, 1);
  symmetric.settings.zero_bias = 0;  // zero points of the first version read as the second's
  EXPECT_THAT(take(symmetric, 0, 4).result.error().message, testing::AllOf(HasSubstr("row 0, group 0: zero point 7"), HasSubstr("sym")));
  for (const float bad : {-0.5f, INFINITY, NAN}) {
    Stored stored = gptq(4, 16, true, 1);
    stored.files[2].set_half(2, 17, float_to_fp16(bad));
    EXPECT_TRUE(take(stored, 0, 16).result);
    EXPECT_THAT(take(stored, 16, 4).result.error().message, HasSubstr("row 17, columns from 32 on: scale"));
  }
  EXPECT_FALSE(gptq_form().tensors({.bits = 4, .order = {}}, 24, 50));
  EXPECT_FALSE(gptq_form().tensors({.bits = 4, .order = {}}, 20, 48));
}

TEST(Gptq, tensors_are_as_documented) {
  const auto tensors = gptq_form().tensors({.bits = 8, .group = 32, .offsets = true, .ordered = true, .order = {}}, 24, 80).value();
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{20, 24}));
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{3, 6}));
  EXPECT_EQ(tensors[2].shape, (std::vector<std::int64_t>{3, 24}));
  EXPECT_EQ(tensors[3].suffix, "g_idx");
  EXPECT_FALSE(tensors[1].optional);
  EXPECT_FALSE(tensors[3].optional);
}

TEST(Awq, nibbles_hold_even_outputs_first) {
  const std::int64_t N = 24, K = 44, group = 16, G = 3;
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  Stored stored{&awq_form(), {.group = group, .offsets = true, .order = {}}, N, K, {}};
  File codes(K, N / 2, DType::kI32), zeros(G, N / 2, DType::kI32), scales(G, N * 2, DType::kF16);
  for (std::int64_t w = 0; w < N / 8; ++w)
    for (int i = 0; i < 8; ++i) {
      const std::int64_t n = w * 8 + kOrder[i];
      for (std::int64_t k = 0; k < K; ++k) codes.add_word(k, w, static_cast<std::uint32_t>(code_at(n, k, 16)) << (4 * i));
      for (std::int64_t g = 0; g < G; ++g) {
        zeros.add_word(g, w, static_cast<std::uint32_t>(zero_at(n, g, 16)) << (4 * i));
        scales.set_half(g, n, float_to_fp16(scale_at(n, g)));
      }
    }
  stored.files = {codes, zeros, scales};
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, k / group) * static_cast<float>(code_at(n, k, 16) - zero_at(n, k / group, 16)); });
  EXPECT_FALSE(awq_form().tensors(stored.settings, 20, K));
  stored.files[1] = {};
  stored.settings.offsets = false;
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, k / group) * static_cast<float>(code_at(n, k, 16) - 8); });
}

Stored packed(int bits, std::int64_t K, std::int64_t group, bool offsets, std::vector<std::int32_t> groups = {}) {
  const std::int64_t N = 24, per = 32 / bits, G = group == 0 ? 1 : (K + group - 1) / group;
  const int codes = 1 << bits;
  Stored s{&compressed_form(), {.kind = bits == 4 ? CodeKind::kU4 : CodeKind::kU8, .bits = bits, .group = group, .offsets = offsets, .order = {}}, N, K, {}};
  File words(N, (K + per - 1) / per * 4, DType::kI32), scales(N, G * 2, DType::kBF16), zeros((N + per - 1) / per, G * 4, DType::kI32), shape(1, 16, DType::kI64);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t k = 0; k < K; ++k) words.add_word(n, k / per, static_cast<std::uint32_t>(code_at(n, k, codes)) << (k % per * bits));
    for (std::int64_t g = 0; g < G; ++g) {
      scales.set_half(n, g, float_to_bf16(scale_at(n, g)));
      zeros.add_word(n / per, g, static_cast<std::uint32_t>(zero_at(n, g, codes)) << (n % per * bits));
    }
  }
  const std::int64_t sides[2] = {N, K};
  std::memcpy(shape.at(0), sides, 16);
  s.files = {words, scales, offsets ? zeros : File{}, shape};
  if (!groups.empty()) EXPECT_TRUE(set_order(s.settings, groups));
  return s;
}

TEST(Compressed, packed_words_and_zero_points_come_back) {
  for (const int bits : {4, 8})
    for (const std::int64_t group : {0, 16})
      for (const std::int64_t K : {48, 45}) {
        const std::int64_t per_group = group == 0 ? K : group;
        Stored asymmetric = packed(bits, K, group, true);
        expect_numbers(asymmetric, [&](std::int64_t n, std::int64_t k) {
          return scale_at(n, k / per_group) * static_cast<float>(code_at(n, k, 1 << bits) - zero_at(n, k / per_group, 1 << bits));
        });
        Stored symmetric = packed(bits, K, group, false);
        expect_numbers(symmetric, [&](std::int64_t n, std::int64_t k) { return scale_at(n, k / per_group) * static_cast<float>(code_at(n, k, 1 << bits) - (1 << (bits - 1))); });
      }
}

TEST(Compressed, groups_that_are_not_consecutive) {
  std::vector<std::int32_t> groups;
  for (std::int32_t k = 0; k < 48; ++k) groups.push_back((k * 7 + 1) % 3);
  Stored stored = packed(4, 48, 16, true, groups);
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) {
    const int g = groups[static_cast<std::size_t>(k)];
    return scale_at(n, g) * static_cast<float>(code_at(n, k, 16) - zero_at(n, g, 16));
  });
}

TEST(Compressed, another_shape_than_the_models_is_an_error) {
  Stored stored = packed(4, 48, 16, true);
  const std::int64_t columns = 40;
  std::memcpy(stored.files[3].at(0) + 8, &columns, 8);
  EXPECT_THAT(take(stored, 0, 4).result.error().message, HasSubstr("40 columns, the model's matrix has 48"));
}

TEST(Compressed, int8_one_a_byte) {
  for (const bool offsets : {false, true})
    for (const std::int64_t group_rows : {0, 1}) {
      const std::int64_t N = 24, K = 37;
      Stored stored{&compressed_form(), {.kind = CodeKind::kU8, .bits = 8, .group_rows = group_rows, .offsets = offsets, .packed = false, .order = {}}, N, K, {}};
      File codes(N, K, DType::kI8), scales(group_rows == 0 ? 1 : N, 4, DType::kF32), zeros(group_rows == 0 ? 1 : N, 1, DType::kI8);
      const auto row = [&](std::int64_t n) { return group_rows == 0 ? 0 : n; };
      for (std::int64_t n = 0; n < N; ++n) {
        for (std::int64_t k = 0; k < K; ++k) codes.at(n)[k] = static_cast<std::byte>(code_at(n, k, 256) - 128);
        scales.set_float(row(n), 0, scale_at(row(n), 0));
        *zeros.at(row(n)) = static_cast<std::byte>(zero_at(row(n), 0, 256) - 128);
      }
      stored.files = {codes, scales, offsets ? zeros : File{}};
      expect_numbers(stored, [&](std::int64_t n, std::int64_t k) {
        return scale_at(row(n), 0) * static_cast<float>(code_at(n, k, 256) - 128 - (offsets ? zero_at(row(n), 0, 256) - 128 : 0));
      });
    }
}

TEST(Compressed, int4_one_a_byte_and_codes_out_of_range) {
  const std::int64_t N = 24, K = 20;
  Stored stored{&compressed_form(), {.kind = CodeKind::kU4, .bits = 4, .packed = false, .order = {}}, N, K, {}};
  File codes(N, K, DType::kI8), scales(N, 4, DType::kF32);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t k = 0; k < K; ++k) codes.at(n)[k] = static_cast<std::byte>(code_at(n, k, 16) - 8);
    scales.set_float(n, 0, scale_at(n, 0));
  }
  stored.files = {codes, scales};
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, 0) * static_cast<float>(code_at(n, k, 16) - 8); });
  stored.files[0].at(3)[7] = static_cast<std::byte>(9);
  EXPECT_THAT(take(stored, 2, 4).result.error().message, HasSubstr("row 3, column 7: code 9"));
}

// 0 to 0x7e and their negatives; values of some by hand: 0x38 is 1, 0x01 is 2^-9, 0x7e is 448.
std::uint8_t fp8_at(std::int64_t n, std::int64_t k) {
  const int code = code_at(n, k, 256);
  return static_cast<std::uint8_t>((code & 0x7f) == 0x7f ? 0 : code);
}
float fp8_value(std::uint8_t code) {
  const float magnitude = (code & 0x78) == 0 ? std::ldexp(static_cast<float>(code & 7), -9) : std::ldexp(1.0f + static_cast<float>(code & 7) / 8, (code >> 3 & 15) - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

Stored fp8(const StoredForm& form, std::int64_t rows, std::int64_t columns, DType scale_type) {
  const std::int64_t N = 24, K = 45, G = columns == 0 ? 1 : (K + columns - 1) / columns, R = rows == 0 ? 1 : (N + rows - 1) / rows;
  Stored s{&form, {.kind = CodeKind::kE4M3, .bits = 8, .group = columns, .group_rows = rows, .packed = false, .order = {}}, N, K, {}};
  File codes(N, K, DType::kF8E4M3), scales(R, G * dtype_bits(scale_type) / 8, scale_type);
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t k = 0; k < K; ++k) codes.at(n)[k] = static_cast<std::byte>(fp8_at(n, k));
  for (std::int64_t r = 0; r < R; ++r)
    for (std::int64_t g = 0; g < G; ++g) {
      if (scale_type == DType::kF32) scales.set_float(r, g, scale_at(r, g));
      else scales.set_half(r, g, float_to_bf16(scale_at(r, g)));
    }
  s.files = {codes, scales};
  return s;
}

TEST(Fp8, blocks_ragged_on_both_sides_rows_and_whole_matrices) {
  EXPECT_EQ(fp8_value(0x38), 1);
  EXPECT_EQ(fp8_value(0x7e), 448);
  EXPECT_EQ(fp8_value(0x81), -0x1p-9f);
  for (const StoredForm* form : {&fp8_form(), &compressed_form()})
    for (const DType type : {DType::kF32, DType::kBF16})
      for (const auto& [rows, columns] : {std::pair{16, 16}, std::pair{7, 32}, std::pair{1, 0}, std::pair{0, 0}}) {
        Stored stored = fp8(*form, rows, columns, type);
        expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(rows == 0 ? 0 : n / rows, columns == 0 ? 0 : k / columns) * fp8_value(fp8_at(n, k)); });
      }
}

TEST(Fp8, without_blocks_either_name_of_the_scale_serves) {
  Stored stored = fp8(fp8_form(), 1, 0, DType::kF32);
  stored.files.push_back(stored.files[1]);
  stored.files[1] = {};
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, 0) * fp8_value(fp8_at(n, k)); });
  stored.files.pop_back();
  EXPECT_THAT(take(stored, 0, 4).result.error().message, HasSubstr("without a scale"));
}

TEST(Fp8, scales_that_are_powers_of_two) {
  Stored stored = fp8(fp8_form(), 16, 16, DType::kF32);
  File scales(2, 3, DType::kF8E8M0);
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t g = 0; g < 3; ++g) scales.at(r)[g] = static_cast<std::byte>(120 + r * 3 + g);
  stored.files[1] = scales;
  expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return std::ldexp(fp8_value(fp8_at(n, k)), static_cast<int>(n / 16 * 3 + k / 16) - 7); });
  stored.files[1].at(1)[2] = static_cast<std::byte>(255);
  EXPECT_THAT(take(stored, 16, 8).result.error().message, HasSubstr("row 16, columns from 32 on"));
}

TEST(Fp8, a_code_that_is_no_number_is_an_error) {
  for (const StoredForm* form : {&fp8_form(), &compressed_form()})
    for (const int nan : {0x7f, 0xff}) {
      Stored stored = fp8(*form, 1, 0, DType::kF32);
      stored.files[0].at(17)[44] = static_cast<std::byte>(nan);
      EXPECT_TRUE(take(stored, 0, 16).result);
      EXPECT_THAT(take(stored, 16, 8).result.error().message, HasSubstr("row 17, column 44: FP8 code"));
    }
}

// The two addresses are Paddle's own (weight_quantize for compute capability 80), as stated in docs/formats/paddle-weight-only.md.
TEST(Paddle, bytes_lie_as_documented) {
  for (const int bits : {8, 4}) {
    const std::int64_t N = 24, K = 192;
    Stored stored{&paddle_form(), {.kind = bits == 8 ? CodeKind::kU8 : CodeKind::kU4, .bits = bits, .interleaved = true, .order = {}}, N, K, {}};
    File codes(bits == 8 ? N : N / 2, K, DType::kI8), scales(N, 2, DType::kBF16);
    const auto code = [&](std::int64_t n, std::int64_t k) { return code_at(n, k, bits == 8 ? 255 : 15) + 1; };
    for (std::int64_t n = 0; n < N; ++n) {
      scales.set_half(n, 0, float_to_bf16(scale_at(n, 0)));
      for (std::int64_t k = 0; k < K && bits == 8; ++k) {
        const std::int64_t p = 16 * (k / 16) + 2 * (k % 8) + k % 16 / 8;
        codes.at(0)[p % 64 + 128 * (p / 64) + 64 * (n % 2) + 2 * K * (n / 2)] = static_cast<std::byte>(code(n, k));
      }
      for (std::int64_t j = 0; j < K / 2 && bits == 4; ++j) {
        const std::int64_t p = 16 * (j / 16) + 2 * (2 * (j % 4) + j % 8 / 4) + j % 16 / 8, at = p % 32 + 128 * (p / 32) + 32 * (n % 4) + 2 * K * (n / 4);
        for (const int odd : {0, 1}) codes.at(0)[at / 4 * 4 + at % 2 + 2 * odd] |= static_cast<std::byte>(code(n, 2 * j + odd) << (at % 4 > 1 ? 4 : 0));
      }
    }
    stored.files = {codes, scales};
    expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, 0) * static_cast<float>(code(n, k) - (bits == 8 ? 128 : 8)); });
    EXPECT_FALSE(paddle_form().tensors(stored.settings, N, 100));
    EXPECT_FALSE(paddle_form().tensors(stored.settings, 21, K));
  }
}

// What the form makes of codes of this shape.
Result<FormSettings> looked(const StoredForm& form, FormSettings settings, std::int64_t outputs, std::int64_t inputs, std::string_view suffix, SeenTensor tensor) {
  TRY(form.look(settings, outputs, inputs, [&](std::string_view name) { return name == suffix ? std::optional(tensor) : std::nullopt; }));
  return settings;
}

FormSettings row_major(int bits) { return {.kind = bits == 8 ? CodeKind::kU8 : CodeKind::kU4, .bits = bits, .order = {}}; }

TEST(Paddle, row_major_codes_come_back) {
  const std::int64_t N = 24, K = 38;
  for (const int bits : {8, 4})
    for (const bool by_input : {false, true}) {
      const std::int64_t width = K * bits / 8;
      const SeenTensor seen{DType::kI8, by_input ? std::vector{width, N} : std::vector{N, width}};
      const auto settings = looked(paddle_form(), row_major(bits), N, K, "quant_weight", seen);
      ASSERT_TRUE(settings) << settings.error().message;
      Stored stored{&paddle_form(), *settings, N, K, {}};
      EXPECT_EQ(stored.tensors()[0].shape, seen.shape);
      File codes(seen.shape[0], seen.shape[1], DType::kI8), scales(N, 2, DType::kBF16);
      const int codes_of_bits = 1 << bits;
      const auto number = [&](std::int64_t n, std::int64_t k) { return code_at(n, k, codes_of_bits) - codes_of_bits / 2; };
      for (std::int64_t n = 0; n < N; ++n) {
        scales.set_half(n, 0, float_to_bf16(scale_at(n, 0)));
        for (std::int64_t k = 0; k < K; ++k) {
          std::byte& byte = by_input ? codes.at(k * bits / 8)[n] : codes.at(n)[k * bits / 8];
          byte |= static_cast<std::byte>(bits == 8 ? number(n, k) & 255 : (number(n, k) & 15) << (k % 2 * 4));
        }
      }
      stored.files = {codes, scales};
      expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, 0) * static_cast<float>(number(n, k)); });
    }
}

// Bytes by hand. int8 0xff is -1, 0x80 -128; int4 0x8f is -1 (low, input 0) and -8 (high, input 1), 0x71 1 and 7.
TEST(Paddle, row_major_bytes_by_hand) {
  struct Case { int bits; std::int64_t outputs, inputs; SeenTensor seen; std::vector<int> bytes; std::vector<float> numbers; };
  const std::vector<Case> cases = {
      {8, 2, 3, {DType::kI8, {2, 3}}, {0xff, 0x80, 0x05, 0x7f, 0x00, 0xfe}, {-1, -128, 5, 127, 0, -2}},
      {8, 2, 3, {DType::kI8, {3, 2}}, {0xff, 0x7f, 0x80, 0x00, 0x05, 0xfe}, {-1, -128, 5, 127, 0, -2}},
      {8, 2, 2, {DType::kI8, {2, 2}}, {1, 2, 3, 4}, {1, 2, 3, 4}},  // square: a row an output
      {4, 3, 4, {DType::kI8, {3, 2}}, {0x8f, 0x71, 0x20, 0xc3, 0x00, 0x9a}, {-1, -8, 1, 7, 0, 2, 3, -4, 0, 0, -6, -7}},
      {4, 3, 4, {DType::kI8, {2, 3}}, {0x8f, 0x20, 0x00, 0x71, 0xc3, 0x9a}, {-1, -8, 1, 7, 0, 2, 3, -4, 0, 0, -6, -7}},
      {4, 2, 4, {DType::kI8, {2, 2}}, {0x21, 0x43, 0x65, 0x07}, {1, 2, 3, 4, 5, 6, 7, 0}}};
  for (const Case& c : cases) {
    const auto settings = looked(paddle_form(), row_major(c.bits), c.outputs, c.inputs, "quant_weight", c.seen);
    ASSERT_TRUE(settings) << settings.error().message;
    Stored stored{&paddle_form(), *settings, c.outputs, c.inputs, {}};
    File codes(c.seen.shape[0], c.seen.shape[1], DType::kI8), scales(c.outputs, 4, DType::kF32);
    for (std::size_t i = 0; i < c.bytes.size(); ++i) codes.at(0)[i] = static_cast<std::byte>(c.bytes[i]);
    for (std::int64_t n = 0; n < c.outputs; ++n) scales.set_float(n, 0, 1);
    stored.files = {codes, scales};
    const Taken taken = take(stored, 0, static_cast<int>(c.outputs));
    ASSERT_TRUE(taken.result) << taken.result.error().message;
    EXPECT_EQ(taken.numbers, c.numbers) << c.bits << " bits, a file of " << c.seen.shape[0] << " rows";
  }
}

TEST(Paddle, row_major_shapes_that_fit_neither_order_are_an_error) {
  const auto wrong = looked(paddle_form(), row_major(4), 24, 32, "quant_weight", {DType::kI8, {12, 32}});  // what the byte order of GPUs would have
  ASSERT_FALSE(wrong);
  for (const char* part : {"[12, 32]", "[24, 16]", "[16, 24]", "is_permuted"}) EXPECT_THAT(wrong.error().message, HasSubstr(part));
  EXPECT_FALSE(looked(paddle_form(), row_major(8), 24, 32, "quant_weight", {DType::kI8, {24, 16}}));
  EXPECT_THAT(paddle_form().tensors(row_major(4), 24, 37).error().message, HasSubstr("odd number of inputs"));
}

TEST(Compressed, zero_points_of_packed_codes_one_a_byte) {
  for (const int bits : {4, 8})
    for (const std::int64_t group : {0, 16}) {
      const std::int64_t K = 48, per_group = group == 0 ? K : group, G = K / per_group;
      const int codes = 1 << bits;
      Stored stored = packed(bits, K, group, true);
      stored.settings = looked(compressed_form(), stored.settings, stored.outputs, K, "weight_zero_point", {DType::kI8, {stored.outputs, G}}).value();
      EXPECT_EQ(stored.tensors()[2].shape, (std::vector{stored.outputs, G}));
      File zeros(stored.outputs, G, DType::kI8);
      for (std::int64_t n = 0; n < stored.outputs; ++n)
        for (std::int64_t g = 0; g < G; ++g) zeros.at(n)[g] = static_cast<std::byte>(zero_at(n, g, codes) - codes / 2);
      stored.files[2] = zeros;
      expect_numbers(stored, [&](std::int64_t n, std::int64_t k) { return scale_at(n, k / per_group) * static_cast<float>(code_at(n, k, codes) - zero_at(n, k / per_group, codes)); });
      stored.files[2].at(7)[G - 1] = static_cast<std::byte>(8);
      if (bits == 4) EXPECT_THAT(take(stored, 4, 8).result.error().message, HasSubstr(fmt::format("row 7, group {}: zero point 8", G - 1)));
    }
  const auto still = looked(compressed_form(), packed(4, 48, 16, true).settings, 24, 48, "weight_zero_point", {DType::kI32, {3, 3}});
  EXPECT_TRUE(still->packed_zeros);
}

TEST(Forms, suffixes_of_codes) { EXPECT_THAT(codes_suffixes(), testing::IsSupersetOf({std::string_view("qweight"), std::string_view("weight_packed")})); }

}  // namespace
}  // namespace inflight::quant
