/// How tensors, bytes and mail travel between the sessions of the nodes: each message for itself,
/// so they overtake each other, and some arrive twice. What is under way when its receiver ends may
/// reach the next session of that node: transport_core must drop it. A cut delays messages; a long
/// one breaks the connection, as does the end of a process.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/core/transport_frames.hpp>

#include "network.hpp"
#include "symbols.hpp"

namespace rrfp::cluster {

using messaging::actor_message_header;
using messaging::bytes_header;
using messaging::disconnect_header;
using messaging::tensor_header;

struct data_message {
  std::variant<tensor_header, bytes_header, actor_message_header, disconnect_header> header;
  symbol value = 0;              ///< of a tensor
  std::string bytes;             ///< of the others
  std::uint64_t generation = 0;  ///< what no header says: the session that sent it
  std::uint32_t from = 0;        ///< number of the sending session
  std::uint32_t to = 0;          ///< and of the receiving one
  nanoseconds sent = 0;
  bool is_announced = false;
};

/// A session as the network sees it.
class data_port {
 public:
  virtual ~data_port() = default;
  virtual node_id place() const = 0;
  /// When it runs again; now unless its process is suspended.
  virtual nanoseconds resumes_at() const = 0;
  virtual void arrive(const data_message& m, std::uint32_t number) = 0;
  virtual void broke(node_id other) = 0;
};

class data_network final : public event_sink {
 public:
  data_network(world& w, ways& through);

  /// The number of the port; never used again.
  std::uint32_t open(data_port& port);
  /// Whoever is connected to it finds its connection broken, soon or late.
  void close(std::uint32_t number, bool crashed);
  void connected(std::uint32_t from, std::uint32_t to) { links_.emplace_back(from, to); }

  void send(data_message m);
  /// The message `number` that was announced: its data has come, or could not be fetched.
  const data_message& at(std::uint32_t number) const { return messages_[number]; }
  bool is_there(const data_message& m) const { return ports_[m.from] != nullptr; }
  /// Of an announced message that was kept.
  void release(std::uint32_t number) { free_.push_back(number); }
  void break_between(std::uint32_t a, std::uint32_t b);
  void on_event(std::uint32_t what, std::uint32_t argument) override;

 private:
  static constexpr nanoseconds retries_max = 1500 * ms;

  void travel(std::uint32_t number, nanoseconds after) { world_.post(self_, after, 0, number); }
  void break_link(std::uint32_t from, node_id other, nanoseconds after);
  std::uint32_t place_of(data_message m);
  data_port* receiver_of(const data_message& m);
  bool is_lost(const data_message& m);

  world& world_;
  ways& ways_;
  random_source random_;
  const sink_id self_;
  std::vector<data_port*> ports_;
  std::vector<std::uint32_t> node_of_;  ///< by port
  std::vector<std::pair<std::uint32_t, std::uint32_t>> links_;
  /// When the link from a session to another broke.
  std::map<std::pair<std::uint32_t, std::uint32_t>, nanoseconds> broken_;
  std::vector<data_message> messages_;
  std::vector<std::uint32_t> free_;
};

}  // namespace rrfp::cluster
