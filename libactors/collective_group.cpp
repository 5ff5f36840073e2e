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
      throw compute::group_error("a collective takes float32, float64 or int64, not " +
                                 t.toString());
  }
}

class collective_group final : public compute::rank_group {
 public:
  explicit collective_group(std::shared_ptr<collective> member) : member_(std::move(member)) {}

  std::uint32_t rank() const override { return member_->rank().value(); }
  std::uint32_t size() const override { return member_->size(); }
  void all_reduce_sum(at::Tensor& t) override { all_reduce(reduction::sum, t); }
  void all_reduce_max(at::Tensor& t) override { all_reduce(reduction::max, t); }
  void set_task(step_id step, const launch& l) override { member_->begin({step, l.seq, l.what}); }

 private:
  void all_reduce(reduction op, at::Tensor& t) {
    // What is not where the collective works goes there and back.
    const bool is_there = t.is_cpu() != member_->on_device();
    if (!is_there && member_->on_device())
      throw compute::group_error("a collective of a device takes a tensor in its memory");
    const auto flat = is_there ? t.contiguous() : t.cpu().contiguous();
    const auto done = member_->all_reduce(op, flat.mutable_data_ptr(),
                                          static_cast<std::size_t>(flat.numel()), element_of(flat));
    if (!done) throw compute::group_error(done.message());
    if (!flat.is_same(t)) t.copy_(flat);
  }

  std::shared_ptr<collective> member_;
};

}  // namespace

std::shared_ptr<compute::rank_group> make_collective_group(std::shared_ptr<collective> member) {
  return std::make_shared<collective_group>(std::move(member));
}

}  // namespace rrfp::actors
