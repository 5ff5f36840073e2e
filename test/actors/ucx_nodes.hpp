/// Runs each node of a test as a process, forked before the test has a second thread. The parent
/// relays messages between nodes before they are connected, reaps them, and kills those that run
/// past the limit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <rrfp/transport/ucx_transport.hpp>

#include "../support/eventually.hpp"

namespace rrfp::testing {

/// The only address of a node.
inline rank_address on_node(std::uint32_t number) { return {stage_id{number}, rank_id{0}}; }

/// One node, in its own process.
class test_node {
 public:
  test_node(std::uint32_t number, std::string tls, int parent)
      : number_(number), tls_(std::move(tls)), parent_(parent) {}

  node_id id() const { return node_id{number_}; }
  actors::ucx_options options() const;

  /// Exchanges a message with all nodes. Returns those of all, by node; empty for a dead node.
  std::vector<std::string> gather(const std::string& message);
  void barrier() { gather("here"); }
  /// Opens a transport and connects it to all other nodes.
  std::unique_ptr<actors::ucx_transport> connected(
      actors::ucx_options options, std::function<void(node_id, std::string)> failed = {});

 private:
  std::uint32_t number_;
  std::string tls_;
  int parent_;
};

/// Ends the node with the message `what` if `condition` is false.
void expect(bool condition, const std::string& what);
/// The same; makes the message only when the condition is false.
void expect(bool condition, const std::function<std::string()>& what);
using test::eventually;

using node_body = std::function<void(test_node&)>;

/// Returns the first error of a node: its message, its signal, or that it ran past the limit; "" if
/// all succeed. With `may_die`, a node may end by SIGKILL.
std::string run_nodes(const std::string& tls, const std::vector<node_body>& bodies,
                      bool may_die = false, std::chrono::seconds limit = std::chrono::seconds{60});

}  // namespace rrfp::testing
