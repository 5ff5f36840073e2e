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

void copy_store::put(const copy_key& what, copy c, std::uint64_t complete) {
  const std::lock_guard lock{mutex_};
  drop(set_.put({what, c.bytes.bytes(), c.xxh64}, complete));
  copies_[what] = std::move(c);
}

void copy_store::keep(job_record r) {
  const std::lock_guard lock{mutex_};
  drop(set_.keep(std::move(r)));
}

void copy_store::drop(const std::vector<copy_key>& all) {
  for (const auto& what : all)
    spare_[{what.stage, what.rank}] = std::move(copies_.extract(what).mapped().bytes);
}

std::optional<copy_store::copy> copy_store::find(const copy_key& what) const {
  const std::lock_guard lock{mutex_};
  const auto found = copies_.find(what);
  return found == copies_.end() ? std::nullopt : std::optional{found->second};
}

void copy_store::clear() {
  const std::lock_guard lock{mutex_};
  set_ = {};
  copies_.clear();
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
