// The vector kernels but attention, against the vocabulary of isa/<isa>/vec.h. Included once by isa/<isa>/vector.cc, in a nameless namespace.
// A tail goes through the same operations as a full vector, so an element's bits do not depend on where it stands.

// body(offset, lanes) over [0, n): full vectors, then at most one short one.
template <class Full, class Tail>
inline void over(std::int64_t n, Full&& full, Tail&& tail) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) full(i);
  if (i < n) tail(i, n - i);
}

#include "kernels/exp.inl"

void rms_norm(const float* x, const float* weight, std::int64_t n, float eps, float* y) {
  Wide sum = wide_zero();
  over(n, [&](std::int64_t i) { sum = add_square(sum, load(x + i)); }, [&](std::int64_t i, std::int64_t count) { sum = add_square(sum, load_first(x + i, count)); });
  const V inverse = set1(static_cast<float>(1 / __builtin_sqrt(reduce_add(sum) / static_cast<double>(n) + static_cast<double>(eps))));
  over(
      n, [&](std::int64_t i) { store(y + i, mul(mul(load(x + i), inverse), load(weight + i))); },
      [&](std::int64_t i, std::int64_t count) { store_first(y + i, mul(mul(load_first(x + i, count), inverse), load_first(weight + i, count)), count); });
}

void add(float* y, const float* x, std::int64_t n) {
  over(
      n, [&](std::int64_t i) { store(y + i, add(load(y + i), load(x + i))); },
      [&](std::int64_t i, std::int64_t count) { store_first(y + i, add(load_first(y + i, count), load_first(x + i, count)), count); });
}

void add_scaled(float* y, const float* x, float factor, std::int64_t n) {
  const V a = set1(factor);
  over(
      n, [&](std::int64_t i) { store(y + i, fma(a, load(x + i), load(y + i))); },
      [&](std::int64_t i, std::int64_t count) { store_first(y + i, fma(a, load_first(x + i, count), load_first(y + i, count)), count); });
}

inline V silu(V gate) { return div(gate, add(set1(1), exp(sub(zero(), gate)))); }

void silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  over(
      n, [&](std::int64_t i) { store(y + i, mul(silu(load(gate + i)), load(up + i))); },
      [&](std::int64_t i, std::int64_t count) { store_first(y + i, mul(silu(load_first(gate + i, count)), load_first(up + i, count)), count); });
}

void rope_half(float* x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, const float* cos, const float* sin) {
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t head = 0; head < heads; ++head, x += head_dim) {
    float* y = x + half;
    over(
        half,
        [&](std::int64_t i) {
          const V low = load(x + i), high = load(y + i), c = load(cos + i), s = load(sin + i);
          store(x + i, fnma(high, s, mul(low, c)));
          store(y + i, fma(low, s, mul(high, c)));
        },
        [&](std::int64_t i, std::int64_t count) {
          const V low = load_first(x + i, count), high = load_first(y + i, count), c = load_first(cos + i, count), s = load_first(sin + i, count);
          store_first(x + i, fnma(high, s, mul(low, c)), count);
          store_first(y + i, fma(low, s, mul(high, c)), count);
        });
  }
}

// A loop that compilers turn into shuffles: a head has few pairs, and the product before it takes far longer.
void rope_pairs(float* x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, const float* cos, const float* sin) {
  for (std::int64_t head = 0; head < heads; ++head, x += head_dim)
    for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
      const float first = x[2 * i], second = x[2 * i + 1];
      x[2 * i] = first * cos[i] - second * sin[i];
      x[2 * i + 1] = second * cos[i] + first * sin[i];
    }
}

void to_bf16(const float* x, std::int64_t n, std::uint16_t* y) {
  over(n, [&](std::int64_t i) { store_bf16(y + i, load(x + i)); }, [&](std::int64_t i, std::int64_t count) { store_bf16_first(y + i, load_first(x + i, count), count); });
}

void round_bf16(const float* x, std::int64_t n, float* y) {
  over(
      n, [&](std::int64_t i) { store(y + i, to_bf16_bits(load(x + i))); },
      [&](std::int64_t i, std::int64_t count) { store_first(y + i, to_bf16_bits(load_first(x + i, count)), count); });
}

void store_kv_f32(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block) {
  float* keys = static_cast<float*>(key_block) + slot / 16 * head_dim * 16 + slot % 16;
  for (std::int64_t d = 0; d < head_dim; ++d) keys[d * 16] = k[d];
  std::memcpy(static_cast<float*>(value_block) + slot * head_dim, v, static_cast<std::size_t>(head_dim) * sizeof(float));
}

void store_kv_bf16(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block) {
  std::uint16_t* keys = static_cast<std::uint16_t*>(key_block) + (slot / 16 * (head_dim / 2) * 16 + slot % 16) * 2;
  constexpr std::int64_t kChunk = 64;
  for (std::int64_t d = 0; d < head_dim; d += kChunk) {
    std::uint16_t row[kChunk];
    const std::int64_t count = head_dim - d < kChunk ? head_dim - d : kChunk;
    to_bf16(k + d, count, row);
    for (std::int64_t i = 0; i < count; i += 2) std::memcpy(keys + (d + i) * 16, row + i, 2 * sizeof(std::uint16_t));
  }
  to_bf16(v, head_dim, static_cast<std::uint16_t*>(value_block) + slot * head_dim);
}

std::int64_t argmax(const float* x, std::int64_t n) {
  constexpr float kLowest = -__builtin_inff();
  V best = set1(kLowest);
  Index where = index_set1(0);  // of the vector that holds a lane's best, counted in vectors
  Lanes bad = none();
  const auto visit = [&](V v, std::int64_t i, Lanes present) {
    bad = either(bad, both(present, non_finite(v)));
    const Lanes better = both(present, greater(v, best));
    best = select(better, v, best);
    where = index_select(better, index_set1(static_cast<std::int32_t>(i / kLanes)), where);
  };
  over(n, [&](std::int64_t i) { visit(load(x + i), i, first(kLanes)); }, [&](std::int64_t i, std::int64_t count) { visit(load_first(x + i, count), i, first(count)); });
  if (n == 0 || any(bad)) return -1;

  float values[kLanes];
  std::int32_t vectors[kLanes];
  store(values, best);
  index_store(vectors, where);
  float most = kLowest;
  std::int64_t index = -1;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t candidate = static_cast<std::int64_t>(vectors[lane]) * kLanes + lane;
    if (values[lane] == kLowest || values[lane] < most || (values[lane] == most && candidate > index)) continue;
    most = values[lane];
    index = candidate;
  }
  return index;
}

double log_sum_exp(const float* x, std::int64_t n) {
  V most = set1(-__builtin_inff());
  over(n, [&](std::int64_t i) { most = max(load(x + i), most); }, [&](std::int64_t i, std::int64_t count) { most = select(first(count), max(load_first(x + i, count), most), most); });
  const float shift = reduce_max(most);
  if (shift == __builtin_inff() || shift == -__builtin_inff()) return shift;
  Wide sum = wide_zero();
  over(
      n, [&](std::int64_t i) { sum = add(sum, exp(sub(load(x + i), set1(shift)))); },
      [&](std::int64_t i, std::int64_t count) { sum = add(sum, select(first(count), exp(sub(load_first(x + i, count), set1(shift))), zero())); });
  return shift + __builtin_log(reduce_add(sum));
}
