#include <cstring>

#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::tp_coord {

void collective::begin(const call_site& site) {
  site_ = site;
  ordinal_ = 0;
}

status collective::call(fingerprint print, const void* in, void* out) {
  print.site = site_;
  print.ordinal = ordinal_++;
  if (size_ == 1 && !on_device()) {
    if (print.op == operation::gather && print.count > 0) std::memcpy(out, in, print.bytes());
    return success();
  }
  return run({print, static_cast<const std::byte*>(in), static_cast<std::byte*>(out)});
}

status collective::all_reduce(operation op, void* buffer, std::size_t count, element type) {
  RRFP_CHECK(op == operation::sum || op == operation::max, "op must be a reduction");
  return call({{}, 0, op, type, {}, count}, nullptr, buffer);
}

status collective::all_gather(const void* mine, void* all, std::size_t count, element type) {
  return call({{}, 0, operation::gather, type, {}, count}, mine, all);
}

status collective::broadcast(void* buffer, std::size_t count, element type, rank_id root) {
  RRFP_CHECK(root.value() < size_, "the root of a broadcast must be a rank of the group");
  return call({{}, 0, operation::broadcast, type, root, count}, nullptr, buffer);
}

status collective::barrier() {
  return call({{}, 0, operation::barrier, element::float32, {}, 0}, nullptr, nullptr);
}

}  // namespace rrfp::tp_coord
