/// How tensors travel between ranks. A message describes itself, so shapes may differ from one
/// microbatch to the next. send() never blocks; a receiver's sink is called from any thread and
/// only takes note (an actor posts the message to itself).
#pragma once

#include <chrono>
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
  payload kind = payload::activation;
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
  /// Whether send() takes a tensor in memory of a device for `to`. Else it must be in the host's.
  virtual bool takes_device_memory(const rank_address& /*to*/) const { return false; }
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

/// What becomes of one attempt to send a message.
struct attempt_fate {
  bool lost = false;
  bool twice = false;  ///< a copy arrives besides
};
/// Of the attempt with this number, from 0. Called from any thread.
using fate_of_attempt = std::function<attempt_fate(const message_header&, std::uint32_t attempt)>;

/// Loses and doubles messages on their way to `inner`, as `fate` says.
std::unique_ptr<transport> make_lossy_transport(std::unique_ptr<transport> inner,
                                                fate_of_attempt fate);

/// Makes an `inner` of one process that loses and doubles messages whole again: what has not
/// arrived `after` its last attempt is sent once more, and what comes again is dropped. `on_resend`
/// is called before every further attempt, from any thread; may be empty.
std::unique_ptr<transport> make_resending_transport(std::unique_ptr<transport> inner,
                                                    std::chrono::nanoseconds after,
                                                    std::function<void()> on_resend = {});

}  // namespace rrfp::actors
