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

bool process_standing::is_lost() const {
  const std::lock_guard lock{mutex_};
  return lost_.contains(process_);
}

std::set<process_standing::process_id> process_standing::lost() const {
  const std::lock_guard lock{mutex_};
  return lost_;
}

bool process_standing::has_joined() const {
  const std::lock_guard lock{mutex_};
  return has_joined_;
}

std::optional<std::int64_t> process_standing::awake_at() const {
  const std::lock_guard lock{mutex_};
  return awake_at_;
}

bool process_standing::is_over() const {
  const std::lock_guard lock{mutex_};
  return is_over_;
}

membership_core::leader_choice process_standing::choice() const {
  const std::lock_guard lock{mutex_};
  return choice_;
}

void process_standing::note_over() {
  const std::lock_guard lock{mutex_};
  is_over_ = true;
}

void process_standing::note_awake(std::int64_t at) {
  const std::lock_guard lock{mutex_};
  awake_at_ = at;
}

void process_standing::note_pause(std::chrono::nanoseconds pause) {
  const std::lock_guard lock{mutex_};
  if (awake_at_) *awake_at_ += pause.count();
}

void process_standing::add_lost(process_id process) {
  const std::lock_guard lock{mutex_};
  lost_.insert(process);
}

void process_standing::note_joined(node_id own, std::set<node_id> present,
                                   std::vector<membership_core::successor> successors) {
  const std::lock_guard lock{mutex_};
  has_joined_ = true;
  choice_.note_joined(own, std::move(present), std::move(successors));
}

void process_standing::change(const std::function<void(membership_core::leader_choice&)>& change) {
  const std::lock_guard lock{mutex_};
  change(choice_);
}

std::uint16_t process_standing::open_life_line(const std::string& host) {
  if (life_line_ != nullptr) return life_line_->port();
  const auto here = control::numeric_address(host, 0);
  if (!here) return 0;
  auto opened = control::life_line::open(*here);
  if (!opened) return 0;
  life_line_ = *std::move(opened);
  return life_line_->port();
}

}  // namespace rrfp::actors
