/// A process that joins a real job with no key, another key or replayed messages is refused with
/// the reason, and the job trains on.
#include "json_lines.hpp"
#include "program.hpp"
#include "support.hpp"

namespace {

using namespace rrfp::test;
using namespace rrfp::actors::testing;
using Catch::Matchers::Contains;

const std::string short_job = R"([pipeline]
stages = 3
microbatches = 4
[model]
layers = 3
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 2
sequence_length = 32
[train]
steps = 3
)";

const std::string key_text = "a key that is long enough: 0123456789";
const std::string bad_key = "a key that is long enough: 012345678X";

std::uint16_t free_port() {
  const auto listening = *rrfp::actors::listen_on_loopback();
  ::close(listening.fd);
  return listening.port;
}

class job_with_key {
 public:
  job_with_key() {
    std::ofstream{folder_ / "job.toml"} << short_job;
    write_key(folder_ / "good", key_text);
    write_key(folder_ / "bad", bad_key);
  }

  std::uint16_t port() const { return port_; }
  std::string at(const std::string& name) const { return folder_ / name; }

  /// Joins with the key in the file of that name; "" means no key.
  std::unique_ptr<program> join(std::uint32_t rank, const std::string& key,
                                std::uint16_t at_port) const {
    std::vector<std::string> arguments{RRFP_NODE,
                                       "join",
                                       at("job.toml"),
                                       "--nnodes",
                                       "3",
                                       "--node-rank",
                                       std::to_string(rank),
                                       "--rendezvous",
                                       "127.0.0.1:" + std::to_string(at_port)};
    if (!key.empty()) arguments.insert(arguments.end(), {"--set", "transport.key_file=" + at(key)});
    if (rank == 0) arguments.insert(arguments.end(), {"--json", at("out.jsonl")});
    return std::make_unique<program>(arguments);
  }

 private:
  scratch_folder folder_;
  const std::uint16_t port_ = free_port();
};

std::string all_of(const outcome& o) { return o.out + o.err; }

}  // namespace

TEST_CASE(
    "a join without a key, with a wrong key or with replayed messages is refused, and the job "
    "trains") {
  const job_with_key job;
  const auto zero = job.join(0, "good", job.port());
  std::string output;
  for (const std::string key : {"", "bad"}) {
    INFO("key: " << key);
    const auto o = job.join(1, key, job.port())->wait();
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Contains("key refused"));
    output += all_of(o);
  }
  {
    const auto refusals = [&] {
      const auto text = zero->err();
      std::size_t count = 0;
      for (auto at = text.find(" as node 1: key refused"); at != text.npos; ++count)
        at = text.find(" as node 1: key refused", at + 1);
      return count;
    };
    CHECK(refusals() == 2);
    relay tap{job.port()};
    const auto tapped = job.join(1, "good", tap.port());
    REQUIRE(eventually([&] { return tap.said_by_nodes().size() > 700; }));
    tapped->signal(SIGKILL);
    CHECK(tapped->wait().code == 128 + SIGKILL);
    raw_connection replay{job.port()};
    replay.send(tap.said_by_nodes());
    CHECK(eventually([&] { return refusals() == 3; }));
  }
  const auto one = job.join(1, "good", job.port());
  const auto two = job.join(2, "good", job.port());
  for (const auto* const node : {&zero, &one, &two}) {
    const auto o = (*node)->wait();
    INFO(all_of(o));
    CHECK(o.code == 0);
    output += all_of(o);
  }
  CHECK(lines_of(job.at("out.jsonl")).size() == 4);
  CHECK_THAT(output, !Contains(key_text) && !Contains(bad_key));
}
