#include "collective_group.hpp"

#include <string>
#include <utility>

#include <rrfp/safetensors/dtype.hpp>

#include "collective_watch.hpp"

namespace rrfp::actors {

namespace {

using namespace tp_coord;

element element_of(const tensor_buffer& b) {
  switch (b.type) {
    case dtype::float32: return element::float32;
    case dtype::float64: return element::float64;
    case dtype::int64: return element::int64;
    default: break;
  }
  const auto name = safetensors::name(b.type);
  throw compute::group_error("a collective supports float32, float64 and int64, not " +
                             (name.empty() ? "another type" : std::string{name}));
}

class collective_group final : public compute::rank_group {
 public:
  collective_group(std::shared_ptr<collective> member, std::shared_ptr<collective_watch> watch)
      : member_(std::move(member)), watch_(std::move(watch)) {}

  std::uint32_t rank() const override { return member_->rank().value(); }
  std::uint32_t size() const override { return member_->size(); }
  bool on_device() const override { return member_->on_device(); }
  void all_reduce_sum(const tensor_buffer& b) override { all_reduce(operation::sum, b); }
  void all_reduce_max(const tensor_buffer& b) override { all_reduce(operation::max, b); }
  void set_task(step_id step, const launch& l) override {
    site_ = {step, l.seq, l.what};
    ordinal_ = 0;
    member_->begin(site_);
  }

 private:
  void all_reduce(operation op, const tensor_buffer& b) {
    const auto count = static_cast<std::size_t>(b.elements());
    const auto type = element_of(b);
    if (watch_) watch_->enter({site_, ordinal_, op, type, rank_id{}, count});
    const auto done = member_->all_reduce(op, b.data, count, type);
    if (watch_) watch_->leave();
    ++ordinal_;
    if (!done) throw compute::group_error(done.message());
  }

  std::shared_ptr<collective> member_;
  std::shared_ptr<collective_watch> watch_;
  call_site site_;
  std::uint32_t ordinal_ = 0;
};

}  // namespace

std::shared_ptr<compute::rank_group> make_collective_group(
    std::shared_ptr<collective> member, std::shared_ptr<collective_watch> watch) {
  return std::make_shared<collective_group>(std::move(member), std::move(watch));
}

}  // namespace rrfp::actors
