/// Runs the nodes of a test as processes of their own, forked from the test before it has a thread.
/// The parent relays what nodes say to each other before they are connected, reaps them, and kills
/// what runs past the limit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <rrfp/actors/ucx_transport.hpp>

namespace rrfp::testing {

/// One node, in its own process.
class test_node {
 public:
  test_node(std::uint32_t number, std::string tls, int parent)
      : number_(number), tls_(std::move(tls)), parent_(parent) {}

  node_id id() const { return node_id{number_}; }
  actors::ucx_options options() const;

  /// What each node says, in the order of the nodes; empty for one that is dead.
  std::vector<std::string> gather(const std::string& word);
  void barrier() { gather("here"); }
  /// Opens a transport and connects it to all others.
  std::unique_ptr<actors::ucx_transport> connected(
      actors::ucx_options options, std::function<void(node_id, std::string)> failed = {});

 private:
  std::uint32_t number_;
  std::string tls_;
  int parent_;
};

/// Ends the node with this message unless it holds.
void expect(bool condition, const std::string& what);
/// For words about the state after the condition was waited for.
void expect(bool condition, const std::function<std::string()>& what);
/// Looks every millisecond, for at most `limit`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds{20});

using node_body = std::function<void(test_node&)>;

/// What went wrong on any node: its message, its signal, or that it ran past the limit; "" if all
/// is well. A node that is `may_die` may end by SIGKILL.
std::string run_nodes(const std::string& tls, const std::vector<node_body>& bodies,
                      bool may_die = false, std::chrono::seconds limit = std::chrono::seconds{60});

}  // namespace rrfp::testing
