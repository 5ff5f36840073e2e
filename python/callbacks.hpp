/// What the pipeline calls of a Python program: parts of the model, optimizers and policies.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <rrfp/base/step_name.hpp>
#include <rrfp/keyed_generator.hpp>
#include <rrfp/pipeline.hpp>
#include <rrfp/schedule/sequence.hpp>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "gil.hpp"

namespace rrfp::python {

/// torch.compile without a GPU, in a torch built for CUDA, stores a guard that belongs to its thread
/// in a global variable (c10::impl::ensureCUDADeviceGuardSet()). An object of this class on the same
/// thread puts the former guard back when the thread ends.
class restored_device_guard {
 public:
  static void at_end_of_thread() { static const thread_local restored_device_guard object; }
  restored_device_guard(const restored_device_guard&) = delete;
  restored_device_guard& operator=(const restored_device_guard&) = delete;
  ~restored_device_guard() { current().store(before); }

 private:
  restored_device_guard() = default;
  static std::atomic<const c10::impl::DeviceGuardImplInterface*>& current() {
    return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(at::kCUDA)];
  }
  static inline const c10::impl::DeviceGuardImplInterface* const before = current().load();
};

/// A part of the model: `forward(input or None, microbatch, training, device)` returns the message to
/// the next part, or the loss, and whether its graph has hooks on saved tensors.
class python_stage final : public compute::stage_module {
 public:
  python_stage(std::vector<compute::parameter> parameters, std::vector<std::string> buffer_names,
               py::object buffers, bool forwards_in_order, py::object forward, std::uint64_t seed,
               std::uint64_t part)
      : parameters_(std::move(parameters)),
        buffer_names_(std::move(buffer_names)),
        buffers_(shared(std::move(buffers))),
        forwards_in_order_(forwards_in_order),
        forward_(shared(std::move(forward))),
        seed_(seed),
        part_(part) {}

  std::span<const compute::parameter> parameters() const override { return parameters_; }
  /// Those of now: a forward may assign others.
  std::vector<compute::buffer> buffers() const override {
    if (buffer_names_.empty()) return {};
    const auto values = with_gil([&] { return (*buffers_)().cast<std::vector<at::Tensor>>(); });
    std::vector<compute::buffer> all;
    for (std::size_t i = 0; i < buffer_names_.size(); ++i)
      all.push_back({buffer_names_[i], values.at(i)});
    return all;
  }
  bool forwards_in_order() const override { return forwards_in_order_; }

  at::Tensor forward(const compute::forward_input& in) override {
    restored_device_guard::at_end_of_thread();
    // The turn of the generator first, then the GIL, so that who waits for a turn holds no GIL.
    const auto device = (in.input.defined() ? in.input : in.batch->whole().inputs).device();
    return draws_.run({seed_, number_of(in.step), in.mb.value(), part_}, device, in.training, [&] {
      return with_gil([&] {
        auto input = part_ == 0 ? py::object{py::none()} : py::cast(in.input);
        const auto made = (*forward_)(std::move(input), in.mb.value(), in.training, device.str())
                              .cast<std::pair<at::Tensor, bool>>();
        has_hooks_ = made.second;
        return made.first;
      });
    });
  }

  bool can_split_backward() const override { return !has_hooks_; }

  void run_backward(const std::function<void()>& backward) override {
    try {
      backward();
    } catch (python_error& e) {
      const py::gil_scoped_acquire gil;
      e.persist();
      PyErr_Clear();
      throw std::runtime_error(e.what());
    }
  }

 private:
  const std::vector<compute::parameter> parameters_;
  const std::vector<std::string> buffer_names_;
  const std::shared_ptr<py::object> buffers_;
  const bool forwards_in_order_;
  const std::shared_ptr<py::object> forward_;
  const std::uint64_t seed_;
  const std::uint64_t part_;
  keyed_draws draws_;
  bool has_hooks_ = false;  ///< the graph of the last forward, on saved tensors
};

