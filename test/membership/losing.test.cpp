/// Nodes that die, stall, are cut off, or leave: as processes, as in a job.
#include "support.hpp"

namespace rrfp::actors::testing {
namespace {

/// The nodes of a job as processes, all joined.
class processes {
 public:
  explicit processes(std::uint32_t nodes, const std::string& plan_of_last = "stay",
                     const std::string& plan_of_first = "stay")
      : of_(nodes) {
    for (std::uint32_t i = 0; i < nodes; ++i) {
      const auto plan = i == 0 ? plan_of_first : i + 1 == nodes ? plan_of_last : "stay";
      all_.push_back(std::make_unique<test::program>(std::vector<std::string>{
          RRFP_MEMBERSHIP_NODE, std::to_string(i), std::to_string(nodes),
          std::to_string(of_.port()), std::to_string(i == 0 ? fd_ : -1), plan}));
      // Only node 0 may hold the listener, because otherwise its death would not be detected.
      if (i == 0) ::close(fd_);
    }
    for (auto& one : all_)
      REQUIRE(eventually([&] { return one->out().find("joined\n") == 0; }, 20s));
  }

  test::program& operator[](std::size_t i) { return *all_[i]; }

  /// All nodes except `lost` print `message` within 2 s from now, and end.
  void expect_loss(std::size_t lost, const std::string& message) {
    const auto begun = clock::now();
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (i == lost) continue;
      INFO("node " << i);
      CHECK(eventually([&] { return message_of(i) == message; }));
      CHECK(message_of(i) == message);
    }
    CHECK(clock::now() - begun < 2s);
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (i != lost) CHECK(all_[i]->wait(std::chrono::seconds{5}).code == 3);
  }

  /// After "joined".
  std::string message_of(std::size_t i) const {
    const auto out = all_[i]->out();
    return out.size() > 7 ? out.substr(7, out.size() - 8) : "";
  }

 private:
  job of_;
  const int fd_ = of_.listen_fd();
  std::vector<std::unique_ptr<test::program>> all_;
};

}  // namespace

TEST_CASE("A killed node is lost at once, and every other node reports the same message") {
  const auto nodes = GENERATE(2u, 4u);
  processes all{nodes};
  all[1].signal(SIGKILL);
  all.expect_loss(1, "LOST 1: node 1 (stage 1) was lost: connection closed");
}

TEST_CASE("A node that ends without a goodbye is lost") {
  processes all{3, "vanish"};
  all.expect_loss(2, "LOST 2: node 2 (stage 2) was lost: connection closed");
}

TEST_CASE("Every node reports the loss of a killed node 0") {
  processes all{3};
  all[0].signal(SIGKILL);
  all.expect_loss(0, "LOST 0: node 0 (stage 0) was lost: connection closed");
}

TEST_CASE("A node that stalls is lost within 2 s, and reports that itself when it resumes") {
  processes all{3};
  all[2].signal(SIGSTOP);
  const std::string message = "LOST 2: node 2 (stage 2) was lost: it sent no heartbeat for 1.5 s";
  all.expect_loss(2, message);
  all[2].signal(SIGCONT);
  CHECK(eventually([&] { return all.message_of(2) == message; }));
  CHECK(all.message_of(2) == message);
}

TEST_CASE("A node 0 that stalls is lost within 2 s, and names itself when it resumes") {
  const auto nodes = GENERATE(2u, 3u);
  processes all{nodes};
  all[0].signal(SIGSTOP);
  const std::string message = "LOST 0: node 0 (stage 0) was lost: it sent no heartbeat for 1.5 s";
  all.expect_loss(0, message);
  all[0].signal(SIGCONT);
  CHECK(eventually([&] { return all.message_of(0) == message; }));
  CHECK(all.message_of(0) == message);
}

