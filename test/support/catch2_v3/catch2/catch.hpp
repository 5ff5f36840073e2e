/// Catch2 3 under the names of Catch2 2, which the tests use: Debian 12 has version 2, Debian 13
/// has version 3.
#pragma once

#include <catch2/catch_all.hpp>

namespace Catch {
using Matchers::ContainsSubstring;
using Matchers::EndsWith;
using Matchers::StartsWith;
}  // namespace Catch

using Catch::Approx;

// In version 3 this name means a matcher of ranges.
#define Contains ContainsSubstring
