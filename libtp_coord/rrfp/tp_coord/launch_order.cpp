#include <string>

#include <rrfp/tp_coord/launch_order.hpp>

namespace rrfp::tp_coord {

status launch_order::accept(launch_seq seq, const task& t) {
  if (seq != next_) {
    const bool is_late = seq < next_;
    return error{"launch " + std::to_string(seq.value()) + " (" + to_string(t) + ") arrived when " +
                 std::to_string(next_.value()) + " was due" +
                 (last_ ? " after " + to_string(*last_) : std::string()) +
                 (is_late ? ": it has already run" : ": launches between them are missing")};
  }
  next_ = launch_seq{seq.value() + 1};
  last_ = t;
  return success();
}

}  // namespace rrfp::tp_coord
