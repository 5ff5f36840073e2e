/// The members of one JSON object of a trace: each of its type, and within its limits.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <rrfp/base/printable.hpp>
#include <rrfp/io/parse_json.hpp>
#include <rrfp/report/trace.hpp>

namespace rrfp::report {

/// Thrown to end the parse; caught in parse_trace().
struct malformed {
  std::string what;
};

class fields {
 public:
  using json = nlohmann::json;

  /// The object must outlive this.
  explicit fields(const json& object) : object_(object) {}

  bool has(const char* key) const { return object_.contains(key); }
  fields object(const char* key) const { return fields{member(key)}; }

  std::string text(const char* key) const {
    const auto& value = member(key);
    if (!value.is_string())
      throw malformed{fmt::format("expected \"{}\" as text, got {}", key, shown(value))};
    return value.get<std::string>();
  }

  std::uint64_t whole(const char* key, std::uint64_t max) const {
    const auto& value = member(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max)
      throw malformed{fmt::format("expected \"{}\" as a whole number up to {}, got {}", key, max,
                                  shown(value))};
    return value.get<std::uint64_t>();
  }

  std::int64_t bytes(const char* key) const {
    return static_cast<std::int64_t>(whole(key, std::uint64_t{1} << 62));
  }

  std::uint32_t index(const char* key, std::uint32_t max = 1'000'000) const {
    return static_cast<std::uint32_t>(whole(key, max));
  }

  /// The step number as in the file; reports show it unchanged.
  step_id step() const { return step_id{whole("step", std::uint64_t{1} << 52)}; }

  /// Times are written in microseconds with three decimals, so nanoseconds are restored exactly.
  nanoseconds time(const char* key) const { return time(key, 0, "microseconds from 0"); }

  /// Injected delay; negative if jitter made a task faster.
  nanoseconds added_time(const char* key) const {
    return time(key, -microseconds_max, "microseconds");
  }

  /// The one of `all` whose name the text is, without `prefix` where it begins so.
  template <class Enum>
  Enum named(const char* key, std::span<const Enum> all, std::string_view prefix = {}) const {
    auto value = text(key);
    if (value.starts_with(prefix)) value.erase(0, prefix.size());
    for (const auto e : all)
      if (name(e) == value) return e;
    throw malformed{fmt::format("expected \"{}\" as a word of the trace format, got \"{}\"", key,
                                printable(value))};
  }
  template <class Enum>
  Enum named(const char* key, std::initializer_list<Enum> all) const {
    return named(key, std::span<const Enum>{all.begin(), all.size()});
  }

  task task_named(const char* key) const {
    const auto value = text(key);
    const auto t = task_of(value);
    if (!t)
      throw malformed{fmt::format("expected a task as F3 or BW3.1, got \"{}\"", printable(value))};
    if (t->mb.value() >= traced_microbatches_max || t->chunk.value() >= traced_chunks_max)
      throw malformed{fmt::format("expected a microbatch below {} and a chunk below {}, got \"{}\"",
                                  traced_microbatches_max, traced_chunks_max, value)};
    return *t;
  }

  static std::string shown(const json& value) { return printable(value.dump()); }

 private:
  /// About 100 days; above, a double cannot represent every nanosecond.
  static constexpr double microseconds_max = 9e12;

  nanoseconds time(const char* key, double least, std::string_view expected) const {
    const auto& value = member(key);
    if (!value.is_number() || value.get<double>() < least || value.get<double>() > microseconds_max)
      throw malformed{fmt::format("expected \"{}\" as {}, got {}", key, expected, shown(value))};
    return std::llround(value.get<double>() * 1000);
  }

  const json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw malformed{fmt::format("expected \"{}\", got none", key)};
    return *found;
  }

  const json& object_;
};

}  // namespace rrfp::report
