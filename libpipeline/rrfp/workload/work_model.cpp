#include <rrfp/workload/work_model.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace rrfp::workload {

namespace {

constexpr std::size_t coefficients = 5;
using coefficient_row = std::array<double, coefficients>;
/// Pivots below this share of the largest are taken for 0: the columns depend on each other.
constexpr double smallest_pivot = 1e-12;

coefficient_row row_of(const measured_work& m) {
  return {m.tokens, m.token_squares, m.patches, m.patch_squares, 1};
}

/// Solves the normal equations for the columns of `chosen` by Gaussian elimination with pivots on
/// the diagonal, which is enough for a positive definite matrix. Nothing if it is singular.
std::optional<coefficient_row> solve(std::array<coefficient_row, coefficients> matrix,
                                     coefficient_row right, unsigned chosen) {
  coefficient_row solution{};
  std::array<bool, coefficients> is_done{};
  std::array<std::size_t, coefficients> order{};
  const auto count = static_cast<std::size_t>(std::popcount(chosen));
  for (std::size_t n = 0; n < count; ++n) {
    std::size_t pivot = coefficients;
    for (std::size_t c = 0; c < coefficients; ++c)
      if ((chosen >> c & 1) != 0 && !is_done[c] &&
          (pivot == coefficients || matrix[c][c] > matrix[pivot][pivot]))
        pivot = c;
    if (!(matrix[pivot][pivot] > smallest_pivot)) return std::nullopt;
    is_done[pivot] = true;
    order[n] = pivot;
    for (std::size_t r = 0; r < coefficients; ++r) {
      if ((chosen >> r & 1) == 0 || is_done[r]) continue;
      const auto factor = matrix[r][pivot] / matrix[pivot][pivot];
      for (std::size_t c = 0; c < coefficients; ++c) matrix[r][c] -= factor * matrix[pivot][c];
      right[r] -= factor * right[pivot];
    }
  }
  for (auto n = count; n-- > 0;) {
    const auto r = order[n];
    auto value = right[r];
    for (auto later = n + 1; later < count; ++later)
      value -= matrix[r][order[later]] * solution[order[later]];
    solution[r] = value / matrix[r][r];
  }
  return solution;
}

status check_measured(std::span<const measured_work> measured) {
  if (measured.empty()) return error{"expected at least one measurement, got none"};
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const auto& m = measured[i];
    for (const auto& [name, value] : {std::pair{"tokens", m.tokens},
                                      {"token_squares", m.token_squares},
                                      {"patches", m.patches},
                                      {"patch_squares", m.patch_squares},
                                      {"seconds", m.seconds}})
      if (!std::isfinite(value) || value < 0)
        return error{"measurement " + std::to_string(i) + ": expected finite " + name +
                     " >= 0, got " + std::to_string(value)};
  }
  return success();
}

}  // namespace

double work_model::work_of(double tokens, std::span<const double> image_patches) const {
  auto work = per_token * tokens + per_token_square * tokens * tokens;
  for (const auto patches : image_patches)
    work += per_patch * patches + per_patch_square * patches * patches;
  return work;
}

work_model training_flops(const model& m) {
  // F, B and W; attention has twice the FLOPs of F in B, and none in W.
  constexpr double passes = 3;
  const auto of_layers = [&](const block& b, std::uint32_t layers) {
    return std::pair{passes * layers * matrix_flops(active_parameters(b), 1),
                     passes * layers * attention_flops_of_squares(b, 1)};
  };
  work_model w;
  std::tie(w.per_token, w.per_token_square) = of_layers(m.text.layer, m.text.layers);
  w.per_token += passes * matrix_flops(std::uint64_t{m.text.vocabulary} * m.text.layer.hidden, 1);
  if (m.images) {
    std::tie(w.per_patch, w.per_patch_square) = of_layers(m.images->layer, m.images->layers);
    w.per_patch +=
        passes * matrix_flops(projector_parameters(m), 1.0 / m.images->patches_per_token);
  }
  return w;
}

result<fitted_work> fit(std::span<const measured_work> measured) {
  if (auto valid = check_measured(measured); !valid) return valid.failure();
  // Columns of similar size: tokens and their squares differ by orders of magnitude.
  coefficient_row scale{};
  for (const auto& m : measured) {
    const auto row = row_of(m);
    for (std::size_t c = 0; c < coefficients; ++c) scale[c] = std::max(scale[c], row[c]);
  }
  std::array<coefficient_row, coefficients> matrix{};
  coefficient_row right{};
  double seconds_squares = 0;
  for (const auto& m : measured) {
    auto row = row_of(m);
    for (std::size_t c = 0; c < coefficients; ++c) row[c] = scale[c] > 0 ? row[c] / scale[c] : 0;
    const auto share = 1.0 / static_cast<double>(measured.size());
    for (std::size_t r = 0; r < coefficients; ++r) {
      for (std::size_t c = 0; c < coefficients; ++c) matrix[r][c] += share * row[r] * row[c];
      right[r] += share * row[r] * m.seconds;
    }
    seconds_squares += share * m.seconds * m.seconds;
  }
  coefficient_row best{};
  auto smallest = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 0; chosen < 1U << coefficients; ++chosen) {
    const auto solution = solve(matrix, right, chosen);
    if (!solution || std::ranges::min(*solution) < 0) continue;
    // At the solution of the normal equations the residual is what they leave.
    auto residual = seconds_squares;
    for (std::size_t c = 0; c < coefficients; ++c) residual -= (*solution)[c] * right[c];
    // Rounding must not choose another coefficient for nothing.
    if (residual >= smallest - smallest_pivot * seconds_squares) continue;
    smallest = residual;
    best = *solution;
  }
  for (std::size_t c = 0; c < coefficients; ++c) best[c] = scale[c] > 0 ? best[c] / scale[c] : 0;
  return fitted_work{{best[0], best[1], best[2], best[3]}, best[4]};
}

}  // namespace rrfp::workload
