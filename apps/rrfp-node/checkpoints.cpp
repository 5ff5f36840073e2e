#include "checkpoints.hpp"

#include <rrfp/base/units.hpp>

#include <fmt/format.h>

namespace rrfp::apps {

std::string line_of(const actors::checkpoint_report& r) {
  if (!r.failure.empty())
    return fmt::format("checkpoint: step {} not saved: {}", r.step, r.failure);
  return fmt::format(
      "checkpoint: step {} saved, {} files, {:.1f} MiB, {:.1f} ms copy, {:.0f} ms in the "
      "background",
      r.step, r.files, static_cast<double>(r.bytes) / mebibyte, r.copy_ms, r.background_ms);
}

std::string line_of(const checkpoint::found_checkpoint& from) {
  return fmt::format("resumes after step {} from {}, written at {}", from.contents.step,
                     from.folder, from.contents.written_at);
}

result<std::string> describe_checkpoints(const job::job& j,
                                         const std::optional<actors::checkpoint_setup>& setup) {
  if (!setup) return std::string{};
  const auto choice = actors::choose_resume(j, *setup, checkpoint::verification::checksums);
  if (!choice) return choice.failure();
  const auto when = setup->every == 0 ? std::string{"at the end"}
                                      : fmt::format("every {} steps and at the end", setup->every);
  auto text =
      fmt::format("checkpoints {} in {}, the newest {} are kept; the run {}\n", when, setup->dir,
                  j.checkpoint.keep, choice->from ? line_of(*choice->from) : "starts");
  for (const auto& line : choice->skipped) text += "  skipped: " + line + "\n";
  for (const auto& line : choice->changed) text += "  " + line + "\n";
  return text;
}

}  // namespace rrfp::apps
