/// A policy that is a Python function of the stage.
#pragma once

#include <memory>
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

  std::unique_ptr<policy> make_policy(const pipeline_shape& shape, stage_id stage) const {
    sequence all;
    for (const auto& name : names_of(shape, stage)) {
      const auto t = task_of(name);
      if (!t)
        throw std::runtime_error(
            "policy: expected tasks such as \"F0\", \"B0\", \"W0\" or \"BW0\", got '" + name + "'");
      all.push_back(*t);
    }
    if (auto complete = check_sequence(shape, stage, all); !complete)
      throw std::runtime_error("policy: " + complete.message());
    return make_sequence_policy("python", std::move(all));
  }

 private:
  std::vector<std::string> names_of(const pipeline_shape& shape, stage_id stage) const {
    try {
      return (*order_)(stage.value(), shape.microbatches).cast<std::vector<std::string>>();
    } catch (const py::error_already_set& e) {
      throw std::runtime_error(py::str(e.value()));
    }
  }

  const std::shared_ptr<py::object> order_;
};

}  // namespace rrfp::python
