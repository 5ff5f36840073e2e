#include "line_index.hpp"

#include <stdexcept>

namespace rrfp::data {

status line_index::read(const std::vector<std::string>& paths,
                        const std::function<status(std::string_view, line_place)>& use) {
  for (const auto& path : paths) {
    auto file = input_file::open(path);
    if (!file) return error{path + ": " + file.message()};
    const auto number = static_cast<std::uint32_t>(files_.size());
    files_.push_back(std::move(*file));
    auto read = for_each_line(*files_.back(), [&](std::string_view text, line_place place) {
      hash_ = XXH64(text.data(), text.size(), hash_);
      place.file = number;
      return use(text, place);
    });
    if (!read) return read;
  }
  return success();
}

std::string line_index::where(const line_place& place) const {
  return path(place) + ":" + std::to_string(place.number);
}

std::string line_index::load(const line_place& place) const {
  std::string line(place.bytes, '\0');
  const auto got = files_[place.file]->read(
      place.offset, {reinterpret_cast<std::uint8_t*>(line.data()), line.size()});
  if (!got) throw std::runtime_error(where(place) + ": " + got.message());
  return line;
}

}  // namespace rrfp::data
