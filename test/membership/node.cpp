/// One node of a job, which a test kills, stops or cuts off.
///
///   membership_node NODE NODES PORT LISTEN_FD PLAN
///
/// Prints "joined" after the join, "LOST NODE: message" on a loss, "left" after leaving. PLAN:
/// "stay" until a loss; "leave" at once; "vanish": end without leaving.
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>

#include <rrfp/membership/membership.hpp>

#include <unistd.h>

namespace {

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace rrfp;
  if (argc != 6) return 2;
  const std::string plan = argv[5];
  actors::membership_options options;
  options.node = node_id{static_cast<std::uint32_t>(std::atoi(argv[1]))};
  options.nodes = static_cast<std::uint32_t>(std::atoi(argv[2]));
  options.rendezvous_port = static_cast<std::uint16_t>(std::atoi(argv[3]));
  options.listen_fd = std::atoi(argv[4]);
  options.job_id = "test";
  options.version = "1";
  options.description = "stage " + std::string{argv[1]};
  options.join_timeout = std::chrono::seconds{30};
  options.node_timeout = std::chrono::milliseconds{1500};

  auto joined = actors::membership::join(options);
  if (!joined) {
    say(joined.message());
    return 1;
  }
  auto& membership = **joined;
  std::promise<std::string> lost;
  membership.on_lost([&](node_id node, std::string why) {
    lost.set_value("LOST " + std::to_string(node.value()) + ": " + why);
  });
  say("joined");
  if (plan == "vanish") ::_exit(0);
  if (plan == "leave") {
    membership.leave();
    say("left");
    return 0;
  }
  say(lost.get_future().get());
  return 3;
}
