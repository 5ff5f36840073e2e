/// A schedule read from a CSV file and checked before the run.
#include <string>

#include <rrfp/core/sequence.hpp>
#include <rrfp/io/text_file.hpp>
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/table_csv.hpp>

namespace rrfp::policies {

namespace {

/// Far above any real table; refuses a wrong path (a device, a checkpoint) instead of reading it.
constexpr std::size_t table_bytes_max = std::size_t{64} << 20;

}  // namespace

result<std::vector<sequence>> table(std::string_view path, const pipeline_shape& shape) {
  const std::string source{path};
  const auto text = files::read_text_file(source, table_bytes_max, "a CSV file with a schedule");
  if (!text) return text.failure();
  auto orders = read_csv(*text, shape, source);
  if (!orders) return orders;
  if (auto feasible = check_sequences(shape, *orders); !feasible)
    return error{source + ": " + feasible.message()};
  return orders;
}

}  // namespace rrfp::policies
