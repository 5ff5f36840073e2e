/// Strangers at the port of a running job: nothing changes in it, and it needs hardly more memory.

#include <rrfp/membership/run_key_file.hpp>
#include "support.hpp"

namespace rrfp::actors::testing {
namespace {

/// The resident memory of a process in KiB.
std::size_t resident_kib(pid_t pid) {
  std::size_t pages = 0;
  std::ifstream statm{"/proc/" + std::to_string(pid) + "/statm"};
  statm >> pages >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) / 1024;
}

/// Connections that say what no node says, and stay open.
class strangers {
 public:
  strangers(std::uint16_t port, std::size_t count) {
    const auto hello = client_hello(good_key);
    std::string noise;
    for (std::size_t i = 0; i < 20'000; ++i) noise += static_cast<char>(i * i * 7 + i / 3 + 'n');
    for (std::size_t i = 0; i < count; ++i) {
      if (i % 5 == 0) {
        wrong_.push_back(std::make_unique<tls_connection>(connect_to(port), good_key, 1));
        continue;
      }
      raw_.push_back(std::make_unique<raw_connection>(port));
      const auto& c = *raw_.back();
      if (i % 5 == 1) c.send(noise);
      if (i % 5 == 2) c.send(hello.substr(0, hello.size() - 1));
      if (i % 5 == 3)  // CAF's protocol: a handshake, with its length, version and identity
        c.send(std::string(8, '\0') + "\x80" + std::string(63, '\1'));
    }
  }

 private:
  std::vector<std::unique_ptr<raw_connection>> raw_;
  std::vector<std::unique_ptr<tls_connection>> wrong_;
};

/// How long the strangers stay: longer than a handshake may take. RRFP_STRANGERS_S for longer.
std::chrono::seconds stay() {
  const char* const text = std::getenv("RRFP_STRANGERS_S");
  return std::chrono::seconds{text != nullptr ? std::atoi(text) : 6};
}

}  // namespace

TEST_CASE("200 strangers change nothing in a running job and cost less than 1 MiB") {
  job all{2};
  const int fd = all.listen_fd();
  const auto start = [&](std::uint32_t node) {
    return std::make_unique<test::program>(std::vector<std::string>{
        RRFP_MEMBERSHIP_NODE, std::to_string(node), "2", std::to_string(all.port()),
        std::to_string(node == 0 ? fd : -1), "stay"});
  };
  const auto zero = start(0);
  ::close(fd);
  const auto one = start(1);
  for (const auto* node : {&zero, &one})
    REQUIRE(eventually([&] { return (*node)->out() == "joined\n"; }, 20s));
  // What the first strangers use stays: code of OpenSSL, and tables.
  { const strangers first{all.port(), 10}; }
  std::this_thread::sleep_for(300ms);

  const auto before = resident_kib(zero->pid());
  std::size_t most = before;
  {
    const strangers many{all.port(), 200};
    for (const auto until = clock::now() + stay(); clock::now() < until;) {
      most = std::max(most, resident_kib(zero->pid()));
      std::this_thread::sleep_for(5ms);
    }
    CHECK(zero->out() == "joined\n");
    CHECK(one->out() == "joined\n");
    // A node that comes now is told that it is too late, so its handshake still succeeds.
    auto options = all.options(1);
    options.job_id = "test";
    options.job_hash = 0;
    options.version = "1";
    options.vector_instructions = "";
    const auto late = membership::join(options);
    REQUIRE_FALSE(late.ok());
    CHECK(
        late.message().ends_with("refused by node 0: node 1 is too late: all 2 nodes have joined"));
  }
  INFO("KiB before: " << before << ", most: " << most);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(most - before < 1024);
#endif
  one->signal(SIGKILL);
  CHECK(eventually([&] { return zero->out().find("LOST 1: ") != std::string::npos; }));
  CHECK(zero->wait().code == 3);
}

}  // namespace rrfp::actors::testing
