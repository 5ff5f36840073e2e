/// Refused joins: the node gets the reason, and the job is not affected.
#include <random>

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <rrfp/membership/run_key_file.hpp>

#include "support.hpp"

namespace rrfp::actors::testing {
namespace {

const std::string bad_key = "0123456789abcdef0123456789abcdeX";

/// Node 0 of a job of two nodes waits; at the end node 1 joins and the job begins.
class waiting_job {
 public:
  waiting_job() {
    all.use_good_key();
    zero_ = begin_join(all.options(0));
  }

  void completes() {
    auto one = begin_join(all.options(1));
    auto a = zero_.get();
    auto b = one.get();
    INFO((a.ok() ? "" : a.message()) << (b.ok() ? "" : b.message()));
    CHECK(a.ok());
    CHECK(b.ok());
  }

  const test::scratch_folder folder;
  job all{2};

 private:
  std::future<joined> zero_;
};

/// The server side of TLS 1.3 with a new certificate and without a PSK, until the client ends it.
void serve_certificate(int fd) {
  auto* const key = EVP_EC_gen("P-256");
  auto* const certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  auto* const context = SSL_CTX_new(TLS_server_method());
  SSL_CTX_use_certificate(context, certificate);
  SSL_CTX_use_PrivateKey(context, key);
  auto* const ssl = SSL_new(context);
  SSL_set_fd(ssl, fd);
  CHECK(SSL_accept(ssl) != 1);
  SSL_free(ssl);
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

/// The first bytes of a TLS client that is no node.
std::string strange_client_hello() {
  auto* const context = SSL_CTX_new(TLS_client_method());
  auto* const ssl = SSL_new(context);
  auto* const sent = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), sent);
  SSL_set_connect_state(ssl);
  SSL_do_handshake(ssl);
  std::string bytes(4096, '\0');
  bytes.resize(static_cast<std::size_t>(BIO_read(sent, bytes.data(), 4096)));
  SSL_free(ssl);
  SSL_CTX_free(context);
  return bytes;
}

control::frame claim_of(std::uint32_t node, std::uint32_t nodes) {
  return control::to_frame(
      control::claim{control::wire_version, {"0.1.0", "a job", 0x1234, nodes, "AVX512"}, node});
}

/// The bytes that a node sends when it is admitted: more than its part of the handshake, its claim
/// and its introduction.
constexpr std::size_t bytes_of_admitted = 700;

}  // namespace

TEST_CASE("A node whose claim differs from that of node 0 is refused with the reason") {
  struct wrong {
    std::function<void(membership_options&)> change;
    std::string reason;
  };
  const std::vector<wrong> all_wrong{
      {[](auto& o) { o.job_hash = 0x5678; },
       "job hash: expected 0000000000001234, got 0000000000005678 (the job files, their "
       "overrides or the programs differ)"},
      {[](auto& o) { o.version = "0.2.0"; }, "rrfp version: expected '0.1.0', got '0.2.0'"},
      {[](auto& o) { o.job_id = "b job"; }, "job: expected 'a job', got 'b job'"},
      {[](auto& o) { o.nodes = 3; }, "number of nodes: expected 2, got 3"},
      {[](auto& o) { o.vector_instructions = "AVX2"; },
       "vector instructions: expected AVX512, got AVX2 (set ATEN_CPU_CAPABILITY on all nodes, "
       "to avx2 for example)"},
      {[](auto& o) { o.nodes = 3, o.node = node_id{2}; }, "number of nodes: expected 2, got 3"},
  };
  waiting_job waiting;
  for (const auto& w : all_wrong) {
    auto options = waiting.all.options(1);
    w.change(options);
    const auto got = membership::join(options);
    REQUIRE_FALSE(got.ok());
    CHECK(got.message() == "node " + std::to_string(options.node.value()) +
                               ": rendezvous 127.0.0.1:" + std::to_string(waiting.all.port()) +
                               ": refused by node 0: " + w.reason);
    CHECK(waiting.all.refusals().any_with("as node " + std::to_string(options.node.value()) + ": " +
                                          w.reason));
  }
  waiting.completes();
}

TEST_CASE("A node with a wrong key or none is told only that, and keys are in no message") {
  waiting_job waiting;
  for (const bool any : {true, false}) {
    auto options = waiting.all.options(1);
    options.job_hash = 0x5678;  // must not be revealed without the key
    options.key_file = any ? write_key(waiting.folder / "bad", bad_key) : "";
    const auto got = membership::join(options);
    REQUIRE_FALSE(got.ok());
    std::string reason = "refused by node 0: key refused";
    if (!any)
      reason += " (this node has neither transport.key_file nor RRFP_KEY, and used " +
                control::run_key_file{waiting.all.port()}.path() + ")";
    CHECK(got.message() ==
          "node 1: rendezvous 127.0.0.1:" + std::to_string(waiting.all.port()) + ": " + reason);
    CHECK(got.failure().kind == error_kind::bad_input);
    CHECK(got.message().find(bad_key.substr(0, 8)) == std::string::npos);
  }
  ::unlink(control::run_key_file{waiting.all.port()}.path().c_str());  // node 0 did not use it
  waiting.completes();
  // Node 0 may have refused before it reported so.
  CHECK(waiting.all.refusals().count() == 2);
  for (const auto& line : waiting.all.refusals().all()) {
    CHECK(line.ends_with(" as node 1: key refused"));
    CHECK(line.find(good_key.substr(0, 8)) == std::string::npos);
  }
}

