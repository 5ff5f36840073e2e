#include <rrfp/job/overrides.hpp>

#include <rrfp/base/check.hpp>

#include "schema_parts.hpp"

namespace rrfp::job {

namespace {

namespace fs = std::filesystem;

void resolve_paths(path_rule rule, const fs::path& folder, value& v) {
  if (auto* list = std::get_if<value_list>(&v.data))
    for (auto& item : *list) resolve_paths(rule, folder, item);
  auto* text = std::get_if<std::string>(&v.data);
  if (text == nullptr) return;
  if (rule == path_rule::files && !text->empty()) *text = absolute_path(folder, *text);
  if (rule != path_rule::policy_file) return;
  for (const std::string prefix : {"table:", "lib:"})
    if (text->starts_with(prefix) && text->size() > prefix.size())
      *text = prefix + absolute_path(folder, text->substr(prefix.size()));
}

}  // namespace

std::string absolute_path(const std::filesystem::path& folder, const std::string& path) {
  std::error_code failed;
  const auto joined = folder / path;
  const auto whole = std::filesystem::absolute(joined, failed);
  return (failed ? joined : whole).lexically_normal().string();
}

result<value> resolved(const key& k, value v, const fs::path& folder, const origin& from) {
  resolve_paths(k.paths, folder, v);
  if (const auto good = check_utf8(v); !good) return from.blame(k.path, good.message());
  return v;
}

status schema::read_settings(const key& k, const value& given, const fs::path& folder,
                             const origin& from, std::vector<setting>& to) const {
  const auto v = resolved(k, given, folder, from);
  if (!v) return v.failure();
  auto scratch = defaults();
  if (const auto set = k.set(scratch, *v); !set) return from.blame(k.path, set.message());
  if (k.path != "cost.profile") {
    to.push_back({k.path, to_toml(k.get ? k.get(scratch) : *v)});
    return success();
  }
  const auto times = read_profile(std::get<std::string>(v->data));
  if (!times) return from.blame(k.path, times.message());
  to.insert(to.begin(), times->begin(), times->end());
  return success();
}

void apply_settings(std::span<const setting> settings, job& j) {
  for (const bool short_forms : {true, false})
    for (const auto& s : settings) {
      const auto* k = schema_of(j).find(s.key);
      RRFP_CHECK(k != nullptr, "a setting must have a known key");
      if (!k->get != short_forms) continue;
      const auto read = read_value(s.value);
      RRFP_CHECK(read && k->set(j, *read), "the values of settings were checked");
    }
}

status overrides::add(const entry& e, const std::string& source) {
  const auto from = at_line(source, e.line);
  const auto k = known_->table().key_of(e, from);
  if (!k) return k.failure();
  if (*k == nullptr) return success();
  std::vector<setting> read;
  const auto folder = fs::path{source}.parent_path();
  if (auto done = known_->read_settings(**k, e.content, folder, from, read); !done) return done;
  // Those of a profile stand below the settings of the file itself.
  const bool is_below = (*k)->path == "cost.profile";
  for (const auto& s : read)
    if (!is_below || !set_by_.contains(s.key)) set_by_[s.key] = from.place + ": " + s.key;
  all_.insert(is_below ? all_.begin() : all_.end(), read.begin(), read.end());
  return success();
}

void overrides::apply_to(job& j) const {
  apply_settings(all_, j);
  for (const auto& [key, place] : set_by_) j.set_by[key] = place;
}

std::vector<std::string> overrides::texts() const {
  std::vector<std::string> all;
  for (const auto& s : all_) {
    if (!known_->find(s.key)->is_text) continue;
    const auto read = read_value(s.value);
    if (const auto* text = std::get_if<std::string>(&read->data)) all.push_back(*text);
  }
  return all;
}

}  // namespace rrfp::job
