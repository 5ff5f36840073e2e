#include "stage_chunk.hpp"

#include <array>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/compute_error.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/keyed_generator.hpp>
#include <rrfp/torch/operators.hpp>

namespace rrfp {

namespace {

/// Where linear() and embedding() of the running forward store the inputs of W.
thread_local compute::weight_stash* current_stash = nullptr;

class stash_scope {
 public:
  explicit stash_scope(compute::weight_stash* stash) : before_(current_stash) {
    current_stash = stash;
  }
  stash_scope(const stash_scope&) = delete;
  stash_scope& operator=(const stash_scope&) = delete;
  ~stash_scope() { current_stash = before_; }

 private:
  compute::weight_stash* const before_;
};

/// torch.autocast, for the calling thread. Its cache of converted weights lives as long.
class autocast_scope {
 public:
  autocast_scope(std::optional<at::ScalarType> type, at::DeviceType device)
      : is_on_(type.has_value()), device_(device) {
    if (!is_on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, *type);
    at::autocast::increment_nesting();
  }
  autocast_scope(const autocast_scope&) = delete;
  autocast_scope& operator=(const autocast_scope&) = delete;
  ~autocast_scope() {
    if (!is_on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_dtype(device_, type_before_);
  }

 private:
  const bool is_on_;
  const at::DeviceType device_;
  const bool was_on_ = at::autocast::is_autocast_enabled(device_);
  const at::ScalarType type_before_ = at::autocast::get_autocast_dtype(device_);
};

/// "float [4, 16]"
std::string describe(const at::Tensor& t) {
  return t.defined() ? c10::str(t.scalar_type(), " ", t.sizes()) : "none";
}

/// Runs user code; adds its name and its input to what it throws.
template <class Work>
auto with_context(const std::string& name, const std::string& input, Work work) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error(name + ": " + why + " (given " + input + ")");
  };
  try {
    return work();
  } catch (const std::exception& e) {
    fail(compute::first_line_of(e));
  } catch (...) {
    fail("threw an object that is not a std::exception");
  }
  throw std::logic_error("fail() throws");
}

class stage_chunk final : public compute::stage_module {
 public:
  stage_chunk(const stage_place& place, stage s, std::string input_name, stage_loss loss,
              std::uint64_t seed)
      : stage_(std::move(s)),
        input_name_(std::move(input_name)),
        loss_(std::move(loss)),
        seed_(seed),
        part_(place.index),
        is_first_(place.is_first()),
        is_last_(place.is_last()) {
    for (const auto& [name, value] : stage_.parameters) parameters_.push_back({name, value});
    for (const auto& [name, value] : stage_.buffers) buffers_.push_back({name, value});
  }

  status check(const compute::microbatch& mb) const override {
    if (is_first_ && !mb.inputs.defined())
      return error{"expected inputs in the process of the first stage, got none"};
    return success();
  }

  std::span<const compute::parameter> parameters() const override { return parameters_; }
  std::vector<compute::buffer> buffers() const override { return buffers_; }
  bool forwards_in_order() const override { return stage_.forwards_in_order; }

  at::Tensor forward(const compute::forward_input& in) override {
    const forward_scope inside;
    if (stage_.set_training && training_set_ != in.training)
      named("set_training", stage_.set_training)(in.training);
    training_set_ = in.training;
    const stash_scope scope(in.stash);
    const draw_key key{seed_, number_of(in.step), in.mb.value(), part_};
    const auto device = in.input.device();
    const autocast_scope casting(loss_.autocast, device.type());
    const auto before = marks();
    const auto values = compares(in.training) ? copies_of_buffers() : std::vector<at::Tensor>{};
    const auto out = with_context("forward", describe(in.input) + " by " + input_name_, [&] {
      const at::AutoGradMode restored(at::GradMode::is_enabled());
      return draws_.run(key, device, in.training, [&] { return stage_.forward(in.input); });
    });
    check_unchanged(before, values);
    if (!is_last_) {
      check_output(out, in);
      return out.resolve_neg();
    }
    if (!out.defined()) throw std::runtime_error("forward returned no tensor");
    if (in.keep_output) in.keep_output(out);
    const auto loss = with_context(
        "loss", "the output " + describe(out) + " and the target " + describe(in.targets), [&] {
          // As a part after the last one.
          const draw_key of_loss{seed_, number_of(in.step), in.mb.value(), part_ + 1};
          return draws_.run(
              of_loss, device, in.training, [&] { return loss_.function(out, in.targets); },
              /*is_loss=*/true);
        });
    if (!loss.defined() || !loss.is_floating_point() || loss.dim() != 0)
      throw std::runtime_error("the loss is " + describe(loss) +
                               ", expected a float scalar: the sum over the microbatch");
    if (in.training && learns(in) && at::GradMode::is_enabled() && !loss.requires_grad())
      throw std::runtime_error("the loss has no gradient: it does not depend on the output");
    return loss;
  }

 private:
  /// Version and address of each buffer. A change through data() shows in neither.
  using buffer_mark = std::pair<std::uint32_t, const void*>;
  std::vector<buffer_mark> marks() const {
    std::vector<buffer_mark> all;
    for (const auto& b : buffers_)
      all.emplace_back(b.value.unsafeGetTensorImpl()->version_counter().current_version(),
                       b.value.has_storage() ? b.value.storage().data() : nullptr);
    return all;
  }