TEST_CASE("A node does not join a node 0 that does not have the key") {
  const auto speaks_tls = GENERATE(true, false);
  // It has a certificate instead of the key, or accepts any claim in clear text.
  const auto listening = *listen_on_loopback();
  std::thread impostor{[&] {
    pollfd caller{listening.fd, POLLIN, 0};
    ::poll(&caller, 1, 10'000);
    const int fd = ::accept(listening.fd, nullptr, nullptr);
    if (speaks_tls) {
      serve_certificate(fd);
    } else {
      const auto yes = control::to_bytes(control::to_frame(control::accept{}));
      (void)::send(fd, yes.data(), yes.size(), MSG_NOSIGNAL);
    }
    char bytes[4096];
    while (::recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
    ::close(fd);
  }};
  job fooled{2};
  fooled.use_good_key();
  auto options = fooled.options(1);
  options.rendezvous_port = listening.port;
  const auto got = membership::join(options);
  impostor.join();
  ::close(listening.fd);
  REQUIRE_FALSE(got.ok());
  CHECK(got.message().ends_with(
      speaks_tls ? ": the listener did not prove that it has the key"
                 : ": the listener is not node 0 of an rrfp job of this version"));
}

TEST_CASE("A replay of a recorded join is refused, even by the same node 0") {
  job all{3};
  all.use_good_key();
  auto zero = begin_join(all.options(0));
  relay tap{all.port()};
  std::stop_source stop;
  auto options = all.options(1);
  options.rendezvous_port = tap.port();
  options.stop = stop.get_token();
  auto tapped = begin_join(options);
  // After it disconnects, its number is available again.
  REQUIRE(eventually([&] { return tap.said_by_nodes().size() > bytes_of_admitted; }));
  stop.request_stop();
  CHECK_FALSE(tapped.get().ok());

  raw_connection replay{all.port()};
  replay.send(tap.said_by_nodes());
  CHECK(eventually([&] { return all.refusals().any_with("as node 1: key refused"); }));
  auto one = begin_join(all.options(1));
  auto two = begin_join(all.options(2));
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
  CHECK(two.get().ok());
}

TEST_CASE("Injected bytes end the connection") {
  const auto as_record = GENERATE(true, false);
  job all{2};
  all.use_good_key();
  relay between{all.port()};
  auto zero = begin_join(all.options(0));
  auto options = all.options(1);
  options.rendezvous_port = between.port();
  auto one = *begin_join(options).get();
  auto other = *zero.get();
  lines lost;
  one->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  auto forged = control::to_bytes(control::to_frame(control::lost{1, "a lie"}));
  forged += std::string(32, '\0');
  if (as_record)
    forged = std::string{"\x17\x03\x03\0", 4} + static_cast<char>(forged.size()) + forged;
  between.inject(forged);
  REQUIRE(eventually([&] { return lost.count() == 1; }, 2s));
  CHECK(lost.all().front() == "node 0 (stage 0) was lost: got a record that fails authentication");
}

TEST_CASE("A node number that is taken or out of range is refused") {
  job all{3};
  all.use_good_key();
  auto zero = begin_join(all.options(0));
  relay link_of_one{all.port()};
  auto options_of_one = all.options(1);
  options_of_one.rendezvous_port = link_of_one.port();
  auto one = begin_join(options_of_one);
  REQUIRE(eventually([&] { return link_of_one.said_by_nodes().size() > bytes_of_admitted; }));
  const auto refusal = [&](std::uint32_t node) {
    // join() checks its options first; a claim of the test bypasses that check.
    return tls_connection{connect_to(all.port()), good_key, node}.refusal_of(claim_of(node, 3));
  };
  CHECK(refusal(3) == "node: expected 0 to 2, got 3");
  CHECK(refusal(4294967295u) == "node: expected 0 to 2, got 4294967295");
  CHECK(refusal(0) == "node 0 is the node that listens");
  const auto again = begin_join(all.options(1)).get();
  REQUIRE_FALSE(again.ok());
  CHECK(again.message().find("refused by node 0: node 1 has already joined from 127.0.0.1:") !=
        std::string::npos);
  auto two = begin_join(all.options(2));
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
  CHECK(two.get().ok());
}

TEST_CASE("A node that joins after the job has begun is refused, and the job continues") {
  job all{2};
  auto nodes = join_all(all, 2);
  auto options = all.options(1);
  const auto late = membership::join(options);
  REQUIRE_FALSE(late.ok());
  // It may be a restart of the same node before its loss was detected.
  CHECK(late.failure().kind == error_kind::node_lost);
  CHECK(late.message().ends_with("refused by node 0: node 1 is too late: all 2 nodes have joined"));
  auto one = std::async(std::launch::async, [&] { return tell_all(*nodes[1], "1", 5s); });
  CHECK(tell_all(*nodes[0], "0", 5s).ok());
  CHECK(one.get().ok());
  leave_all(nodes);
}

TEST_CASE("A node that restarts while the previous job ends waits for the next job") {
  job all{3};
  auto nodes = join_all(all, 3);
  nodes[2].reset();
  CHECK(nodes[0]->loss(10s));
  auto options = all.options(2);
  options.join_timeout = 300ms;
  const auto early = membership::join(options);
  REQUIRE_FALSE(early.ok());
  INFO(early.message());
  CHECK(early.message().find("did not join within 0.3 s: cannot connect") != std::string::npos);
  CHECK(early.failure().kind == error_kind::node_lost);
  CHECK(all.refusals().all().empty());
}

TEST_CASE("Another protocol or wire version is refused with an explanation") {
  waiting_job waiting;
  raw_connection http{waiting.all.port()};
  http.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(http.refusal() == "not an rrfp node: expected a TLS handshake");

  // The first frame of wire version 2, which understands the refusal.
  raw_connection older{waiting.all.port()};
  older.send(std::string_view{"\x27\0\0\0\x01rrfp\x02\0", 11});
  CHECK(older.refusal() == "not an rrfp node: expected a TLS handshake");

  raw_connection other_client{waiting.all.port()};
  other_client.send(strange_client_hello());
  CHECK(eventually([&] { return waiting.all.refusals().any_with(": key refused"); }));

  const auto refusal_of = [&](const control::frame& f) {
    return tls_connection{connect_to(waiting.all.port()), good_key, 1}.refusal_of(f);
  };
  control::claim future{10, {"0.1.0", "a job", 0x1234, 2}, 1};
  CHECK(refusal_of(control::to_frame(future)) == "wire version: expected 9, got 10");
  CHECK(refusal_of(control::to_frame(control::accept{})) == "expected a claim");
  auto large = claim_of(1, 2);
  large.payload.resize(control::early_frame_bytes_max);
  CHECK(refusal_of(large) == "not an rrfp node: expected a frame of 1 to 4096 bytes, got 4097");
  CHECK(waiting.all.refusals().count() == 6);
  waiting.completes();
}

TEST_CASE("Connections that send little or nothing do not block a join") {
  waiting_job waiting;
  std::vector<std::unique_ptr<raw_connection>> silent;
  const auto hello = client_hello(good_key);
  for (std::size_t i = 0; i < 150; ++i) {
    silent.push_back(std::make_unique<raw_connection>(waiting.all.port()));
    silent.back()->send(std::string_view{hello}.substr(0, i % 6 * i));
  }
  const auto begun = clock::now();
  waiting.completes();
  CHECK(clock::now() - begun < 2s);
  // At most 64 connections are kept.
  CHECK(waiting.all.refusals().any_with("dropped: too many pending connections"));
}

TEST_CASE("Random and truncated bytes do not affect the job") {
  waiting_job waiting;
  std::mt19937 random{20240607};
  const auto number = [&](std::uint32_t below) {
    return std::uniform_int_distribution<std::uint32_t>{0, below - 1}(random);
  };
  const auto hello = client_hello(good_key);
  const auto more = std::string{"\x17\x03\x03\0\x20", 5} + std::string(32, 'x');  // a record
  for (int i = 0; i < 300; ++i) {
    std::string bytes;
    switch (i % 4) {
      case 0:  // noise
        for (auto left = number(600); left > 0; --left) bytes += static_cast<char>(number(256));
        break;
      case 1:  // a record with a believable head
        bytes = std::string{"\x16\x03\x01\0", 4} + static_cast<char>(number(256));
        for (auto left = number(100); left > 0; --left) bytes += static_cast<char>(number(256));
        break;
      case 2:  // cut off
        bytes = (hello + more).substr(0, number(static_cast<std::uint32_t>((hello + more).size())));
        break;
      default:  // one byte changed
        bytes = hello + more;
        bytes[number(static_cast<std::uint32_t>(bytes.size()))] ^=
            static_cast<char>(1 + number(255));
        break;
    }
    raw_connection raw{waiting.all.port()};
    raw.send(bytes);
    if (i % 3 == 0) raw.end_writing();
  }
  waiting.completes();
  CHECK(waiting.all.refusals().count() == 101);
  CHECK(waiting.all.refusals().all().back() == "further refused joins are not reported");
}

}  // namespace rrfp::actors::testing
