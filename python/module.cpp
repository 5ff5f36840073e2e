/// The compiled part of the Python package: rrfp::pipeline with stages, losses and optimizers that
/// are Python functions. The package's Python files do the rest.
///
/// Every function of Python that a thread of the pipeline calls takes the GIL; every call of the
/// pipeline that waits has released it.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <rrfp/base/exit_code.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/keyed_generator.hpp>
#include <rrfp/pack.hpp>
#include <rrfp/pipeline.hpp>
#include <rrfp/report/picture.hpp>
#include <rrfp/report/timeline.hpp>
#include <rrfp/report/trace.hpp>
#include <rrfp/schedule/sequence.hpp>

namespace py = pybind11;

namespace {

using namespace rrfp;

/// A Python object that any thread may release. After the interpreter has ended it is left alone.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object{std::move(object)}, [](py::object* held) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

/// Runs `work` with the GIL. What Python raises becomes a std::runtime_error with its message: the
/// exception itself may only be used with the GIL, and the package's Python code keeps it.
template <class Work>
auto with_gil(Work work) {
  std::string why;
  {
    const py::gil_scoped_acquire gil;
    try {
      return work();
    } catch (const py::error_already_set& e) {
      why = py::str(e.value());
    }
  }
  throw std::runtime_error(why);
}

const char* name_of(error_kind kind) {
  switch (kind) {
    case error_kind::bad_input: return "bad_input";
    case error_kind::failed: return "failed";
    case error_kind::node_lost: return "node_lost";
    case error_kind::interrupted: return "interrupted";
  }
  return "failed";
}

[[noreturn]] void raise(const error& e) {
  const auto type = py::module_::import("rrfp").attr("Error");
  const auto made = type(e.message, name_of(e.kind), static_cast<int>(exit_code_of(e.kind)));
  PyErr_SetObject(type.ptr(), made.ptr());
  throw py::error_already_set();
}

class temporary_file {
 public:
  temporary_file() {
    auto pattern = (std::filesystem::temp_directory_path() / "rrfp-trace-XXXXXX").string();
    const int file = mkstemp(pattern.data());
    if (file < 0) throw std::runtime_error("cannot make " + pattern);
    close(file);
    path_ = pattern;
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

template <class Work>
auto without_gil(Work work) {
  const py::gil_scoped_release no_gil;
  return work();
}

template <class T>
T value_of(result<T> r) {
  if (!r) raise(r.failure());
  return std::move(*r);
}

void check(const status& s) {
  if (!s) raise(s.failure());
}

/// torch.compile without a GPU, in a torch built for CUDA, stores a guard that belongs to its thread
/// in a global variable (c10::impl::ensureCUDADeviceGuardSet()). An object of this class on the same
/// thread puts the former guard back when the thread ends.
class restored_device_guard {
 public:
  static void at_end_of_thread() { static const thread_local restored_device_guard object; }
  restored_device_guard(const restored_device_guard&) = delete;
  restored_device_guard& operator=(const restored_device_guard&) = delete;
  ~restored_device_guard() { current().store(before); }

 private:
  restored_device_guard() = default;
  static std::atomic<const c10::impl::DeviceGuardImplInterface*>& current() {
    return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(at::kCUDA)];
  }
  static inline const c10::impl::DeviceGuardImplInterface* const before = current().load();
};

/// A part of the model: `forward(input or None, microbatch, training, device)` returns the message to
/// the next part, or the loss.
class python_stage final : public compute::stage_module {
 public:
  python_stage(std::vector<compute::parameter> parameters, std::vector<compute::buffer> buffers,
               bool forwards_in_order, py::object forward, std::uint64_t seed, std::uint64_t part)
      : parameters_(std::move(parameters)),
        buffers_(std::move(buffers)),
        forwards_in_order_(forwards_in_order),
        forward_(shared(std::move(forward))),
        seed_(seed),
        part_(part) {}

  std::span<const compute::parameter> parameters() const override { return parameters_; }
  std::vector<compute::buffer> buffers() const override { return buffers_; }
  bool forwards_in_order() const override { return forwards_in_order_; }

