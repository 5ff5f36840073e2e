/// Operators of libtorch's CUDA part, run in the fake's streams by libtorch's CPU part. Device
/// memory is host memory, so every operator can view it as CPU tensors.
///
/// As on a real device, work in a stream does not keep its tensors alive. If the allocator reuses
/// memory too early, it is overwritten and the result is wrong.
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "streams.hpp"

namespace rrfp::host_cuda {

namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

stream& stream_here() { return stream_of(c10::cuda::getCurrentCUDAStream().stream()); }

/// The same bytes as a non-owning CPU tensor.
at::Tensor host_view(const at::Tensor& t) {
  const c10::impl::ExcludeDispatchKeyGuard below{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  return at::from_blob(t.storage().mutable_data() == nullptr ? nullptr : t.data_ptr(), t.sizes(),
                       t.strides(), at::TensorOptions{t.scalar_type()});
}

at::Tensor meta_of(const at::Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(),
                           at::TensorOptions{t.scalar_type()}.device(at::kMeta));
}

bool is_on_device(const at::Tensor& t) { return t.defined() && t.is_cuda(); }

/// Applies `change` to each device tensor of `v`, and `device` to each device.
template <class Change>
IValue changed(const IValue& v, const Change& change, at::Device device) {
  const auto one = [&](const at::Tensor& t) { return is_on_device(t) ? change(t) : t; };
  if (v.isTensor()) return one(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& t : v.toTensorVector()) list.push_back(one(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& t : v.toOptionalTensorVector())
      list.push_back(t ? std::optional{one(*t)} : std::nullopt);
    return list;
  }
  if (v.isDevice() && v.toDevice().is_cuda()) return device;
  return v;
}

template <class Change>
Stack changed(const Stack& all, const Change& change, at::Device device) {
  Stack made;
  for (const auto& v : all) made.push_back(changed(v, change, device));
  return made;
}

template <class Visit>
void each_tensor(const Stack& all, const Visit& visit) {
  for (const auto& v : all) {
    if (v.isTensor()) visit(v.toTensor());
    if (v.isTensorList())
      for (const auto& t : v.toTensorVector()) visit(t);
  }
}

/// The index of the argument that `op` returns as result `i`, or -1.
int argument_of_result(const c10::FunctionSchema& schema, std::size_t i) {
  const auto* const alias = schema.returns()[i].alias_info();
  if (alias == nullptr) return -1;
  for (std::size_t a = 0; a < schema.arguments().size(); ++a) {
    const auto* const of = schema.arguments()[a].alias_info();
    if (of != nullptr && of->beforeSets() == alias->beforeSets()) return static_cast<int>(a);
  }
  return -1;
}

/// Whether all results are arguments, or there are none.
bool writes_arguments(const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < schema.returns().size(); ++i)
    if (argument_of_result(schema, i) < 0) return false;
  return true;
}

bool has_only_tensors(const c10::FunctionSchema& schema) {
  for (const auto& r : schema.returns())
    if (r.type()->kind() != c10::TypeKind::TensorType &&
        !(r.type()->kind() == c10::TypeKind::ListType &&
          r.type()->containedType(0)->kind() == c10::TypeKind::TensorType))
      return false;
  return true;
}

/// aten::_thnn_fused_lstm_cell, which libtorch has for devices alone: the gates are [rows, 4 x
/// width], in the order input, forget, cell, output.
Stack lstm_cell(const Stack& in) {
  const auto& cx = in[2].toTensor();
  auto gates = in[0].toTensor() + in[1].toTensor();
  for (const std::size_t bias : {3, 4})
    if (in[bias].isTensor() && in[bias].toTensor().defined()) gates += in[bias].toTensor();
  const auto g = gates.chunk(4, 1);
  g[0].sigmoid_();
  g[1].sigmoid_();
  g[2].tanh_();
  g[3].sigmoid_();
  const auto cy = g[1] * cx + g[0] * g[2];
  return {g[3] * cy.tanh(), cy, gates};
}

/// aten::_thnn_fused_lstm_cell_backward_impl; `gates` are those that lstm_cell() returned.
Stack lstm_cell_backward(const Stack& in) {
  const auto given = [&](std::size_t i) { return in[i].isTensor() && in[i].toTensor().defined(); };
  const auto& cx = in[2].toTensor();
  const auto& gates = in[4].toTensor();
  const auto g = gates.chunk(4, 1);
  const auto cell = in[3].toTensor().tanh();
  const auto of_hy = given(0) ? in[0].toTensor() : at::zeros_like(cx);
  const auto of_cy =
      of_hy * g[3] * (1 - cell * cell) + (given(1) ? in[1].toTensor() : at::zeros_like(cx));
  const auto sigmoid = [](const at::Tensor& gradient, const at::Tensor& y) {
    return gradient * y * (1 - y);
  };
  const auto of_gates = at::cat({sigmoid(of_cy * g[2], g[0]), sigmoid(of_cy * cx, g[1]),
                                 of_cy * g[0] * (1 - g[2] * g[2]), sigmoid(of_hy * cell, g[3])},
                                1);
  return {of_gates, of_cy * g[1], in[5].toBool() ? of_gates.sum(0) : at::Tensor{}};
}

