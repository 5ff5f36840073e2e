#include <rrfp/core/policy.hpp>

#include <rrfp/base/check.hpp>

namespace rrfp {

namespace {

class fixed_set final : public policy_set {
 public:
  fixed_set(std::string_view name, std::vector<sequence> sequences)
      : name_(name), sequences_(std::move(sequences)) {}

  std::string_view name() const override { return name_; }
  std::unique_ptr<policy> make(stage_id stage) const override {
    RRFP_CHECK(stage.value() < sequences_.size(), "the stage must belong to the schedule");
    return make_sequence_policy(name_, sequences_[stage.value()]);
  }
  const std::vector<sequence>* sequences() const override { return &sequences_; }

 private:
  const std::string name_;
  const std::vector<sequence> sequences_;
};

}  // namespace

std::shared_ptr<const policy_set> make_fixed_policy_set(std::string_view name,
                                                        std::vector<sequence> sequences) {
  return std::make_shared<const fixed_set>(name, std::move(sequences));
}

}  // namespace rrfp
