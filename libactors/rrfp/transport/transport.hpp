/// The interface for sending tensors between ranks. A message describes itself, so shapes may
/// differ between microbatches. send() never blocks; a receiver's sink is called from any thread
/// and must not block (it posts the message to an actor).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/core/message_header.hpp>
#include <rrfp/core/task.hpp>

namespace rrfp::actors {

struct message {
  message_header header;
  /// Contiguous. Sender and receiver may share the memory; neither writes to it.
  tensor_buffer tensor;
};

using message_sink = std::function<void(message)>;

/// Decides when the outputs of tasks leave, in place of sending them at once. It belongs to a
/// transport, and may send messages of the kind payload::signal, which only such a transport
/// understands, to the same ranks. Thread-safe; no function blocks.
class output_gate {
 public:
  virtual ~output_gate() = default;
  /// The rank begins a step of so many microbatches.
  virtual void begin_step(const rank_address& rank, step_id step, std::uint32_t microbatches) = 0;
  /// The rank has run a task; its output for another stage, if it has one, is sent next.
  virtual void end_task(const rank_address& rank, step_id step, const task& ended) = 0;
  /// Sends the input of a task of another stage. The sender runs its next task when `go_on` is
  /// called, on any thread.
  virtual void send_output(message m, std::function<void()> go_on) = 0;
};

/// Thread-safe.
class transport {
 public:
  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  /// Delivers messages to `address` to `sink` from now on; an address is bound once.
  virtual void bind(rank_address address, message_sink sink) = 0;
  /// Delivers the message once; messages may overtake each other. The address must be bound.
  virtual void send(message m) = 0;
  /// Whether send() accepts a tensor in device memory for `to`; else it must be in host memory.
  virtual bool takes_device_memory(const rank_address& /*to*/) const { return false; }
  /// Drops messages in flight. No sink is called after it has returned.
  virtual void close() = 0;
  /// The gate for the outputs of tasks, owned by the transport; null: outputs are sent at once. A
  /// wrapper hides the gate of the transport that it wraps.
  virtual output_gate* gate() { return nullptr; }
};

/// Between ranks of one process: the tensor itself is handed over.
std::unique_ptr<transport> make_in_process_transport();

/// The delay of a message, in milliseconds.
using link_delay = std::function<double(const message_header&)>;

/// Delays messages before it passes them to `inner`.
std::unique_ptr<transport> make_delaying_transport(std::unique_ptr<transport> inner,
                                                   link_delay delay);

}  // namespace rrfp::actors
