#include <string>

#include <rrfp/tp_coord/order/launch_order.hpp>

namespace rrfp::tp_coord {

status launch_order::take(launch_seq seq, const task& what) {
  if (seq != next_) {
    const bool is_late = seq < next_;
    return error{"launch " + std::to_string(seq.value()) + " (" + to_string(what) + ") came when " +
                 std::to_string(next_.value()) + " was due" +
                 (last_ ? " after " + to_string(*last_) : std::string()) +
                 (is_late ? ": it has run before" : ": launches between them are missing")};
  }
  next_ = launch_seq{seq.value() + 1};
  last_ = what;
  return success();
}

}  // namespace rrfp::tp_coord
