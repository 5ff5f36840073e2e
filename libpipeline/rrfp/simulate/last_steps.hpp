/// A cache of what was made for the last few steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace rrfp::simulate {

/// The values of the last `kept` keys, such as steps, each made when it is first asked for.
/// Thread-safe.
template <class Value, std::size_t kept = 8>
class last_steps {
 public:
  /// `make` is a pure function of the key. Two threads may call it for the same key: it may take
  /// long, so it runs without the lock.
  template <class Make>
  std::shared_ptr<const Value> at(std::uint64_t key, Make make) {
    if (auto known = find(key)) return known;
    auto value = std::make_shared<const Value>(make());
    if (auto known = find(key)) return known;
    const std::lock_guard lock{mutex_};
    values_.emplace_back(key, value);
    if (values_.size() > kept) values_.pop_front();
    return value;
  }

 private:
  std::shared_ptr<const Value> find(std::uint64_t key) {
    const std::lock_guard lock{mutex_};
    for (const auto& [known, value] : values_)
      if (known == key) return value;
    return nullptr;
  }

  std::mutex mutex_;
  std::deque<std::pair<std::uint64_t, std::shared_ptr<const Value>>> values_;
};

}  // namespace rrfp::simulate
