/// rrfp.analyze(): recorded runs as lists of rows, and what other schedules would have made of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/base/units.hpp>
#include <rrfp/forecast/forecast.hpp>
#include <rrfp/foreign/read_traces.hpp>
#include <rrfp/io/atomic_file.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/report/page.hpp>
#include <rrfp/report/timeline.hpp>

#include "gil.hpp"

namespace rrfp::python {

/// Runs that were read, and the forecast of each.
class analysis {
 public:
  static result<analysis> make(const std::vector<std::string>& files,
                               const foreign::read_options& log, double backward_share) {
    auto read = foreign::read_traces(files, log);
    if (!read) return read.failure();
    analysis made;
    made.runs_ = *std::move(read);
    for (const auto& found : made.runs_) {
      auto f = forecast::make_forecast(found.run, policies::registry(), backward_share);
      if (!f) return within(found.file, f.failure());
      made.forecasts_.push_back(*std::move(f));
    }
    return made;
  }

  py::list tasks() const {
    py::list rows;
    for (const auto& found : runs_)
      for (const auto& t : found.run.tasks) {
        auto row = row_of(found, t, t.what);
        row["rank"] = t.rank.value();
        row["slots"] = t.slots;
        rows.append(std::move(row));
      }
    return rows;
  }

  py::list waits() const {
    py::list rows;
    for (const auto& found : runs_)
      for (const auto& w : found.run.waits) {
        if (w.begin == w.end || w.what.why == wait_cause::complete) continue;
        auto row = row_of(found, w, w.what.head);
        row["cause"] = std::string{name(w.what.why)};
        rows.append(std::move(row));
      }
    return rows;
  }

  py::list steps() const {
    py::list rows;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      for (const auto& s : forecasts_[i].steps)
        rows.append(py::dict("run"_a = runs_[i].run.title,
                             "step"_a = s.step.value(),
                             "measured_ms"_a = s.measured_ms,
                             "replayed_ms"_a = s.replayed_ms,
                             "error_percent"_a = s.error_percent()));
    return rows;
  }

  py::list forecast() const {
    py::list rows;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      for (const auto& o : forecasts_[i].outcomes)
        rows.append(py::dict("run"_a = runs_[i].run.title,
                             "policy"_a = o.policy,
                             "mode"_a = std::string{name(o.mode)},
                             "slots"_a = o.slots,
                             "step_ms"_a = o.step_ms,
                             "bubble"_a = o.bubble,
                             "gain_percent"_a = forecasts_[i].gain_percent(o),
                             "assumes_split"_a = o.assumes_split));
    return rows;
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      for (const auto* notes : {&runs_[i].notes, &forecasts_[i].notes})
        all.insert(all.end(), notes->begin(), notes->end());
    return all;
  }

  std::vector<std::string> sentences() const {
    std::vector<std::string> all;
    for (const auto& f : forecasts_) all.push_back(forecast::sentence_of(f));
    return all;
  }

  std::vector<std::string> charts() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      all.push_back(forecast::chart_of(forecasts_[i], runs_[i].run.title));
    return all;
  }

  status write_page(const std::string& path, const std::string& title) const {
    std::vector<report::traced_run> runs;
    for (const auto& found : runs_) runs.push_back(found.run);
    const auto step = report::typical_step(runs, step_id{0}, step_id{~std::uint64_t{0}});
    const auto page = report::page_of(title, runs, notes(), {}, step);
    if (!page) return page.failure();
    return io::write_atomically(path, report::html_of(*page));
  }

 private:
  template <class Record>
  static py::dict row_of(const foreign::found_run& found, const Record& r, const task& what) {
    return py::dict("run"_a = found.run.title,
                    "step"_a = r.step.value(),
                    "replica"_a = r.replica.value(),
                    "stage"_a = r.stage.value(),
                    "kind"_a = std::string{name(what.kind)},
                    "microbatch"_a = what.mb.value(),
                    "chunk"_a = what.chunk.value(),
                    "begin_ms"_a = milliseconds(r.begin),
                    "end_ms"_a = milliseconds(r.end));
  }

  std::vector<foreign::found_run> runs_;
  std::vector<forecast::forecast> forecasts_;
};

}  // namespace rrfp::python
