#include <rrfp/job/overrides.hpp>

#include <algorithm>

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

result<value> schema::read_value_of(const key& k, const value& given, const fs::path& folder,
                                    const origin& from) const {
  auto v = resolved(k, given, folder, from);
  if (!v) return v;
  auto scratch = defaults();
  if (const auto set = k.set(scratch, *v); !set) return from.blame(k.path, set.message());
  return k.get ? k.get(scratch) : std::move(*v);
}

status overrides::add(const entry& e, const std::string& source) {
  const auto from = at_line(source, e.line);
  const auto k = known_->table().key_of(e, from);
  if (!k) return k.failure();
  if (*k == nullptr) return success();
  auto read = known_->read_value_of(**k, e.content, fs::path{source}.parent_path(), from);
  if (!read) return read.failure();
  if ((*k)->path != "cost.profile") {
    all_.push_back({*k, std::move(*read), from});
    return success();
  }
  const auto times = read_profile(std::get<std::string>(read->data));
  if (!times) return from.blame((*k)->path, times.message());
  // Below the settings of the file itself.
  for (const auto& t : *times)
    all_.insert(all_.begin(), {known_->find(t.key), *read_value(t.value), from});
  return success();
}

void overrides::apply_to(job& j) const {
  for (const bool short_forms : {true, false})
    for (const auto& o : all_) {
      if (!o.key->get != short_forms) continue;
      RRFP_CHECK(o.key->set(j, o.content), "the values of an override were checked");
      j.set_by[o.key->path] = o.from.place + ": " + o.key->path;
    }
}

bool overrides::sets(std::string_view key) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& o) { return o.key->path == key; });
}

std::vector<std::string> overrides::texts() const {
  std::vector<std::string> all;
  for (const auto& o : all_)
    if (const auto* text = std::get_if<std::string>(&o.content.data); o.key->is_text && text)
      all.push_back(*text);
  return all;
}

}  // namespace rrfp::job
