#include <rrfp/core/copy_set.hpp>

#include <utility>

namespace rrfp {

std::vector<copy_key> copy_set::put(const held_copy& c, std::uint64_t complete) {
  std::vector<copy_key> dropped;
  for (const auto& [other, _] : copies_)
    if (other.stage == c.what.stage && other.rank == c.what.rank && other.step > complete &&
        other.step != c.what.step)
      dropped.push_back(other);
  for (const auto& d : dropped) copies_.erase(d);
  copies_[c.what] = c;
  return dropped;
}

std::vector<copy_key> copy_set::keep(job_record r) {
  record_ = std::move(r);
  std::vector<copy_key> dropped;
  for (const auto& [what, _] : copies_)
    if (what.step < record_.step) dropped.push_back(what);
  for (const auto& d : dropped) copies_.erase(d);
  return dropped;
}

std::vector<held_copy> copy_set::held() const {
  std::vector<held_copy> all;
  for (const auto& [_, c] : copies_) all.push_back(c);
  return all;
}

}  // namespace rrfp
