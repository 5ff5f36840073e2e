#include <rrfp/core/copy_fetches.hpp>

#include <rrfp/base/check.hpp>

namespace rrfp {

std::vector<copy_fetches::request> copy_fetches::begin(const copy_key& what, node_id from,
                                                       std::uint64_t bytes) {
  const auto [_, is_new] = fetches_.try_emplace(what, fetch{from, bytes, 0, {}});
  RRFP_CHECK(is_new, "a copy is fetched once at a time");
  return next(what);
}

std::vector<copy_fetches::request> copy_fetches::next(const copy_key& what) {
  std::vector<request> requests;
  const auto found = fetches_.find(what);
  if (found == fetches_.end()) return requests;
  auto& f = found->second;
  while (f.asked < f.bytes && f.waits_for.size() < limits_.pieces_ahead) {
    const auto size = size_at(f, f.asked);
    requests.push_back({f.from, what, f.asked, size});
    f.waits_for.insert(f.asked);
    f.asked += size;
  }
  return requests;
}

copy_fetches::verdict copy_fetches::arrived(const copy_key& what, std::uint64_t offset,
                                            std::uint64_t size) {
  const auto found = fetches_.find(what);
  if (found == fetches_.end()) return verdict::unknown;
  auto& f = found->second;
  const bool fits = f.waits_for.erase(offset) == 1 && size == size_at(f, offset);
  if (fits && (f.asked < f.bytes || !f.waits_for.empty())) return verdict::fits;
  fetches_.erase(found);
  return fits ? verdict::last : verdict::missing;
}

bool copy_fetches::may_send(std::uint64_t bytes, std::uint64_t offset, std::uint64_t size) const {
  return size <= limits_.piece_bytes && size <= bytes && offset <= bytes - size;
}

}  // namespace rrfp
