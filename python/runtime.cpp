/// The runtime for Python, without any framework: what a rank computes is a Python object, and
/// tensors cross as DLPack capsules.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/training_loop.hpp>
#include <rrfp/compute/keyed_hash.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/study/blocking_sends.hpp>
#include <rrfp/study/options.hpp>

#include "analysis.hpp"
#include "gil.hpp"
#include "order.hpp"
#include "packing.hpp"
#include "rank.hpp"
#include "simulation.hpp"
#include "timeline.hpp"

namespace rrfp::python {

namespace {

/// Whether this process measures for a study: jobs may have its keys.
bool is_of_study = false;

/// A job of a program: the keys that it set, over the defaults.
class program_job {
 public:
  /// `counts`: the program counts loss terms.
  program_job(const std::vector<std::string>& settings, bool counts)
      : job_(value_of(
            job::parse_job("name = \"pipeline\"", "settings", policies::registry(), settings,
                           job::job_use::embed,
                           is_of_study ? study::schema() : job::runtime_schema()))) {
    job_.train.averages_accumulation = counts;
  }

  const job::job& get() const { return job_; }
  /// What the program does itself.
  py::dict values() const {
    const auto& t = job_.train;
    const auto shape = job::effective_shape(job_);
    py::list parts_of;  // by stage and chunk
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      py::list of_stage;
      for (std::uint32_t c = 0; c < shape.chunks; ++c)
        of_stage.append(shape.virtual_stage(stage_id{s}, chunk_id{c}).value());
      parts_of.append(std::move(of_stage));
    }
    return py::dict("device"_a = job_.device.kind == job::device_kind::cuda ? "cuda" : "cpu",
                    "gpus"_a = job_.cuda.gpus,
                    "deterministic"_a = job_.cuda.deterministic,
                    "recompute"_a = job_.pipeline.recompute,
                    "parts"_a = shape.virtual_stages(),
                    "parts_of"_a = std::move(parts_of),
                    "seed"_a = t.seed,
                    "optimizer"_a = t.optimizer == job::optimizer_kind::adamw ? "adamw" : "sgd",
                    "lr"_a = t.lr,
                    "betas"_a = py::make_tuple(t.beta1, t.beta2),
                    "eps"_a = t.epsilon,
                    "weight_decay"_a = t.weight_decay,
                    "momentum"_a = t.momentum,
                    "loss_scale"_a = t.loss_scale,
                    "loss_scale_interval"_a = t.loss_scale_interval,
                    "may_lack_nodes"_a = job_.recovery.may_lack_nodes());
  }

 private:
  job::job job_;
};

/// The port of node 0, in a store of the program: it has publish(port) and find().
class python_store final : public actors::agent_store {
 public:
  explicit python_store(py::object store) : store_(shared(std::move(store))) {}

  status publish(std::uint16_t port) override {
    return caught([&] {
      with_gil([&] { store_->attr("publish")(port); });
      return success();
    });
  }
  result<std::uint16_t> find(const std::stop_token&) override {
    return caught([&] {
      return with_gil(
          [&] { return result<std::uint16_t>{store_->attr("find")().cast<std::uint16_t>()}; });
    });
  }

 private:
  const std::shared_ptr<py::object> store_;
};

/// The framework is the program's own; its vector instructions matter to the others.
class python_framework final : public actors::framework {
 public:
  python_framework(std::string instructions, py::object connect)
      : instructions_(std::move(instructions)), connect_(shared(std::move(connect))) {}

  result<std::shared_ptr<const actors::job_model>> open(const job::job&) override {
    return std::shared_ptr<const actors::job_model>{};
  }
  std::string vector_instructions() const override { return instructions_; }
  result<std::unique_ptr<actors::agent_store>> connect_store(
      const actors::launch_place& at, std::chrono::milliseconds limit) const override {
    try {
      return with_gil([&]() -> std::unique_ptr<actors::agent_store> {
        const auto seconds = std::chrono::duration<double>(limit).count();
        return std::make_unique<python_store>((*connect_)(at.host, at.port, seconds));
      });
    } catch (const std::exception& e) {
      return error{e.what(), error_kind::node_lost};
    }
  }

