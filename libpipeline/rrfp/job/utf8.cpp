#include <rrfp/base/printable.hpp>
#include <rrfp/job/utf8.hpp>

namespace rrfp::job {

status check_utf8(std::string_view text) {
  const auto at = end_of_utf8(text);
  if (at == text.size()) return success();
  constexpr char hex[] = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(text[at]);
  return error{std::string{"expected UTF-8, got the byte 0x"} + hex[byte >> 4] + hex[byte & 15] +
               " at " + std::to_string(at)};
}

status check_utf8(const value& v) {
  if (const auto* text = std::get_if<std::string>(&v.data))
    return check_utf8(std::string_view{*text});
  if (const auto* list = std::get_if<value_list>(&v.data))
    for (const auto& item : *list)
      if (auto good = check_utf8(item); !good) return good;
  return success();
}

}  // namespace rrfp::job
