/// How tensors travel between ranks. A message describes itself, so shapes may differ from one
/// microbatch to the next. send() never blocks; a receiver's sink is called from any thread and
/// only takes note (an actor posts the message to itself).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include <rrfp/schedule/ids.hpp>

namespace rrfp::actors {

/// One rank of one stage of one replica.
struct rank_address {
  stage_id stage;
  rank_id rank;
  replica_id replica{};

  auto operator<=>(const rank_address&) const = default;
};

enum class payload : std::uint8_t {
  activation,     ///< the input of an F
  gradient,       ///< the input of a B or BW
  tied_gradient,  ///< one side's gradient of a parameter that two stages hold
};

struct message_header {
  payload what = payload::activation;
  step_id step;
  /// The task that the tensor is the input of; unused for tied gradients.
  microbatch_id mb;
  chunk_id chunk;
  rank_address from;
  rank_address to;

  bool operator==(const message_header&) const = default;
};

struct message {
  message_header header;
  /// Contiguous. The receiver shares the memory; nobody writes to it.
  at::Tensor tensor;
};

using message_sink = std::function<void(message)>;

/// Thread-safe.
class transport {
 public:
  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  /// From now on messages to `address` go to `sink`; an address is bound once.
  virtual void bind(rank_address address, message_sink sink) = 0;
  /// Delivers once, in any order. The address must be bound.
  virtual void send(message m) = 0;
  /// Drops what is under way and calls no sink any more once it has returned.
  virtual void close() = 0;
};

/// Between ranks of one process: the tensor itself is handed over.
std::unique_ptr<transport> make_in_process_transport();

/// How long a message is held back, in milliseconds.
using link_delay = std::function<double(const message_header&)>;

/// Holds messages back before `inner` gets them; those without a delay pass at once.
std::unique_ptr<transport> make_delaying_transport(std::unique_ptr<transport> inner,
                                                   link_delay delay);

}  // namespace rrfp::actors
