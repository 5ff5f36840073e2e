#include <algorithm>
#include <array>

#include <rrfp/job/job.hpp>

#include "schema.hpp"

namespace rrfp::job {

namespace {

/// Counted over all replicas: how the replicas share the microbatches of a step changes only the
/// order of the sums. (With data.pack = "cost" also which samples share a microbatch, and so a
/// dropout mask.)
constexpr std::string_view microbatches_of_a_step = "pipeline.microbatches";

constexpr std::array<std::string_view, 3> identity_sections{"model", "vision", "data"};
constexpr std::array<std::string_view, 2> train_identity{"train.seed", "train.optimizer"};
constexpr std::array<std::string_view, 3> sums{"pipeline.tp", "pipeline.replicas",
                                               "dispatch.admission"};

template <class List>
bool holds(const List& list, std::string_view path) {
  return std::find(list.begin(), list.end(), path) != list.end();
}

}  // namespace

std::vector<setting> identity(const job& j) {
  std::vector<setting> all;
  auto settled = j;
  // A job that names the default tokenizer has the same identity. Token files need none.
  if (j.data.tokens.empty() && !j.data.tokenizer) settled.data.tokenizer = tokenizer_kind::bytes;
  for (const auto& k : runtime_schema().keys()) {
    if (!k.get || k.paths == path_rule::files) continue;
    if (k.path == microbatches_of_a_step)
      all.push_back(
          {k.path, std::to_string(std::uint64_t{j.pipeline.microbatches} * j.pipeline.replicas)});
    if (holds(identity_sections, k.section()) || holds(train_identity, k.path))
      all.push_back({k.path, to_toml(k.get(settled))});
  }
  return all;
}

result<model_options> model_of(std::span<const setting> identity) {
  job j;
  for (const auto& s : identity) {
    const auto section = std::string_view{s.key}.substr(0, s.key.find('.'));
    if (section != "model" && section != "vision") continue;
    const auto* const k = runtime_schema().find(s.key);
    if (k == nullptr) return error{s.key + ": unknown key"};
    if (k->paths == path_rule::files) continue;  // identified by contents, not by path
    const auto read = read_value(s.value);
    if (!read) return error{s.key + ": cannot be read: " + s.value};
    if (auto set = k->set(j, *read); !set) return error{s.key + ": " + set.message()};
  }
  return j.model;
}

std::vector<setting> course(const job& j) {
  std::vector<setting> all;
  for (const auto& k : runtime_schema().keys()) {
    if (!k.get) continue;
    const bool trains = k.section() == "train" && !holds(train_identity, k.path);
    if (trains || holds(sums, k.path)) all.push_back({k.path, to_toml(k.get(j))});
  }
  return all;
}

}  // namespace rrfp::job