  at::Tensor forward(const compute::forward_input& in) override {
    restored_device_guard::at_end_of_thread();
    // The turn of the generator first, then the GIL, so that who waits for a turn holds no GIL.
    const auto device = (in.input.defined() ? in.input : in.batch->whole().inputs).device();
    return draws_.run({seed_, number_of(in.step), in.mb.value(), part_}, device, in.training, [&] {
      return with_gil([&] {
        auto input = part_ == 0 ? py::object{py::none()} : py::cast(in.input);
        return (*forward_)(std::move(input), in.mb.value(), in.training, device.str())
            .cast<at::Tensor>();
      });
    });
  }

 private:
  const std::vector<compute::parameter> parameters_;
  const std::vector<compute::buffer> buffers_;
  const bool forwards_in_order_;
  const std::shared_ptr<py::object> forward_;
  const std::uint64_t seed_;
  const std::uint64_t part_;
  keyed_draws draws_;
};

/// The tensor-parallel ranks of a stage.
class python_group {
 public:
  explicit python_group(std::shared_ptr<compute::rank_group> group) : group_(std::move(group)) {}
  std::uint32_t rank() const { return group_->rank(); }
  std::uint32_t size() const { return group_->size(); }
  /// Sums the tensors of all ranks in the order of the ranks.
  at::Tensor all_reduce(const at::Tensor& x) const {
    return without_gil([&] {
      auto sum = x.detach().clone(at::MemoryFormat::Contiguous);
      group_->all_reduce_sum(sum);
      return sum;
    });
  }

 private:
  const std::shared_ptr<compute::rank_group> group_;
};

/// The runtime does not know what a rank holds of a tensor: it takes the tensors of all ranks for
/// pieces of one, along the first dimension.
std::optional<compute::shard> piece_of_rank(const at::Tensor& t, const compute::rank_group* group) {
  if (group == nullptr) return std::nullopt;
  if (t.dim() == 0)
    throw py::value_error("pipeline.tp: expected parameters with a dimension, got a scalar");
  auto whole = t.sizes().vec();
  whole[0] *= group->size();
  return compute::even_shard(std::move(whole), 0, 1, group->rank(), group->size());
}

/// Calls `part(index, count, group or None)`: (names, tensors, name of the tied parameter or "",
/// names of buffers, buffers, whether forward changes them, forward). The tied parameter is the
/// owner in the first part and the copy in the last one.
result<std::unique_ptr<compute::stage_module>> make_stage(const py::object& part,
                                                          const stage_place& at,
                                                          std::uint64_t seed) {
  const auto group =
      at.group ? py::cast(python_group{at.group}) : py::object{py::none()};
  const auto made = part(at.index, at.count, group).cast<py::tuple>();
  const auto names = made[0].cast<std::vector<std::string>>();
  const auto tensors = made[1].cast<std::vector<at::Tensor>>();
  const auto tied = made[2].cast<std::string>();
  const auto buffer_names = made[3].cast<std::vector<std::string>>();
  const auto buffer_tensors = made[4].cast<std::vector<at::Tensor>>();
  std::vector<compute::buffer> buffers;
  for (std::size_t i = 0; i < buffer_names.size(); ++i)
    buffers.push_back({buffer_names[i], buffer_tensors.at(i)});
  std::vector<compute::parameter> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) {
    parameters.push_back({names[i], tensors.at(i)});
    parameters.back().part = piece_of_rank(tensors.at(i), at.group.get());
    if (names[i] == tied && at.count > 1)
      parameters.back().tied = at.is_first() ? compute::tie::owner : compute::tie::copy;
  }
  return std::unique_ptr<compute::stage_module>{
      std::make_unique<python_stage>(std::move(parameters), std::move(buffers),
                                     made[5].cast<bool>(), made[6], seed, at.index)};
}

/// An Optimizer of _optimizers.py, whose own learning rate counts.
class python_optimizer final : public compute::optimizer {
 public:
  explicit python_optimizer(py::object made) : made_(shared(std::move(made))) {}

  void step(double) override {
    with_gil([&] { made_->attr("step")(); });
  }
  std::vector<compute::optimizer_tensor> state() const override {
    return with_gil([&] {
      std::vector<compute::optimizer_tensor> all;
      for (const auto& one : made_->attr("state")()) {
        auto [parameter, name, value] = one.cast<state_entry>();
        all.push_back({parameter, std::move(name), std::move(value)});
      }
      return all;
    });
  }
  status set_state(const std::vector<compute::optimizer_tensor>& state) override {
    with_gil([&] {
      std::vector<state_entry> all;
      for (const auto& t : state) all.emplace_back(t.parameter, t.name, t.value);
      made_->attr("set_state")(all);
    });
    return success();
  }

