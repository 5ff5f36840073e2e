/// The functions of CAF 0.17 that the rest of libactors uses to declare message types, send
/// messages and spawn actors.
#pragma once

#include <chrono>
#include <utility>

#include <caf/all.hpp>

#if CAF_VERSION >= 1800
#error "rrfp is written for CAF 0.17"
#endif

/// At global scope: allows messages of a type within one process, without serialization.
#define RRFP_LOCAL_MESSAGE(type) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(type)

/// In the namespace of types with a function `fields(f, x)` that calls f with all members: allows
/// messages of these types between processes, too.
#define RRFP_INSPECT_BY_FIELDS                                          \
  template <class Inspector, class T>                                   \
  requires requires(T & x) {                                            \
    fields([](auto&...) {}, x);                                         \
  }                                                                     \
  typename Inspector::result_type inspect(Inspector& f, T& x) {         \
    return fields([&f](auto&... members) { return f(members...); }, x); \
  }

namespace rrfp::actors {

using actor_base = caf::event_based_actor;

/// Posts `m` to `to`, from any thread.
template <class Message>
void post(const caf::actor& to, Message m) {
  caf::anon_send(to, std::move(m));
}

/// Posts `m` to `self` after `delay`.
template <class Message>
void post_after(actor_base* self, std::chrono::milliseconds delay, Message m) {
  self->delayed_send(self, delay, std::move(m));
}

/// Registers the name of a message type, which is sent between processes.
template <class Message>
void add_message(caf::actor_system_config& config, const char* name) {
  config.add_message_type<Message>(name);
}

/// Sets the threads that run all actors except detached ones. Without `spin`, a chain of messages
/// between actors wakes one sleeping thread instead of one per hop. With `spin`, threads poll that
/// long for work before they sleep, and no wake-up is needed.
inline void set_scheduler(caf::actor_system_config& config, std::size_t threads,
                          std::chrono::microseconds spin) {
  config.set("scheduler.max-threads", threads);
  if (spin.count() == 0) {
    config.set("scheduler.policy", caf::atom("sharing"));
    return;
  }
  // CAF counts polls of the queue; each takes some 50 ns. Then it sleeps on a condition variable.
  constexpr std::size_t polls_per_microsecond = 20;
  config.set("scheduler.policy", caf::atom("stealing"));
  config.set("work-stealing.aggressive-poll-attempts",
             static_cast<std::size_t>(spin.count()) * polls_per_microsecond);
  config.set("work-stealing.moderate-poll-attempts", std::size_t{1});
}

template <class Actor, class... Arguments>
caf::actor spawn(caf::actor_system& system, Arguments&&... arguments) {
  return system.spawn<Actor>(std::forward<Arguments>(arguments)...);
}

/// Spawns an actor on its own thread, which no other actor can block.
template <class Actor, class... Arguments>
caf::actor spawn_detached(caf::actor_system& system, Arguments&&... arguments) {
  return system.spawn<Actor, caf::detached>(std::forward<Arguments>(arguments)...);
}

}  // namespace rrfp::actors
