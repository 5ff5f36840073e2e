#include <rrfp/actors/job_checkpoint.hpp>

#include <fmt/format.h>

#include <rrfp/checkpoint/checksum.hpp>

namespace rrfp::actors {

namespace {

std::vector<checkpoint::setting> settings_of(const std::vector<job::setting>& all) {
  std::vector<checkpoint::setting> made;
  for (const auto& s : all) made.push_back({s.key, s.value});
  return made;
}

/// Whether the job may go on from there, and what it has changed.
status judge(const job::job& j, const checkpoint_setup& setup, const checkpoint::found& from,
             std::vector<std::string>& changed) {
  const auto& saved = from.what;
  for (const auto& d : differences(saved.identity, setup.head.identity))
    return job::blame(j, d.key,
                      fmt::format("expected {}, as in the checkpoint {}, got {}", d.saved,
                                  from.folder, d.now.empty() ? "none" : d.now));
  if (saved.step > j.train.steps)
    return job::blame(j, "train.steps",
                      fmt::format("expected at least the {} steps of the checkpoint {}, got {}",
                                  saved.step, from.folder, j.train.steps));
  for (const auto& d : differences(saved.course, setup.head.course))
    changed.push_back(fmt::format("{} was {} in the checkpoint {}, and is {}", d.key, d.saved,
                                  from.folder, d.now.empty() ? "gone" : d.now));
  return success();
}

}  // namespace

std::optional<checkpoint_setup> checkpoint_setup_of(const job::job& j, const data::source* data) {
  if (j.checkpoint.dir.empty()) return std::nullopt;
  checkpoint_setup setup;
  setup.dir = j.checkpoint.dir;
  setup.every = j.checkpoint.every;
  auto& head = setup.head;
  head.identity = settings_of(job::identity(j));
  // Wherever the files lie now, it is their contents that a training goes on with.
  if (data != nullptr)
    head.identity.push_back(
        {std::string{data::key_of(j.data)}, "xxh64 " + checkpoint::hex(data->fingerprint())});
  head.course = settings_of(job::course(j));
  head.shape = job::effective_shape(j);
  head.tp = j.pipeline.tp;
  head.replicas = j.pipeline.replicas;
  return setup;
}

result<resume_choice> choose_resume(const job::job& j, const checkpoint_setup& setup,
                                    checkpoint::scrutiny how) {
  resume_choice choice;
  if (j.checkpoint.resume == job::resume_kind::never) return choice;
  auto searched = checkpoint::find_newest(setup.dir, how);
  if (!searched) return job::blame(j, "checkpoint.dir", searched.message());
  choice.passed_over = std::move(searched->passed_over);
  choice.from = std::move(searched->newest);
  if (choice.from) {
    if (auto may = judge(j, setup, *choice.from, choice.changed); !may) return may.failure();
    return choice;
  }
  if (j.checkpoint.resume != job::resume_kind::must) return choice;
  auto why = fmt::format("\"must\" expects a checkpoint in {}, found none", setup.dir);
  for (const auto& line : choice.passed_over) why += "; " + line;
  return job::blame(j, "checkpoint.resume", why);
}

}  // namespace rrfp::actors