 private:
  using state_entry = std::tuple<std::size_t, std::string, at::Tensor>;

  const std::shared_ptr<py::object> made_;
};

/// A policy whose order Python gives anew for each step. Python does not run while tasks are chosen.
class python_policy final : public policy {
 public:
  /// The order of the next step, which any thread may set.
  class sheet {
   public:
    void put(const sequence& order) {
      const std::lock_guard lock{mutex_};
      next_ = make_sequence_policy("python", order);
    }
    void take(std::unique_ptr<policy>& current) {
      const std::lock_guard lock{mutex_};
      if (next_) current = std::move(next_);
    }

   private:
    std::mutex mutex_;
    std::unique_ptr<policy> next_;
  };

  explicit python_policy(std::shared_ptr<sheet> from) : from_(std::move(from)) { reset(); }

  std::string_view name() const override { return current_->name(); }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return current_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return current_->lanes(); }
  std::uint32_t lane_of(const task& t) const override { return current_->lane_of(t); }
  std::uint64_t rank(const task& t) const override { return current_->rank(t); }
  lane_order order(const stage_view& now) const override { return current_->order(now); }
  void reset() override { from_->take(current_); }

 private:
  const std::shared_ptr<sheet> from_;
  std::unique_ptr<policy> current_;
};

/// Calls `order(stage)`, which returns the names of all tasks of the stage.
result<sequence> order_from(const py::object& order, const pipeline_shape& shape, stage_id stage) {
  sequence all;
  for (const auto& name : order(stage.value()).cast<std::vector<std::string>>()) {
    const auto t = task_of(name);
    if (!t)
      return error{"policy: expected tasks such as \"F0\", \"B0\", \"W0\" or \"BW0\", got '" +
                   name + "'"};
    all.push_back(*t);
  }
  if (auto complete = check_sequence(shape, stage, all); !complete)
    return error{"policy: " + complete.message()};
  return all;
}

/// Waits for `work`, which runs without the GIL, and lets Python handle signals meanwhile. If a
/// handler raises (Ctrl-C), the pipeline ends first.
template <class Work>
auto wait_for(pipeline& p, Work work) {
  constexpr std::chrono::milliseconds moment{50};
  const py::gil_scoped_release no_gil;
  auto done = std::async(std::launch::async, std::move(work));
  while (done.wait_for(moment) != std::future_status::ready) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) continue;
    py::error_already_set raised;
    {
      const py::gil_scoped_release waiting;
      p.interrupt();
      p.interrupt();
      done.wait();
    }
    throw raised;
  }
  return done.get();
}

result<std::string> timeline_of(const actors::trace_recorder& trace,
                                std::optional<std::uint64_t> step) {
  if (trace.tasks().empty()) return error{"report(): expected a finished step, got none"};
  // The reader of traces reads files, as rrfp-report does.
  const temporary_file file;
  if (auto written = actors::write_chrome_json(file.path(), {{"rrfp", &trace}}); !written)
    return written.failure();
  const auto read = report::read_trace(file.path());
  if (!read) return read.failure();
  const auto& run = read->runs.front();
  for (const auto s : report::steps_of(run) | std::views::reverse) {
    if (step && number_of(s) != *step) continue;
    const auto line = report::make_timeline(run, s, s);
    if (!line) return line.failure();
    return report::svg_of("rrfp", {*line});
  }
  return error{"report(): the trace has no step " + std::to_string(step.value_or(0))};
}

/// rrfp.keyed_generator: a keyed_generator from __enter__ to __exit__.
class generator_scope {
 public:
  generator_scope(std::uint64_t seed, std::uint64_t step, std::uint64_t microbatch,
                  std::uint64_t stage)
      : key_{seed, step, microbatch, stage} {}

  void enter() {
    without_gil([&] { generator_.emplace(key_); });
  }
  void leave() { generator_.reset(); }

 private:
  const draw_key key_;
  std::optional<keyed_generator> generator_;
};

