/// The runtime for Python, without any framework: what a rank computes is a Python object, and
/// tensors cross as DLPack capsules.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/training_loop.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/without_parameters.hpp>
#include <rrfp/policies/registry.hpp>

#include "dlpack.hpp"
#include "gil.hpp"
#include "simulation.hpp"
#include "timeline.hpp"

namespace rrfp::python {

namespace {

/// What one rank computes. The Python object has begin(step, trains) and run(kind, microbatch,
/// chunk, first, count, input), which returns the message to the neighbour or None, and which folds
/// the gradients of `count` microbatches from `first`.
class python_compute final : public compute::without_parameters {
 public:
  explicit python_compute(py::object tasks)
      : begin_(shared(tasks.attr("begin"))),
        run_(shared(tasks.attr("run"))),
        forwards_in_order_(tasks.attr("forwards_in_order").cast<bool>()) {}

  void begin_step(step_id step, compute::step_purpose purpose) override {
    with_gil([&] {
      (*begin_)(number_of(step), purpose != compute::step_purpose::evaluation);
    });
  }
  tensor_buffer run(const launch& l, tensor_buffer input) override {
    return with_gil([&] {
      auto given = input.defined() ? py::object{capsule_of(std::move(input))} : py::none();
      const auto& t = l.what;
      const auto made =
          (*run_)(static_cast<int>(t.kind), t.mb.value(), t.chunk.value(),
                  l.folds.first.value(), l.folds.count, std::move(given));
      return made.is_none() ? tensor_buffer{} : buffer_of(made.cast<py::capsule>());
    });
  }
  bool forwards_in_order() const override { return forwards_in_order_; }

 private:
  const std::shared_ptr<py::object> begin_;
  const std::shared_ptr<py::object> run_;
  const bool forwards_in_order_;
};

/// This process among those of the pipeline. `publish(port)` and `find()` tell the port on which
/// node 0 listens.
struct place {
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
  std::string host;
  std::shared_ptr<py::object> publish;
  std::shared_ptr<py::object> find;
};

class python_store final : public actors::agent_store {
 public:
  explicit python_store(const place& at) : publish_(at.publish), find_(at.find) {}

  status publish(std::uint16_t port) override {
    with_gil([&] { (*publish_)(port); });
    return success();
  }
  result<std::uint16_t> find(const std::stop_token&) override {
    return with_gil([&] { return (*find_)().cast<std::uint16_t>(); });
  }

 private:
  const std::shared_ptr<py::object> publish_;
  const std::shared_ptr<py::object> find_;
};

/// The framework is the program's own; its vector instructions matter to the others.
class python_framework final : public actors::framework {
 public:
  python_framework(std::string instructions, const place& at)
      : instructions_(std::move(instructions)), at_(at) {}

  status check_device(const job::job&) const override { return success(); }
  result<std::shared_ptr<const actors::job_model>> open(const job::job&) override {
    return std::shared_ptr<const actors::job_model>{};
  }
  std::string vector_instructions() const override { return instructions_; }
  result<std::unique_ptr<actors::agent_store>> connect_store(
      const actors::launch_place&, std::chrono::milliseconds) const override {
    return std::unique_ptr<actors::agent_store>{std::make_unique<python_store>(at_)};
  }

 private:
  const std::string instructions_;
  const place& at_;
};

/// One pipeline of this process, whose tasks run on the thread that calls step().
class runtime {
 public:
  /// `make_tasks(stage, rank)` returns what a rank of this process computes.
  runtime(const std::vector<std::string>& settings, py::object make_tasks, const place& at,
          std::string instructions, py::object on_note, py::object on_report, bool traces) {
    auto j = value_of(
        job::parse_job("", "settings", policies::registry(), settings, job::job_use::embed));
    if (traces) trace_ = std::make_shared<actors::trace_recorder>();
    actors::loop_options options;
    options.place = actors::launch_place{
        .nodes = at.nodes, .node = node_id{at.node}, .host = at.host, .is_agents_port = true};
    options.version = RRFP_VERSION;
    options.computes_on_caller = true;
    options.hooks.on_note = text_hook("on_note", std::move(on_note));
    options.hooks.on_report = text_hook("on_report", std::move(on_report));
    loop_ = std::make_shared<actors::training_loop>(j, std::move(options));
    auto opened = without_gil([&]() -> status {
      auto setup = actors::make_setup_without_model(j, policies::registry());
      if (!setup) return setup.failure();
      setup->trace = trace_.get();
      setup->make_compute = [make = shared(std::move(make_tasks))](
                                const auto&, const actors::rank_place& of)
          -> result<std::shared_ptr<compute::rank_compute>> {
        const auto& a = of.address;
        return with_gil([&]() -> std::shared_ptr<compute::rank_compute> {
          return std::make_shared<python_compute>((*make)(a.stage.value(), a.rank.value()));
        });
      };
      if (auto joined = loop_->join(python_framework{std::move(instructions), at}); !joined)
        return joined;
      return loop_->open(*std::move(setup), {}, trace_);
    });
    check(opened);
  }
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;
  ~runtime() { close(); }