/// Runs `op` on CPU tensors, on this thread.
void call(const c10::OperatorHandle& op, Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& name = op.operator_name();
  if (name == c10::OperatorName{"aten::_thnn_fused_lstm_cell", ""})
    stack = lstm_cell(stack);
  else if (name == c10::OperatorName{"aten::_thnn_fused_lstm_cell_backward_impl", ""})
    stack = lstm_cell_backward(stack);
  else
    op.callBoxed(stack);
}

/// Runs on a stream's thread, which has no caller to report an error to.
void call_or_fault(const c10::OperatorHandle& op, Stack& stack) {
  static thread_local const bool one_thread = (at::set_num_threads(1), true);
  static_cast<void>(one_thread);
  try {
    call(op, stack);
  } catch (const std::exception& e) {
    fault((c10::toString(op.operator_name()) + ": " + e.what()).c_str());
  }
}

/// The shapes of the results of `op`, or nothing if libtorch needs the data to compute them.
std::optional<Stack> shapes_of(const c10::OperatorHandle& op, const Stack& arguments) {
  auto stack = changed(arguments, meta_of, at::kMeta);
  try {
    call(op, stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  bool all_meta = true;
  each_tensor(stack, [&](const at::Tensor& t) { all_meta &= !t.defined() || t.is_meta(); });
  if (!all_meta) return std::nullopt;
  return stack;
}

/// Resizes the tensors into which `op` puts its results.
void shape_outputs(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto& declared = op.schema().arguments();
  const auto is_output = [&](std::size_t a) {
    return declared[a].is_out() && arguments[a].isTensor() && arguments[a].toTensor().is_cuda();
  };
  Stack outputs;
  for (std::size_t a = 0; a < declared.size(); ++a)
    if (is_output(a)) outputs.push_back(arguments[a]);
  if (outputs.empty()) return;
  auto shaped = changed(arguments, meta_of, at::kMeta);
  const auto meta = shaped;
  auto computed = changed(arguments, host_view, at::kCPU);
  for (std::size_t a = 0; a < declared.size(); ++a)
    if (is_output(a))
      computed[a] = at::empty({0}, at::TensorOptions{arguments[a].toTensor().scalar_type()});
  const auto host = computed;
  const Stack* told = &meta;
  try {
    call(op, shaped);
  } catch (const std::exception&) {  // the shapes depend on the data
    stream_here().drain();
    call(op, computed);
    told = &host;
  }
  for (std::size_t a = 0; a < declared.size(); ++a)
    if (is_output(a) && (*told)[a].toTensor().sizes() != arguments[a].toTensor().sizes())
      arguments[a].toTensor().resize_((*told)[a].toTensor().sizes());
}

at::Tensor on_device_like(const at::Tensor& t) {
  const c10::Device device{c10::kCUDA, c10::cuda::current_device()};
  return at::empty_strided(t.sizes(), t.strides(),
                           at::TensorOptions{t.scalar_type()}.device(device));
}

/// Copies the contents of `from` to `to`, tensor by tensor.
void fill(const c10::OperatorHandle& op, const Stack& to, const Stack& from) {
  std::vector<at::Tensor> targets;
  std::vector<at::Tensor> sources;
  each_tensor(to, [&](const at::Tensor& t) { targets.push_back(t); });
  each_tensor(from, [&](const at::Tensor& t) { sources.push_back(t); });
  if (targets.size() != sources.size())
    fault((c10::toString(op.operator_name()) + ": wrong number of results").c_str());
  const at::AutoDispatchBelowADInplaceOrView below;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i].defined() || !sources[i].defined()) continue;
    if (targets[i].sizes() != sources[i].sizes() ||
        targets[i].scalar_type() != sources[i].scalar_type())
      fault((c10::toString(op.operator_name()) + ": wrong shape of a result").c_str());
    targets[i].copy_(sources[i]);
  }
}

/// Stores results that were computed at once.
void put_results(const c10::OperatorHandle& op, const Stack& results, Stack& stack) {
  for (const auto& r : results)
    stack.push_back(r.isTensor() && r.toTensor().defined() ? IValue{on_device_like(r.toTensor())}
                                                           : r);
  for (auto& r : stack)
    if (r.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& t : r.toTensorVector()) list.push_back(t.defined() ? on_device_like(t) : t);
      r = list;
    }
  fill(op, changed(stack, host_view, at::kCPU), results);
}

/// Copies between host and device or between devices, for which the host waits.
bool is_mixed_copy(const c10::OperatorHandle& op, const Stack& arguments) {
  if (op.operator_name().name != "aten::copy_") return false;
  return arguments[0].toTensor().device() != arguments[1].toTensor().device();
}

/// Operators that also accept CPU tensors as indices.
bool takes_host_tensors(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name().name;
  return name == "aten::copy_" || name.rfind("aten::index", 0) == 0 ||
         name.rfind("aten::_index_put_impl_", 0) == 0;
}

