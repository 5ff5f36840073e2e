#include <rrfp/keyed_generator.hpp>

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <rrfp/compute/keyed_hash.hpp>

namespace rrfp {

namespace {

std::uint64_t seed_of(const draw_key& key) {
  return compute::keyed_hash({static_cast<std::uint64_t>(compute::random_use::user_module),
                              key.seed, key.step, key.microbatch, key.part});
}

/// Of the calling thread.
keyed_generator*& innermost() {
  thread_local keyed_generator* one = nullptr;
  return one;
}

/// Returns the state before.
at::Tensor exchange_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock{generator.mutex()};
  auto before = generator.get_state();
  generator.set_state(state);
  return before;
}

}  // namespace

std::unique_lock<std::recursive_mutex> generator_turn() {
  static std::recursive_mutex mutex;
  return std::unique_lock{mutex};
}

int& forward_scope::open() {
  thread_local int count = 0;
  return count;
}

keyed_generator::keyed_generator(std::uint64_t seed, at::Device device)
    : turn_(generator_turn()), outer_(std::exchange(innermost(), this)) {
  this->seed(at::detail::getDefaultCPUGenerator(), seed);
  if (!device.is_cpu()) this->seed(at::globalContext().defaultGenerator(device), seed);
}

keyed_generator::keyed_generator(const draw_key& key, at::Device device)
    : keyed_generator(seed_of(key), device) {}

keyed_generator::~keyed_generator() {
  innermost() = outer_;
  for (auto& one : all_) exchange_state(one.generator, one.before);
}

generator_loan::generator_loan() : lender_(innermost()) {
  if (lender_ == nullptr) return;
  for (auto& one : lender_->all_) states_.push_back(exchange_state(one.generator, one.before));
  lender_->turn_.unlock();
}

generator_loan::~generator_loan() {
  if (lender_ == nullptr) return;
  lender_->turn_.lock();
  for (std::size_t i = 0; i < states_.size(); ++i)
    lender_->all_[i].before = exchange_state(lender_->all_[i].generator, states_[i]);
}

void keyed_generator::seed(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock{generator.mutex()};
  const auto before = generator.get_state();
  generator.set_current_seed(seed);
  all_.push_back({generator, before, generator.get_state()});
}

bool keyed_generator::was_used() const {
  return std::any_of(all_.begin(), all_.end(), [](auto one) {
    const std::lock_guard lock{one.generator.mutex()};
    return !at::equal(one.generator.get_state(), one.state);
  });
}

std::atomic<int>& keyed_draws::count_drawing() {
  static std::atomic<int> count = 0;
  return count;
}

}  // namespace rrfp
