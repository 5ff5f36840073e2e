/// A schedule read from a CSV file and checked before the run.
#include <fstream>
#include <string>

#include <rrfp/core/sequence.hpp>
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/table_csv.hpp>

namespace rrfp::policies {

namespace {

/// Far above any real table; refuses a wrong path (a device, a checkpoint) instead of reading it.
constexpr std::size_t table_bytes_max = std::size_t{64} << 20;

result<std::string> read_file(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) return error{path + ": expected a CSV file with a schedule, cannot open it"};
  std::string text;
  char block[1 << 16];
  while (file.read(block, sizeof block), file.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(file.gcount()));
    if (text.size() > table_bytes_max)
      return error{path + ": expected at most " + std::to_string(table_bytes_max) +
                   " bytes, got more"};
  }
  // A directory can be opened, but not read.
  if (file.bad() || !file.eof()) return error{path + ": expected a CSV file, cannot read it"};
  return text;
}

}  // namespace

result<std::vector<sequence>> table(std::string_view path, const pipeline_shape& shape) {
  const std::string source{path};
  const auto text = read_file(source);
  if (!text) return text.failure();
  auto orders = read_csv(*text, shape, source);
  if (!orders) return orders;
  if (auto feasible = check_sequences(shape, *orders); !feasible)
    return error{source + ": " + feasible.message()};
  return orders;
}

}  // namespace rrfp::policies