/// An asynchronous copy from or to pinned memory; tells libtorch when the memory is free.
bool put_copy(const Stack& arguments) {
  const auto& to = arguments[0].toTensor();
  const auto& from = arguments[1].toTensor();
  const auto& of_host = to.is_cpu() ? to : from;
  if (!arguments[2].toBool() || !of_host.is_cpu() || !of_host.is_pinned()) return false;
  stream_here().put([to = host_view(to), from = host_view(from)]() mutable {
    const at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(from);
  });
  at::getHostAllocator(at::kCUDA)->record_event(of_host.mutable_data_ptr(),
                                                of_host.storage().data_ptr().get_context(),
                                                c10::cuda::getCurrentCUDAStream());
  return true;
}

void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const Stack arguments{stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()};
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());

  std::optional<at::Device> device;
  for (const auto& v : arguments)
    if (v.isDevice() && v.toDevice().is_cuda()) device = v.toDevice();
  each_tensor(arguments, [&](const at::Tensor& t) {
    if (t.defined() && t.is_cpu() && t.dim() > 0 && !takes_host_tensors(op))
      fault((c10::toString(op.operator_name()) + ": got a CPU tensor").c_str());
    if (!is_on_device(t)) return;
    if (!device) device = t.device();
    if (*device != t.device() && op.operator_name().name != "aten::copy_")
      fault((c10::toString(op.operator_name()) + ": got tensors of two devices").c_str());
  });
  const c10::cuda::OptionalCUDAGuard guard{device};
  auto& s = stream_here();
  shape_outputs(op, arguments);
  auto on_host = changed(arguments, host_view, at::kCPU);

  if (is_mixed_copy(op, arguments)) {
    stack->push_back(arguments[0]);
    if (put_copy(arguments)) return;
    each_tensor(arguments, [](const at::Tensor& t) {
      if (!is_on_device(t)) return;
      const c10::cuda::CUDAGuard there{t.device().index()};
      stream_here().drain();
    });
    call(op, on_host);
    return;
  }
  if (writes_arguments(schema)) {
    s.put([op, on_host]() mutable { call_or_fault(op, on_host); });
    for (std::size_t i = 0; i < schema.returns().size(); ++i)
      stack->push_back(arguments[static_cast<std::size_t>(argument_of_result(schema, i))]);
    return;
  }
  const auto shapes = has_only_tensors(schema) ? shapes_of(op, arguments) : std::optional<Stack>{};
  if (!shapes) {
    s.drain();
    call(op, on_host);
    if (!has_only_tensors(schema)) {
      stack->insert(stack->end(), on_host.begin(), on_host.end());
      return;
    }
    Stack results;
    put_results(op, on_host, results);
    stack->insert(stack->end(), results.begin(), results.end());
    return;
  }
  Stack results;
  for (const auto& shape : *shapes) {
    if (shape.isTensor()) {
      results.push_back(shape.toTensor().defined() ? on_device_like(shape.toTensor())
                                                   : at::Tensor{});
    } else {
      c10::List<at::Tensor> list;
      for (const auto& t : shape.toTensorVector())
        list.push_back(t.defined() ? on_device_like(t) : t);
      results.push_back(list);
    }
  }
  s.put([op, on_host, to = changed(results, host_view, at::kCPU)]() mutable {
    call_or_fault(op, on_host);
    fill(op, to, on_host);
  });
  stack->insert(stack->end(), results.begin(), results.end());
}

/// Operators that allocate or describe device memory keep their implementation.
bool stays(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> names{
      "aten::empty",     "aten::empty_strided", "aten::set_",      "aten::resize_",
      "aten::is_set_to", "aten::record_stream", "aten::is_pinned", "aten::_pin_memory"};
  if (names.contains(op.operator_name().name)) return true;
  // Views run on any device.
  for (const auto& r : op.schema().returns())
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) return true;
  return false;
}

}  // namespace

void take_over_operators() {
  static std::once_flag once;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto mm = dispatcher.findSchema({"aten::mm", ""});
  if (!mm || !mm->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) return;
  std::call_once(once, [&] {
    // It warns for every kernel that is replaced.
    struct : c10::WarningHandler {
      void process(const c10::Warning&) override {}
    } nobody;
    const c10::WarningUtils::WarningHandlerGuard quiet{&nobody};
    // Lives as long as the process.
    static auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0) continue;
      // copy_ is registered for all devices and dispatches to kernels of its own.
      const bool copies = name == c10::OperatorName{"aten::copy_", ""};
      if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !copies) continue;
      if (stays(*op)) continue;
      kept->push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_on_host>(),
          std::nullopt, nullptr, "host_cuda"));
    }
    // Attention from plain operators: the fused kernels are specific to each device.
    auto& context = at::globalContext();
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);
  });
}

}  // namespace rrfp::host_cuda

namespace at::cuda {

/// Replaces libtorch's function: keeps a stream busy for this many nanoseconds.
__attribute__((visibility("default"))) void sleep(int64_t cycles) {
  rrfp::host_cuda::stream_here().put(
      [cycles] { std::this_thread::sleep_for(std::chrono::nanoseconds{cycles}); });
}

}  // namespace at::cuda
