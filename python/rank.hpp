/// What a rank computes, as a Python object (rrfp/_rank.py): tensors cross as DLPack capsules.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/compute_error.hpp>
#include <rrfp/compute/rank_compute.hpp>

#include <xxhash.h>

#include "dlpack.hpp"
#include "gil.hpp"

namespace rrfp::python {

/// Collectives of the ranks of a stage, or of the replicas of a rank.
class python_group {
 public:
  explicit python_group(std::shared_ptr<compute::rank_group> group) : group_(std::move(group)) {}
  std::uint32_t rank() const { return group_->rank(); }
  std::uint32_t size() const { return group_->size(); }
  /// In place, on the host; float32, float64 or int64.
  void sum(const py::capsule& tensor) const {
    const auto b = buffer_of(tensor);
    without_gil([&] { group_->all_reduce_sum(b); });
  }
  void max(const py::capsule& tensor) const {
    const auto b = buffer_of(tensor);
    without_gil([&] { group_->all_reduce_max(b); });
  }

 private:
  const std::shared_ptr<compute::rank_group> group_;
};

/// A tensor of the state: name, element type, sizes, bytes, and the part of the whole tensor or
/// None: (whole sizes, dimension, blocks, offset, length).
using state_part = std::tuple<std::vector<std::int64_t>, std::int64_t, std::int64_t, std::int64_t,
                              std::int64_t>;
using state_entry = std::tuple<std::string, std::string, std::vector<std::int64_t>, py::capsule,
                               std::optional<state_part>>;

class python_rank final : public compute::rank_compute {
 public:
  /// `has_thread`: it does not compute on the thread of the program.
  python_rank(py::object rank, const actors::rank_place& place, bool has_thread)
      : rank_(shared(std::move(rank))),
        kept_(shared(rank_->attr("kept"))),
        run_(shared(py::none())),
        stage_(place.address.stage),
        replica_(place.address.replica),
        group_(place.group),
        has_thread_(has_thread),
        forwards_in_order_(rank_->attr("forwards_in_order").cast<bool>()),
        tied_side_(static_cast<compute::tie>(rank_->attr("tied_side").cast<int>())) {}

  void prepare_thread() override {
    if (has_thread_) called([&] { rank_->attr("prepare_thread")(); });
  }

  void begin_step(step_id step, compute::step_purpose purpose,
                  const microbatch_shares& microbatches) override {
    step_ = step;
    guarded("begin", [&] {
      *run_ = rank_->attr("begin")(number_of(step), purpose != compute::step_purpose::evaluation,
                                   microbatches.counts.by_replica, pieces_of(microbatches));
    });
  }

  tensor_buffer run(const launch& l, tensor_buffer input) override {
    if (group_) group_->set_task(step_, l);
    return guarded(to_string(l.what), [&] {
      auto given = input.defined() ? py::object{capsule_of(std::move(input))} : py::none();
      const auto& t = l.what;
      const auto made = (*run_)(static_cast<int>(t.kind), t.mb.value(), t.chunk.value(),
                                l.folds.first.value(), l.folds.count, std::move(given));
      return made.is_none() ? tensor_buffer{} : buffer_of(made.cast<py::capsule>());
    });
  }

  bool forwards_in_order() const override { return forwards_in_order_; }

  std::vector<compute::microbatch_loss> losses() const override {
    std::vector<compute::microbatch_loss> all;
    using entry = std::tuple<std::uint32_t, double, std::int64_t>;
    for (const auto& [mb, mean, tokens] : answer<std::vector<entry>>("losses"))
      all.push_back({microbatch_id{mb}, mean, tokens});
    return all;
  }

  std::optional<tensor_buffer> take_opened_sum() override {
    return called([&]() -> std::optional<tensor_buffer> {
      const auto sum = rank_->attr("take_opened_sum")();
      if (sum.is_none()) return std::nullopt;
      return buffer_of(sum.cast<py::capsule>());
    });
  }
  void join_opened_sum(const tensor_buffer& sum) override {
    guarded("the gradient sum of another replica",
            [&] { rank_->attr("join_opened_sum")(capsule_of(sum)); });
  }
  void sum_gradients(compute::rank_group& replicas) override {
    const std::shared_ptr<compute::rank_group> lent{&replicas, [](auto*) {}};
    guarded("the sum of gradients", [&] { rank_->attr("sum_gradients")(python_group{lent}); });
  }
  std::optional<tensor_buffer> tied_gradient() const override {
    if (tied_side_ == compute::tie::none) return std::nullopt;
    return called([&] { return buffer_of(rank_->attr("tied_gradient")().cast<py::capsule>()); });
  }
  compute::tie tied_side() const override { return tied_side_; }
  void join_tied(const tensor_buffer& partner) override {
    called([&] { rank_->attr("join_tied")(capsule_of(partner)); });
  }

