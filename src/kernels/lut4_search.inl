// The quantizer of the look-up format (lut4.h), for every ISA with the vocabulary lut4_search.h of its folder: 16 rows by two groups at a time,
// a lane for each group, so that a group's sums and choices stay in its lane. All of the search is 16-bit integers.

#include "kernels/source.inl"

// Eight neighbours from 8 * i - 68 on, the first ones and those below, the last ones and those above: among them lies at most one bound between nibbles.
struct Lut4SearchTables {
  std::uint8_t nibble[16], bound[16];          // of the least; y above the bound has the next one; 127: no bound
  std::uint8_t below[16], above[16];           // the values of both, signed
  std::int16_t multipliers[32], weights[32];   // entry i + 1 of place i
};
constexpr int kLut4First = -68;
constexpr Lut4SearchTables make_lut4_search_tables() {
  Lut4SearchTables t{};
  for (int i = 0; i < 16; ++i) {
    const int least = kLut4First + i * 8;
    t.bound[i] = 127;
    for (int j = 0; j < 15; ++j) {
      const int bound = (kLut4Values[j] + kLut4Values[j + 1]) >> 1;
      if (bound < least) {
        ++t.nibble[i];
      } else if (bound < least + 7) {
        if (t.bound[i] != 127) __builtin_trap();  // two bounds: no constant
        t.bound[i] = static_cast<std::uint8_t>(bound);
      }
    }
    t.below[i] = static_cast<std::uint8_t>(kLut4Values[t.nibble[i]]);
    t.above[i] = static_cast<std::uint8_t>(kLut4Values[t.nibble[i] + (t.bound[i] == 127 ? 0 : 1)]);
  }
  for (int i = 0; i < 23; ++i) {
    t.multipliers[i] = static_cast<std::int16_t>(lut4_multiplier(i - 1));
    t.weights[i] = static_cast<std::int16_t>(static_cast<std::uint16_t>(lut4_weight(i - 1)));
  }
  return t;
}
constexpr Lut4SearchTables kLut4SearchTables = make_lut4_search_tables();

struct Lut4Registers {
  Ints bound, below, above;
  WordTable multipliers, weights;
};

// Bytes of elements 2j and 2j + 1; none is beyond 82.
LANES_INLINE Ints scaled_pair(const Ints (&t)[16], int j, Ints multiplier) {
  return pair_bytes(multiply_rounded(t[2 * j], multiplier), multiply_rounded(t[2 * j + 1], multiplier));
}

LANES_INLINE Ints neighbours_of(Ints y) { return eighths(larger_bytes(add_saturated(y, -kLut4First), splat_int(0))); }

struct Lut4Best {
  Ints error, multiplier, step;
};

// long_sign: 0 where it is +, -1 where it is -.
template <int kOffset, bool kLong>
LANES_INLINE void try_step(const Ints (&t)[16], Ints place, Ints base, Ints long_sign, const Lut4Registers& r, Lut4Best& best) {
  const Ints sign = kLong ? long_sign : flip_bits(long_sign, splat_word(-1));
  const Ints multiplier = negate_where(word_of<kOffset>(r.multipliers, place), sign);
  Ints sum = splat_word(0);
  for (int j = 0; j < 8; ++j) {
    const Ints y = scaled_pair(t, j, multiplier);
    const Ints i = neighbours_of(y);
    sum = add_words(sum, square_pairs(subtract_bytes(y, choose_above(y, look_up(r.bound, i), look_up(r.above, i), look_up(r.below, i)))));
  }
  const Ints error = multiply_high(shift_words_left<4>(smaller_words(sum, splat_word(2047))), word_of<kOffset>(r.weights, place));
  const WordMask better = less_words(error, best.error);
  best.error = choose_words(better, error, best.error);
  best.multiplier = choose_words(better, multiplier, best.multiplier);
  best.step = choose_words(better, either_bits(add_words(base, splat_word(kOffset)), both_bits(sign, splat_word(128))), best.step);
}

