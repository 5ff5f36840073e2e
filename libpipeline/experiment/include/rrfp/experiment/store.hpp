/// The folder of an experiment: cells that are done stay done.
///
/// DIR/cells.jsonl has a line a cell: description, outcome, and a checksum over both. A line that
/// does not parse or whose checksum differs is torn: it is dropped with a note, and its cell runs
/// again. results.json, results.csv and report.html are written whole, beside and renamed.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/experiment/cell.hpp>

namespace rrfp::experiment {

class store {
 public:
  /// Makes the folder, reads what is there, and drops what is torn. Errors: a folder that cannot be
  /// made, read or written.
  static result<store> open(const std::string& folder);

  /// Null if the cell is not done.
  const outcome* find(const std::string& description) const;
  /// On disk before it returns.
  status add(const std::string& description, const outcome& o);
  /// Whether add() has failed: what comes of the cells is lost.
  bool has_failed() const { return has_failed_; }
  /// A line for each torn one: "DIR/cells.jsonl:7: torn, its cell runs again".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  using file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  explicit store(std::string path) : path_(std::move(path)), file_(nullptr, std::fclose) {}

  std::string path_;
  std::map<std::string, outcome> done_;
  std::vector<std::string> notes_;
  file file_;
  bool has_failed_ = false;
};

/// Engine by engine, cell by cell.
std::string results_json(const experiment& e, const std::vector<engine_outcomes>& all);
/// A row a cell, with a header.
std::string results_csv(const experiment& e, const std::vector<engine_outcomes>& all);
/// One cell: its description and its outcome, as one line of JSON.
std::string cell_json(const cell& c, const outcome& o);

}  // namespace rrfp::experiment
