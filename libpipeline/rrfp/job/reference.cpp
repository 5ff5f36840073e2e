#include <rrfp/base/printable.hpp>
#include <rrfp/job/job.hpp>

#include "schema.hpp"

namespace rrfp::job {

namespace {

std::string default_of(const key& k, const job& defaults) {
  return k.section().empty() || !k.get ? "" : to_toml(k.get(defaults));
}

std::string type_of(const key& k) { return k.unit.empty() ? k.type : k.type + "; " + k.unit; }

std::string row(const key& k, const job& defaults) {
  const auto preset = default_of(k, defaults);
  return "| `" + std::string{k.leaf()} + "` | " + type_of(k) + " | " +
         (preset.empty() ? "" : "`" + preset + "`") + " | " + k.meaning + " |\n";
}

}  // namespace

std::string job_reference_markdown(const schema& of) {
  const auto defaults = of.defaults();
  std::string text =
      "# Job reference\n\n"
      "A job is one TOML file. `--set section.key=value` overrides a key; a text needs no quotes\n"
      "there. Relative paths are relative to the folder of the job file; in an override, to the\n"
      "current folder.\n\n";
  const auto add_rows = [&](std::string_view section) {
    text += "| key | value | default | meaning |\n|---|---|---|---|\n";
    for (const auto& k : of.keys())
      if (k.section() == section) text += row(k, defaults);
  };
  add_rows("");
  for (const auto& s : of.table().sections) {
    text += "\n## [" + std::string{s.name} + "]\n" + std::string{s.meaning} + "\n\n";
    add_rows(s.name);
  }
  text +=
      "\n## [[compare]]\n"
      "Each table is one run of the job. It has a distinct `name` and keys that differ from the\n"
      "job, written with their section: `dispatch.mode = \"in-order\"`.\n";
  return text;
}

std::string job_reference_text(const schema& of) {
  const auto defaults = of.defaults();
  std::string text;
  for (const auto& k : of.keys()) {
    const auto preset = default_of(k, defaults);
    text += k.path + (preset.empty() ? "" : " = " + preset) + "\n" +
            wrapped(type_of(k), "    ", 80) + wrapped(k.meaning, "    ", 80);
  }
  return text;
}

}  // namespace rrfp::job
