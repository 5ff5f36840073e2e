#include <rrfp/actors/checkpoint_tensors.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/part.hpp>
#include <rrfp/safetensors/file.hpp>
#include <rrfp/safetensors/writer.hpp>

namespace rrfp::actors {

namespace {

/// A view of the mapped bytes, or a copy where they are not aligned to their elements.
tensor_buffer buffer_of(const std::shared_ptr<const safetensors::file>& in,
                        const safetensors::tensor_info& t) {
  const auto bytes = in->bytes(t);
  tensor_buffer view;
  view.type = t.type;
  view.sizes = t.shape;
  view.data = const_cast<std::byte*>(bytes.data());
  view.owner = in;
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % item_bytes(t.type) == 0;
  return aligned && !bytes.empty() ? view : copy_of(view);
}

/// Parses the metadata entry; a default value if it is missing.
template <class T>
result<T> read_metadata(const safetensors::string_map& metadata, std::string_view key,
                        result<T> (*parse)(std::string_view)) {
  const auto at = metadata.find(key);
  return at == metadata.end() ? result<T>{T{}} : parse(at->second);
}

}  // namespace

result<checkpoint::file_entry> write_rank(const std::string& folder, stage_id stage, rank_id rank,
                                          std::uint64_t step,
                                          std::span<const compute::named_buffer> tensors) {
  const auto name = checkpoint::file_name(stage, rank);
  const auto path = (std::filesystem::path{folder} / name).string();
  std::vector<safetensors::tensor_spec> specs;
  checkpoint::parts parts;
  checkpoint::stored_forms forms;
  std::map<std::string_view, const tensor_buffer*> values;
  for (const auto& t : tensors) {
    if (safetensors::name(t.value.type).empty())
      return error{path + ": tensor '" + t.name + "': safetensors has no dtype for its elements"};
    specs.push_back({t.name, t.value.type, t.value.sizes});
    if (t.part) parts[t.name] = *t.part;
    if (t.stored != stored_form{}) forms[t.name] = t.stored;
    values[t.name] = &t.value;
  }
  checkpoint::checksum sum;
  auto to = safetensors::writer::create(
      path, std::move(specs),
      {{std::string{checkpoint::parts_key}, checkpoint::to_json(parts)},
       {std::string{checkpoint::stored_key}, checkpoint::to_json(forms)},
       {"rrfp.step", std::to_string(step)}},
      [&](std::span<const std::byte> bytes) { sum.add(bytes); });
  if (!to) return to.failure();
  for (const auto& t : (*to)->tensors())
    if (auto written = (*to)->write(t.name, values.at(t.name)->content()); !written)
      return written.failure();
  if (auto done = (*to)->finish(); !done) return done.failure();
  return checkpoint::file_entry{name, sum.bytes(), sum.value()};
}

result<std::vector<compute::named_buffer>> open_tensors(const checkpoint::found_checkpoint& from) {
  std::vector<compute::named_buffer> all;
  for (const auto& f : from.contents.files) {
    const auto path = (std::filesystem::path{from.folder} / f.name).string();
    const auto in = safetensors::file::open(path);
    if (!in) return in.failure();
    const auto parts =
        read_metadata((*in)->metadata(), checkpoint::parts_key, &checkpoint::parse_parts);
    if (!parts) return error{path + ": " + parts.message()};
    const auto forms =
        read_metadata((*in)->metadata(), checkpoint::stored_key, &checkpoint::parse_stored);
    if (!forms) return error{path + ": " + forms.message()};
    for (const auto& t : (*in)->tensors()) {
      compute::named_buffer piece{t.name, buffer_of(*in, t)};
      if (const auto at = parts->find(t.name); at != parts->end()) {
        if (auto fits = checkpoint::check_part(at->second, t.shape); !fits)
          return error{path + ": tensor '" + t.name + "': " + fits.message()};
        piece.part = at->second;
      }
      if (const auto at = forms->find(t.name); at != forms->end()) piece.stored = at->second;
      all.push_back(std::move(piece));
    }
  }
  return all;
}

}  // namespace rrfp::actors