  /// Values are compared in the first forward of each kind only.
  bool compares(bool training) {
    auto& compared = compared_[training ? 1 : 0];
    return !stage_.forwards_in_order && !std::exchange(compared, true);
  }

  std::vector<at::Tensor> copies_of_buffers() const {
    std::vector<at::Tensor> all;
    for (const auto& b : buffers_) all.push_back(b.value.detach().clone());
    return all;
  }

  void check_unchanged(const std::vector<buffer_mark>& before,
                       const std::vector<at::Tensor>& values) const {
    if (stage_.forwards_in_order) return;
    const auto now = marks();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const bool is_same = now[i] == before[i] &&
                           (values.empty() || at::allclose(buffers_[i].value.detach(), values[i], 0,
                                                           0, /*equal_nan=*/true));
      if (!is_same)
        throw std::runtime_error("forward changes the buffer '" + buffers_[i].name +
                                 "': expected stage::forwards_in_order = true, because its value "
                                 "depends on the order of the microbatches");
    }
  }

  bool learns(const compute::forward_input& in) const {
    return in.input.requires_grad() ||
           std::any_of(parameters_.begin(), parameters_.end(),
                       [](const auto& p) { return p.value.requires_grad(); });
  }

  void check_output(const at::Tensor& out, const compute::forward_input& in) const {
    if (!out.defined()) throw std::runtime_error("forward returned no tensor");
    if (!out.is_floating_point())
      throw std::runtime_error("forward returned " + describe(out) +
                               ", expected a float tensor for the next stage");
    if (out.layout() != at::kStrided || out.is_meta())
      throw std::runtime_error("forward returned " + describe(out) + " with the layout " +
                               c10::str(out.layout()) + " on " + out.device().str() +
                               ", expected a dense tensor for the next stage");
    if (in.training && learns(in) && at::GradMode::is_enabled() && !out.requires_grad())
      throw std::runtime_error(
          "forward returned a tensor without a gradient: it depends neither on a parameter nor on "
          "the input");
  }

  const stage stage_;
  const std::string input_name_;
  const stage_loss loss_;
  const std::uint64_t seed_;
  const std::uint64_t part_;
  keyed_draws draws_;
  const bool is_first_;
  const bool is_last_;
  std::optional<bool> training_set_;
  std::array<bool, 2> compared_{};
  std::vector<compute::parameter> parameters_;
  std::vector<compute::buffer> buffers_;
};

class output_keeper final : public compute::stage_module {
 public:
  output_keeper(std::unique_ptr<compute::stage_module> last, std::shared_ptr<fed_source> data)
      : last_(std::move(last)), data_(std::move(data)) {}

  status check(const compute::microbatch& mb) const override { return last_->check(mb); }
  std::span<const compute::parameter> parameters() const override { return last_->parameters(); }
  std::vector<compute::buffer> buffers() const override { return last_->buffers(); }
  bool forwards_in_order() const override { return last_->forwards_in_order(); }

  at::Tensor forward(const compute::forward_input& in) override {
    if (!data_->wants_outputs(in.step)) return last_->forward(in);
    bool is_kept = false;
    auto with_output = in;
    with_output.keep_output = [&](const at::Tensor& output) {
      is_kept = true;
      data_->keep_output(in.step, in.mb, output.detach());
    };
    auto loss = last_->forward(with_output);
    if (!is_kept)
      throw std::runtime_error(
          "return_outputs: expected forward to call forward_input::keep_output, got no output");
    return loss;
  }

 private:
  const std::unique_ptr<compute::stage_module> last_;
  const std::shared_ptr<fed_source> data_;
};

}  // namespace

result<std::unique_ptr<compute::stage_module>> make_stage_chunk(const stage_place& place, stage s,
                                                                std::string input_name,
                                                                stage_loss loss,
                                                                std::uint64_t seed) {
  if (!s.forward) return error{"make_stage returned no module"};
  for (const auto& [name, value] : s.parameters) {
    if (!value.defined() || !value.is_leaf() || value.scalar_type() != at::kFloat ||
        !value.is_cpu())
      return error{"parameter '" + name + "': expected a float leaf on the CPU, got " +
                   describe(value)};
  }
  return std::unique_ptr<compute::stage_module>{std::make_unique<stage_chunk>(
      place, std::move(s), std::move(input_name), std::move(loss), seed)};
}

std::unique_ptr<compute::stage_module> keep_outputs(std::unique_ptr<compute::stage_module> last,
                                                    const stage_place& place,
                                                    std::shared_ptr<fed_source> data) {
  // All ranks of a stage have the same output.
  if (place.group != nullptr && place.group->rank() != 0) return last;
  return std::make_unique<output_keeper>(std::move(last), std::move(data));
}

void detail::add_buffer(stage& to, std::string name, const at::Tensor& value) {
  if (!value.defined()) return;
  to.forwards_in_order |= name.ends_with("running_mean");
  to.buffers.emplace_back(std::move(name), value);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  // Autocast converts the weight, so that the ordinary operator serves as well.
  if (at::autocast::is_autocast_enabled(x.device().type())) return at::linear(x, weight, bias);
  return compute::linear(x, weight, bias, current_stash);
}

at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight) {
  return compute::embedding(indices, weight, current_stash);
}

}  // namespace rrfp
