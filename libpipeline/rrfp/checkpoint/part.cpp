#include <rrfp/checkpoint/part.hpp>

#include <rrfp/io/parse_json.hpp>

namespace rrfp {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(shard, whole, dimension, blocks, offset, length)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(stored_form, transposed, sizes)

}  // namespace rrfp

namespace rrfp::checkpoint {

using nlohmann::json;

namespace {

/// Parses an object keyed by tensor name. `key` names the metadata in errors.
template <class Table>
result<Table> parse_table(std::string_view key, std::string_view text) {
  const auto parsed = parse_json(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed))
    return error{std::string{key} + ": " + fault->message()};
  try {
    Table all;
    for (const auto& [name, entry] : std::get<json>(parsed).items()) entry.get_to(all[name]);
    return all;
  } catch (const json::exception& e) {
    return error{std::string{key} + ": " + e.what()};
  }
}

}  // namespace

std::string to_json(const parts& all) { return json(all).dump(); }
std::string to_json(const stored_forms& all) { return json(all).dump(); }

result<parts> parse_parts(std::string_view text) { return parse_table<parts>(parts_key, text); }
result<stored_forms> parse_stored(std::string_view text) {
  return parse_table<stored_forms>(stored_key, text);
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