 private:
  const std::string instructions_;
  const std::shared_ptr<py::object> connect_;
};

/// Functions and values of the program; see Runtime in the module.
struct runtime_options {
  py::object make_rank, before_ranks, order, tell, hear, on_note, on_report, connect, look;
  std::string instructions;
  std::optional<std::tuple<std::uint32_t, std::uint32_t, std::string>> place;
  bool traces = false, has_state = false;
};

/// Each process tells all one text once its parts are made, and hears the texts of all.
void exchange_texts(actors::session_setup& setup, runtime_options& o) {
  if (o.tell.is_none()) return;
  setup.tell = [tell = shared(std::move(o.tell))] {
    return caught([&] {
      return with_gil([&] { return result<std::string>{(*tell)().cast<std::string>()}; });
    });
  };
  setup.hear = [hear = shared(std::move(o.hear))](const std::vector<std::string>& all) {
    return caught([&] {
      return with_gil([&] {
        const auto wrong = (*hear)(all);
        return wrong.is_none() ? success() : status{error{wrong.cast<std::string>()}};
      });
    });
  };
}

/// One pipeline of this process.
class runtime {
 public:
  runtime(const program_job& job, runtime_options o) {
    const auto& j = job.get();
    if (o.traces) trace_ = std::make_shared<actors::trace_recorder>();
    actors::loop_options options;
    options.place = place_of(o);
    options.version = RRFP_VERSION;
    const bool computes = j.device.kind != job::device_kind::emulated;
    const auto ranks = j.pipeline.stages * j.pipeline.tp * j.pipeline.replicas;
    // A rank that takes the place of a lost one beside another needs a thread of its own.
    const bool on_caller = options.computes_on_caller =
        computes && options.place->nodes == ranks && !j.recovery.may_lack_nodes();
    // A thread that cannot be ended keeps the hooks, so these keep the recorder.
    const auto says = [&](const char* name, py::object to) {
      return [hook = text_hook(name, std::move(to)), kept = trace_](const std::string& text) {
        hook(text);
      };
    };
    options.hooks.on_note = says("on_note", std::move(o.on_note));
    options.hooks.on_report = says("on_report", std::move(o.on_report));
    if (!o.before_ranks.is_none())
      options.hooks.before_ranks = [hook = shared(std::move(o.before_ranks))] {
        with_gil([&] { (*hook)(); });
      };
    if (!o.order.is_none())
      orders_ = std::make_shared<python_orders>(std::move(o.order));
    loop_ = std::make_shared<actors::training_loop>(j, std::move(options));
    auto framework =
        std::make_shared<python_framework>(std::move(o.instructions), std::move(o.connect));
    const auto opened = without_gil([&] {
      auto setup = setup_for(j, std::move(o.make_rank), o.has_state, on_caller);
      if (!setup) return status{setup.failure()};
      exchange_texts(*setup, o);
      return loop_->open(std::move(framework), *std::move(setup), trace_,
                         [hook = shared(std::move(o.look))] {
                           check_signals();
                           holding_gil([&] {
                             if (!hook->is_none()) (*hook)();
                           });
                         });
    });
    if (!opened) check_signals();  // Ctrl-C inside a function of the program
    check(opened);
  }
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;
  ~runtime() { close(); }

  /// One step or evaluation; Ctrl-C ends the pipeline. Without `updates` the gradients stay.
  /// `microbatches`: by replica; empty: as the job says.
  py::dict pass(bool trains, bool updates, std::vector<std::uint32_t> microbatches) {
    using compute::step_purpose;
    auto& loop = open();
    try {
      if (orders_) orders_->renew(microbatches);
    } catch (const std::runtime_error& e) {
      raise(error{e.what(), error_kind::failed});
    }
    const auto purpose = !trains   ? step_purpose::evaluation
                         : updates ? step_purpose::training
                                   : step_purpose::accumulation;
    const auto passed = value_of(
        without_gil([&] { return loop.pass(purpose, {std::move(microbatches)}, {}, check_signals); }));
    const auto& s = passed.summary;
    py::list losses;
    for (const auto& l : s.losses) losses.append(l.mean);
    return py::dict("step"_a = s.step,
                    "loss"_a = s.loss,
                    "losses"_a = std::move(losses),
                    "gradient_norm"_a = s.gradient_norm,
                    "is_skipped"_a = s.is_skipped,
                    "lr"_a = s.lr,
                    "count"_a = s.tokens,
                    "ms"_a = s.step_ms,
                    "bubble"_a = s.bubble_fraction,
                    "weight_shares"_a = s.weight_shares);
  }

  std::uint64_t steps() { return open().steps(); }
  bool leads() { return open().leads(); }
  /// Whether the run has ended, in order or not; its last tasks may still run.
  bool is_over() { return loop_ == nullptr || loop_->is_over(); }
  /// Raises the error of a pipeline that has failed, or was finished here.
  void check_open() {
    check(open().check_usable());
  }
  void recover() {
    auto& loop = open();
    check(without_gil([&] { return loop.recover(check_signals); }));
  }
  void save() {
    auto& loop = open();
    check(without_gil([&] { return loop.save(check_signals); }));
  }
  std::string metrics() { return open().metrics_text(); }
  void report(const std::string& why) {
    auto& loop = open();
    without_gil([&] { loop.report(why); });
  }
  /// Also after the end.
  std::string timeline(std::optional<std::uint64_t> step) {
    const auto& trace = recorded("report()");
    return value_of(without_gil([&] { return picture_of(trace, step); }));
  }
  void write_trace(const std::string& path) {
    const auto& trace = recorded("write_trace()");
    check(without_gil([&] { return actors::write_chrome_json(path, {{"rrfp", &trace}}); }));
  }

