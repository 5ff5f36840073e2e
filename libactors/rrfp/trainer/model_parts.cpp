#include "model_parts.hpp"

#include <fmt/format.h>

#include <rrfp/base/codec.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/keyed_generator.hpp>

#include "stage_chunk.hpp"

namespace rrfp {

namespace {

std::uint64_t seed_of(std::uint64_t seed, std::uint32_t index) {
  // The increment of Weyl sequences; it is odd, so all parts of a model have different seeds.
  return seed + 0x9e3779b97f4a7c15U * (index + 1);
}

/// The ranks of a stage that share this process wait for each other in a collective, and draw from
/// the same generators.
class lending_group final : public compute::rank_group {
 public:
  explicit lending_group(std::shared_ptr<compute::rank_group> ranks) : ranks_(std::move(ranks)) {}

  std::uint32_t rank() const override { return ranks_->rank(); }
  std::uint32_t size() const override { return ranks_->size(); }
  bool on_device() const override { return ranks_->on_device(); }
  void all_reduce_sum(const tensor_buffer& b) override {
    const generator_loan loan;
    ranks_->all_reduce_sum(b);
  }
  void all_reduce_max(const tensor_buffer& b) override {
    const generator_loan loan;
    ranks_->all_reduce_max(b);
  }
  void set_task(step_id step, const launch& l) override { ranks_->set_task(step, l); }

 private:
  const std::shared_ptr<compute::rank_group> ranks_;
};

status add(parts_by_name& all, std::uint32_t part, const std::string& name) {
  const auto [at, is_new] = all.emplace(name, part);
  if (is_new || at->second == part) return success();
  return error{
      fmt::format("parameter '{}' is in part {} of the model and in part {}: names must "
                  "differ, as with stage_of(module, prefix)",
                  name, at->second, part)};
}

}  // namespace

model_parts::model_parts(const pipeline_options& options, std::uint64_t seed,
                         std::shared_ptr<fed_source> data)
    : options_(options), seed_(seed), data_(std::move(data)) {}

model_parts::chunk model_parts::make(const pipeline_shape& shape, virtual_stage_id vs,
                                     std::shared_ptr<compute::rank_group> group) {
  const auto at = shape.at(vs);
  if (compute::is_parallel(group)) group = std::make_shared<lending_group>(std::move(group));
  const stage_place place{at.stage.value(), at.chunk.value(), vs.value(), shape.virtual_stages(),
                          std::move(group)};
  const keyed_generator drawing{seed_of(seed_, place.index)};
  auto made = make_by_user(shape, place);
  if (!made) return made;
  if (place.is_last()) *made = keep_outputs(std::move(*made), place, data_);
  for (const auto& p : (*made)->parameters()) {
    if (p.tied == compute::tie::none)
      if (auto added = add(owners_, place.index, p.name); !added) return added.failure();
    const auto& [part, name] =
        owner_of_
            .try_emplace(p.value.unsafeGetTensorImpl(),
                         owner{{place.index, p.name}, weak_tensor{p.value.getIntrusivePtr()}})
            .first->second.part_and_name;
    if (part != place.index || name != p.name)
      return error{
          fmt::format("part {}: the parameter '{}' is the tensor of '{}' of part {}, too: "
                      "expected a tensor for each",
                      place.index, p.name, name, part)};
  }
  for (const auto& b : (*made)->buffers())
    if (auto added = add(owners_, place.index, b.name); !added) return added.failure();
  return made;
}

model_parts::chunk model_parts::make_by_user(const pipeline_shape& shape,
                                             const stage_place& place) const {
  const std::function<chunk()> make = [&]() -> chunk {
    if (options_.make_chunk) {
      auto made = options_.make_chunk(place);
      if (made && *made == nullptr) return error{"make_chunk returned no module"};
      return made;
    }
    auto s = options_.make_stage(place);
    if (!s) return s.failure();
    const auto here = shape.at(virtual_stage_id{place.index});
    const auto from = shape.producer_of(here.stage, {task_kind::forward, {}, here.chunk});
    const auto input_name =
        from ? fmt::format("stage {}", from->stage.value()) : std::string{"the batch"};
    return make_stage_chunk(place, *std::move(s), input_name, {options_.loss, options_.autocast},
                            seed_);
  };
  return caught(named(options_.make_chunk ? "make_chunk" : "make_stage", make));
}

std::string model_parts::names() const { return encoded(owners_); }

status model_parts::compare_names(const std::vector<std::string>& all) {
  parts_by_name together;
  for (const auto& bytes : all) {
    const auto names = decoded<parts_by_name>(bytes);
    if (!names) return error{"protocol error: a node's names are invalid", error_kind::failed};
    for (const auto& [name, part] : *names)
      if (auto added = add(together, part, name); !added) return added;
  }
  return success();
}

}  // namespace rrfp
