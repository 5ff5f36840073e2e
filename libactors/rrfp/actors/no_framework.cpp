#include <rrfp/actors/framework.hpp>

namespace rrfp::actors {

namespace {

class no_framework final : public framework {
 public:
  result<std::shared_ptr<const job_model>> open(const job::job& j) override {
    if (j.device.kind == job::device_kind::emulated) return std::shared_ptr<const job_model>{};
    return job::blame(j, "device.kind",
                      "expected \"emulated\": this program was built without libtorch, so it "
                      "trains no model");
  }
  std::string vector_instructions() const override { return {}; }
  result<std::unique_ptr<agent_store>> connect_store(const launch_place&,
                                                     std::chrono::milliseconds) const override {
    return error{
        "torchrun's port belongs to its agent, whose store this program, built without libtorch, "
        "cannot read: give --rendezvous HOST:PORT with a free port"};
  }
};

}  // namespace

std::unique_ptr<framework> make_no_framework() { return std::make_unique<no_framework>(); }

}  // namespace rrfp::actors
