#include <rrfp/job/wrapped.hpp>

#include <sstream>

namespace rrfp::job {

std::string wrapped(std::string_view text, std::string_view prefix, std::size_t columns) {
  std::string out;
  std::size_t column = 0;
  std::istringstream words{std::string{text}};
  for (std::string word; words >> word; column += 1 + word.size()) {
    const bool begins = column == 0 || column + 1 + word.size() > columns;
    if (begins) {
      if (column != 0) out += "\n";
      out += prefix;
      column = prefix.size() - 1;
    } else {
      out += " ";
    }
    out += word;
  }
  return out.empty() ? out : out + "\n";
}

}  // namespace rrfp::job
