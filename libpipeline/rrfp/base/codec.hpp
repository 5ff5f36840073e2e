/// Messages to bytes and back: the members of a type, in the order in which fields(f, x) names
/// them.
#pragma once

#include <rrfp/base/bytes.hpp>
#include <rrfp/base/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rrfp {

template <class T>
concept has_fields = requires(T& x) {
  fields([](auto&&...) {}, x);
};

/// A text or a vector that is read only up to a size, in bytes or items.
template <class T>
struct limited {
  T& of;
  std::size_t size_max;
};

template <class T>
limited<T> at_most(T& x, std::size_t size_max) {
  return {x, size_max};
}

class encoder {
 public:
  template <class... Members>
  void operator()(Members&&... members) {
    (put(members), ...);
  }
  std::string take() { return bytes_.take(); }

 private:
  template <class T>
  void put(T& x) {
    if constexpr (has_fields<T>)
      fields([this](auto&&... members) { (*this)(members...); }, x);
    else
      bytes_.put(x);
  }
  template <class T>
  void put(limited<T>& x) {
    put(x.of);
  }
  template <class Tag, class Rep>
  void put(id<Tag, Rep>& x) {
    bytes_.put(x.value());
  }
  template <class T>
  void put(std::vector<T>& all) {
    bytes_.put(static_cast<std::uint32_t>(all.size()));
    for (auto& x : all) put(x);
  }
  template <class T>
  void put(std::optional<T>& x) {
    bytes_.put(x.has_value());
    if (x) put(*x);
  }
  template <class K, class V>
  void put(std::map<K, V>& all) {
    bytes_.put(static_cast<std::uint32_t>(all.size()));
    for (auto& [key, value] : all) {
      auto k = key;
      (*this)(k, value);
    }
  }
  template <class A, class B>
  void put(std::pair<A, B>& x) {
    (*this)(x.first, x.second);
  }

  byte_writer bytes_;
};

/// After a first failure it reads zeros; check complete().
class decoder {
 public:
  explicit decoder(std::string_view bytes) : bytes_(bytes) {}

  template <class... Members>
  void operator()(Members&&... members) {
    (get(members), ...);
  }
  bool complete() const { return bytes_.complete(); }

 private:
  template <class T>
  void get(T& x) {
    if constexpr (has_fields<T>)
      fields([this](auto&&... members) { (*this)(members...); }, x);
    else
      bytes_.get(x);
  }
  template <class T>
  void get(limited<T>& x) {
    get(x.of, x.size_max);
  }
  void get(std::string& text, std::size_t bytes_max = SIZE_MAX) { bytes_.get(text, bytes_max); }
  template <class Tag, class Rep>
  void get(id<Tag, Rep>& x) {
    Rep value{};
    bytes_.get(value);
    x = id<Tag, Rep>{value};
  }
  template <class T>
  void get(std::vector<T>& all, std::size_t items_max = SIZE_MAX) {
    // Grows with what is read: the count alone must not make it large.
    all.clear();
    auto left = bytes_.get_count();
    if (left > items_max) return bytes_.fail();
    for (; left > 0 && !bytes_.failed(); --left) get(all.emplace_back());
  }
  template <class T>
  void get(std::optional<T>& x) {
    bool has_value = false;
    bytes_.get(has_value);
    x.reset();
    if (has_value) get(x.emplace());
  }
  template <class K, class V>
  void get(std::map<K, V>& all) {
    all.clear();
    for (auto left = bytes_.get_count(); left > 0 && !bytes_.failed(); --left) {
      K key{};
      get(key);
      get(all[key]);
    }
  }
  template <class A, class B>
  void get(std::pair<A, B>& x) {
    (*this)(x.first, x.second);
  }

  byte_reader bytes_;
};

template <class T>
std::string encoded(T x) {
  encoder out;
  out(x);
  return out.take();
}

/// Nothing if the bytes are not exactly a T.
template <class T>
std::optional<T> decoded(std::string_view bytes) {
  decoder in{bytes};
  T x{};
  in(x);
  return in.complete() ? std::optional<T>{std::move(x)} : std::nullopt;
}

}  // namespace rrfp