class python_pipeline {
 public:
  /// `part(index, count, group)` is that of make_stage(); `optimizer(tensors, names)` returns an Optimizer,
  /// or is None; `order(stage)` returns the names of the tasks of a step, or is None.
  python_pipeline(const std::vector<std::string>& settings, py::object part,
                  const py::object& optimizer, const py::object& order, py::object on_note,
                  py::object on_report, bool traces) {
    auto j = value_of(
        job::parse_job("", "settings", policies::registry(), settings, job::job_use::embed));
    pipeline_options o;
    o.make_chunk = [part = shared(std::move(part)), seed = j.train.seed](const stage_place& at) {
      return with_gil([&] { return make_stage(*part, at, seed); });
    };
    if (!optimizer.is_none())
      o.make_optimizer = [make = shared(optimizer)](
                             const std::vector<compute::parameter>& parameters) {
        std::vector<std::string> names;
        std::vector<at::Tensor> tensors;
        for (const auto& p : parameters) {
          names.push_back(p.name);
          tensors.push_back(p.value);
        }
        return with_gil([&]() -> std::unique_ptr<compute::optimizer> {
          return std::make_unique<python_optimizer>((*make)(tensors, names));
        });
      };
    if (!order.is_none()) {
      orders_ = shared(order);
      shape_ = job::effective_shape(j);
      o.make_policy = [all = orders_, shape = shape_, sheets = sheets_](stage_id stage) {
        return with_gil([&]() -> std::unique_ptr<policy> {
          const auto first = order_from(*all, shape, stage);
          if (!first) throw std::runtime_error(first.message());
          auto& sheet = (*sheets)[stage];
          if (sheet == nullptr) sheet = std::make_shared<python_policy::sheet>();
          sheet->put(*first);
          return std::make_unique<python_policy>(sheet);
        });
      };
    }
    if (traces) trace_ = std::make_shared<actors::trace_recorder>();
    o.trace = trace_.get();
    // A thread that cannot be ended keeps the options, so these keep the recorder.
    const auto says = [&](py::object to) {
      return [to = shared(std::move(to)), kept = trace_](const std::string& text) {
        with_gil([&] { (*to)(text); });
      };
    };
    o.on_note = says(std::move(on_note));
    o.on_report = says(std::move(on_report));
    microbatches_ = j.pipeline.microbatches * j.pipeline.replicas;
    auto opened = without_gil([&] { return pipeline::open(std::move(j), std::move(o)); });
    pipeline_ = value_of(std::move(opened));
  }
  python_pipeline(const python_pipeline&) = delete;
  python_pipeline& operator=(const python_pipeline&) = delete;
  ~python_pipeline() { close(); }

  /// `counts`: the loss terms of each microbatch; none in a process without targets. `updates`: of
  /// a training step.
  py::dict pass(bool trains, const std::vector<std::int64_t>& counts, bool updates) {
    std::vector<compute::microbatch> all(microbatches_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      // The tensors themselves stay in Python.
      all[i].inputs = all[i].targets = at::empty({1});
      all[i].tokens = counts.empty() ? 1 : counts.at(i);
    }
    auto& p = open();
    for (const auto& [stage, sheet] : *sheets_)
      sheet->put(value_of(order_from(*orders_, shape_, stage)));
    const auto r = value_of(wait_for(p, [&] {
      return trains ? p.step(all, {.update = updates}) : p.eval(all);
    }));
    py::dict d;
    d["step"] = r.step;
    d["loss"] = r.loss;
    d["losses"] = r.losses;
    d["gradient_norm"] = r.gradient_norm;
    d["is_skipped"] = r.is_skipped;
    d["lr"] = r.lr;
    d["count"] = r.count;
    d["ms"] = r.ms;
    d["bubble"] = r.bubble;
    d["weight_shares"] = r.weight_shares;
    return d;
  }