template <std::size_t... kLongs, std::size_t... kShorts>
LANES_INLINE Lut4Best try_steps(const Ints (&t)[16], Ints place, Ints base, Ints long_sign, const Lut4Registers& r, std::index_sequence<kLongs...>, std::index_sequence<kShorts...>) {
  Lut4Best best{splat_word(32767), splat_word(0), splat_word(0)};
  (try_step<kLut4LongTries[kLongs], true>(t, place, base, long_sign, r, best), ...);
  (try_step<kLut4ShortTries[kShorts], false>(t, place, base, long_sign, r, best), ...);
  return best;
}

// Elements of two groups of 16 rows, and what their rows say of them.
struct Lut4Block {
  Lanes x[2][16];   // [group][input], a row a lane
  Ints exponents;   // biased, of the rows
};

// Codes of both groups (blocks 0 and 1 of each) and their step bytes.
LANES_INLINE void search_block(const Lut4Block& block, std::uint32_t (&codes)[4][16], std::uint8_t (&steps)[2][16]) {
  const Lut4Registers r{table16(kLut4SearchTables.bound), table16(kLut4SearchTables.below), table16(kLut4SearchTables.above), word_table(kLut4SearchTables.multipliers), word_table(kLut4SearchTables.weights)};
  Ints t[16], integers[2][16], bases[2], places[2], signs[2];
  for (int g = 0; g < 2; ++g) {
    Ints largest = splat_int(1);  // the bits of a magnitude shifted up, and 1 where a negative number or a zero has it
    for (int i = 0; i < 16; ++i) largest = larger_bits(largest, rotate_left_one(bits_of(block.x[g][i])));
    const Ints floor = subtract(shift_bits_right<20>(largest), shift_left<4>(subtract(block.exponents, splat_int(6))));
    const Ints base = larger(smaller(floor, splat_int(121)), splat_int(1));
    const Ints octave = shift_right<4>(larger(floor, splat_int(0)));
    // 2^(16 - E - octave)
    const Lanes raise = floats_of(shift_left<23>(subtract(subtract(splat_int(16 + 2 * 127), block.exponents), octave)));
    for (int i = 0; i < 16; ++i) integers[g][i] = nearest(multiply(block.x[g][i], raise));
    bases[g] = base;
    places[g] = subtract(base, shift_left<4>(octave));
    signs[g] = subtract(both_bits(largest, splat_int(1)), splat_int(1));
  }
  for (int i = 0; i < 16; ++i) t[i] = pack_words(integers[0][i], integers[1][i]);
  const Lut4Best best = try_steps(t, pack_words(places[0], places[1]), pack_words(bases[0], bases[1]), pack_words(signs[0], signs[1]), r,
                                  std::make_index_sequence<std::size(kLut4LongTries)>(), std::make_index_sequence<std::size(kLut4ShortTries)>());
  Ints nibbles[8];
  for (int j = 0; j < 8; ++j) {
    const Ints y = scaled_pair(t, j, best.multiplier), i = neighbours_of(y);
    nibbles[j] = count_above(look_up(table16(kLut4SearchTables.nibble), i), y, look_up(r.bound, i));
  }
  for (int b = 0; b < 2; ++b) {  // words of inputs 0 and 1, of 2 and 3; in the high nibbles 4 and 5, 6 and 7
    const Ints low = either_bits(nibbles[4 * b], shift_words_left<4>(nibbles[4 * b + 2]));
    const Ints high = either_bits(nibbles[4 * b + 1], shift_words_left<4>(nibbles[4 * b + 3]));
    store_ints(codes[b], first_dwords(low, high));
    store_ints(codes[2 + b], second_dwords(low, high));
  }
  store_low_bytes(steps[0], first_dwords(best.step, splat_word(0)));
  store_low_bytes(steps[1], second_dwords(best.step, splat_word(0)));
}

