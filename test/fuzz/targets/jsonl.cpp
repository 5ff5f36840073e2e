/// JSON lines: documents, and texts with images.
#include <rrfp/data/input_file.hpp>
#include <rrfp/data/json_line.hpp>

#include "promises.hpp"

using namespace rrfp;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = fuzz::text_of(data, size);
  static const fuzz::memory_file made;
  made.write(text);
  const auto file = data::input_file::open(made.path());
  fuzz::promise(file.ok(), "a file can be opened");
  std::uint64_t number = 0;
  const auto read =
      data::for_each_line(**file, [&](std::string_view line, data::line_place place) -> status {
        fuzz::promise(place.number > number && text.substr(place.offset, place.bytes) == line &&
                          line.find('\n') == line.npos,
                      "a line is where the file has it");
        number = place.number;
        const auto document = data::read_document(line, "text");
        if (const auto* bad = data::fault_of(document)) fuzz::promise_line(bad->message);
        const auto captioned = data::read_captioned(line, "text");
        if (const auto* bad = data::fault_of(captioned)) fuzz::promise_line(bad->message);
        return success();
      });
  fuzz::promise(read.ok(), "a file can be read");
  return 0;
}
