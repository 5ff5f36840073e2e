#include <rrfp/io/stream_json.hpp>

#include <iterator>

namespace rrfp {

namespace {

/// The bytes of a source, which end where a limit is passed.
class guarded_bytes {
 public:
  guarded_bytes(io::byte_source& source, const json_limits& limits)
      : source_(source), limits_(limits) {
    read();
  }

  bool at_end() const { return piece_.empty(); }
  char byte() const { return piece_.front(); }
  void advance() {
    piece_.remove_prefix(1);
    if (piece_.empty()) read();
    if (!piece_.empty()) check(piece_.front());
  }
  const std::optional<json_fault>& fault() const { return fault_; }
  std::uint64_t position() const { return position_; }

 private:
  void read() {
    piece_ = source_.next();
    const bool is_first = position_ == 0;
    if (piece_.empty() && !source_.fault().empty()) return stop(source_.fault());
    if (is_first && !piece_.empty()) check(piece_.front());
  }

  void stop(std::string why) {
    fault_ = json_fault{std::move(why), static_cast<std::size_t>(position_), 0};
    piece_ = {};
  }

  void check(char c) {
    ++position_;
    if (position_ > limits_.bytes_max)
      return stop("longer than " + std::to_string(limits_.bytes_max) + " bytes");
    if (++token_ > limits_.text_bytes_max)
      return stop("a text, number or blanks longer than " + std::to_string(limits_.text_bytes_max) +
                  " bytes");
    // Not blanks: the library collects those, too.
    constexpr std::string_view separators = "\"[]{},:";
    if (!nesting_.in_string() && separators.find(c) != std::string_view::npos) token_ = 0;
    nesting_.take(c);
    if (nesting_.depth() > limits_.depth_max) stop(too_deep_reason(limits_.depth_max));
  }

  io::byte_source& source_;
  const json_limits& limits_;
  std::string_view piece_;
  std::optional<json_fault> fault_;
  std::uint64_t position_ = 0;
  json_nesting nesting_;
  std::size_t token_ = 0;
};

/// What the JSON library reads from; all copies advance together.
class byte_iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  byte_iterator() = default;
  explicit byte_iterator(guarded_bytes& bytes) : bytes_(&bytes) {}
  char operator*() const { return bytes_->byte(); }
  byte_iterator& operator++() {
    bytes_->advance();
    return *this;
  }
  byte_iterator operator++(int) {
    ++*this;
    return *this;
  }
  friend bool operator==(const byte_iterator& a, const byte_iterator& b) {
    return a.is_over() == b.is_over();
  }
  friend bool operator!=(const byte_iterator& a, const byte_iterator& b) { return !(a == b); }

 private:
  bool is_over() const { return bytes_ == nullptr || bytes_->at_end(); }

  guarded_bytes* bytes_ = nullptr;
};

}  // namespace

std::optional<json_fault> stream_json(io::byte_source& source, json_events_base& events,
                                      const json_limits& limits) {
  guarded_bytes bytes{source, limits};
  if (!bytes.fault() && bytes.at_end()) return json_fault{"an empty file"};
  const bool is_whole = nlohmann::json::sax_parse(byte_iterator{bytes}, byte_iterator{}, &events);
  if (bytes.fault()) return bytes.fault();
  if (is_whole || events.error_byte() == 0) return std::nullopt;
  return json_fault{bytes.at_end() ? "JSON that ends too early" : "text that is not JSON",
                    static_cast<std::size_t>(bytes.position()), 0};
}

}  // namespace rrfp
