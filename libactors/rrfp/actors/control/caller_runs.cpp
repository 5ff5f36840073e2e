#include "caller_runs.hpp"

namespace rrfp::actors {

namespace {

/// After this many turns the scheduler gets the rest, so that a thread returns to its own work.
constexpr int turns_max = 32;
/// Messages that an actor may handle in a turn.
constexpr std::size_t messages_max = 16;

thread_local collector* here = nullptr;

}  // namespace

caf::execution_unit* collector::of_this_thread(caf::actor_system& system) {
  if (here == nullptr) return nullptr;
  if (here->woken_.empty()) here->system_ = &system;
  return here->system_ == &system ? here : nullptr;
}

void collector::exec_later(caf::resumable* actor) {
  const auto* const portable = dynamic_cast<const runs_anywhere*>(actor);
  if (portable != nullptr && portable->is_quick())
    woken_.push_back(actor);
  else
    system().scheduler().enqueue(actor);
}

void collector::run() {
  int turns = 0;
  // Grows while it is read: handlers wake further actors.
  for (std::size_t next = 0; next < woken_.size(); ++next) {
    auto* const actor = woken_[next];
    if (++turns > turns_max) {
      system().scheduler().enqueue(actor);
      continue;
    }
    switch (actor->resume(this, messages_max)) {
      case caf::resumable::resume_later: woken_.push_back(actor); break;
      case caf::resumable::done:
      case caf::resumable::awaiting_message:
      case caf::resumable::shutdown_execution_unit: caf::intrusive_ptr_release(actor); break;
    }
  }
  woken_.clear();
}

caller_runs::caller_runs() : is_outermost_(here == nullptr) {
  if (is_outermost_) here = &collector_;
}

caller_runs::~caller_runs() {
  if (!is_outermost_) return;
  collector_.run();
  here = nullptr;
}

void run_collected_actors() {
  thread_local collector own;
  if (here == &own) own.run();
  if (here == nullptr) here = &own;
}

}  // namespace rrfp::actors