  py::dict finish() {
    auto& loop = open();
    const auto summary = value_of(without_gil([&] { return loop.finish(check_signals); }));
    close();
    return py::dict("steps"_a = summary.steps,
                    "loss_first"_a = summary.loss_first,
                    "loss_last"_a = summary.loss_last);
  }
  void close(const std::optional<std::string>& why = {}) {
    auto ended = std::move(loop_);
    if (ended == nullptr) return;
    // The threads are those of the process that opened it: a child by fork has none to end.
    if (getpid() != process_) return static_cast<void>(new std::shared_ptr(std::move(ended)));
    without_gil([&] {
      why ? ended->close(*why) : ended->close();
      ended.reset();
    });
  }

 private:
  static actors::launch_place place_of(const runtime_options& o) {
    if (!o.place)
      return value_of(actors::resolve_launch(
          {}, [](const char* name) -> const char* { return std::getenv(name); }));
    const auto& [node, nodes, host] = *o.place;
    return {.nodes = nodes, .node = node_id{node}, .host = host, .is_agents_port = true};
  }

  result<actors::session_setup> setup_for(const job::job& j, py::object make_rank,
                                          bool has_state, bool computes_on_caller) const {
    auto made = actors::make_setup_without_model(j, policies::registry());
    if (!made) return made;
    auto& setup = *made;
    if (j.dispatch.slot_bytes != 0)
      return job::blame(j, "dispatch.slot_bytes",
                        "expected a job with a model: those of a program are not counted in bytes");
    setup.trace = trace_.get();
    if (orders_) {
      setup.rule.renews_policy = true;
      setup.rule.make_policy = [orders = orders_](const pipeline_shape& shape, stage_id stage) {
        return with_gil([&] { return orders->make_policy(shape, stage); });
      };
    }
    if (!has_state && j.pipeline.shares != job::share_kind::equal)
      return job::blame(j, "pipeline.shares",
                        "expected \"equal\" with a schedule, whose gradients the program sums itself");
    if (!has_state && j.recovery.max_restarts > 0)
      return job::blame(j, "recovery.max_restarts",
                        "expected 0 with a schedule, whose state the program holds itself");
    if (has_state) {
      setup.checkpoint = actors::checkpoint_setup_of(j, actors::identity_without_model(j));
      setup.names_parameters = true;
    }
    setup.make_compute = [make = shared(std::move(make_rank)), has_thread = !computes_on_caller](
                             const auto&, const actors::rank_place& place)
        -> result<std::shared_ptr<compute::rank_compute>> {
      const auto& a = place.address;
      try {
        return with_gil([&]() -> std::shared_ptr<compute::rank_compute> {
          const auto group =
              place.group ? py::cast(python_group{place.group}) : py::object{py::none()};
          return std::make_shared<python_rank>(
              (*make)(a.stage.value(), a.rank.value(), a.replica.value(), group), place,
              has_thread);
        });
      } catch (const std::exception& e) {
        return error{e.what()};
      }
    };
    if (is_of_study) study::prepare_session(j, setup);
    return made;
  }

  const actors::trace_recorder& recorded(const std::string& by) const {
    if (trace_ == nullptr) raise(error{by + ": expected a pipeline with trace=True"});
    return *trace_;
  }

  actors::training_loop& open() {
    if (getpid() != process_)
      raise(error{"the pipeline belongs to the process that opened it, got a call in a child"});
    if (loop_ == nullptr) raise(error{"the pipeline is closed", error_kind::failed});
    return *loop_;
  }

  const pid_t process_ = getpid();
  std::shared_ptr<python_orders> orders_;
  std::shared_ptr<actors::trace_recorder> trace_;
  std::shared_ptr<actors::training_loop> loop_;
};

}  // namespace