TEST_CASE("A node 0 that is cut off from all nodes names itself, and the others name it") {
  job all{3};
  all.use_good_key();
  relay link{all.port()};
  lines lost;
  std::vector<std::future<joined>> joining;
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto options = all.options(i);
    if (i > 0) options.rendezvous_port = link.port();
    joining.push_back(begin_join(options));
  }
  std::vector<std::unique_ptr<membership>> nodes;
  for (auto& one : joining) nodes.push_back(*one.get());
  for (auto& node : nodes) node->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  link.cut();
  CHECK(eventually([&] { return lost.count() == 3; }));
  const auto times_reported = [&](const std::string& line) {
    const auto lines = lost.all();
    return std::count(lines.begin(), lines.end(), line);
  };
  CHECK(times_reported("node 0 (stage 0) was lost: it sent no heartbeat for 1.5 s") == 2);
  CHECK(times_reported("node 0 (stage 0) was lost: no other node sent it a heartbeat for 1.5 s") ==
        1);
}

TEST_CASE("loss() returns the loss, and waits for it no longer than its limit") {
  job all{3};
  auto nodes = join_all(all, 3);
  CHECK_FALSE(nodes[0]->loss());
  const auto begun = clock::now();
  CHECK_FALSE(nodes[1]->loss(50ms));
  CHECK(clock::now() - begun >= 50ms);
  nodes[2].reset();
  for (const auto i : {0, 1})
    CHECK(nodes[i]->loss(10s)->why == "node 2 (stage 2) was lost: connection closed");
  CHECK(nodes[0]->loss()->node == node_id{2});
  const auto gathered = tell_all(*nodes[0], "0", 1s);
  CHECK(gathered.message() == nodes[0]->loss()->why);
  CHECK(gathered.failure().kind == error_kind::node_lost);
}

TEST_CASE("The message of a loss contains the status of the node, the same everywhere") {
  job all{3};
  std::vector<std::future<joined>> joining;
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto options = all.options(i);
    options.heartbeat = 20ms;
    joining.push_back(begin_join(options));
  }
  std::vector<std::unique_ptr<membership>> nodes;
  for (auto& one : joining) nodes.push_back(*one.get());
  lines lost;
  for (std::size_t i = 0; i < 2; ++i)
    nodes[i]->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  nodes[2]->set_status("step 7");
  std::this_thread::sleep_for(500ms);
  nodes[2].reset();
  CHECK(eventually([&] { return lost.count() == 2; }));
  CHECK(lost.all() ==
        std::vector<std::string>(2, "node 2 (stage 2; step 7) was lost: connection closed"));
}

TEST_CASE("A short stall is no loss, not even of node 0") {
  const auto who = GENERATE(0u, 1u);
  processes all{3};
  all[who].signal(SIGSTOP);
  std::this_thread::sleep_for(700ms);
  all[who].signal(SIGCONT);
  std::this_thread::sleep_for(1200ms);
  for (std::size_t i = 0; i < 3; ++i) CHECK(all[i].out() == "joined\n");
}

TEST_CASE("A job of which all nodes are stopped continues when all resume") {
  // As a shell stops and resumes a job: the first node to resume receives no heartbeat, but must
  // not report the others as lost.
  const auto first = GENERATE(0u, 2u);
  processes all{3};
  for (const std::size_t i : {2u - first, 1u, first}) {
    all[i].signal(SIGSTOP);
    std::this_thread::sleep_for(50ms);
  }
  std::this_thread::sleep_for(2500ms);
  for (const std::size_t i : {first, 1u, 2u - first}) {
    all[i].signal(SIGCONT);
    std::this_thread::sleep_for(150ms);
  }
  std::this_thread::sleep_for(500ms);
  for (std::size_t i = 0; i < 3; ++i) CHECK(all[i].out() == "joined\n");
}

