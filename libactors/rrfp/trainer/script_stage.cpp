#include <memory>
#include <mutex>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <rrfp/compute/compute_error.hpp>
#include <rrfp/stage.hpp>

namespace rrfp {

namespace {

/// The profiling executor rewrites a graph after some runs: the kernels that compute a microbatch
/// would depend on the number of microbatches before it.
void run_graphs_as_written() {
  static std::once_flag once;
  std::call_once(once, [] { torch::jit::getProfilingMode() = false; });
  torch::jit::setGraphExecutorOptimize(false);  // for the calling thread
}

bool returns_tensor(const torch::jit::Method& forward) {
  const auto& returned = forward.function().getSchema().returns();
  return returned.size() == 1 && returned[0].type()->isSubtypeOf(*c10::TensorType::get());
}

}  // namespace

result<stage> script_stage(const std::string& path, const std::string& prefix) {
  std::shared_ptr<torch::jit::Module> module;
  try {
    module = std::make_shared<torch::jit::Module>(torch::jit::load(path));
  } catch (const c10::Error& e) {
    return error{path +
                 ": expected a module saved by torch.jit.save: " + compute::first_line_of(e)};
  }
  if (const auto found = module->find_method("forward"); !found || !returns_tensor(*found))
    return error{path + ": expected a module with forward(Tensor) -> Tensor, got " +
                 (found ? c10::str(found->function().getSchema()) : "none")};
  stage made;
  for (const auto& p : module->named_parameters())
    made.parameters.emplace_back(prefix + p.name, p.value);
  for (const auto& b : module->named_buffers()) detail::add_buffer(made, prefix + b.name, b.value);
  made.forward = [module](const at::Tensor& x) {
    run_graphs_as_written();
    return module->forward({x}).toTensor();
  };
  made.set_training = [module](bool training) { module->train(training); };
  return made;
}

}  // namespace rrfp
