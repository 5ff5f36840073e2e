/// The compiled part of the Python package: rrfp::pipeline with stages, losses and optimizers that
/// are Python functions. The package's Python files do the rest.
#include <unistd.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <rrfp/keyed_generator.hpp>
#include <rrfp/pack.hpp>

#include "callbacks.hpp"
#include "timeline.hpp"

namespace rrfp::python {

namespace {

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

/// The turn of the generators, from __enter__ to __exit__.
class turn_scope {
 public:
  void enter() {
    without_gil([&] { turn_ = generator_turn(); });
  }
  void leave() { turn_ = {}; }

 private:
  std::unique_lock<std::recursive_mutex> turn_;
};

class python_pipeline {
 public:
  /// `part(index, count, group)` is that of make_stage(), or None on emulated devices;
  /// `optimizer(tensors, names)` returns an Optimizer, or is None; `order(stage)` returns the names of
  /// the tasks of a step, or is None; `counts`: whether pass() gets counts in the process of the last
  /// part.
  python_pipeline(const std::vector<std::string>& settings, py::object part,
                  const py::object& optimizer, const py::object& order, py::object tell,
                  py::object hear, py::object on_note, py::object on_report, bool traces,
                  bool counts) {
    auto j = value_of(
        job::parse_job("", "settings", policies::registry(), settings, job::job_use::embed));
    j.train.averages_accumulation = counts;
    pipeline_options o;
    if (!part.is_none())
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
    const auto says = [&](const char* name, py::object to) {
      return [hook = text_hook(name, std::move(to)), kept = trace_](const std::string& text) {
        hook(text);
      };
    };
    o.on_note = says("on_note", std::move(on_note));
    o.on_report = says("on_report", std::move(on_report));
    o.tell = [tell = shared(std::move(tell))] {
      return with_gil([&] { return (*tell)().cast<std::string>(); });
    };
    o.hear = [hear = shared(std::move(hear))](const std::string& lines) {
      with_gil([&] { (*hear)(lines); });
    };
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
    check_thread();
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
    return timeline_of(trace_.get(), "a Pipeline", step);
  }
  void write_trace(const std::string& path) { python::write_trace(trace_.get(), "a Pipeline", path); }
  /// With the GIL, so that no other thread closes the pipeline meanwhile.
  std::string metrics() { return open().metrics(); }
  void interrupt() {
    auto& p = open();
    without_gil([&] { p.interrupt(); });
  }

  py::dict finish() {
    auto& p = open();
    check_thread();
    const auto summary = value_of(wait_for(p, [&] { return p.finish(); }));
    close();
    py::dict d;
    d["steps"] = summary.steps;
    d["loss_first"] = summary.loss_first;
    d["loss_last"] = summary.loss_last;
    return d;
  }

  void close() {
    // The threads are those of the process that opened it: a child by fork has none to end.
    if (getpid() != process_) return static_cast<void>(pipeline_.release());
    auto ended = std::move(pipeline_);
    const py::gil_scoped_release no_gil;
    ended.reset();
  }

 private:
  /// For calls that another thread makes: the pipeline itself looks at that one.
  static void check_thread() {
    if (forward_scope::is_open())
      raise(error{"the pipeline was called inside a forward, a loss or a keyed_generator: expected a call from outside"});
  }
  pipeline& open() {
    if (getpid() != process_)
      raise(error{"the pipeline belongs to the process that opened it, got a call in a child"});
    if (pipeline_ == nullptr) raise(error{"the pipeline is closed", error_kind::failed});
    return *pipeline_;
  }

  const pid_t process_ = getpid();
  std::size_t microbatches_ = 0;
  pipeline_shape shape_;
  std::shared_ptr<py::object> orders_;
  /// The sheets of the stages in this process; used with the GIL.
  const std::shared_ptr<std::map<stage_id, std::shared_ptr<python_policy::sheet>>> sheets_ =
      std::make_shared<std::map<stage_id, std::shared_ptr<python_policy::sheet>>>();
  std::shared_ptr<actors::trace_recorder> trace_;
  std::unique_ptr<pipeline> pipeline_;
};

}  // namespace

PYBIND11_MODULE(_rrfp, m) {
  m.attr("version") = RRFP_VERSION;
  m.attr("torch_version") = RRFP_TORCH_VERSION;
  py::class_<generator_scope>(m, "GeneratorScope")
      .def(py::init<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>())
      .def("__enter__", &generator_scope::enter)
      .def("__exit__", [](generator_scope& s, const py::args&) { s.leave(); });
  py::class_<turn_scope>(m, "GeneratorTurn")
      .def(py::init<>())
      .def("__enter__", &turn_scope::enter)
      .def("__exit__", [](turn_scope& s, const py::args&) { s.leave(); });
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
                    const py::object&, py::object, py::object, py::object, py::object, bool, bool>(),
           py::arg("settings"), py::arg("part"), py::arg("optimizer"), py::arg("order"),
           py::arg("tell"), py::arg("hear"), py::arg("on_note"), py::arg("on_report"), py::arg("trace"),
           py::arg("counts"))
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
      .def("metrics", &python_pipeline::metrics)
      .def("interrupt", &python_pipeline::interrupt)
      .def("finish", &python_pipeline::finish)
      .def("close", &python_pipeline::close);
}

}  // namespace rrfp::python