/// The tensor-parallel ranks of a stage.
class python_group {
 public:
  explicit python_group(std::shared_ptr<compute::rank_group> group) : group_(std::move(group)) {}
  std::uint32_t rank() const { return group_->rank(); }
  std::uint32_t size() const { return group_->size(); }
  /// Sums the tensors of all ranks in the order of the ranks.
  at::Tensor all_reduce(const at::Tensor& x) const {
    return without_gil([&] {
      auto sum = x.detach().clone(at::MemoryFormat::Contiguous);
      compute::all_reduce_sum(*group_, sum);
      return sum;
    });
  }

 private:
  const std::shared_ptr<compute::rank_group> group_;
};

/// The runtime does not know what a rank holds of a tensor: it takes the tensors of all ranks for
/// pieces of one, along the first dimension.
inline std::optional<compute::shard> piece_of_rank(const at::Tensor& t, const compute::rank_group* group) {
  if (group == nullptr) return std::nullopt;
  if (t.dim() == 0)
    throw py::value_error("pipeline.tp: expected parameters with a dimension, got a scalar");
  auto whole = t.sizes().vec();
  whole[0] *= group->size();
  return compute::even_shard(std::move(whole), 0, 1, group->rank(), group->size());
}

/// Calls `part(index, count, group or None)`: (names, tensors, name of the tied parameter or "",
/// names of buffers, a function that returns the buffers, whether forward changes them, forward). The tied parameter is the
/// owner in the first part and the copy in the last one.
inline result<std::unique_ptr<compute::stage_module>> make_stage(const py::object& part,
                                                          const stage_place& at,
                                                          std::uint64_t seed) {
  const auto group =
      at.group ? py::cast(python_group{at.group}) : py::object{py::none()};
  const auto made = part(at.index, at.count, group).cast<py::tuple>();
  const auto names = made[0].cast<std::vector<std::string>>();
  const auto tensors = made[1].cast<std::vector<at::Tensor>>();
  const auto tied = made[2].cast<std::string>();
  const auto buffer_names = made[3].cast<std::vector<std::string>>();
  std::vector<compute::parameter> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) {
    parameters.push_back({names[i], tensors.at(i)});
    parameters.back().part = piece_of_rank(tensors.at(i), at.group.get());
    if (names[i] == tied && at.count > 1)
      parameters.back().tied = at.is_first() ? compute::tie::owner : compute::tie::copy;
  }
  return std::unique_ptr<compute::stage_module>{
      std::make_unique<python_stage>(std::move(parameters), buffer_names, made[4], made[5].cast<bool>(), made[6], seed, at.index)};
}

/// An Optimizer of _optimizers.py, whose own learning rate counts.
class python_optimizer final : public compute::optimizer {
 public:
  explicit python_optimizer(py::object made) : made_(shared(std::move(made))) {}

  void step(double) override {
    with_gil([&] { made_->attr("step")(); });
  }
  std::vector<compute::optimizer_tensor> state() const override {
    return with_gil([&] {
      std::vector<compute::optimizer_tensor> all;
      for (const auto& one : made_->attr("state")()) {
        auto [parameter, name, value] = one.cast<state_entry>();
        all.push_back({parameter, std::move(name), std::move(value)});
      }
      return all;
    });
  }
  status set_state(const std::vector<compute::optimizer_tensor>& state) override {
    with_gil([&] {
      std::vector<state_entry> all;
      for (const auto& t : state) all.emplace_back(t.parameter, t.name, t.value);
      made_->attr("set_state")(all);
    });
    return success();
  }

 private:
  using state_entry = std::tuple<std::size_t, std::string, at::Tensor>;

  const std::shared_ptr<py::object> made_;
};

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

/// Calls `order(stage)`, which returns the names of all tasks of the stage.
inline result<sequence> order_from(const py::object& order, const pipeline_shape& shape, stage_id stage) {
  sequence all;
  for (const auto& name : order(stage.value()).cast<std::vector<std::string>>()) {
    const auto t = task_of(name);
    if (!t)
      return error{"policy: expected tasks such as \"F0\", \"B0\", \"W0\" or \"BW0\", got '" +
                   name + "'"};
    all.push_back(*t);
  }
  if (auto complete = check_sequence(shape, stage, all); !complete)
    return error{"policy: " + complete.message()};
  return all;
}

}  // namespace rrfp::python
