#include <rrfp/actors/job_checkpoint.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/checkpoint/checksum.hpp>

namespace rrfp::actors {

namespace {

constexpr std::string_view microbatches_key = "pipeline.microbatches";

/// The microbatches of a step are compared over all replicas together.
error other_microbatches(const job::job& j, const checkpoint::found_checkpoint& from,
                         const checkpoint::difference& d) {
  const bool by_replicas = from.contents.replicas != j.pipeline.replicas;
  return job::blame(
      j, by_replicas ? std::string_view{"pipeline.replicas"} : microbatches_key,
      fmt::format(
          "expected pipeline.microbatches * pipeline.replicas = {}, as in the checkpoint {}, "
          "got {} * {}",
          d.saved, from.folder, j.pipeline.microbatches, j.pipeline.replicas));
}

/// Checks that the job may resume from there, and collects the settings that it changed.
status check_resumable(const job::job& j, const checkpoint_setup& setup,
                       const checkpoint::found_checkpoint& from,
                       std::vector<std::string>& changed) {
  const auto& saved = from.contents;
  for (const auto& d : checkpoint::differences(saved.identity, setup.head.identity)) {
    if (d.key == microbatches_key) return other_microbatches(j, from, d);
    return job::blame(j, d.key,
                      fmt::format("expected {}, as in the checkpoint {}, got {}", d.saved,
                                  from.folder, d.now.empty() ? "none" : d.now));
  }
  if (saved.step > j.train.steps)
    return job::blame(j, "train.steps",
                      fmt::format("expected at least the {} steps of the checkpoint {}, got {}",
                                  saved.step, from.folder, j.train.steps));
  for (const auto& d : checkpoint::differences(saved.course, setup.head.course))
    changed.push_back(fmt::format("{} was {} in the checkpoint {}, and is {}", d.key, d.saved,
                                  from.folder, d.now.empty() ? "gone" : d.now));
  return success();
}

}  // namespace

std::string fingerprint_of(const safetensors::collection& weights) {
  constexpr std::size_t end_bytes = 4096;
  checkpoint::checksum sum;
  for (const auto& [name, t] : weights.tensors()) {
    const auto line = fmt::format("{} {} {}\n", name, safetensors::name(t.info->type),
                                  safetensors::text_of(t.info->shape));
    sum.add(std::as_bytes(std::span{line}));
    const auto bytes = t.bytes();
    const auto some = std::min(bytes.size(), end_bytes);
    sum.add(bytes.first(some));
    sum.add(bytes.last(some));
  }
  return "xxh64 " + checkpoint::hex(sum.value());
}

std::vector<setting> identity_of(const job::job& j, std::uint64_t data,
                                 const safetensors::collection* weights) {
  auto all = job::identity(j);
  // First, because most of the model follows from it.
  all.insert(all.begin(),
             {"model.pretrained", weights == nullptr ? "none" : fingerprint_of(*weights)});
  // Files are identified by their contents, so they may move. Generated data is already among the
  // settings, as its seed.
  const auto key = job::key_of(j.data);
  const bool is_there =
      std::any_of(all.begin(), all.end(), [&](const auto& s) { return s.key == key; });
  if (!is_there) all.push_back({std::string{key}, "xxh64 " + checkpoint::hex(data)});
  return all;
}

std::vector<setting> identity_without_model(const job::job& j) {
  auto all = job::identity(j);
  std::erase_if(all, [](const setting& s) {
    return s.key.starts_with("model.") || s.key.starts_with("vision.") ||
           s.key.starts_with("data.");
  });
  return all;
}

std::optional<checkpoint_setup> checkpoint_setup_of(const job::job& j,
                                                    std::vector<setting> identity) {
  if (j.checkpoint.dir.empty()) return std::nullopt;
  checkpoint_setup setup;
  setup.dir = j.checkpoint.dir;
  setup.every = j.checkpoint.every;
  auto& head = setup.head;
  head.identity = std::move(identity);
  head.course = job::course(j);
  head.shape = job::effective_shape(j);
  head.tp = j.pipeline.tp;
  head.replicas = j.pipeline.replicas;
  return setup;
}

std::vector<std::string> resume_choice::notes() const {
  std::vector<std::string> all;
  if (!set_aside.empty()) all.push_back("earlier checkpoints are set aside in " + set_aside);
  for (const auto& line : skipped) all.push_back("skipped: " + line);
  all.insert(all.end(), changed.begin(), changed.end());
  return all;
}

result<resume_choice> choose_resume(const job::job& j, const checkpoint_setup& setup,
                                    checkpoint::verification how) {
  resume_choice choice;
  if (j.checkpoint.resume == job::resume_kind::never) return choice;
  auto searched = checkpoint::find_newest(setup.dir, how);
  if (!searched) return job::blame(j, "checkpoint.dir", searched.message());
  choice.skipped = std::move(searched->skipped);
  choice.from = std::move(searched->newest);
  if (choice.from) {
    if (auto may = check_resumable(j, setup, *choice.from, choice.changed); !may)
      return may.failure();
    return choice;
  }
  if (j.checkpoint.resume != job::resume_kind::must) return choice;
  auto why = fmt::format("\"must\" expects a checkpoint in {}, found none", setup.dir);
  for (const auto& line : choice.skipped) why += "; " + line;
  return job::blame(j, "checkpoint.resume", why);
}

namespace {

/// After a loss the process of node 0 that was lost may hold the lock still: one that was only
/// stopped ends when it goes on, and a file server frees the locks of a machine that is gone later.
/// Its replacement waits; a job that goes on without it saves again once the lock is free.
result<std::unique_ptr<checkpoint::ring>> open_ring(const job::job& j, const std::string& dir,
                                                    const recovery_point& from) {
  const auto keep = j.checkpoint.keep;
  if (from.lost.empty()) return checkpoint::ring::open(dir, keep);
  if (j.recovery.may_lack_nodes())
    return checkpoint::ring::open(dir, keep, {}, checkpoint::if_locked::try_later);
  return checkpoint::ring::open(dir, keep, to_ms(j.recovery.hold_s));
}

}  // namespace

result<resume_choice> hold_checkpoints(job::job j, checkpoint_setup& setup,
                                       const recovery_point& from) {
  auto ring = open_ring(j, setup.dir, from);
  if (!ring) return job::blame(j, "checkpoint.dir", ring.message());
  setup.ring = std::move(*ring);
  if (from.has_copies()) {
    const auto searched = checkpoint::find_newest(setup.dir, checkpoint::verification::sizes);
    if (searched && searched->newest) setup.newest_step = searched->newest->contents.step;
    return resume_choice{};
  }
  // After a loss the checkpoints are those of this job.
  if (!from.lost.empty()) j.checkpoint.resume = job::resume_kind::automatic;
  std::string set_aside;
  if (j.checkpoint.resume == job::resume_kind::never) {
    const auto aside = setup.ring->set_aside();
    if (!aside) return job::blame(j, "checkpoint.dir", aside.message());
    set_aside = aside->value_or("");
  }
  auto choice = choose_resume(j, setup, checkpoint::verification::checksums);
  // checkpoint.keep may be smaller than before, and the disk may be full.
  if (choice && choice->from) setup.ring->remove_older(choice->from->contents.step);
  if (choice) choice->set_aside = std::move(set_aside);
  return choice;
}

}  // namespace rrfp::actors
