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
  const auto read = data::for_each_line(**file, [&](const data::text_line& line) -> status {
    fuzz::promise(line.number > number && text.substr(line.offset, line.text.size()) == line.text &&
                      line.text.find('\n') == line.text.npos,
                  "a line is where the file has it");
    number = line.number;
    const auto document = data::read_document(line.text, "text");
    if (const auto* bad = data::fault_of(document)) fuzz::promise_line(bad->message);
    const auto captioned = data::read_captioned(line.text, "text");
    if (const auto* bad = data::fault_of(captioned)) fuzz::promise_line(bad->message);
    return success();
  });
  fuzz::promise(read.ok(), "a file can be read");
  return 0;
}