PYBIND11_MODULE(_runtime, m) {
  m.attr("version") = RRFP_VERSION;
  m.def("tell", [](py::object on_note, const std::string& text) {
    text_hook("on_note", std::move(on_note))(text);
  });
  m.def(
      "policies",
      [] {
        std::vector<std::string> names;
        for (const auto& p : policies::registry().known()) names.emplace_back(p.name);
        return names;
      },
      "The names of the policies; docs/policies.md describes them.");
  m.def(
      "begin_study", [] { is_of_study = true; },
      "From now on pipelines of this process may have the keys of studies (docs/experiments.md).");
  m.def(
      "admission_order",
      [](const std::vector<double>& costs) {
        return admission_order(admission::small_large_small, costs);
      },
      py::arg("costs"));
  m.def(
      "simulate",
      [](const std::optional<std::string>& job, const std::vector<std::string>& settings,
         std::uint64_t steps) {
        return rows_of(value_of(without_gil([&] { return simulate_job(job, settings, steps); })));
      },
      py::arg("job"), py::arg("settings"), py::arg("steps"));
  add_packing(m);
  py::class_<analysis>(m, "Analysis")
      .def(py::init([](const std::vector<std::string>& files, std::uint32_t stages,
                       std::uint32_t microbatches, double backward_share) {
             return value_of(without_gil(
                 [&] { return analysis::make(files, {stages, microbatches}, backward_share); }));
           }),
           py::arg("files"), py::arg("stages"), py::arg("microbatches"), py::arg("backward_share"))
      .def("tasks", &analysis::tasks)
      .def("waits", &analysis::waits)
      .def("steps", &analysis::steps)
      .def("forecast", &analysis::forecast)
      .def("notes", &analysis::notes)
      .def("sentences", &analysis::sentences)
      .def("charts", &analysis::charts)
      .def(
          "write_page",
          [](const analysis& a, const std::string& path, const std::string& title) {
            check(without_gil([&] { return a.write_page(path, title); }));
          },
          py::arg("path"), py::arg("title"));
  m.def(
      "key_of_draws",
      [](std::uint64_t seed, std::uint64_t step, std::uint64_t microbatch, std::uint64_t part) {
        using compute::random_use;
        return compute::keyed_hash({static_cast<std::uint64_t>(random_use::user_module), seed, step,
                                    microbatch, part});
      },
      "The seed of torch's generator for a forward.");
  py::class_<python_group>(m, "Group")
      .def_property_readonly("rank", &python_group::rank)
      .def_property_readonly("size", &python_group::size)
      .def("sum", &python_group::sum, py::arg("tensor"))
      .def("max", &python_group::max, py::arg("tensor"));
  py::class_<program_job>(m, "Job")
      .def(py::init<const std::vector<std::string>&, bool>(), py::arg("settings"), py::arg("counts"))
      .def("values", &program_job::values);
  // make_rank(stage, rank, replica, group or None) returns a rank of this process (_rank.py); connect(host, port,
  // seconds) the store of torchrun. before_ranks() is called before the ranks of this process are made, also after a
  // loss. order(stage, n_microbatches), tell(), hear(texts) and look() may be None. hear() returns what is wrong, or
  // None. look() is called about once a second while this process waits for the others to join or to make their ranks,
  // and what it raises ends that. place: (node, nodes, host), or None for that of the environment.
  py::class_<runtime>(m, "Runtime")
      .def(py::init([](const program_job& job, py::object make_rank, py::object connect,
                       std::string instructions, py::object on_note, py::object on_report,
                       py::object before_ranks, py::object order, py::object tell, py::object hear,
                       py::object look, decltype(runtime_options::place) place, bool trace, bool has_state) {
             return std::make_unique<runtime>(
                 job, runtime_options{std::move(make_rank), std::move(before_ranks),
                                      std::move(order), std::move(tell), std::move(hear),
                                      std::move(on_note), std::move(on_report), std::move(connect), std::move(look),
                                      std::move(instructions), std::move(place), trace, has_state});
           }),
           py::arg("job"), py::arg("make_rank"), py::arg("connect"), py::arg("instructions"),
           py::arg("on_note"), py::arg("on_report"), py::kw_only(),
           py::arg("before_ranks") = py::none(), py::arg("order") = py::none(),
           py::arg("tell") = py::none(), py::arg("hear") = py::none(), py::arg("look") = py::none(),
           py::arg("place") = py::none(), py::arg("trace") = false, py::arg("has_state") = false)
      .def("step", &runtime::pass, py::arg("trains"), py::arg("updates"), py::arg("microbatches"))
      .def_property_readonly("steps", &runtime::steps)
      .def_property_readonly("leads", &runtime::leads)
      .def_property_readonly("is_over", &runtime::is_over)
      .def("check_open", &runtime::check_open)
      .def("recover", &runtime::recover)
      .def("save", &runtime::save)
      .def("metrics", &runtime::metrics)
      .def("report", &runtime::report, py::arg("why"))
      .def("timeline", &runtime::timeline, py::arg("step"))
      .def("write_trace", &runtime::write_trace, py::arg("path"))
      .def("finish", &runtime::finish)
      .def("close", &runtime::close, py::arg("why") = py::none());
}

}  // namespace rrfp::python
