/// The plans for the checkpoint folder on a disk that crashes: between any two operations, with any
/// part of what was not synced lost, files torn and removals half done.
#include <algorithm>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include "crashing_disk.hpp"

namespace rrfp::checkpoint {
namespace {

using rrfp::testing::content;
using rrfp::testing::crashing_disk;
using rrfp::testing::tree;

using random_source = std::mt19937_64;
using steps = std::set<std::uint64_t>;

std::uint64_t below(random_source& random, std::uint64_t limit) { return random() % limit; }
bool coin(random_source& random) { return below(random, 2) == 0; }

const std::vector<file_entry> files{{"rank-00", 5, 1}, {"rank-01", 5, 2}};

void write_ranks(tree& t, const std::string& folder) {
  for (const auto& f : files) t.put(folder + "/" + f.name, content::intact);
}

bool is_complete(const tree& t, const std::string& folder) {
  return t.is_intact(folder + "/" + std::string{manifest_name}) &&
         std::all_of(files.begin(), files.end(),
                     [&](const auto& f) { return t.is_intact(folder + "/" + f.name); });
}

steps complete_in(const tree& t) {
  steps all;
  for (const auto step : steps_of(t.names()))
    if (is_complete(t, folder_name(step))) all.insert(step);
  return all;
}

class disk : public crashing_disk {
 public:
  disk(tree start, random_source& random)
      : crashing_disk(std::move(start), [&random] { return coin(random); }) {}
};

tree any_folder(random_source& random) {
  tree t;
  for (const auto* const name : {"notes", "step-7", "earlier-then/step-00000003/manifest.json"})
    if (coin(random)) t.put(name, content::intact);
  for (std::uint64_t step = 1; step < 9; ++step) {
    const auto what = below(random, 6);
    if (what < 2) continue;
    const auto folder = folder_name(step);
    write_ranks(t, folder);
    if (what > 2) t.put(folder + "/" + std::string{manifest_name}, content::intact);
    if (what == 3) t.put(folder + "/" + files[1].name, content::torn);
  }
  if (coin(random)) write_ranks(t, temporary_name(4));
  if (coin(random)) t.put("." + folder_name(below(random, 9)) + ".old.tmp/rank-00", content::torn);
  return t;
}

/// The steps whose folders a plan may remove: of `good` and earlier, beyond the newest `keep`.
steps beyond(const tree& t, std::uint64_t good, std::uint32_t keep) {
  steps all;
  std::uint32_t kept = 0;
  for (const auto step : steps_of(t.names()))
    if (step <= good && ++kept > keep) all.insert(step);
  return all;
}

bool is_check(const file_operation::any& o) {
  return std::holds_alternative<file_operation::check_size>(o);
}

/// Carries out some or all operations and returns what is there after a crash.
tree crashed(disk& d, const plan& operations, random_source& random) {
  const auto count = below(random, operations.size() + 1);
  for (std::size_t i = 0; i < count; ++i)
    REQUIRE((d.carry_out(operations[i]) || !is_check(operations[i])));
  return d.after_crash();
}

void check_the_rest(const tree& before, const tree& after) {
  for (const auto* const path : {"notes", "step-7", "earlier-then/step-00000003/manifest.json"})
    CHECK(before.is_intact(path) == after.is_intact(path));
}

}  // namespace

TEST_CASE("After a crash in a save the newest complete checkpoint is there, and all to be kept") {
  std::uint64_t saved = 0;
  std::uint64_t unsaved = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    const auto start = any_folder(random);
    const auto before = complete_in(start);
    // A run saves no step that it could have resumed from.
    std::uint64_t step = 1 + below(random, 9);
    while (before.contains(step)) ++step;
    const auto keep = static_cast<std::uint32_t>(1 + below(random, 3));

    disk d{start, random};
    const auto in_begin = crashed(d, plan_begin(start.names(), step), random);
    CHECK(complete_in(in_begin) == before);
    check_the_rest(start, in_begin);

    auto begun = start;
    for (const auto& name : start.names())
      if (name.ends_with(".tmp")) begun.remove(name, [] { return true; });
    write_ranks(begun, temporary_name(step));
    disk e{begun, random};
    const auto in_commit = crashed(e, plan_commit(begun.names(), step, files, keep), random);
    check_the_rest(start, in_commit);
    const auto after = complete_in(in_commit);
    if (after.contains(step)) {
      ++saved;
      auto with_new = begun;
      with_new.put(folder_name(step), content::intact);
      auto kept = before;
      kept.insert(step);
      for (const auto old : beyond(with_new, step, keep)) kept.erase(old);
      CHECK(std::includes(after.begin(), after.end(), kept.begin(), kept.end()));
      CHECK(*after.rbegin() == *kept.rbegin());
    } else {
      ++unsaved;
      CHECK(after == before);
    }
    // No checkpoint that was complete is there in parts.
    for (const auto there : steps_of(in_commit.names()))
      CHECK((after.contains(there) || !before.contains(there)));

    disk f{begun, random};
    CHECK(complete_in(crashed(f, plan_abandon(step), random)) == before);
  }
  CHECK(saved > 300);
  CHECK(unsaved > 300);
}

