#include <rrfp/actors/recovery.hpp>

namespace rrfp::actors {

tensor_buffer copy_store::make_room(const copy_key& what, std::int64_t bytes) {
  {
    const std::lock_guard lock{mutex_};
    if (auto spare = spare_.extract({what.stage, what.rank}))
      // Nobody reads it any more, such as the buddy that fetches it.
      if (spare.mapped().elements() == bytes && spare.mapped().owner.use_count() == 1)
        return std::move(spare.mapped());
  }
  return make_host_buffer(dtype::uint8, {bytes});
}

void copy_store::put(const held_copy& c, tensor_buffer bytes, std::uint64_t complete) {
  const std::lock_guard lock{mutex_};
  drop(set_.put(c, complete));
  bytes_[c.what] = std::move(bytes);
}

void copy_store::keep(job_record r) {
  const std::lock_guard lock{mutex_};
  drop(set_.keep(std::move(r)));
}

void copy_store::drop(const std::vector<copy_key>& all) {
  for (const auto& what : all)
    spare_[{what.stage, what.rank}] = std::move(bytes_.extract(what).mapped());
}

std::optional<tensor_buffer> copy_store::find(const copy_key& what) const {
  const std::lock_guard lock{mutex_};
  const auto found = bytes_.find(what);
  return found == bytes_.end() ? std::nullopt : std::optional{found->second};
}

void copy_store::clear() {
  const std::lock_guard lock{mutex_};
  set_ = {};
  bytes_.clear();
  spare_.clear();
}

std::vector<held_copy> copy_store::held() const {
  const std::lock_guard lock{mutex_};
  return set_.held();
}

job_record copy_store::record() const {
  const std::lock_guard lock{mutex_};
  return set_.record();
}

}  // namespace rrfp::actors