  /// Runs the tasks of one step on this thread; Ctrl-C ends the pipeline. The gradients stay.
  py::dict pass(bool trains) {
    using compute::step_purpose;
    auto& loop = open();
    const auto passed = value_of(without_gil([&] {
      return loop.pass(trains ? step_purpose::accumulation : step_purpose::evaluation, {}, [] {
        const py::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      });
    }));
    const auto& s = passed.summary;
    py::dict d;
    d["step"] = s.step;
    d["ms"] = s.step_ms;
    d["bubble"] = s.bubble_fraction;
    return d;
  }

  std::string metrics() { return open().metrics_text(); }
  void report(const std::string& why) {
    auto& loop = open();
    without_gil([&] { loop.report(why); });
  }
  std::string timeline(std::optional<std::uint64_t> step) {
    return timeline_of(trace_.get(), "a schedule", step);
  }
  void write_trace(const std::string& path) { python::write_trace(trace_.get(), "a schedule", path); }
  void finish() {
    auto& loop = open();
    const auto ended = without_gil([&] { return loop.finish(); });
    close();
    if (!ended) raise(ended.failure());
  }
  void close() {
    auto ended = std::move(loop_);
    if (ended == nullptr) return;
    // The threads are those of the process that opened it: a child by fork has none to end.
    if (getpid() != process_) return static_cast<void>(new std::shared_ptr(std::move(ended)));
    without_gil([&] {
      ended->close();
      ended.reset();
    });
  }

 private:
  actors::training_loop& open() {
    if (getpid() != process_)
      raise(error{"the pipeline belongs to the process that opened it, got a call in a child"});
    if (loop_ == nullptr) raise(error{"the pipeline is closed", error_kind::failed});
    return *loop_;
  }

  const pid_t process_ = getpid();
  std::shared_ptr<actors::trace_recorder> trace_;
  std::shared_ptr<actors::training_loop> loop_;
};

}  // namespace

PYBIND11_MODULE(_runtime, m) {
  m.attr("version") = RRFP_VERSION;
  m.def(
      "policies",
      [] {
        std::vector<std::string> names;
        for (const auto& p : policies::registry().known()) names.emplace_back(p.name);
        return names;
      },
      "The names of the policies; docs/policies.md describes them.");
  m.def(
      "simulate",
      [](const std::optional<std::string>& job, const std::vector<std::string>& settings,
         std::uint64_t steps) {
        return rows_of(value_of(without_gil([&] { return simulate_job(job, settings, steps); })));
      },
      py::arg("job"), py::arg("settings"), py::arg("steps"));
  py::class_<place>(m, "Place")
      .def(py::init([](std::uint32_t node, std::uint32_t nodes, std::string host,
                       py::object publish, py::object find) {
             return place{node, nodes, std::move(host), shared(std::move(publish)),
                          shared(std::move(find))};
           }),
           py::arg("node"), py::arg("nodes"), py::arg("host"), py::arg("publish"), py::arg("find"));
  py::class_<runtime>(m, "Runtime")
      .def(py::init<const std::vector<std::string>&, py::object, const place&, std::string,
                    py::object, py::object, bool>(),
           py::arg("settings"), py::arg("make_tasks"), py::arg("place"), py::arg("instructions"),
           py::arg("on_note"), py::arg("on_report"), py::arg("trace"))
      .def("step", &runtime::pass, py::arg("trains"))
      .def("metrics", &runtime::metrics)
      .def("report", &runtime::report, py::arg("why"))
      .def("timeline", &runtime::timeline, py::arg("step"))
      .def("write_trace", &runtime::write_trace, py::arg("path"))
      .def("finish", &runtime::finish)
      .def("close", &runtime::close);
}

}  // namespace rrfp::python
