#include "collective_group.hpp"

#include <string>
#include <utility>

namespace rrfp::actors {

namespace {

using namespace tp_coord;

element element_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return element::float32;
    case at::kDouble: return element::float64;
    case at::kLong: return element::int64;
    default:
      throw compute::group_error("a collective supports float32, float64 and int64, not " +
                                 t.toString());
  }
}

class collective_group final : public compute::rank_group {
 public:
  collective_group(std::shared_ptr<collective> member,
                   std::shared_ptr<collective_observer> observer)
      : member_(std::move(member)), observer_(std::move(observer)) {}

  std::uint32_t rank() const override { return member_->rank().value(); }
  std::uint32_t size() const override { return member_->size(); }
  void all_reduce_sum(at::Tensor& t) override { all_reduce(reduction::sum, t); }
  void all_reduce_max(at::Tensor& t) override { all_reduce(reduction::max, t); }
  void set_task(step_id step, const launch& l) override {
    site_ = {step, l.seq, l.what};
    ordinal_ = 0;
    member_->begin(site_);
  }

 private:
  void all_reduce(reduction op, at::Tensor& t) {
    // A tensor in other memory is copied to the host and back.
    const bool is_there = t.is_cpu() != member_->on_device();
    if (!is_there && member_->on_device())
      throw compute::group_error("a collective on a device expects a tensor in device memory");
    const auto flat = is_there ? t.contiguous() : t.cpu().contiguous();
    const auto count = static_cast<std::size_t>(flat.numel());
    const auto type = element_of(flat);
    if (observer_)
      observer_->enter({site_, ordinal_, op == reduction::sum ? operation::sum : operation::max,
                        type, rank_id{}, count});
    const auto done = member_->all_reduce(op, flat.mutable_data_ptr(), count, type);
    if (observer_) observer_->leave();
    ++ordinal_;
    if (!done) throw compute::group_error(done.message());
    if (!flat.is_same(t)) t.copy_(flat);
  }

  std::shared_ptr<collective> member_;
  std::shared_ptr<collective_observer> observer_;
  call_site site_;
  std::uint32_t ordinal_ = 0;
};

}  // namespace

std::shared_ptr<compute::rank_group> make_collective_group(
    std::shared_ptr<collective> member, std::shared_ptr<collective_observer> observer) {
  return std::make_shared<collective_group>(std::move(member), std::move(observer));
}

}  // namespace rrfp::actors
