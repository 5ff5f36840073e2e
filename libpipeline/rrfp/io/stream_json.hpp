/// Parses untrusted JSON of any size event by event, so that memory does not grow with the file.
///
/// parse_json() holds the whole text; use this for files that others write and that may be larger
/// than memory. The limits are checked before the JSON library sees a byte: its parser collects
/// each text and number whole, and blanks before them.
#pragma once

#include <cstdint>
#include <optional>

#include <rrfp/io/byte_source.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp {

struct json_limits {
  std::size_t depth_max = json_depth_max;
  /// Maximum length of one text or number, with the blanks beside it.
  std::size_t text_bytes_max = std::size_t{16} << 20;
  /// Maximum length of the whole text, uncompressed.
  std::uint64_t bytes_max = std::uint64_t{64} << 30;
};

/// Base of handlers: each event has an empty default, and an error ends the parse.
class json_events_base : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::json::exception&) override {
    error_byte_ = byte;
    return false;
  }
  /// Position of a syntax error, from 1; 0: there was none.
  std::size_t error_byte() const { return error_byte_; }

 private:
  std::size_t error_byte_ = 0;
};

/// Feeds `events` until the end of the text, or until one of them returns false. What they throw
/// propagates. The fault has the position in the uncompressed text.
std::optional<json_fault> stream_json(io::byte_source& source, json_events_base& events,
                                      const json_limits& limits = {});

}  // namespace rrfp
