#include "disk.hpp"

#include <algorithm>

#include <rrfp/base/codec.hpp>

#include "process.hpp"
#include "session.hpp"

namespace rrfp::cluster {

using testing::content;

struct disk_manifest {
  std::uint64_t step = 0;
  std::vector<saved_file> files;
  std::string history;
};

auto fields(auto f, saved_file& x) { return f(x.stage, x.rank, x.bytes, x.xxh64); }
auto fields(auto f, disk_manifest& x) { return f(x.step, x.files, x.history); }

namespace {

std::string name_of(const saved_file& f) {
  return "stage-" + std::to_string(f.stage.value()) + "-rank-" + std::to_string(f.rank.value());
}

}  // namespace

checkpoint_disk::checkpoint_disk(world& w)
    : world_(w), random_(w.c.seed, 5), files_({}, [this] { return random_.one_in(2); }) {}

nanoseconds checkpoint_disk::draw_time() {
  return world_.now() < slow_until_ ? random_.between(50 * ms, 800 * ms)
                                    : random_.between(20 * us, 3 * ms);
}

status checkpoint_disk::begin(std::uint64_t step) {
  for (const auto& o : checkpoint::plan_begin(files_.live().names(), step)) {
    if (is_full() && std::holds_alternative<checkpoint::file_operation::make_folder>(o))
      return error{"no space left on the disk", error_kind::failed};
    files_.carry_out(o);
  }
  return success();
}

void checkpoint_disk::write_rank(process& by, std::uint64_t step, const saved_file& f,
                                 const std::string& bytes, answer done) {
  const auto path = checkpoint::temporary_name(step) + "/" + name_of(f);
  by.begin_disk_work();
  // Until it is synced, a crash leaves a torn file.
  files_.put_synced(path, content::torn, {});
  by.later(draw_time(), [this, &by, path, bytes, done = std::move(done)] {
    by.end_disk_work();
    if (is_full()) return done("no space left on the disk");
    files_.put_synced(path, content::intact, bytes);
    done({});
  });
}

struct checkpoint_disk::commit_state {
  std::uint64_t step = 0;
  checkpoint::plan operations;
  std::string manifest;
  answer done;
  std::size_t next = 0;
};

void checkpoint_disk::commit(process& by, std::uint64_t step, const std::vector<saved_file>& files,
                             const std::string& history, answer done) {
  std::vector<checkpoint::file_entry> entries;
  for (const auto& f : files) entries.push_back({name_of(f), f.bytes, f.xxh64});
  disk_manifest m{step, files, history};
  encoder out;
  out(m);
  auto state = std::make_shared<commit_state>();
  state->step = step;
  state->operations =
      checkpoint::plan_commit(files_.live().names(), step, entries, world_.c.saves->keep);
  state->manifest = out.take();
  state->done = std::move(done);
  by.begin_disk_work();
  continue_commit(by, std::move(state));
}

void checkpoint_disk::continue_commit(process& by, std::shared_ptr<commit_state> of) {
  by.later(draw_time() / 8, [this, &by, of] {
    if (of->next == of->operations.size()) {
      by.end_disk_work();
      last_saved_ = std::max(last_saved_, of->step);
      return of->done({});
    }
    namespace op = checkpoint::file_operation;
    const auto& o = of->operations[of->next++];
    bool is_done = files_.carry_out(o, of->manifest);
    if (std::holds_alternative<op::write_manifest>(o) && is_full()) is_done = false;
    if (const auto* const r = std::get_if<op::rename>(&o)) is_done |= r->failure.empty();
    // A crash may come between any two operations.
    const auto steps = checkpoint::steps_of(files_.live().names());
    RRFP_EXPECT(last_saved_ == 0 ||
                    std::any_of(steps.begin(), steps.end(),
                                [&](auto step) { return step >= last_saved_ && verify(step); }),
                "no checkpoint is left of step " + std::to_string(last_saved_) +
                    ", which was saved, while that of step " + std::to_string(of->step) +
                    " is saved");
    if (is_done) return continue_commit(by, of);
    by.end_disk_work();
    of->done("a file operation failed");
  });
}

std::optional<checkpoint_disk::found> checkpoint_disk::verify(std::uint64_t step) const {
  const auto folder = checkpoint::folder_name(step) + "/";
  const auto* const text = files_.live().data(folder + std::string{checkpoint::manifest_name});
  if (text == nullptr) return std::nullopt;
  decoder in{*text};
  disk_manifest m;
  in(m);
  if (!in.complete()) return std::nullopt;
  RRFP_EXPECT(m.step == step, "a checkpoint has the name of another step");
  found f{step, {}, m.history};
  for (const auto& listed : m.files) {
    const auto* const bytes = files_.live().data(folder + name_of(listed));
    if (bytes == nullptr) return std::nullopt;
    const auto verdict = checkpoint::judge({name_of(listed), listed.bytes, listed.xxh64},
                                           bytes->size(), hash_of_bytes(*bytes));
    if (verdict != checkpoint::file_verdict::intact) return std::nullopt;
    f.states[{step, listed.stage, listed.rank}] = state_of(*bytes).value();
  }
  return f;
}

std::optional<checkpoint_disk::found> checkpoint_disk::find_newest() {
  for (const auto step : checkpoint::steps_of(files_.live().names())) {
    auto f = verify(step);
    if (!f) continue;
    RRFP_EXPECT(step >= last_saved_, "the checkpoint of step " + std::to_string(last_saved_) +
                                         " is lost; the newest is of step " + std::to_string(step));
    for (const auto& o :
         checkpoint::plan_removal(files_.live().names(), step, world_.c.saves->keep))
      files_.carry_out(o);
    return f;
  }
  RRFP_EXPECT(last_saved_ == 0,
              "the checkpoint of step " + std::to_string(last_saved_) + " is lost");
  return std::nullopt;
}

std::uint64_t checkpoint_disk::newest_step() const {
  for (const auto step : checkpoint::steps_of(files_.live().names()))
    if (verify(step)) return step;
  return 0;
}

void checkpoint_disk::crash() {
  files_ = {files_.after_crash(), [this] { return random_.one_in(2); }};
}

}  // namespace rrfp::cluster
