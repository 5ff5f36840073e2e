/// The functions of CAF 0.17 that the rest of libactors uses to declare message types and send
/// messages.
#pragma once

#include <chrono>
#include <exception>
#include <utility>

#include <caf/all.hpp>

#include "caller_runs.hpp"

#if CAF_VERSION >= 1800
#error "rrfp is written for CAF 0.17"
#endif

/// At global scope: allows messages of a type. CAF never serializes them.
#define RRFP_ALLOW_MESSAGE(type) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(type)

namespace rrfp::actors {

using actor_base = caf::event_based_actor;

/// Posts `m` to `to`, from any thread. See caller_runs.hpp for where the actor then runs.
template <class Message>
void post(const caf::actor& to, Message m) {
  if (!to) return;
  to->eq_impl(caf::make_message_id(), nullptr, collector::of_this_thread(to->home_system()),
              std::move(m));
}

/// Posts `m` to `self` after `delay`.
template <class Message>
void post_after(actor_base* self, std::chrono::milliseconds delay, Message m) {
  self->delayed_send(self, delay, std::move(m));
}

/// If a handler of `self` throws, `report` gets the message, and the actor ends.
template <class Report>
void on_exception(actor_base* self, Report report) {
  self->set_exception_handler([report](std::exception_ptr& problem) -> caf::error {
    try {
      std::rethrow_exception(problem);
    } catch (const std::exception& e) {
      report(e.what());
    } catch (...) {
      report("threw an object that is not a std::exception");
    }
    return caf::exit_reason::user_shutdown;
  });
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

}  // namespace rrfp::actors
