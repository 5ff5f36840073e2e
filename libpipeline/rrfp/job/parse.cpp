#include <algorithm>
#include <filesystem>

#include <rrfp/base/check.hpp>
#include <rrfp/hugging_face/config.hpp>
#include <rrfp/io/text_file.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/job/overrides.hpp>
#include <rrfp/job/provenance.hpp>
#include <rrfp/job/toml_reader.hpp>
#include "schema_parts.hpp"
#include "validate.hpp"

namespace rrfp::job {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t variants_max = 64;

/// A job that is being read, with the place where each key was set.
struct draft {
  job made;
  provenance from;
  const schema& known;
};

/// The key of an entry; null for an entry that sets nothing: a section itself, an empty compare.
result<const key*> key_of(const schema& known, const entry& e, const origin& from) {
  const auto name = e.name();
  if (name == "compare") {
    const auto* list = std::get_if<value_list>(&e.content.data);
    if (list != nullptr && list->empty()) return nullptr;
    return from.blame(name, "expected [[compare]] tables, got " + describe(e.content));
  }
  return known.table().key_of(e, from);
}

status assign(draft& d, const key& k, const value& given, const fs::path& folder,
              const origin& from) {
  const auto v = resolved(k, given, folder, from);
  if (!v) return v.failure();
  if (const auto set = k.set(d.made, *v); !set) return from.blame(k.path, set.message());
  d.from.record(k.path, from);
  return success();
}

/// Whether setting one key may change the value of the other.
bool overlap(const key& a, const key& b) {
  if (a.path == b.path) return true;
  const auto section = [](std::string_view path) { return path.substr(0, path.find('.')); };
  return (!a.get || !b.get) && section(a.path) == section(b.path);
}

/// Drops the variants if one of them sets the overridden key: the variants would undo the override.
void skip_comparison(draft& d, const key& given, const std::string& override_text) {
  for (const auto& v : d.made.compare)
    for (const auto& s : v.settings) {
      if (!overlap(*d.known.find(s.key), given)) continue;
      d.made.notes.push_back("--set " + override_text + ": variant " + in_quotes(v.name) +
                             " sets " + s.key +
                             " as well; [[compare]] is skipped and the job runs once");
      d.made.compare.clear();
      return;
    }
}

/// Sets short forms first, so that the keys that they set take precedence, whatever the order in
/// the file.
status assign_all(draft& d, const std::vector<entry>& entries, const fs::path& folder) {
  for (const bool short_forms : {true, false})
    for (const auto& e : entries) {
      const auto from = at_line(d.made.source, e.line);
      const auto k = key_of(d.known, e, from);
      if (!k) return k.failure();
      if (*k == nullptr || !(*k)->get != short_forms) continue;
      if (auto done = assign(d, **k, e.content, folder, from); !done) return done;
    }
  return success();
}

status assign_override(draft& d, const std::string& text) {
  const auto printable = check_utf8(std::string_view{text}) &&
                         std::none_of(text.begin(), text.end(),
                                      [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  const origin from{"--set " + (printable ? text : in_quotes(text)), true};
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return from.blame("", "expected section.key=value");
  const auto path = text.substr(0, equals);
  const auto word = text.substr(equals + 1);
  const auto* k = d.known.find(path);
  if (k == nullptr) {
    const auto dot = path.find('.');
    const auto& table = d.known.table();
    return from.blame("", dot == std::string::npos
                              ? table.unknown_name("", path)
                              : table.unknown_name(path.substr(0, dot), path.substr(dot + 1)));
  }
  const bool bare = k->is_text && word.find_first_of("\"'[") != 0;
  auto read = bare ? std::nullopt : read_value(word);
  if (auto done = assign(d, *k, read ? *read : value{word}, fs::path{}, from); !done) return done;
  skip_comparison(d, *k, text);
  return success();
}

result<variant> read_variant(const schema& known, const table_entries& table,
                             const std::string& source, const fs::path& folder) {
  variant made;
  for (const auto& e : table.entries) {
    const auto from = at_line(source, e.line);
    const auto k = key_of(known, e, from);
    if (!k) return k.failure();
    if (*k == nullptr) continue;
    if (auto read = known.read_settings(**k, e.content, folder, from, made.settings); !read)
      return read.failure();
    if ((*k)->path != "name") continue;
    made.name = std::get<std::string>(e.content.data);
    made.settings.pop_back();
  }
  if (made.name.empty()) return at_line(source, table.line).blame("compare", "expected a name");
  return made;
}

status read_compare(draft& d, const document& doc, const fs::path& folder) {
  const auto& source = d.made.source;
  for (const auto& table : doc.lists.front()) {
    auto made = read_variant(d.known, table, source, folder);
    if (!made) return made.failure();
    const auto from = at_line(source, table.line);
    for (const auto& other : d.made.compare)
      if (other.name == made->name)
        return from.blame("compare",
                          "expected distinct names, got " + in_quotes(made->name) + " twice");
    if (d.made.compare.size() == variants_max)
      return from.blame("compare",
                        "expected at most " + std::to_string(variants_max) + " variants");
    d.made.compare.push_back(std::move(made).value());
  }
  return success();
}

/// The name of a variant as a folder name; distinct names give distinct folders.
std::string as_folder(const std::string& name) {
  std::string folder;
  for (const char c : name) folder += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  if (folder == "." || folder == "..") folder.replace(0, 1, "%2E");
  return folder;
}

/// The job of one variant: its settings applied to the job.
job job_of(const variant& v, const job& base) {
  auto made = base;
  made.name = v.name;
  made.compare.clear();
  apply_settings(v.settings, made);
  auto& dir = made.checkpoint.dir;
  if (!dir.empty()) dir = (fs::path{dir} / as_folder(v.name)).string();
  return made;
}

/// Checks the value of a key as if a file had set it: "expected ..., got ...".
status check_range(const job& j, const key& k) {
  if (!k.get) return success();
  auto scratch = schema_of(j).defaults();
  return k.set(scratch, k.get(j));
}

/// Takes the sizes of model.pretrained from its config.json. A key that sets another value is an
/// error, except dropout and precision, which the job chooses.
status adopt_pretrained(draft& d) {
  auto& mine = d.made.model;
  for (const auto& v : d.made.compare)
    for (const auto& s : v.settings)
      if (s.key == "model.pretrained")
        return d.from.blame("compare", "expected one pretrained model for all variants, but " +
                                           in_quotes(v.name) + " sets model.pretrained");
  if (mine.pretrained.empty()) return success();
  auto read = hugging_face::read_config(mine.pretrained);
  if (!read) return d.from.blame("model.pretrained", read.message());
  const auto file = hugging_face::config_file(mine.pretrained);
  job theirs;
  theirs.model = std::move(*read);
  theirs.model.pretrained = mine.pretrained;
  theirs.model.dropout = mine.dropout;
  theirs.model.precision = mine.precision;
  const auto set = d.from.places();
  for (const auto& k : runtime_schema().keys()) {
    if (!k.path.starts_with("model.") && !k.path.starts_with("vision.")) continue;
    if (auto fits = check_range(theirs, k); !fits)
      return d.from.blame("model.pretrained", file + ": as " + k.path + " " + fits.message());
    if (!set.contains(k.path)) {
      d.from.adopt(k.path, file, "model.pretrained");
      continue;
    }
    const auto expected = to_toml(k.get(theirs)), got = to_toml(k.get(d.made));
    if (expected != got)
      return d.from.blame(k.path, "expected " + expected + " as in the config.json of " +
                                      "model.pretrained, got " + got);
  }
  mine = std::move(theirs.model);
  return success();
}

status validate_all(const draft& d, const document& doc, const policy_registry& policies,
                    job_use use) {
  if (auto valid = validate(d.made, d.from, policies, use); !valid) return valid;
  for (std::size_t i = 0; i < d.made.compare.size(); ++i) {
    auto from = d.from;
    from.enter_variant(d.made.compare[i].name);
    for (const auto& e : doc.lists.front()[i].entries)
      from.record(e.name(), at_line(d.made.source, e.line));
    if (auto valid = validate(job_of(d.made.compare[i], d.made), from, policies, use); !valid)
      return valid;
  }
  return success();
}

}  // namespace

result<job> parse_job(std::string_view text, const std::string& source_name,
                      const policy_registry& policies, std::span<const std::string> settings,
                      job_use use, const schema& known) {
  constexpr std::string_view lists[] = {"compare"};
  const auto doc = read_toml(text, source_name, lists);
  if (!doc) return doc.failure();
  const fs::path file{source_name};
  const auto folder = file.parent_path();
  draft d{known.defaults(), provenance{source_name}, known};
  d.made.source = source_name;
  d.made.name = file.has_stem() ? file.stem().string() : "job";
  if (auto done = assign_all(d, doc->entries, folder); !done) return done.failure();
  if (auto done = read_compare(d, *doc, folder); !done) return done.failure();
  for (const auto& o : settings)
    if (auto done = assign_override(d, o); !done) return done.failure();
  if (const auto good = check_utf8(std::string_view{d.made.name}); !good)
    return error{source_name + ": name: " + good.message() +
                 ", in the file name, which is the default name of the job"};
  if (auto adopted = adopt_pretrained(d); !adopted) return adopted.failure();
  if (auto valid = validate_all(d, *doc, policies, use); !valid) return valid.failure();
  d.made.set_by = d.from.places();
  return std::move(d.made);
}

result<job> load_job(const std::string& path, const policy_registry& policies,
                     std::span<const std::string> settings, job_use use, const schema& known) {
  const auto text = io::read_text_file(path, job_bytes_max, "a job file");
  if (!text) return text.failure();
  return parse_job(*text, path, policies, settings, use, known);
}

status check_job(const job& j, const policy_registry& policies, job_use use) {
  provenance from{source_of(j)};
  for (const auto& [path, place] : j.set_by) {
    const auto where = place.substr(0, place.rfind(": " + path));
    from.record(path, {where, where == place});
  }
  for (const auto& k : schema_of(j).keys()) {
    if (k.path == "name" && j.name.empty()) continue;
    if (auto fits = check_range(j, k); !fits) return from.blame(k.path, fits.message());
  }
  return validate(j, from, policies, use);
}

std::vector<job> variants(const job& j) {
  if (j.compare.empty()) return {j};
  std::vector<job> all;
  for (const auto& v : j.compare) all.push_back(job_of(v, j));
  return all;
}

}  // namespace rrfp::job
