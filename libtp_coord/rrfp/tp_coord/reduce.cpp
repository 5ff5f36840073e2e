#include "reduce.hpp"

namespace rrfp::tp_coord {

namespace {

/// Unsigned: overflow wraps around instead of being undefined.
std::int64_t add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
float add(float a, float b) { return a + b; }
double add(double a, double b) { return a + b; }

/// A NaN on either side wins, so that it is never lost.
template <class T>
T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

template <class T>
void accumulate_as(operation op, std::byte* sum, const std::byte* next, std::size_t count) {
  auto* s = reinterpret_cast<T*>(sum);
  const auto* n = reinterpret_cast<const T*>(next);
  if (op == operation::sum) {
    for (std::size_t i = 0; i < count; ++i) s[i] = add(s[i], n[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) s[i] = larger(s[i], n[i]);
  }
}

}  // namespace

void accumulate(operation op, element type, std::byte* sum, const std::byte* next,
                std::size_t count) {
  switch (type) {
    case element::float32: return accumulate_as<float>(op, sum, next, count);
    case element::float64: return accumulate_as<double>(op, sum, next, count);
    case element::int64: return accumulate_as<std::int64_t>(op, sum, next, count);
  }
}

part part_of(std::size_t count, std::size_t k, std::size_t parts) {
  const auto even = count / parts;
  const auto remainder = count % parts;
  const auto begin = k * even + (k < remainder ? k : remainder);
  return {begin, even + (k < remainder ? 1 : 0)};
}

}  // namespace rrfp::tp_coord
