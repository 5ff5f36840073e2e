#include <rrfp/keyed_generator.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <rrfp/compute/keyed_hash.hpp>

namespace rrfp {

namespace {

std::recursive_mutex& turn() {
  static std::recursive_mutex mutex;
  return mutex;
}

std::uint64_t seed_of(const draw_key& key) {
  return compute::keyed_hash({static_cast<std::uint64_t>(compute::random_use::user_module),
                              key.seed, key.step, key.microbatch, key.part});
}

}  // namespace

keyed_generator::keyed_generator(std::uint64_t seed)
    : turn_(turn()), generator_(at::detail::getDefaultCPUGenerator()) {
  const std::lock_guard lock{generator_.mutex()};
  before_ = generator_.get_state();
  generator_.set_current_seed(seed);
  seeded_ = generator_.get_state();
}

keyed_generator::keyed_generator(const draw_key& key) : keyed_generator(seed_of(key)) {}

keyed_generator::~keyed_generator() {
  const std::lock_guard lock{generator_.mutex()};
  generator_.set_state(before_);
}

bool keyed_generator::was_used() const {
  auto generator = generator_;
  const std::lock_guard lock{generator.mutex()};
  return !at::equal(generator.get_state(), seeded_);
}

}  // namespace rrfp
