#include "job_saves.hpp"

#include <algorithm>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::actors {

job_saves::job_saves(checkpoint_setup setup, std::uint32_t ranks)
    : setup_(std::move(setup)), ranks_(ranks) {
  RRFP_CHECK(setup_.ring != nullptr, "node 0 has opened the checkpoint folder");
}

status job_saves::begin(std::uint64_t steps, std::int64_t now, std::string history) {
  RRFP_CHECK(!current_, "one save at a time");
  current_ = save{};
  current_->step = steps;
  current_->began = now;
  current_->history = std::move(history);
  return setup_.ring->begin(steps);
}

void job_saves::record(const snapshot_taken& m, std::int64_t now) {
  if (!current_ || current_->step != m.step) return;
  current_->copy_time = std::max(current_->copy_time, m.copy_time);
  if (++current_->copies == ranks_) current_->copied = now;
}

void job_saves::record(const snapshot_written& m) {
  if (!current_ || current_->step != m.step || !m.failure.empty()) return;
  current_->files.push_back({m.file, m.bytes, m.xxh64});
}

checkpoint::manifest job_saves::manifest() const {
  RRFP_CHECK(current_.has_value(), "all ranks have written");
  auto m = setup_.head;
  m.step = current_->step;
  m.written_at = checkpoint::utc_now();
  m.history = current_->history;
  m.files = current_->files;
  std::sort(m.files.begin(), m.files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return m;
}

checkpoint_report job_saves::end(std::string failure, std::int64_t now) {
  RRFP_CHECK(current_, "a save that has begun");
  const auto done = *std::exchange(current_, std::nullopt);
  last_failed_ = !failure.empty();
  checkpoint_report report{done.step, std::move(failure)};
  report.files = static_cast<std::uint32_t>(done.files.size());
  for (const auto& f : done.files) report.bytes += f.bytes;
  report.copy_ms = milliseconds(done.copy_time);
  report.background_ms = milliseconds(now - std::max(done.began, done.copied));
  if (last_failed_)
    setup_.ring->abandon(done.step);
  else
    ++saved_;
  return report;
}

}  // namespace rrfp::actors
