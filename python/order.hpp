/// A policy that is a Python function of the stage.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/core/policy.hpp>
#include <rrfp/core/sequence.hpp>

#include "gil.hpp"

namespace rrfp::python {

/// A policy whose order Python gives anew for each step. Python does not run while tasks are chosen.
class python_policy final : public policy {
 public:
  /// The order of the next step, which any thread may set.
  class sheet {
   public:
    void put(const sequence& order) {
      const std::lock_guard lock{mutex_};
      next_ = make_sequence_policy("python", order);
    }
    void take(std::unique_ptr<policy>& current) {
      const std::lock_guard lock{mutex_};
      if (next_) current = std::move(next_);
    }

   private:
    std::mutex mutex_;
    std::unique_ptr<policy> next_;
  };

  explicit python_policy(std::shared_ptr<sheet> from) : from_(std::move(from)) { reset(); }

  std::string_view name() const override { return current_->name(); }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return current_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return current_->lanes(); }
  std::uint32_t lane_of(const task& t) const override { return current_->lane_of(t); }
  std::uint64_t rank(const task& t) const override { return current_->rank(t); }
  lane_order order(const stage_view& now) const override { return current_->order(now); }
  void reset() override { from_->take(current_); }

 private:
  const std::shared_ptr<sheet> from_;
  std::unique_ptr<policy> current_;
};

/// The orders of the stages of this process: `order(stage)` returns the names of all tasks of a
/// stage. Used with the GIL.
class python_orders {
 public:
  python_orders(py::object order, pipeline_shape shape)
      : order_(shared(std::move(order))), shape_(shape) {}

  std::unique_ptr<policy> make_policy(stage_id stage) {
    const auto first = order_of(stage);
    if (!first) throw std::runtime_error(first.message());
    auto& sheet = sheets_[stage];
    if (sheet == nullptr) sheet = std::make_shared<python_policy::sheet>();
    sheet->put(*first);
    return std::make_unique<python_policy>(sheet);
  }
  /// Asks for the orders of the next step.
  void renew() {
    for (const auto& [stage, sheet] : sheets_) sheet->put(value_of(order_of(stage)));
  }

 private:
  result<sequence> order_of(stage_id stage) const {
    std::vector<std::string> names;
    try {
      names = (*order_)(stage.value()).cast<std::vector<std::string>>();
    } catch (const py::error_already_set& e) {
      return error{py::str(e.value()), error_kind::failed};
    }
    sequence all;
    for (const auto& name : names) {
      const auto t = task_of(name);
      if (!t)
        return error{"policy: expected tasks such as \"F0\", \"B0\", \"W0\" or \"BW0\", got '" +
                     name + "'"};
      all.push_back(*t);
    }
    if (auto complete = check_sequence(shape_, stage, all); !complete)
      return error{"policy: " + complete.message()};
    return all;
  }

  const std::shared_ptr<py::object> order_;
  const pipeline_shape shape_;
  std::map<stage_id, std::shared_ptr<python_policy::sheet>> sheets_;
};

}  // namespace rrfp::python
