/// A policy that is a Python function of the stage.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/core/policy.hpp>
#include <rrfp/core/sequence.hpp>

#include "gil.hpp"

namespace rrfp::python {

/// The policies of the stages of this process: `order(stage, n_microbatches)` returns the names of
/// all tasks of a stage, the most urgent first. Used with the GIL; Python does not run while tasks
/// are chosen.
class python_orders {
 public:
  explicit python_orders(py::object order) : order_(shared(std::move(order))) {}

  std::unique_ptr<policy> make_policy(const pipeline_shape& shape, stage_id stage) {
    shape_ = shape;
    stages_.insert(stage);
    const auto known = next_.find({stage, shape.microbatches});
    return make_sequence_policy("python", known != next_.end() ? known->second : order_of(shape, stage));
  }
  /// Asks for the orders of the next step before it begins, so that an error costs no run. A process
  /// that does not know the counts asks in the step.
  void renew(const std::vector<std::uint32_t>& microbatches) {
    next_.clear();
    auto shape = shape_;
    for (const auto stage : stages_)
      for (const auto count : microbatches) {
        shape.microbatches = count;
        if (count != 0 && !next_.contains({stage, count}))
          next_[{stage, count}] = order_of(shape, stage);
      }
  }

 private:
  sequence order_of(const pipeline_shape& shape, stage_id stage) const {
    std::vector<std::string> names;
    try {
      names = (*order_)(stage.value(), shape.microbatches).cast<std::vector<std::string>>();
    } catch (const py::error_already_set& e) {
      throw std::runtime_error(py::str(e.value()));
    }
    sequence all;
    for (const auto& name : names) {
      const auto t = task_of(name);
      if (!t)
        throw std::runtime_error(
            "policy: expected tasks such as \"F0\", \"B0\", \"W0\" or \"BW0\", got '" + name + "'");
      all.push_back(*t);
    }
    if (auto complete = check_sequence(shape, stage, all); !complete)
      throw std::runtime_error("policy: " + complete.message());
    return all;
  }

  const std::shared_ptr<py::object> order_;
  pipeline_shape shape_;
  std::set<stage_id> stages_;  ///< of this process
  std::map<std::pair<stage_id, std::uint32_t>, sequence> next_;  ///< by number of microbatches
};

}  // namespace rrfp::python
