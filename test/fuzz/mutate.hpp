/// Mutates valid inputs: text by tokens and lines, JSON by values and keys, both also by bytes. The
/// seed determines all changes.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace rrfp::fuzz {

class mutator {
 public:
  explicit mutator(std::uint64_t seed) : bits_(seed) {}

  /// 0 to `end` - 1.
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(bits_() % end); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& all) {
    return all[below(all.size())];
  }

  /// For TOML, CSV and similar text: changes tokens and lines.
  std::string text(std::string original);
  /// Deletes, duplicates and renames keys, changes types and sizes of values, nests deeply;
  /// sometimes like text().
  std::string json(const std::string& original);
  std::string bytes(std::string original);
  /// A number as text, at the edge of a type or beyond.
  std::string number();

 private:
  std::string brackets();
  std::string json_brackets();
  std::string value();
  nlohmann::ordered_json json_value();
  void change_json(nlohmann::ordered_json& whole);
  void change_text(std::string& text);
  void change_bytes(std::string& bytes);
  void replace_token(std::string& text, const char* token_characters, const std::string& with);

  std::mt19937_64 bits_;
};

}  // namespace rrfp::fuzz