TEST_CASE("A cut link is a loss on both of its sides") {
  job all{3};
  all.use_good_key();
  relay link{all.port()};
  lines lost;
  auto zero = begin_join(all.options(0));
  auto one = begin_join(all.options(1));
  auto options = all.options(2);
  options.rendezvous_port = link.port();
  auto two = begin_join(options);
  std::vector<std::unique_ptr<membership>> nodes;
  for (auto* joining : {&zero, &one, &two}) nodes.push_back(*joining->get());
  for (std::size_t i = 0; i < 3; ++i)
    nodes[i]->on_lost([&lost, i](node_id, const std::string& why) {
      lost.add(std::to_string(i) + " says: " + why);
    });
  const auto begun = clock::now();
  link.cut();
  CHECK(eventually([&] { return lost.count() == 3; }));
  CHECK(clock::now() - begun < 2s);
  CHECK(clock::now() - begun > 1200ms);
  CHECK(lost.any_with("0 says: node 2 (stage 2) was lost: it sent no heartbeat for 1.5 s"));
  CHECK(lost.any_with("1 says: node 2 (stage 2) was lost: it sent no heartbeat for 1.5 s"));
  CHECK(lost.any_with("2 says: node 0 (stage 0) was lost: it sent no heartbeat for 1.5 s"));
}

TEST_CASE("A callback that is set after a loss is called with it") {
  job all{3};
  auto nodes = join_all(all, 3);
  nodes[2].reset();
  std::this_thread::sleep_for(100ms);
  lines lost;
  for (std::size_t i = 0; i < 2; ++i)
    nodes[i]->on_lost([&](node_id node, const std::string& why) {
      lost.add(std::to_string(node.value()) + ": " + why);
    });
  CHECK(eventually([&] { return lost.count() == 2; }));
  // The other nodes end as well, which is no second loss.
  nodes[1].reset();
  std::this_thread::sleep_for(100ms);
  nodes[0].reset();
  CHECK(lost.all() ==
        std::vector<std::string>(2, "2: node 2 (stage 2) was lost: connection closed"));
}

TEST_CASE("All nodes report the loss even if node 0 ends in its callback") {
  job all{4};
  auto nodes = join_all(all, 4);
  lines lost;
  std::promise<void> heard;
  nodes[0]->on_lost([&](node_id, const std::string&) { heard.set_value(); });
  for (std::size_t i = 1; i < 3; ++i)
    nodes[i]->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  nodes[3].reset();
  heard.get_future().wait();
  nodes[0].reset();
  CHECK(eventually([&] { return lost.count() == 2; }));
  CHECK(lost.all() == std::vector<std::string>(2, "node 3 (stage 3) was lost: connection closed"));
}

TEST_CASE("A leave is no loss, whichever node leaves first") {
  const auto first = GENERATE(0u, 1u, 2u);
  job all{3};
  auto nodes = join_all(all, 3);
  lines lost;
  for (auto& node : nodes) node->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  const auto begun = clock::now();
  nodes[first]->leave();
  nodes[first].reset();
  CHECK(clock::now() - begun < 1s);
  std::this_thread::sleep_for(1700ms);  // longer than the node timeout
  for (auto& node : nodes)
    if (node) node->leave();
  CHECK(clock::now() - begun < 4s);
  CHECK(lost.all().empty());
}

TEST_CASE("A process that leaves and then ends at once is no loss") {
  processes all{3, "leave"};
  CHECK(all[2].wait().out == "joined\nleft\n");
  std::this_thread::sleep_for(300ms);
  CHECK(all[0].out() == "joined\n");
  all[1].signal(SIGKILL);
  CHECK(all[0].wait(std::chrono::seconds{5}).out.find("LOST 1: node 1") != std::string::npos);
}

TEST_CASE("A leave ends at its limit when the others do not answer") {
  const auto who = GENERATE(0u, 1u);
  job all{2};
  all.use_good_key();
  relay link{all.port()};
  auto zero = begin_join(all.options(0));
  auto options = all.options(1);
  options.rendezvous_port = link.port();
  auto one = begin_join(options);
  std::vector<std::unique_ptr<membership>> nodes;
  for (auto* joining : {&zero, &one}) nodes.push_back(*joining->get());
  link.cut();
  const auto begun = clock::now();
  nodes[who]->leave(300ms);
  CHECK(clock::now() - begun >= 300ms);
  CHECK(clock::now() - begun < 600ms);
}

}  // namespace rrfp::actors::testing