TEST_CASE("A save that is not interrupted leaves the new checkpoint and the newest others alone") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    auto t = any_folder(random);
    const std::uint64_t step = 1 + below(random, 9);
    const auto keep = static_cast<std::uint32_t>(1 + below(random, 3));
    disk d{t, random};
    for (const auto& o : plan_begin(t.names(), step)) d.carry_out(o);
    auto begun = d.live();
    write_ranks(begun, temporary_name(step));
    disk e{begun, random};
    for (const auto& o : plan_commit(begun.names(), step, files, keep)) e.carry_out(o);
    CHECK(complete_in(e.live()).contains(step));
    CHECK(beyond(e.live(), step, keep).empty());
    for (const auto& name : e.live().names()) CHECK_FALSE(name.ends_with(".tmp"));
    t.put(folder_name(step), content::intact);
    auto kept = steps_of(t.names());
    std::erase_if(kept, [gone = beyond(t, step, keep)](auto s) { return gone.contains(s); });
    CHECK(steps_of(e.live().names()) == kept);
  }
}

TEST_CASE("A save that is done stays after a crash, also where one of the same step was cut off") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    const std::uint64_t step = 4;
    tree cut_off;
    write_ranks(cut_off, temporary_name(step));
    disk d{cut_off, random};
    for (const auto& o : plan_begin(d.live().names(), step)) d.carry_out(o);
    for (const auto& f : files)
      d.put_synced(temporary_name(step) + "/" + f.name, content::intact, {});
    for (const auto& o : plan_commit(d.live().names(), step, files, 1)) d.carry_out(o);
    CHECK(complete_in(d.after_crash()) == steps{step});
  }
}

TEST_CASE("After a crash in a removal or while checkpoints are set aside, none is lost") {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    const auto start = any_folder(random);
    const auto before = complete_in(start);
    const std::uint64_t good = 1 + below(random, 9);
    const auto keep = static_cast<std::uint32_t>(1 + below(random, 3));
    disk d{start, random};
    const auto removed = crashed(d, plan_removal(start.names(), good, keep), random);
    check_the_rest(start, removed);
    auto kept = before;
    for (const auto old : beyond(start, good, keep)) kept.erase(old);
    const auto after = complete_in(removed);
    CHECK(std::includes(after.begin(), after.end(), kept.begin(), kept.end()));
    for (const auto there : steps_of(removed.names()))
      CHECK((after.contains(there) || !before.contains(there)));

    const auto aside = plan_setting_aside(start.names(), "now");
    disk e{start, random};
    const auto moved = crashed(e, aside.operations, random);
    check_the_rest(start, moved);
    for (const auto step : before)
      CHECK((is_complete(moved, folder_name(step)) ||
             is_complete(moved, aside.folder + "/" + folder_name(step))));
  }
}

}  // namespace rrfp::checkpoint
