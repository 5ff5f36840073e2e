/// All that differs between CAF 0.17 and CAF 1.x, as far as it is used here. The rest of libactors
/// names message types, posts them with these helpers and derives actors from actor_base.
#pragma once

#include <chrono>
#include <utility>

#include <caf/all.hpp>

#if CAF_MAJOR_VERSION != 0 && defined(CAF_MAJOR_VERSION)
#error "CAF 1.x: give every message type an id block here, and use anon_mail and mail below"
#endif

/// At global scope: lets a type travel between actors of one process without serialization.
#define RRFP_LOCAL_MESSAGE(type) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(type)

/// In the namespace of types that have `fields(f, x)`, a call of f with all their members: lets
/// them travel between processes too.
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

/// What a message with this name is called between processes.
template <class Message>
void add_message(caf::actor_system_config& config, const char* name) {
  config.add_message_type<Message>(name);
}

/// The threads that run all actors but the detached ones. A chain of messages between such actors
/// wakes one sleeping thread, not one a hop. With a `spin` threads look for work that long before
/// they sleep, and waking costs nothing.
inline void set_scheduler(caf::actor_system_config& config, std::size_t threads,
                          std::chrono::microseconds spin) {
  config.set("scheduler.max-threads", threads);
  if (spin.count() == 0) {
    config.set("scheduler.policy", caf::atom("sharing"));
    return;
  }
  // CAF counts looks at the queue; one takes some 50 ns. Then it sleeps on a condition variable.
  constexpr std::size_t looks_each_microsecond = 20;
  config.set("scheduler.policy", caf::atom("stealing"));
  config.set("work-stealing.aggressive-poll-attempts",
             static_cast<std::size_t>(spin.count()) * looks_each_microsecond);
  config.set("work-stealing.moderate-poll-attempts", std::size_t{1});
}

template <class Actor, class... Arguments>
caf::actor spawn(caf::actor_system& system, Arguments&&... arguments) {
  return system.spawn<Actor>(std::forward<Arguments>(arguments)...);
}

/// An actor with a thread of its own, which no other actor can hold up.
template <class Actor, class... Arguments>
caf::actor spawn_detached(caf::actor_system& system, Arguments&&... arguments) {
  return system.spawn<Actor, caf::detached>(std::forward<Arguments>(arguments)...);
}

}  // namespace rrfp::actors
