/// The keys of jobs without a key file: from a launcher, or in a file that the nodes share.
#include <rrfp/membership/run_key_file.hpp>

#include <set>

#include "support.hpp"

namespace rrfp::actors::testing {
namespace {

using control::run_key_file;

bool exists(const std::string& file) { return ::access(file.c_str(), F_OK) == 0; }

/// A free port, whose file is not there.
std::uint16_t free_port() {
  const auto listening = *listen_on_loopback();
  ::close(listening.fd);
  ::unlink(run_key_file{listening.port}.path().c_str());
  return listening.port;
}

}  // namespace

TEST_CASE("Nodes with the key of a launcher join, and others are refused") {
  job all{2};
  const int key = key_descriptor().value();
  auto zero = all.options(0);
  zero.key_fd = ::dup(key);
  auto leader = begin_join(zero);
  const auto stranger = begin_join(all.options(1)).get();
  REQUIRE_FALSE(stranger.ok());
  CHECK(stranger.message().find("refused by node 0: key refused") != std::string::npos);
  const std::string unused = run_key_file{all.port()}.path();
  CHECK(::unlink(unused.c_str()) == 0);
  auto one = all.options(1);
  one.key_fd = key;
  CHECK(begin_join(one).get().ok());
  CHECK(leader.get().ok());
  CHECK_FALSE(exists(unused));
}

TEST_CASE("Nodes that come at the same time create one complete key that only the user may read") {
  const test::scratch_folder folder;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::future<std::vector<unsigned char>>> reading;
    for (int i = 0; i < 8; ++i)
      reading.push_back(std::async(std::launch::async, [&] {
        run_key_file file{folder / "", 1};
        return file.read_or_create().value().bytes();
      }));
    std::set<std::vector<unsigned char>> keys;
    for (auto& one : reading) keys.insert(one.get());
    CHECK(keys.size() == 1);
    CHECK(keys.begin()->size() == 32);
    struct stat info {};
    REQUIRE(::stat(run_key_file{folder / "", 1}.path().c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0600);
    CHECK(info.st_nlink == 1);
    run_key_file last{folder / "", 1};
    REQUIRE(last.read_or_create().ok());
    last.remove();
    CHECK_FALSE(exists(last.path()));
  }
  CHECK(std::filesystem::is_empty(folder / ""));
}

TEST_CASE("A file that may be somebody else's is no key") {
  const test::scratch_folder folder;
  run_key_file file{folder / "", 7};
  const auto& path = file.path();
  CHECK(path.ends_with("/rrfp-" + std::to_string(::geteuid()) + "-7.key"));
  const auto message = [&](const std::string& problem) {
    return "key file '" + path + "': " + problem + ": remove it, or set transport.key_file";
  };
  const auto got = [&] {
    const auto key = file.read_or_create();
    ::unlink(path.c_str());
    return key.ok() ? "a key" : key.message();
  };
  write_key(path, std::string(32, 'k'), 0640);
  CHECK(got() == message("expected mode 0600, got 0640"));
  write_key(path, std::string(31, 'k'));
  CHECK(got() == message("expected 32 bytes, got 31"));
  REQUIRE(::symlink(write_key(folder / "other", std::string(32, 'k')).c_str(), path.c_str()) == 0);
  CHECK(got() == message("expected a regular file"));
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(got() == message("expected a regular file"));
  if (::geteuid() == 0) {
    write_key(path, std::string(32, 'k'));
    REQUIRE(::chown(path.c_str(), 12345, 0) == 0);
    CHECK(got() == message("expected a file of user 0, got one of user 12345"));
  }
  const auto nowhere = run_key_file{folder / "none", 7}.read_or_create();
  CHECK(nowhere.message() == "cannot create key file '" + (folder / "none") +
                                 path.substr(path.rfind('/')) + "': No such file or directory");
}

TEST_CASE("A job without a key fails if another user's file is in place of its key") {
  if (::geteuid() != 0) return;
  job all{2};
  const auto path = run_key_file{all.port()}.path();
  write_key(path, std::string(32, 'k'));
  REQUIRE(::chown(path.c_str(), 12345, 0) == 0);
  for (const std::uint32_t node : {0u, 1u}) {
    const auto got = membership::join(all.options(node));
    REQUIRE_FALSE(got.ok());
    CHECK(got.failure().kind == error_kind::bad_input);
    CHECK(got.message().find("expected a file of user 0, got one of user 12345") !=
          std::string::npos);
  }
  CHECK(exists(path));
  ::unlink(path.c_str());
}

TEST_CASE("Nodes without a key file share one, which node 0 removes at its end") {
  job all{3};
  auto nodes = join_all(all, 3);
  const auto path = run_key_file{all.port()}.path();
  CHECK(exists(path));
  nodes[2]->leave();
  nodes[2].reset();
  CHECK(exists(path));
  nodes.pop_back();
  leave_all(nodes);
  nodes.clear();
  CHECK_FALSE(exists(path));
}

TEST_CASE("Node 0 does not remove the key of the next job, and takes the key that is there") {
  const auto port = free_port();
  run_key_file first{port};
  REQUIRE(first.read_or_create().ok());
  ::unlink(first.path().c_str());
  run_key_file next{port};
  const auto key = next.read_or_create();
  REQUIRE(key.ok());
  CHECK(first.has_changed());
  first.remove();
  CHECK(exists(next.path()));
  CHECK_FALSE(next.has_changed());
  next.remove();

  job all{2};
  auto zero = begin_join(all.options(0));
  const auto path = run_key_file{all.port()}.path();
  REQUIRE(eventually([&] { return exists(path); }));
  ::unlink(path.c_str());  // the end of a previous job
  CHECK(begin_join(all.options(1)).get().ok());
  CHECK(zero.get().ok());
  CHECK(all.refusals().all().empty());
}

TEST_CASE("A node that was refused with the key of a previous job tries again with the new one") {
  job all{2};
  auto one = begin_join(all.options(1));
  const int fd = all.listen_fd();
  pollfd caller{fd, POLLIN, 0};
  REQUIRE(::poll(&caller, 1, 5000) == 1);
  control::file_descriptor first{::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  caller.fd = first.get();
  REQUIRE(::poll(&caller, 1, 5000) == 1);  // it has read the key
  run_key_file file{all.port()};
  ::unlink(file.path().c_str());
  const auto key = file.read_or_create();
  const control::tls_context context{control::tls_context::side::node_0};
  control::channel node_0{std::move(first)};
  REQUIRE(node_0.receive().any);
  node_0.begin_tls(context, control::derive_psk(*key));
  CHECK(node_0.receive().ended == control::tls::end::invalid);
  auto zero = begin_join(all.options(0));
  CHECK(one.get().ok());
  CHECK(zero.get().ok());
}

TEST_CASE("The key that a killed node 0 has left serves the next job") {
  const auto port = free_port();
  const auto start = [&](std::uint32_t node) {
    return std::make_unique<test::program>(std::vector<std::string>{
        RRFP_MEMBERSHIP_NODE, std::to_string(node), "2", std::to_string(port), "-1", "leave"});
  };
  const auto path = run_key_file{port}.path();
  {
    const auto killed = start(0);
    REQUIRE(eventually([&] { return exists(path); }));
    killed->signal(SIGKILL);
    killed->wait();
  }
  const auto left = test::text_of(path);
  const auto one = start(1);
  const auto zero = start(0);
  CHECK(one->wait().code == 0);
  CHECK(zero->wait().code == 0);
  CHECK(left.size() == 32);
  CHECK_FALSE(exists(path));
}

TEST_CASE("The shared key is in XDG_RUNTIME_DIR only if that is a folder for the user alone") {
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string restored = before != nullptr ? before : "";
  const test::scratch_folder folder;  // with mode 0700
  const auto chosen = [&](const std::string& value) {
    ::setenv("XDG_RUNTIME_DIR", value.c_str(), 1);
    const auto path = run_key_file{7}.path();
    return path.substr(0, path.rfind('/'));
  };
  const auto wide = folder / "wide";
  std::filesystem::create_directory(wide);
  ::chmod(wide.c_str(), 0755);
  const auto own = folder / "own";
  std::filesystem::create_directory(own);
  ::chmod(own.c_str(), 0700);
  CHECK(chosen(own) == own);
  CHECK(chosen(wide) == "/tmp");
  CHECK(chosen(folder / "none") == "/tmp");
  CHECK(chosen("") == "/tmp");
  before != nullptr ? ::setenv("XDG_RUNTIME_DIR", restored.c_str(), 1)
                    : ::unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace rrfp::actors::testing
