/// Where a job goes on after a loss.
#include <catch2/catch.hpp>

#include <random>

#include <rrfp/base/codec.hpp>
#include <rrfp/core/recovery_point.hpp>

namespace rrfp {
namespace {

using steps = std::vector<std::uint64_t>;

held_copy copy_of(std::uint64_t step, std::uint32_t stage, std::uint32_t rank = 0) {
  return {{step, stage_id{stage}, rank_id{rank}}, 8, 100 * step + 10 * stage + rank};
}

/// A node that holds these stages of these steps, each stage of one rank.
recovery_report holder(const steps& held, const std::vector<std::uint32_t>& stages,
                       std::uint64_t record) {
  recovery_report report;
  report.lost = "node 1 was lost";
  for (const auto step : held)
    for (const auto s : stages) report.held.push_back(copy_of(step, s));
  if (record > 0) report.record = {record, "record " + std::to_string(record)};
  return report;
}

recovery_point chosen(const std::vector<recovery_report>& reports, std::uint32_t ranks = 2) {
  const std::vector<std::uint32_t> of_runs{ranks, ranks};
  return choose_recovery_point(reports, of_runs);
}

}  // namespace

TEST_CASE("a job that no node has seen a loss of begins") {
  const auto p = chosen({{}, {}});
  CHECK(p.lost.empty());
  CHECK_FALSE(p.has_copies());
  CHECK(p.steps == 0);
}

TEST_CASE("a job goes on from the newest step of which some node holds every rank") {
  const auto p = chosen({holder({3, 4}, {0, 1}, 3), {}, holder({3, 4}, {1}, 4)});
  REQUIRE(p.has_copies());
  CHECK(p.record.step == 4);
  CHECK(p.record.bytes == "record 4");
  REQUIRE(p.copies.size() == 2);
  const auto& second = p.copies.at({4, stage_id{1}, rank_id{0}});
  CHECK(second.node == node_id{0});
  CHECK(second.bytes == 8);
  CHECK(second.xxh64 == 410);
  CHECK(p.lost == "node 1 was lost");
}

TEST_CASE("a step of which a rank is missing is passed over") {
  CHECK(chosen({holder({3, 4}, {0}, 4), {}, holder({3}, {1}, 3)}).record.step == 3);
  CHECK_FALSE(chosen({holder({4}, {0}, 4), {}, holder({3}, {1}, 3)}).has_copies());
}

TEST_CASE("a step without a record is passed over, however many hold it") {
  const auto p = chosen({holder({3, 4}, {0, 1}, 3), holder({3, 4}, {0, 1}, 3)});
  CHECK(p.record.step == 3);
  CHECK_FALSE(chosen({holder({4}, {0, 1}, 0), holder({4}, {0, 1}, 0)}).has_copies());
}

TEST_CASE("copies of a run that is over for another node are of no use") {
  auto behind = holder({7}, {0, 1}, 7);
  behind.steps = 7;
  auto ahead = holder({2}, {0, 1}, 2);
  ahead.finished = {{"first", ""}};
  ahead.steps = 2;
  const auto p = chosen({behind, {}, ahead});
  CHECK(p.finished == std::vector<run_record>{{"first", ""}});
  CHECK(p.record.step == 2);
  CHECK(p.steps == 2);
  CHECK(p.copies.begin()->second.node == node_id{2});
}

TEST_CASE("a job whose last run is over for some node goes on from nothing") {
  auto ahead = holder({2}, {0, 1}, 2);
  ahead.finished = {{"first", ""}, {"second", ""}};
  const auto p = chosen({holder({7}, {0, 1}, 7), ahead});
  CHECK(p.finished.size() == 2);
  CHECK_FALSE(p.has_copies());
}

TEST_CASE("details come from whichever node has them, of the chosen step and of each run") {
  auto brief = holder({3, 4}, {0}, 4);
  brief.finished = {{"first", ""}};
  auto whole = holder({3, 4}, {1}, 4);
  whole.finished = {{"first", "of the first"}};
  whole.record.details = "of record 4";
  auto older = holder({3}, {1}, 3);
  older.finished = brief.finished;
  older.record.details = "of record 3";
  const auto p = chosen({brief, older, whole});
  CHECK(p.record == job_record{4, "record 4", "of record 4"});
  CHECK(p.finished == std::vector<run_record>{{"first", "of the first"}});
  whole.record.details.clear();
  CHECK(chosen({brief, older, whole}).record == job_record{4, "record 4", ""});
}

TEST_CASE(
    "a node gets its part of the point: the copies of its ranks, and details if it keeps any") {
  recovery_point point;
  point.lost = "node 3 was lost";
  point.steps = 5;
  point.finished = {{"first", "of the first"}};
  point.record = {4, "record 4", "of record 4"};
  for (std::uint32_t s = 0; s < 4; ++s)
    point.copies[{4, stage_id{s}, rank_id{0}}] = {node_id{s}, 8, s};
  // Stage s is on node s, and on node s + 4 again.
  const node_id leader = GENERATE(node_id{0}, node_id{3});
  const auto parts = parts_of(point, 8, leader, [](stage_id s, rank_id) {
    return std::vector{node_id{s.value()}, node_id{s.value() + 4}};
  });
  REQUIRE(parts.size() == 8);
  CHECK(parts[leader.value()] == point);
  for (std::uint32_t n = 0; n < 8; ++n) {
    if (node_id{n} == leader) continue;
    REQUIRE(parts[n].copies.size() == 1);
    CHECK(parts[n].copies.begin()->first.stage == stage_id{n % 4});
    CHECK(parts[n].has_copies());
    const bool keeps = n == 0 || n == 1 || n == 2 || n == 4;
    CHECK(keeps_details(node_id{n}) == keeps);
    CHECK(parts[n].record == job_record{4, "record 4", keeps ? "of record 4" : ""});
    CHECK(parts[n].finished == std::vector<run_record>{{"first", keeps ? "of the first" : ""}});
    CHECK(parts[n].lost == point.lost);
    const auto read = decoded<recovery_point>(encoded(parts[n]));
    REQUIRE(read);
    CHECK(*read == parts[n]);
  }
}

TEST_CASE("bytes that are no point are an error, wherever they are cut or changed") {
  recovery_point point;
  point.finished = {{"first", "of the first"}};
  point.record = {4, "record 4", "of record 4"};
  point.copies[{4, stage_id{1}, rank_id{0}}] = {node_id{1}, 8, 1};
  const auto bytes = encoded(point);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(decoded<recovery_point>(std::string_view{bytes}.substr(0, size)));
  std::mt19937_64 random{1};
  for (int i = 0; i < 20000; ++i) {
    auto other = bytes;
    for (int n = 0; n < 3; ++n) other[random() % other.size()] = static_cast<char>(random());
    (void)decoded<recovery_point>(other);  // an error or a point, never a crash
  }
}

TEST_CASE("the number of ranks is that of the current run") {
  const std::vector<std::uint32_t> ranks{1, 2};
  auto report = holder({3}, {0}, 3);
  CHECK(choose_recovery_point(std::vector{report}, ranks).has_copies());
  report.finished = {{"first", "of it"}};
  CHECK_FALSE(choose_recovery_point(std::vector{report}, ranks).has_copies());
}

TEST_CASE("the point knows when the current run began if any node of that run does") {
  recovery_report replacement;
  auto first = holder({}, {}, 0);
  first.began_after = 3;
  CHECK(chosen({replacement, first}).began_after == 3);
  CHECK_FALSE(chosen({replacement, holder({}, {}, 0)}).began_after);
  // Another node is in the next run.
  auto next = holder({}, {}, 0);
  next.finished = {{"first", ""}};
  CHECK_FALSE(chosen({first, next}).began_after);
  next.began_after = 0;
  CHECK(chosen({first, next, first}).began_after == 0);
}

TEST_CASE("a node that takes over a run that others have finished has no steps of the next one") {
  auto behind = holder({}, {}, 0);
  behind.steps = 7;
  behind.began_after = 3;
  behind.finish_run({"first", ""});
  auto other = holder({}, {}, 0);
  other.finished = {{"first", ""}};
  other.steps = 2;
  other.began_after = 0;
  const auto p = chosen({behind, other});
  CHECK(p.finished.size() == 1);
  CHECK(p.steps == 2);
  CHECK(p.began_after == 0);
}

TEST_CASE("the point has the most restarts, the longest wait and the first loss that a node saw") {
  recovery_report replacement;
  auto a = holder({}, {}, 0);
  a.totals = {3, 5, 1.5};
  a.held_s = 2;
  a.steps = 4;
  auto b = holder({}, {}, 0);
  b.lost = "node 2 was lost";
  b.totals = {2, 4, 1};
  b.held_s = 3;
  b.steps = 5;
  const auto p = chosen({replacement, a, b});
  CHECK(p.totals == a.totals);
  CHECK(p.held_s == 3);
  CHECK(p.steps == 5);
  CHECK(p.lost == "node 1 was lost");
}

TEST_CASE("a report is the same after it was sent") {
  auto report = holder({3, 4}, {0, 1}, 3);
  report.totals = {2, 3, 0.5};
  report.held_s = 1.25;
  report.steps = 4;
  report.began_after = 2;
  report.finished = {{"first", "of it"}, {std::string("\0x", 2), ""}};
  const auto bytes = encoded(report);
  const auto read = decoded<recovery_report>(bytes);
  REQUIRE(read);
  CHECK(*read == report);
}

TEST_CASE("bytes that are no report are an error, wherever they are cut or changed") {
  auto report = holder({3, 4}, {0, 1}, 3);
  report.finished = {{"first", "of it"}};
  const auto bytes = encoded(report);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(decoded<recovery_report>(std::string_view{bytes}.substr(0, size)));
  CHECK_FALSE(decoded<recovery_report>(bytes + "x"));
  std::mt19937_64 random{1};
  for (int i = 0; i < 20000; ++i) {
    auto other = bytes;
    for (int n = 0; n < 3; ++n) other[random() % other.size()] = static_cast<char>(random());
    (void)decoded<recovery_report>(other);  // an error or a report, never a crash
  }
}

}  // namespace rrfp