  std::uint64_t steps() { return open().steps(); }
  bool leads() { return open().leads(); }
  py::dict state_dict() {
    auto& p = open();
    py::dict d;
    for (const auto& t : value_of(without_gil([&] { return p.state_dict(); })))
      d[py::str{t.name}] = t.value;
    return d;
  }
  void load_state_dict(const std::map<std::string, at::Tensor>& state) {
    auto& p = open();
    std::vector<compute::named_tensor> all;
    for (const auto& [name, value] : state) all.push_back({name, value.detach()});
    check(without_gil([&] { return p.load_state_dict(std::move(all)); }));
  }
  void save() {
    auto& p = open();
    check(without_gil([&] { return p.save(); }));
  }
  void report(const std::string& why) {
    auto& p = open();
    without_gil([&] { p.report(why); });
  }
  /// An SVG of one step, or of the last one; also after the end.
  std::string timeline(std::optional<std::uint64_t> step) {
    if (trace_ == nullptr) raise(error{"report(): expected a Pipeline with trace=True"});
    auto made = without_gil([&] { return timeline_of(*trace_, step); });
    return value_of(std::move(made));
  }
  void write_trace(const std::string& path) {
    if (trace_ == nullptr) raise(error{"write_trace(): expected a Pipeline with trace=True"});
    check(without_gil([&] { return actors::write_chrome_json(path, {{"rrfp", trace_.get()}}); }));
  }
  void interrupt() {
    auto& p = open();
    without_gil([&] { p.interrupt(); });
  }

  py::dict finish() {
    auto& p = open();
    const auto summary = value_of(wait_for(p, [&] { return p.finish(); }));
    close();
    py::dict d;
    d["steps"] = summary.steps;
    d["loss_first"] = summary.loss_first;
    d["loss_last"] = summary.loss_last;
    return d;
  }

  void close() {
    const py::gil_scoped_release no_gil;
    pipeline_.reset();
  }

 private:
  pipeline& open() {
    if (pipeline_ == nullptr) raise(error{"the pipeline is closed", error_kind::failed});
    return *pipeline_;
  }

  std::size_t microbatches_ = 0;
  pipeline_shape shape_;
  std::shared_ptr<py::object> orders_;
  /// Of the stages in this process; used with the GIL.
  const std::shared_ptr<std::map<stage_id, std::shared_ptr<python_policy::sheet>>> sheets_ =
      std::make_shared<std::map<stage_id, std::shared_ptr<python_policy::sheet>>>();
  std::shared_ptr<actors::trace_recorder> trace_;
  std::unique_ptr<pipeline> pipeline_;
};

}  // namespace

PYBIND11_MODULE(_rrfp, m) {
  m.attr("version") = RRFP_VERSION;
  m.attr("torch_version") = RRFP_TORCH_VERSION;
  m.def(
      "policies",
      [] {
        std::vector<std::string> names;
        for (const auto& p : policies::registry().known()) names.emplace_back(p.name);
        return names;
      },
      "The names of the policies; docs/policies.md describes them.");
  py::class_<generator_scope>(m, "GeneratorScope")
      .def(py::init<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>())
      .def("__enter__", &generator_scope::enter)
      .def("__exit__", [](generator_scope& s, const py::args&) { s.leave(); });
  py::class_<python_group>(m, "RankGroup")
      .def_property_readonly("rank", &python_group::rank)
      .def_property_readonly("size", &python_group::size)
      .def("all_reduce", &python_group::all_reduce, py::arg("tensor"));
  m.def("pack", [](std::vector<std::optional<at::Tensor>> tensors, std::string note) {
    parcel p{{}, std::move(note)};
    for (auto& t : tensors) p.tensors.push_back(std::move(t).value_or(at::Tensor{}));
    return pack(p);
  });
  m.def("unpack", [](const at::Tensor& message) {
    auto p = unpack(message);
    return std::pair{std::move(p.tensors), py::bytes{p.note}};
  });
  py::class_<python_pipeline>(m, "Pipeline")
      .def(py::init<const std::vector<std::string>&, py::object, const py::object&,
                    const py::object&, py::object, py::object, bool>(),
           py::arg("settings"), py::arg("part"), py::arg("optimizer"), py::arg("order"),
           py::arg("on_note"), py::arg("on_report"), py::arg("trace"))
      .def("run", &python_pipeline::pass, py::arg("training"), py::arg("counts"),
           py::arg("update"))
      .def_property_readonly("steps", &python_pipeline::steps)
      .def_property_readonly("leads", &python_pipeline::leads)
      .def("state_dict", &python_pipeline::state_dict)
      .def("load_state_dict", &python_pipeline::load_state_dict, py::arg("state"))
      .def("save", &python_pipeline::save)
      .def("report", &python_pipeline::report)
      .def("timeline", &python_pipeline::timeline)
      .def("write_trace", &python_pipeline::write_trace)
      .def("interrupt", &python_pipeline::interrupt)
      .def("finish", &python_pipeline::finish)
      .def("close", &python_pipeline::close);
}