  std::vector<compute::parameter_norm> squared_norms() override {
    std::vector<compute::parameter_norm> all;
    using entry = std::tuple<position, double>;
    for (const auto& [at, squared] : answer<std::vector<entry>>("squared_norms"))
      all.push_back({position_of(at), squared});
    return all;
  }
  void apply(double scale, double lr) override {
    guarded("apply", [&] { rank_->attr("apply")(scale, lr); });
  }
  void end_without_update() override {}

  std::vector<compute::parameter_hash> hashes() const override {
    return called([&] {
      std::vector<compute::parameter_hash> all;
      for (const auto& one : rank_->attr("values")()) {
        const auto [at, value] = one.cast<std::pair<position, py::capsule>>();
        const auto bytes = buffer_of(value).content();
        all.push_back({position_of(at), XXH64(bytes.data(), bytes.size(), 0)});
      }
      return all;
    });
  }

  std::vector<compute::named_buffer> snapshot(compute::tied_copies copies,
                                              compute::snapshot_memory memory) const override {
    return called([&] {
      std::vector<compute::named_buffer> all;
      const auto entries =
          rank_->attr("snapshot")(copies == compute::tied_copies::included,
                                  memory == compute::snapshot_memory::copied);
      for (const auto& one : entries) {
        auto [name, type, sizes, bytes, part] = one.cast<state_entry>();
        compute::named_buffer made{std::move(name), buffer_of(bytes)};
        made.value.type = dtype_of(type);
        if (made.value.type == dtype::other)
          throw py::type_error("'" + made.name + "': a checkpoint has no tensors of " + type);
        made.value.sizes = std::move(sizes);
        if (part) made.part = std::make_from_tuple<compute::shard>(std::move(*part));
        all.push_back(std::move(made));
      }
      return all;
    });
  }
  std::vector<std::string> names() const override {
    return answer<std::vector<std::string>>("names");
  }
  /// The error is the ValueError of the Python function.
  status restore(std::span<const compute::named_buffer> state) override {
    try {
      called([&] {
        py::list all;
        for (const auto& t : state) {
          std::optional<state_part> part;
          if (t.part)
            part = {t.part->whole, t.part->dimension, t.part->blocks, t.part->offset, t.part->length};
          auto bytes = t.value;
          bytes.type = dtype::uint8;
          bytes.sizes = {static_cast<std::int64_t>(t.value.bytes())};
          all.append(py::make_tuple(t.name, name_of(t.value.type), t.value.sizes,
                                    capsule_of(std::move(bytes)), part));
        }
        rank_->attr("restore")(all);
      });
    } catch (const std::exception& e) {
      return error{e.what()};
    }
    return success();
  }

  /// Torch does not tell what a task allocates on the host.
  std::int64_t held_bytes() const override { return 0; }
  std::int64_t peak_bytes() const override { return 0; }

 private:
  /// As _shares.Piece: sum, first, count, opens, closes.
  using piece = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool, bool>;
  /// Nothing: the replica runs its own microbatches.
  std::optional<std::vector<piece>> pieces_of(const microbatch_shares& microbatches) const {
    if (microbatches.are_own()) return std::nullopt;
    std::vector<piece> pieces;
    for (const auto& p : microbatches.parts_of(replica_))
      pieces.emplace_back(p.sum.value(), p.first, p.count, p.opens, p.closes);
    return pieces;
  }

  using position = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
  static compute::parameter_position position_of(const position& p) {
    return std::make_from_tuple<compute::parameter_position>(p);
  }

  /// with_gil(), and the program has what its functions raise. A child of fork() that returns into this process ends.
  template <class Work>
  auto called(Work work) const -> decltype(work()) {
    return with_gil(
        [&] {
          if constexpr (std::is_void_v<decltype(work())>) {
            work();
            check_process();
          } else {
            auto made = work();
            check_process();
            return made;
          }
        },
        kept_.get());
  }
  void check_process() const {
    if (::getpid() != process_) kept_->attr("check_process")();
  }

  template <class Result>
  Result answer(const char* name) const {
    return called([&] { return rank_->attr(name)().template cast<Result>(); });
  }

  /// called(), which adds stage, task and step to what `work` throws. `where`: the task, or another text.
  template <class Work>
  auto guarded(const std::string& where, Work work) const -> decltype(work()) {
    const auto named = [&](const std::exception& e) {
      return "stage " + std::to_string(stage_.value()) + ", " + where + " of " +
             (is_evaluation(step_) ? "an evaluation" : to_string(step_)) + ": " + e.what();
    };
    try {
      return called(work);
    } catch (const compute::compute_error& e) {
      throw compute::compute_error(e.fault(), named(e));
    } catch (const std::exception& e) {
      throw compute::compute_error(compute::compute_fault::library, named(e));
    }
  }

  const std::shared_ptr<py::object> rank_;
  const std::shared_ptr<py::object> kept_;
  const pid_t process_ = ::getpid();
  const std::shared_ptr<py::object> run_;  ///< runs the tasks of this step
  const stage_id stage_;
  const replica_id replica_;
  const std::shared_ptr<compute::rank_group> group_;
  const bool has_thread_;
  const bool forwards_in_order_;
  const compute::tie tied_side_;
  step_id step_{};
};

}  // namespace rrfp::python
