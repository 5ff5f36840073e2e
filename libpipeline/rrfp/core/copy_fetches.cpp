#include <rrfp/core/copy_fetches.hpp>

#include <algorithm>

#include <rrfp/base/check.hpp>

namespace rrfp {

std::vector<copy_fetches::request> copy_fetches::begin(const copy_key& what, node_id from,
                                                       std::uint64_t bytes) {
  const auto [_, is_new] = fetches_.try_emplace(what, fetch{from, bytes});
  RRFP_CHECK(is_new, "a copy is fetched once at a time");
  return next(what);
}

std::vector<copy_fetches::request> copy_fetches::next(const copy_key& what) {
  std::vector<request> requests;
  const auto found = fetches_.find(what);
  if (found == fetches_.end()) return requests;
  auto& f = found->second;
  while (f.asked < f.bytes && f.asked - f.arrived < limits_.pieces_ahead * limits_.piece_bytes) {
    const auto size = std::min(limits_.piece_bytes, f.bytes - f.asked);
    requests.push_back({f.from, what, f.asked, size});
    f.asked += size;
  }
  return requests;
}

copy_fetches::verdict copy_fetches::arrived(const copy_key& what, std::uint64_t offset,
                                            std::uint64_t size) {
  const auto found = fetches_.find(what);
  if (found == fetches_.end()) return verdict::unknown;
  auto& f = found->second;
  const bool fits = size > 0 && offset == f.arrived && size <= f.bytes - f.arrived;
  if (fits) f.arrived += size;
  if (fits && f.arrived < f.bytes) return verdict::fits;
  fetches_.erase(found);
  return fits ? verdict::last : verdict::missing;
}

bool copy_fetches::may_send(std::uint64_t bytes, std::uint64_t offset, std::uint64_t size) const {
  return size <= limits_.piece_bytes && size <= bytes && offset <= bytes - size;
}

}  // namespace rrfp
