#include <rrfp/job/job.hpp>

#include "schema.hpp"

namespace rrfp::job {

std::string to_toml(const job& j) {
  std::string text;
  std::string_view section;
  for (const auto& k : schema_of(j).keys()) {
    if (!k.get) continue;
    if (k.section() != section) {
      section = k.section();
      text += "\n[" + std::string{section} + "]\n";
    }
    text += std::string{k.leaf()} + " = " + to_toml(k.get(j)) + "\n";
  }
  for (const auto& v : j.compare) {
    text += "\n[[compare]]\nname = " + in_quotes(v.name) + "\n";
    for (const auto& s : v.settings) text += s.key + " = " + s.value + "\n";
  }
  return text;
}

std::vector<setting> changes(const job& j) {
  const auto defaults = schema_of(j).defaults();
  std::vector<setting> all;
  for (const auto& k : schema_of(j).keys()) {
    if (!k.get || k.path == "name") continue;
    auto value = to_toml(k.get(j));
    if (value != to_toml(k.get(defaults))) all.push_back({k.path, std::move(value)});
  }
  return all;
}

bool operator==(const job& a, const job& b) { return to_toml(a) == to_toml(b); }

}  // namespace rrfp::job
