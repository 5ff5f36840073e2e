/// Manifests of checkpoints: as they come, and with their checksum corrected.
#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/io/parse_json.hpp>

#include "promises.hpp"

using namespace rrfp;

namespace {

void read(std::string_view text) {
  const auto m = checkpoint::parse_manifest(text);
  if (!m) return fuzz::promise_line(m.message());
  for (const auto& f : m->files)
    fuzz::promise(f.name.find('/') == f.name.npos && f.name != "..",
                  "a file of a checkpoint is in its folder", f.name);
  const auto written = checkpoint::to_json(*m);
  const auto again = checkpoint::parse_manifest(written);
  fuzz::promise(again.ok() && checkpoint::to_json(*again) == written,
                "a manifest is read as it was written", written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = fuzz::text_of(data, size);
  read(text);
  auto parsed = parse_json<nlohmann::ordered_json>(text);
  auto* const object = std::get_if<nlohmann::ordered_json>(&parsed);
  if (object == nullptr || !object->is_object()) return 0;
  object->erase("xxh64");
  (*object)["xxh64"] = checkpoint::hex(checkpoint::checksum_of(object->dump()));
  read(object->dump());
  return 0;
}
