#include "header.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include <rrfp/base/printable.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp::safetensors {

namespace {

using nlohmann::json;

constexpr std::size_t name_bytes_max = 200;  // in a message
/// More levels than any valid header or index has.
constexpr std::size_t depth_max = 8;

std::string shown(const json& value) { return printable(value.dump()); }

error wrong(std::string_view tensor, const std::string& message) {
  return error{"tensor '" + printable(tensor, name_bytes_max) + "': " + message};
}

result<string_map> read_metadata(const json& value) {
  const error expected{std::string{metadata_key} + ": expected an object of strings, got " +
                       shown(value)};
  if (!value.is_object()) return expected;
  string_map metadata;
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) return expected;
    metadata[name] = text.get<std::string>();
  }
  return metadata;
}

result<dtype> read_dtype(const json& entry) {
  const auto at = entry.find("dtype");
  if (at == entry.end()) return error{"has no dtype"};
  const auto known = at->is_string() ? dtype_of(at->get_ref<const std::string&>()) : std::nullopt;
  if (!known) return error{"unknown dtype " + shown(*at)};
  return *known;
}

result<std::vector<std::int64_t>> read_shape(const json& entry) {
  const auto at = entry.find("shape");
  if (at == entry.end()) return error{"has no shape"};
  std::vector<std::int64_t> shape;
  bool valid = at->is_array();
  for (std::size_t i = 0; valid && i < at->size(); ++i) {
    const auto& size = (*at)[i];
    valid = size.is_number_unsigned() &&
            size.get<std::uint64_t>() <=
                static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (valid) shape.push_back(size.get<std::int64_t>());
  }
  if (!valid) return error{"shape " + shown(*at) + ": expected an array of integers >= 0"};
  return shape;
}

status read_offsets(const json& entry, std::uint64_t data_bytes, tensor_info& to) {
  const auto at = entry.find("data_offsets");
  if (at == entry.end()) return error{"has no data_offsets"};
  const bool valid = at->is_array() && at->size() == 2 && (*at)[0].is_number_unsigned() &&
                     (*at)[1].is_number_unsigned();
  if (!valid)
    return error{"data_offsets " + shown(*at) + ": expected two integers >= 0, begin and end"};
  to.begin = (*at)[0].get<std::uint64_t>();
  to.end = (*at)[1].get<std::uint64_t>();
  if (to.begin > to.end) return error{"data_offsets " + shown(*at) + ": expected begin <= end"};
  if (to.end > data_bytes)
    return error{"data_offsets " + shown(*at) + " reach beyond the " + std::to_string(data_bytes) +
                 " bytes of data"};
  return success();
}

result<tensor_info> read_tensor(const std::string& name, const json& entry,
                                std::uint64_t data_bytes) {
  tensor_info t;
  t.name = name;
  if (!entry.is_object()) return wrong(name, "expected an object, got " + shown(entry));
  auto type = read_dtype(entry);
  if (!type) return wrong(name, type.message());
  t.type = *type;
  auto shape = read_shape(entry);
  if (!shape) return wrong(name, shape.message());
  t.shape = std::move(*shape);
  if (auto offsets = read_offsets(entry, data_bytes, t); !offsets)
    return wrong(name, offsets.message());
  const auto expected = byte_size(t.type, t.shape);
  if (!expected) return wrong(name, expected.message());
  if (t.size() != *expected)
    return wrong(name, std::string{safetensors::name(t.type)} + " " + text_of(t.shape) + " takes " +
                           std::to_string(*expected) + " bytes, but its data_offsets span " +
                           std::to_string(t.size()));
  return t;
}

/// Checks that every byte of the data belongs to exactly one tensor.
status check_coverage(std::span<const tensor_info> tensors, std::uint64_t data_bytes) {
  const tensor_info* before = nullptr;
  std::uint64_t covered = 0;
  for (const auto& t : tensors) {
    const auto at = "begins at byte " + std::to_string(t.begin) + " of the data";
    if (t.begin < covered)
      return wrong(t.name, at + ", inside of tensor '" + printable(before->name, name_bytes_max) +
                               "', which ends at byte " + std::to_string(before->end));
    if (t.begin > covered)
      return wrong(t.name, at + ", expected " + std::to_string(covered) + ": the " +
                               std::to_string(t.begin - covered) +
                               " bytes before it belong to no tensor");
    covered = t.end;
    before = &t;
  }
  if (covered < data_bytes)
    return error{std::to_string(data_bytes - covered) + " trailing bytes belong to no tensor"};
  return success();
}

}  // namespace

result<nlohmann::json> parse_strict(std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return true;
  };
  auto made = parse_json(text, watch, depth_max);
  if (const auto* fault = std::get_if<json_fault>(&made)) return error{fault->message()};
  if (!duplicate.empty()) return error{"duplicate key '" + printable(duplicate) + "'"};
  return std::get<json>(std::move(made));
}

result<header> parse_header(std::string_view text, std::uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') return error{"the header is not a JSON object"};
  const auto parsed = parse_strict(text);
  if (!parsed) return error{"the header: " + parsed.message()};
  header h;
  for (const auto& [name, entry] : parsed->items()) {
    if (name == metadata_key) {
      auto metadata = read_metadata(entry);
      if (!metadata) return metadata.failure();
      h.metadata = std::move(*metadata);
      continue;
    }
    auto t = read_tensor(name, entry, data_bytes);
    if (!t) return t.failure();
    h.tensors.push_back(std::move(*t));
  }
  // Sorting by end too puts an empty tensor before the tensor that begins at the same byte.
  std::sort(h.tensors.begin(), h.tensors.end(), [](const tensor_info& a, const tensor_info& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  if (auto covered = check_coverage(h.tensors, data_bytes); !covered) return covered.failure();
  return h;
}

result<std::string> compose_header(std::span<const tensor_info> tensors,
                                   const string_map& metadata) {
  std::string text = "{";
  const auto add = [&](std::string_view name, const json& entry) {
    if (text.size() > 1) text += ',';
    text += json(name).dump() + ":" + entry.dump();
  };
  try {
    if (!metadata.empty()) add(metadata_key, metadata);
    for (const auto& t : tensors)
      add(t.name,
          {{"dtype", name(t.type)}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}});
  } catch (const json::exception&) {
    return error{"a tensor name or a metadata string is not UTF-8"};
  }
  text += '}';
  constexpr std::size_t alignment = 8;
  text.resize((text.size() + alignment - 1) / alignment * alignment, ' ');
  return text;
}

}  // namespace rrfp::safetensors
