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
      for (const auto& s : forecasts_[i].steps) {
        py::dict row;
        row["run"] = runs_[i].run.title;
        row["step"] = s.step.value();
        row["measured_ms"] = s.measured_ms;
        row["replayed_ms"] = s.replayed_ms;
        row["error_percent"] = s.error_percent();
        rows.append(std::move(row));
      }
    return rows;
  }

  py::list forecast() const {
    py::list rows;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      for (const auto& o : forecasts_[i].outcomes) {
        py::dict row;
        row["run"] = runs_[i].run.title;
        row["policy"] = o.policy;
        row["mode"] = std::string{name(o.mode)};
        row["slots"] = o.slots;
        row["step_ms"] = o.step_ms;
        row["bubble"] = o.bubble;
        row["gain_percent"] = forecasts_[i].gain_percent(o);
        row["assumes_split"] = o.assumes_split;
        rows.append(std::move(row));
      }
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
    return files::write_atomically(path, report::html_of(*page));
  }

 private:
  template <class Record>
  static py::dict row_of(const foreign::found_run& found, const Record& r, const task& what) {
    py::dict row;
    row["run"] = found.run.title;
    row["step"] = r.step.value();
    row["replica"] = r.replica.value();
    row["stage"] = r.stage.value();
    row["kind"] = std::string{name(what.kind)};
    row["microbatch"] = what.mb.value();
    row["chunk"] = what.chunk.value();
    row["begin_ms"] = milliseconds(r.begin);
    row["end_ms"] = milliseconds(r.end);
    return row;
  }

  std::vector<foreign::found_run> runs_;
  std::vector<forecast::forecast> forecasts_;
};

}  // namespace rrfp::python
