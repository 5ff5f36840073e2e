/// Policies by name. The layers that read and plan jobs get a registry passed in; the policies
/// themselves, and what derives others from them, stand above.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp {

/// The description of a policy for help texts and checks.
struct policy_info {
  std::string_view name;
  std::string_view summary;
  /// A fixed schedule (one sequence per stage), usable as a hint. Otherwise the policy works in
  /// rounds over the ready tasks.
  bool fixed = false;
};

/// A policy for one shape; makes one policy object for each stage. Immutable and thread-safe; each
/// object that it makes belongs to one thread.
class policy_set {
 public:
  virtual ~policy_set() = default;
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<policy> make(stage_id stage) const = 0;
  /// The sequences of a fixed schedule, one per stage; null for policies that work in rounds.
  virtual const std::vector<sequence>* sequences() const = 0;
};

/// Thread-safe.
class policy_registry {
 public:
  virtual ~policy_registry() = default;
  /// All policies except `table:FILE.csv` and `lib:FILE.so`, in the order of the documentation.
  virtual const std::vector<policy_info>& known() const = 0;
  /// `name` is one of known(), `table:FILE.csv` or `lib:FILE.so`. Errors: an unknown name (with the
  /// list of known names), a shape for which the schedule is not defined, an unreadable or
  /// malformed table (with file and line), a library that cannot be loaded or whose policies break
  /// a rule.
  virtual result<std::shared_ptr<const policy_set>> make(std::string_view name,
                                                         const pipeline_shape& shape) const = 0;
};

/// Makes a fixed schedule from `sequences`, which must pass check_sequences().
std::shared_ptr<const policy_set> make_fixed_policy_set(std::string_view name,
                                                        std::vector<sequence> sequences);

}  // namespace rrfp
