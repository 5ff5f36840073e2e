/// A key of a job and its value.
#pragma once

#include <string>

namespace rrfp {

struct setting {
  std::string key;
  std::string value;  ///< as TOML

  bool operator==(const setting&) const = default;
};

}  // namespace rrfp