// Inputs [k, k + 32) of the rows; 0 past the last input and row.
template <DType kType>
LANES_INLINE void load_block(const SourceRows& source, std::int64_t k, Lut4Block& block) {
  const char* base = static_cast<const char*>(source.data);
  constexpr std::int64_t kBytes = Source<kType>::kBytes;
  alignas(64) std::uint32_t chunk[16][16], columns[16][16];
  if (source.rows < 16) std::memset(chunk, 0, sizeof chunk);
  const std::int64_t n = source.inputs - k;
  if constexpr (kType == DType::kBF16) {  // two inputs a dword
    for (int row = 0; row < source.rows; ++row) {
      const char* p = base + (row * source.stride + k) * 2;
      if (n >= 32) {
        std::memcpy(chunk[row], p, 64);
      } else {
        std::memset(chunk[row], 0, 64);
        std::memcpy(chunk[row], p, static_cast<std::size_t>(n) * 2);
      }
    }
    scatter(chunk, 0, 16, 16, &columns[0][0]);
    for (int i = 0; i < 16; ++i) {
      const Ints pair = load_ints(columns[i]);
      block.x[i / 8][i % 8 * 2] = floats_of(shift_left<16>(pair));
      block.x[i / 8][i % 8 * 2 + 1] = floats_of(both_bits(pair, splat_int(static_cast<int>(0xffff0000u))));
    }
  } else {
    for (int g = 0; g < 2; ++g) {
      for (int row = 0; row < source.rows; ++row) store_lanes(reinterpret_cast<float*>(chunk[row]), load_source<kType>(base + (row * source.stride + k + g * 16) * kBytes, n - g * 16));
      scatter(chunk, 0, 16, 16, &columns[0][0]);
      for (int i = 0; i < 16; ++i) block.x[g][i] = load_lanes(reinterpret_cast<const float*>(columns[i]));
    }
  }
}

template <DType kType>
std::int64_t quantize_lut4_rows(const SourceRows& source, int lane, const float* absmax, std::uint8_t* codes, std::uint8_t* steps, std::uint8_t* row_exponents) {
  alignas(64) std::int32_t exponents[16] = {};
  for (int row = 0; row < source.rows; ++row) {
    std::uint32_t most = largest_bits<kType>(static_cast<const char*>(source.data) + row * source.stride * Source<kType>::kBytes, source.inputs);
    if (most >= kInfinityBits) return first_non_finite<kType>(source);
    if (absmax) std::memcpy(&most, absmax + row, sizeof most);
    const int exponent = static_cast<int>(most >> 23);
    exponents[row] = exponent < 27 ? 27 : exponent > 253 ? 253 : exponent;  // -100 and 126
    row_exponents[lane + row] = most == 0 ? 0 : static_cast<std::uint8_t>(exponents[row] - 16);
  }
  for (int row = source.rows; row < 16; ++row) exponents[row] = 27;
  Lut4Block block;
  block.exponents = load_ints(exponents);
  const std::size_t code_bytes = static_cast<std::size_t>(source.rows) * 4, step_bytes = static_cast<std::size_t>(source.rows);
  for (std::int64_t k = 0; k < source.inputs; k += 32) {
    alignas(64) std::uint32_t found[4][16];
    std::uint8_t found_steps[2][16];
    load_block<kType>(source, k, block);
    search_block(block, found, found_steps);
    const int groups = source.inputs - k > 16 ? 2 : 1;
    for (int b = 0; b < groups * 2; ++b) std::memcpy(codes + ((k / 8 + b) * 16 + lane) * 4, found[b], code_bytes);
    for (int g = 0; g < groups; ++g) std::memcpy(steps + (k / 16 + g) * 16 + lane, found_steps[g], step_bytes);
  }
  return -1;
}

std::int64_t quantize_lut4(const SourceRows& source, int lane, const float* absmax, std::uint8_t* codes, std::uint8_t* steps, std::uint8_t* row_exponents) {
  if (source.dtype == DType::kF32) return quantize_lut4_rows<DType::kF32>(source, lane, absmax, codes, steps, row_exponents);
  if (source.dtype == DType::kF16) return quantize_lut4_rows<DType::kF16>(source, lane, absmax, codes, steps, row_exponents);
  return quantize_lut4_rows<DType::kBF16>(source, lane, absmax, codes, steps, row_exponents);
}
