/// A disk that crashes: any part of what was not synced is lost, files are torn, and removals half
/// done. It carries out the operations of checkpoint_core.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/core/ring_plan.hpp>

namespace rrfp::testing {

namespace file_operation = checkpoint::file_operation;

inline bool is_inside(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}
inline std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

enum class content : std::uint8_t { intact, torn };

/// Paths and contents; a folder exists if something is in it, or if it is a path itself.
class tree {
 public:
  void put(const std::string& path, content c, std::string data = {}) {
    entries_[path] = {c, std::move(data)};
  }
  bool has(const std::string& path) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const auto& e) { return e.first == path || is_inside(e.first, path); });
  }
  bool is_intact(const std::string& path) const {
    const auto found = entries_.find(path);
    return found != entries_.end() && found->second.first == content::intact;
  }
  /// Of an intact file; null for any other.
  const std::string* data(const std::string& path) const {
    return is_intact(path) ? &entries_.at(path).second : nullptr;
  }
  /// Does nothing where the system call would fail; then it returns false.
  bool rename(const std::string& from, const std::string& to) {
    if (!has(from) || has(to)) return false;
    decltype(entries_) moved;
    for (const auto& [path, c] : entries_)
      moved[path == from || is_inside(path, from) ? to + path.substr(from.size()) : path] = c;
    entries_ = std::move(moved);
    return true;
  }
  template <class Which>
  void remove(const std::string& folder, Which which) {
    std::erase_if(entries_, [&](const auto& e) {
      return (e.first == folder || is_inside(e.first, folder)) && which();
    });
  }
  checkpoint::listing names() const {
    std::set<std::string> all;
    for (const auto& [path, _] : entries_) all.insert(path.substr(0, path.find('/')));
    return {all.begin(), all.end()};
  }

 private:
  std::map<std::string, std::pair<content, std::string>> entries_;
};

class crashing_disk {
 public:
  /// `coin`: decides what a crash leaves.
  crashing_disk(tree start, std::function<bool()> coin)
      : live_(start), durable_(std::move(start)), coin_(std::move(coin)) {}

  /// False where the system call would fail. `manifest`: what write_manifest writes.
  bool carry_out(const file_operation::any& any, const std::string& manifest = {}) {
    return std::visit([&](const auto& o) { return run(o, manifest); }, any);
  }
  /// A file that is written and synced, with its folder.
  void put_synced(const std::string& path, content c, const std::string& data) {
    live_.put(path, c, data);
    // It is a file of the new folder of this name, not of one that was removed or moved before.
    settle([folder = folder_of(path)](const pending& p) { return concerns(p.operation, folder); });
    durable_.put(path, c, data);
  }
  const tree& live() const { return live_; }
  /// What is there after a crash: any part of what is pending.
  tree after_crash() const {
    auto t = durable_;
    for (const auto& p : pending_)
      if (coin_()) apply(t, p, true);
    return t;
  }

 private:
  struct pending {
    file_operation::any operation;
    bool is_synced = false;  ///< the contents of a file
    std::string data{};
  };

  bool run(const file_operation::check_size& o, const std::string&) { return live_.has(o.path); }
  bool run(const file_operation::sync_file& o, const std::string&) {
    for (auto& p : pending_)
      if (const auto* w = std::get_if<file_operation::write_manifest>(&p.operation))
        p.is_synced |= w->path == o.path;
    return true;
  }
  bool run(const file_operation::sync_folder& o, const std::string&) {
    settle([&](const pending& p) { return touches(p.operation, o.path); });
    return true;
  }
  template <class Operation>
  bool run(const Operation& o, const std::string& manifest) {
    pending_.push_back({o, false, manifest});
    return apply(live_, {o, true, manifest}, false);
  }

  /// Makes durable what is pending, in its order.
  template <class Which>
  void settle(Which which) {
    std::erase_if(pending_, [&](const pending& p) {
      const bool is_here = which(p);
      if (is_here) apply(durable_, p, false);
      return is_here;
    });
  }
  static bool concerns(const file_operation::any& any, const std::string& folder) {
    if (const auto* r = std::get_if<file_operation::rename>(&any))
      return r->from == folder || r->to == folder;
    return std::visit(
        [&](const auto& o) {
          if constexpr (requires { o.path; }) return o.path == folder;
          return false;
        },
        any);
  }
  static bool touches(const file_operation::any& any, const std::string& folder) {
    if (const auto* r = std::get_if<file_operation::rename>(&any))
      return folder_of(r->from) == folder || folder_of(r->to) == folder;
    return std::visit(
        [&](const auto& o) {
          if constexpr (requires { o.path; }) return folder_of(o.path) == folder;
          return false;
        },
        any);
  }
  bool apply(tree& t, const pending& p, bool crashes) const {
    const auto& any = p.operation;
    if (const auto* m = std::get_if<file_operation::make_folder>(&any))
      t.put(m->path, content::intact);
    else if (const auto* w = std::get_if<file_operation::write_manifest>(&any))
      t.put(w->path, p.is_synced ? content::intact : content::torn, p.data);
    else if (const auto* r = std::get_if<file_operation::rename>(&any))
      return t.rename(r->from, r->to);
    else if (const auto* gone = std::get_if<file_operation::remove>(&any))
      t.remove(gone->path, [&] { return !crashes || coin_(); });
    return true;
  }

  tree live_;
  tree durable_;
  std::vector<pending> pending_;
  std::function<bool()> coin_;
};

}  // namespace rrfp::testing
