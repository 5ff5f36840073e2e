/// Policies by name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::policies {

/// What one policy is, for help texts and checks.
struct policy_info {
  std::string_view name;
  std::string_view summary;
  /// A fixed schedule (a sequence a stage), usable as a hint; otherwise rounds over what is ready.
  bool fixed = false;
};

/// All policies but `table:FILE.csv`, in the order of the documentation.
const std::vector<policy_info>& known_policies();

/// A policy made for one shape: the source of one policy object for each stage. Immutable, so any
/// thread may use it; the objects it makes belong to one thread each.
class policy_set {
 public:
  virtual ~policy_set() = default;
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<policy> make(stage_id stage) const = 0;
  /// The sequences, one a stage, of a fixed schedule; nothing for policies that work in rounds.
  virtual const std::vector<sequence>* sequences() const = 0;
};

/// `name` is one of known_policies() or `table:FILE.csv`. Errors: an unknown name (the known ones
/// are listed), a shape that the schedule is not defined for, an unreadable or malformed table
/// (file and line).
result<std::shared_ptr<const policy_set>> make_policy_set(std::string_view name,
                                                          const pipeline_shape& shape);

/// A fixed schedule from given sequences, which must satisfy check_sequences().
std::shared_ptr<const policy_set> make_fixed_policy_set(std::string_view name,
                                                        std::vector<sequence> sequences);

}  // namespace rrfp::policies
