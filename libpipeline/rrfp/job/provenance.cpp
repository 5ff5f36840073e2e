#include <rrfp/job/provenance.hpp>

#include <rrfp/job/value.hpp>

namespace rrfp::job {

error origin::blame(std::string_view key, const std::string& message) const {
  return error{place + ": " + (shows_key ? "" : std::string{key} + ": ") + message};
}

origin at_line(const std::string& source, std::uint32_t line) {
  return {line == 0 ? source : source + ":" + std::to_string(line)};
}

error provenance::blame(std::string_view key, const std::string& message,
                        std::string_view related) const {
  const auto in_variant = variant_.empty() ? "" : "variant " + in_quotes(variant_) + ": ";
  if (const auto own = set_.find(key); own != set_.end() && variant_.empty())
    return own->second.blame(key, message);
  auto place = set_.find(key);
  if (place == set_.end()) place = set_.find(related);
  if (const auto taken = adopted_.find(key); place == set_.end() && taken != adopted_.end())
    place = set_.find(taken->second.naming);
  const auto& where = place == set_.end() ? source_ : place->second.place;
  return error{where + ": " + in_variant + std::string{key} + ": " + message};
}

std::map<std::string, std::string, std::less<>> provenance::places() const {
  std::map<std::string, std::string, std::less<>> all;
  for (const auto& [key, from] : set_)
    all.emplace(key, from.place + (from.shows_key ? "" : ": " + key));
  return all;
}

std::string provenance::note(std::string_view key) const {
  if (set_.contains(key)) return "";
  const auto taken = adopted_.find(key);
  return taken == adopted_.end() ? " (the default)" : " (from " + taken->second.file + ")";
}

}  // namespace rrfp::job
