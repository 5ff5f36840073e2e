#include <random>

#include <rrfp/membership/membership.hpp>

#include "life_line.hpp"

namespace rrfp::actors {

namespace {

process_standing::process_id draw_process() {
  std::random_device random;
  return process_standing::process_id{(std::uint64_t{random()} << 32) | random() | 1};
}

}  // namespace

process_standing::process_standing(bool fenced)
    : process_(fenced ? draw_process() : process_id{}) {}

process_standing::~process_standing() = default;

process_standing::knowledge process_standing::now() const {
  const std::lock_guard lock{mutex_};
  return now_;
}

void process_standing::change(const std::function<void(knowledge&)>& change) {
  const std::lock_guard lock{mutex_};
  change(now_);
}

std::uint16_t process_standing::open_life_line(const control::address& here) {
  if (life_line_ == nullptr)
    if (auto opened = control::life_line::open(here)) life_line_ = *std::move(opened);
  return life_line_ != nullptr ? life_line_->port() : 0;
}

}  // namespace rrfp::actors
