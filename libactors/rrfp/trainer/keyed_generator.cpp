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

}  // namespace

std::unique_lock<std::recursive_mutex> generator_turn() {
  static std::recursive_mutex mutex;
  return std::unique_lock{mutex};
}

int& forward_scope::open() {
  thread_local int count = 0;
  return count;
}

keyed_generator::keyed_generator(std::uint64_t seed, at::Device device) : turn_(generator_turn()) {
  this->seed(at::detail::getDefaultCPUGenerator(), seed);
  if (!device.is_cpu()) this->seed(at::globalContext().defaultGenerator(device), seed);
}

keyed_generator::keyed_generator(const draw_key& key, at::Device device)
    : keyed_generator(seed_of(key), device) {}

keyed_generator::~keyed_generator() {
  for (auto& one : all_) {
    const std::lock_guard lock{one.generator.mutex()};
    one.generator.set_state(one.before);
  }
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

}  // namespace rrfp
