#include <rrfp/core/check_policy.hpp>

#include <string>

namespace rrfp {

namespace {

error wrong(const policy& hint, const std::string& function, const std::string& expected,
            const std::string& got) {
  return error{"policy '" + std::string{hint.name()} + "': " + function + ": expected " + expected +
               ", got " + got};
}

}  // namespace

status check_policy(const policy& hint, const pipeline_shape& shape, dispatch_mode mode) {
  const auto lanes = hint.lanes();
  if (lanes < 1 || lanes > lanes_max)
    return wrong(hint, "lanes()", "1 to " + std::to_string(lanes_max), std::to_string(lanes));
  if (mode != dispatch_mode::ready && lanes != 1)
    return wrong(hint, "lanes()", "1 for in-order dispatch", std::to_string(lanes));
  if (const auto pieces = hint.weight_pieces(); pieces < 1 || pieces > weight_pieces_max)
    return wrong(hint, "weight_pieces()", "1 to " + std::to_string(weight_pieces_max),
                 std::to_string(pieces));
  const auto check_lane = [&](const task& t) -> status {
    hint.rank(t);
    const auto lane = hint.lane_of(t);
    if (lane < lanes) return success();
    return wrong(hint, "lane_of(" + to_string(t) + ")", "0 to " + std::to_string(lanes - 1),
                 std::to_string(lane));
  };
  for (std::uint32_t c = 0; c < shape.chunks; ++c)
    for (std::uint32_t i = 0; i < shape.microbatches; ++i) {
      const microbatch_id mb{i};
      const chunk_id chunk{c};
      const auto backward = hint.backward_of(mb, chunk);
      if (!is_backward(backward))
        return wrong(hint, "backward_of(" + std::to_string(i) + ", " + std::to_string(c) + ")",
                     "B or BW", std::string{name(backward)});
      for (const auto kind : {task_kind::forward, backward, task_kind::weight}) {
        if (kind == task_kind::weight && backward != task_kind::backward) continue;
        if (auto ok = check_lane({kind, mb, chunk}); !ok) return ok;
      }
    }
  return success();
}

}  // namespace rrfp
