#include <rrfp/checkpoint/manifest.hpp>

#include <algorithm>
#include <ctime>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/base/printable.hpp>
#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp::checkpoint {

namespace {

/// The checksum covers the dumped text, so keys must keep their order.
using nlohmann::ordered_json;

constexpr const char* sum_key = "xxh64";

ordered_json json_of(const std::vector<setting>& settings) {
  ordered_json made = ordered_json::object();
  for (const auto& s : settings) made[s.key] = s.value;
  return made;
}

std::vector<setting> settings_of(const ordered_json& object) {
  std::vector<setting> all;
  for (const auto& [key, value] : object.items()) all.push_back({key, value.get<std::string>()});
  return all;
}

result<std::uint64_t> from_hex(const std::string& text) {
  const auto value = parse_number<std::uint64_t>(text, 16);
  if (text.size() != 16 || !value)
    return error{"expected 16 hexadecimal digits, got '" + printable(text) + "'"};
  return *value;
}

std::string hex_of_bytes(const std::string& bytes) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const auto b : bytes) {
    text += digits[static_cast<unsigned char>(b) >> 4];
    text += digits[static_cast<unsigned char>(b) & 15];
  }
  return text;
}

result<std::string> bytes_of_hex(const std::string& text) {
  const auto bad = error{"expected pairs of hexadecimal digits, got '" + printable(text) + "'"};
  if (text.size() % 2 != 0) return bad;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto value = parse_number<std::uint8_t>(std::string_view{text}.substr(i, 2), 16);
    if (!value) return bad;
    bytes += static_cast<char>(*value);
  }
  return bytes;
}

/// A name with a path could make verification or removal touch files outside the folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

result<std::vector<file_entry>> files_of(const ordered_json& list) {
  std::vector<file_entry> files;
  for (const auto& entry : list) {
    file_entry f;
    entry.at("name").get_to(f.name);
    entry.at("bytes").get_to(f.bytes);
    if (!is_plain_name(f.name))
      return error{"files: expected a plain file name, got '" + printable(f.name) + "'"};
    const auto sum = from_hex(entry.at("xxh64").get<std::string>());
    if (!sum) return error{"files: " + printable(f.name) + ": xxh64: " + sum.message()};
    f.xxh64 = *sum;
    files.push_back(std::move(f));
  }
  return files;
}

result<manifest> read(const ordered_json& from) {
  manifest m;
  from.at("step").get_to(m.step);
  from.at("written_at").get_to(m.written_at);
  m.identity = settings_of(from.at("identity"));
  m.course = settings_of(from.at("course"));
  const auto& pipeline = from.at("pipeline");
  pipeline.at("stages").get_to(m.shape.stages);
  pipeline.at("chunks").get_to(m.shape.chunks);
  // For display only; nothing depends on it.
  m.shape.layout =
      placement_of(pipeline.at("placement").get<std::string>()).value_or(placement::linear);
  pipeline.at("microbatches").get_to(m.shape.microbatches);
  pipeline.at("tp").get_to(m.tp);
  pipeline.at("replicas").get_to(m.replicas);
  if (from.contains("history")) {
    auto history = bytes_of_hex(from.at("history").get<std::string>());
    if (!history) return error{"history: " + history.message()};
    m.history = *std::move(history);
  }
  auto files = files_of(from.at("files"));
  if (!files) return files.failure();
  m.files = std::move(*files);
  return m;
}

}  // namespace

std::string to_json(const manifest& m) {
  ordered_json made{{"format", format_version}, {"step", m.step}, {"written_at", m.written_at}};
  made["identity"] = json_of(m.identity);
  made["course"] = json_of(m.course);
  made["pipeline"] = {{"stages", m.shape.stages},
                      {"chunks", m.shape.chunks},
                      {"placement", std::string{name(m.shape.layout)}},
                      {"microbatches", m.shape.microbatches},
                      {"tp", m.tp},
                      {"replicas", m.replicas}};
  if (!m.history.empty()) made["history"] = hex_of_bytes(m.history);
  made["files"] = ordered_json::array();
  for (const auto& f : m.files)
    made["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"xxh64", hex(f.xxh64)}});
  made[sum_key] = hex(checksum_of(made.dump()));
  return made.dump(1) + "\n";
}

result<manifest> parse_manifest(std::string_view text) {
  auto parsed = parse_json<ordered_json>(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed))
    return error{fault->message() + ": truncated or altered"};
  auto& from = std::get<ordered_json>(parsed);
  try {
    const auto format = from.at("format").get<std::uint32_t>();
    if (format != format_version)
      return error{"expected format " + std::to_string(format_version) + ", got " +
                   std::to_string(format)};
    const auto sum = from.at(sum_key).get<std::string>();
    from.erase(sum_key);
    if (sum != hex(checksum_of(from.dump()))) return error{"altered: its checksum does not match"};
    return read(from);
  } catch (const ordered_json::exception& e) {
    return error{std::string{"not a manifest: "} + e.what()};
  }
}

std::vector<difference> differences(const std::vector<setting>& saved,
                                    const std::vector<setting>& now) {
  std::vector<difference> all;
  for (const auto& s : saved) {
    const auto at =
        std::find_if(now.begin(), now.end(), [&](const setting& n) { return n.key == s.key; });
    if (at == now.end()) all.push_back({s.key, s.value, {}});
    if (at != now.end() && at->value != s.value) all.push_back({s.key, s.value, at->value});
  }
  return all;
}

std::string utc_now() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace rrfp::checkpoint
