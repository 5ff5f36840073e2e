#include <rrfp/safetensors/writer.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <rrfp/base/bytes.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/io/atomic_file.hpp>
#include <rrfp/safetensors/file.hpp>

#include "header.hpp"

namespace rrfp::safetensors {

result<std::vector<tensor_info>> lay_out(std::vector<tensor_spec> tensors) {
  std::set<std::string_view> names;
  for (const auto& t : tensors) {
    if (t.name == metadata_key) return error{"tensor '" + t.name + "': the name is reserved"};
    if (!names.insert(t.name).second) return error{"tensor '" + t.name + "' is declared twice"};
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return item_bytes(a.type) > item_bytes(b.type);
  });
  std::vector<tensor_info> placed;
  std::uint64_t at = 0;
  for (auto& t : tensors) {
    const auto bytes = byte_size(t.type, t.shape);
    if (!bytes) return error{"tensor '" + t.name + "': " + bytes.message()};
    placed.push_back({std::move(t), at, at + *bytes});
    at += *bytes;
  }
  return placed;
}

writer::writer(std::vector<tensor_info> tensors, std::unique_ptr<io::atomic_file> to,
               byte_observer observe)
    : tensors_(std::move(tensors)), to_(std::move(to)), observe_(std::move(observe)) {}

writer::~writer() = default;

result<std::unique_ptr<writer>> writer::create(const std::string& path,
                                               std::vector<tensor_spec> tensors,
                                               const string_map& metadata, byte_observer observe) {
  auto placed = lay_out(std::move(tensors));
  if (!placed) return error{path + ": " + placed.message()};
  const auto text = compose_header(*placed, metadata);
  if (!text) return error{path + ": " + text.message()};
  if (text->size() > header_bytes_max)
    return error{path + ": a header of " + std::to_string(text->size()) +
                 " bytes: expected at most " + std::to_string(header_bytes_max)};
  auto to = io::atomic_file::create(path);
  if (!to) return to.failure();
  std::unique_ptr<writer> made{new writer{std::move(*placed), std::move(*to), std::move(observe)}};
  byte_writer length;
  length.put(std::uint64_t{text->size()});
  const auto head = length.take() + *text;
  if (auto written = made->append(std::as_bytes(std::span{head})); !written)
    return written.failure();
  return made;
}

status writer::append(std::span<const std::byte> bytes) {
  if (auto written = to_->write(bytes); !written) return written;
  if (observe_) observe_(bytes);
  return success();
}

status writer::write(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return success();
  while (next_ < tensors_.size() && tensors_[next_].end == written_) ++next_;
  RRFP_CHECK(next_ < tensors_.size() && tensors_[next_].name == name,
             "tensors are written in the order that the writer gives");
  RRFP_CHECK(bytes.size() <= tensors_[next_].end - written_, "no more bytes than the tensor has");
  written_ += bytes.size();
  return append(bytes);
}

status writer::finish() {
  RRFP_CHECK(tensors_.empty() || written_ == tensors_.back().end, "every tensor is written");
  return to_->commit();
}

}  // namespace rrfp::safetensors
