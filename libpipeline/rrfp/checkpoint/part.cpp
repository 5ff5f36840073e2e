#include <rrfp/checkpoint/part.hpp>

#include <rrfp/io/parse_json.hpp>

namespace rrfp::checkpoint {

using nlohmann::json;

namespace {

/// Parses an object keyed by tensor name; `read` fills one entry. `key` names the metadata in
/// errors.
template <class Table, class Read>
result<Table> parse_table(std::string_view key, std::string_view text, Read read) {
  const auto parsed = parse_json(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed))
    return error{std::string{key} + ": " + fault->message()};
  try {
    Table all;
    for (const auto& [name, entry] : std::get<json>(parsed).items()) read(entry, all[name]);
    return all;
  } catch (const json::exception& e) {
    return error{std::string{key} + ": " + e.what()};
  }
}

}  // namespace

std::string to_json(const parts& all) {
  json made = json::object();
  for (const auto& [name, p] : all)
    made[name] = {{"whole", p.whole},
                  {"dimension", p.dimension},
                  {"blocks", p.blocks},
                  {"offset", p.offset},
                  {"length", p.length}};
  return made.dump();
}

result<parts> parse_parts(std::string_view text) {
  return parse_table<parts>(parts_key, text, [](const json& entry, shard& p) {
    entry.at("whole").get_to(p.whole);
    entry.at("dimension").get_to(p.dimension);
    entry.at("blocks").get_to(p.blocks);
    entry.at("offset").get_to(p.offset);
    entry.at("length").get_to(p.length);
  });
}

std::string to_json(const stored_forms& all) {
  json made = json::object();
  for (const auto& [name, form] : all)
    made[name] = {{"transposed", form.transposed}, {"sizes", form.sizes}};
  return made.dump();
}

result<stored_forms> parse_stored(std::string_view text) {
  return parse_table<stored_forms>(stored_key, text, [](const json& entry, stored_form& form) {
    entry.at("transposed").get_to(form.transposed);
    entry.at("sizes").get_to(form.sizes);
  });
}

status check_part(const shard& p, std::span<const std::int64_t> shape) {
  const error mismatch{"the tensor does not match its entry in rrfp.parts"};
  if (p.dimension < 0 || p.dimension >= std::ssize(p.whole) || p.whole.size() != shape.size())
    return mismatch;
  for (std::int64_t d = 0; d < std::ssize(shape); ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (d != p.dimension && shape[at] != p.whole[at]) return mismatch;
  }
  const auto cut = static_cast<std::size_t>(p.dimension);
  if (p.blocks < 1 || p.whole[cut] % p.blocks != 0 || p.offset < 0 || p.length < 0) return mismatch;
  const auto block = p.whole[cut] / p.blocks;
  if (p.length > block || p.offset > block - p.length) return mismatch;
  if (shape[cut] != p.length * p.blocks) return mismatch;
  return success();
}

}  // namespace rrfp::checkpoint
