#include "ranks.hpp"

#include <map>
#include <optional>

#include <ATen/ATen.h>

namespace rrfp::compute::test {

std::vector<named_tensor> assemble(const std::vector<std::vector<named_tensor>>& of_ranks) {
  std::map<std::string, named_tensor> whole;
  for (const auto& of_rank : of_ranks) {
    for (const auto& t : of_rank) {
      if (!t.part) {
        whole.try_emplace(t.name, t);
        continue;
      }
      auto& to = whole[t.name];
      if (!to.value.defined()) to = {t.name, at::full(t.part->whole, std::nanf("")), std::nullopt};
      const shard all{t.part->whole, t.part->dimension, 1, 0,
                      t.part->whole[static_cast<std::size_t>(t.part->dimension)]};
      copy_overlap(t.value, *t.part, to.value, all);
    }
  }
  std::vector<named_tensor> result;
  for (auto& [name, t] : whole) result.push_back(std::move(t));
  return result;
}

}  // namespace rrfp::compute::test
