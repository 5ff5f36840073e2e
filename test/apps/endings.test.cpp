/// However a run ends, exactly one message reports why.
#include <csignal>
#include <set>

#include "small_job.hpp"

#include "../../apps/rrfp-node/endings.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

/// Ends with `code` and one line on stderr that holds `cause`.
void require_one_message(const outcome& o, int code, const std::string& cause) {
  INFO(o.out << o.err);
  CHECK(o.code == code);
  CHECK(count_lines(o.err) == 1);
  CHECK_THAT(o.err, Contains("rrfp-node: ") && Contains(cause));
}

/// Pictures with valid headers and corrupt pixels.
std::string folder_of_bad_pictures(const small_job& job) {
  const auto folder = job.at("pictures");
  REQUIRE(run_program({RRFP_SHAPES, folder, "--samples", "12"}).code == 0);
  for (const auto& file : std::filesystem::directory_iterator{folder + "/images"}) {
    auto bytes = text_of(file.path());
    std::fill(bytes.begin() + 60, bytes.end(), 'x');
    std::ofstream{file.path(), std::ios::binary} << bytes;
  }
  return folder + "/train.jsonl";
}

const std::string vision_section =
    "microbatch_size = 1\n[vision]\nlayers = 1\nhidden = 32\nheads = 2\npatch = 8\n"
    "image_size = 48\n";

}  // namespace

TEST_CASE(
    "every ending has an exit code, and every ending but done has a cause, even if none was "
    "given") {
  using namespace rrfp;
  std::set<int> codes;
  std::size_t endings = 0;
  for (int i = 0; i < 256; ++i) {
    const auto how = static_cast<actors::ending>(i);
    if (apps::name(how) == "?") continue;
    ++endings;
    INFO(apps::name(how));
    codes.insert(apps::exit_code_of(how));
    const bool is_good = how == actors::ending::done;
    CHECK((apps::exit_code_of(how) == 0) == is_good);
    actors::run_result ended;
    ended.how = how;
    for (const bool knows_steps : {true, false})
      CHECK(apps::cause_of(ended, knows_steps).empty() == is_good);
    ended.message = "a cause";
    if (how != actors::ending::interrupted && !is_good) CHECK(apps::cause_of(ended) == "a cause");
  }
  CHECK(endings == 5);
  CHECK(codes.size() == endings);
}

TEST_CASE("a training that diverges reports it in one line, on one node and on two") {
  const small_job job;
  for (const int nodes : {1, 2})
    require_one_message(run_program(job.run(nodes, {"train.lr=1000", "train.optimizer=sgd",
                                                    "train.clip_norm=0", "train.steps=40"})),
                        2, "training has diverged");
}

TEST_CASE("a picture that does not decode is named in one line, on one node and on two") {
  const small_job job{"", vision_section};
  const auto data = "data.images=[\"" + folder_of_bad_pictures(job) + "\"]";
  for (const int nodes : {1, 2})
    require_one_message(
        run_program(job.run(nodes, {data, "data.sequence_length=192", "model.family=qwen3",
                                    "model.kv_heads=2", "model.vocabulary=258"})),
        2, "/images/0000");
}

TEST_CASE("a token file that is truncated during the run is named, on one node and on two") {
  for (const int nodes : {1, 2}) {
    const small_job job{"microbatch_size = 2\n"};
    constexpr std::size_t tokens = 100'000;
    std::ofstream{job.at("a.json")} << R"({"format": "rrfp-tokens", "version": 1, )"
                                    << R"("dtype": "uint16", "vocabulary": 256, "tokens": )"
                                    << tokens << "}";
    std::ofstream{job.at("a.bin")} << std::string(2 * tokens, '\0');
    program training{job.run(nodes,
                             {"data.tokens=[\"" + job.at("a.bin") + "\"]", "train.steps=100000",
                              "model.vocabulary=257", "run.progress=none"},
                             {"--json", job.at("out.jsonl")})};
    for (int i = 0; i < 6000 && text_of(job.at("out.jsonl")).empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    std::filesystem::resize_file(job.at("a.bin"), 0);
    require_one_message(training.wait(), 2, job.at("a.bin") + ": cannot be read");
  }
}

TEST_CASE("a stalled run and an interrupted run report it, on one node and on two") {
  const small_job job{"text = [\"/usr/share/common-licenses/GPL-3\"]\nmicrobatch_size = 2\n",
                      "[jitter]\ndelays = \"delays.csv\"\n"};
  std::ofstream{job.at("delays.csv")} << "step,stage,chunk,mb,kind,ms\n2,1,0,3,act,100000000\n";
  for (const int nodes : {1, 2}) {
    const auto stalled = run_program(job.run(nodes, {"run.hang_timeout_s=1"}));
    INFO(stalled.out << stalled.err);
    CHECK(stalled.code == 1);
    CHECK_THAT(stalled.err, Contains("rrfp-node: job: no task finished for "));

    program interrupted{job.run(nodes, {}, {"--json", job.at("out.jsonl")})};
    for (int i = 0; i < 6000 && text_of(job.at("out.jsonl")).empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    interrupted.signal(SIGINT);
    require_one_message(interrupted.wait(), 130, "job: interrupted after 1 steps");
    std::filesystem::remove(job.at("out.jsonl"));
  }
}

TEST_CASE("an output that node 0 cannot open ends both nodes with one line") {
  const small_job job;
  for (const auto& json : {job.at("none/out.jsonl"), job.at("")})
    require_one_message(run_program(job.run(2, {}, {"--json", json})), 2,
                        "--json " + json + ": cannot create: ");
}
