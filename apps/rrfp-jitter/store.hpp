/// The results folder of an experiment. Completed cells are kept across runs.
///
/// DIR/cells.jsonl has one line per cell: description, outcome, and a checksum over both. A line
/// that does not parse or whose checksum differs is incomplete: the store drops it with a note, and
/// its cell runs again. The other files are written to a temporary file
/// and renamed.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cell.hpp"

namespace rrfp::experiment {

/// Maximum size of cells.jsonl, which is read into memory; a cell takes about a kilobyte.
inline constexpr std::size_t store_bytes_max = std::size_t{256} << 20;

class store {
 public:
  using file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  /// Creates the folder, reads its cells, and drops incomplete lines. Errors: a folder that cannot
  /// be created, read or written.
  static result<store> open(const std::string& folder);

  /// Null if the cell has no outcome yet.
  const outcome* find(const std::string& description) const;
  /// The outcome is on disk before this returns. Errors are error_kind::failed.
  status add(const std::string& description, const outcome& o);
  /// One line per dropped line: "DIR/cells.jsonl:7: incomplete line, its cell runs again".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  explicit store(std::string path) : path_(std::move(path)), file_(nullptr, std::fclose) {}

  std::string path_;
  std::map<std::string, outcome> done_;
  std::vector<std::string> notes_;
  file file_;
};

/// One entry per engine and cell.
std::string results_json(const experiment& e, const std::vector<engine_outcomes>& all);
/// One row per cell, with a header.
std::string results_csv(const experiment& e, const std::vector<engine_outcomes>& all);
/// One row per engine, workload, weather and run, with a header: means and standard deviations over
/// the seeds. The deviations of one seed are empty.
std::string summary_csv(const experiment& e, const std::vector<engine_outcomes>& all);
/// The description and outcome of one cell as one line of JSON.
std::string cell_json(const cell& c, const outcome& o);

}  // namespace rrfp::experiment
