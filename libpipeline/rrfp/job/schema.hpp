/// The table of keys: what a job file may hold. Parsing, errors, the dump and the reference all use
/// it; no other code lists keys.
#pragma once

#include <any>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/job/key_types.hpp>
#include <rrfp/simulate/stage_costs.hpp>

namespace rrfp::job {

using key = basic_key<job>;

template <class Section>
using section_keys = basic_section_keys<job, Section>;

/// What a program adds to the jobs that it reads, such as the keys of a study, of which the runtime
/// knows nothing. These keys change no losses and no weights, so a checkpoint does not depend on
/// them. All functions are pure and thread-safe.
class extension {
 public:
  virtual ~extension() = default;

  /// The sections that other jobs lack.
  virtual std::vector<section_info> sections() const = 0;
  /// Keys of these sections, and further keys of the others.
  virtual std::vector<key> keys() const = 0;
  /// The values of these keys before any is set: job::extra.
  virtual std::any defaults() const = 0;
  /// Whether the values of these keys fit each other and the job.
  virtual status check(const job& j, const provenance& from) const = 0;

  /// Whether costs() replaces the times of [cost].
  virtual bool replaces_costs(const job& j) const = 0;
  /// The costs of a replica. Requires replaces_costs().
  virtual std::shared_ptr<const simulate::microbatch_costs> costs(const job& j,
                                                                  replica_id replica) const = 0;
  /// Changes what effective_limit() gives.
  virtual void limit(const job& j, memory_limit& of_stage) const = 0;
  /// How a simulation sends messages. A session does not know it (session_setup::wrap_outputs).
  virtual simulate::transport messages(const job& j) const = 0;
};

/// Immutable; must outlive the jobs that are read with it.
class schema {
 public:
  /// `more` may be null.
  explicit schema(std::unique_ptr<const extension> more);
  schema(const schema&) = delete;
  schema& operator=(const schema&) = delete;

  const key_table<job>& table() const { return table_; }
  /// In the order of the reference and of the dump.
  const std::vector<key>& keys() const { return table_.keys; }
  /// Null if there is no such key.
  const key* find(std::string_view path) const { return table_.find(path); }
  /// May be null.
  const extension* more() const { return more_.get(); }
  /// A job in which every key has its default.
  job defaults() const;

  /// Adds the value in the form in which the job holds it: absolute paths, canonical numbers. A
  /// profile becomes the times that it sets, so that it is read once; they stand below the settings
  /// before them. Error: of the wrong type or out of range.
  status read_settings(const key& k, const value& v, const std::filesystem::path& folder,
                       const origin& from, std::vector<setting>& to) const;

 private:
  key_table<job> table_;
  std::unique_ptr<const extension> more_;
};

/// The schema with which the job was read or made.
const schema& schema_of(const job& j);
/// Whether an extension of it replaces the times of [cost].
bool has_other_costs(const job& j);
/// The task times of each part according to [cost], by virtual stage, divided by the speed of its
/// stage. Values by layer are summed over the layers of the part. Requires that no extension
/// replaces the costs.
std::vector<simulate::task_durations> times_of_parts(const job& j);

/// The upper bound of times, which only protects sums from overflow.
inline constexpr double ms_max = 1e6;

/// Whether `stage` is below `end`; the error is about `key`, which names it.
status check_stage(std::string_view key, std::uint32_t stage, std::uint32_t end,
                   const provenance& from);

}  // namespace rrfp::job
