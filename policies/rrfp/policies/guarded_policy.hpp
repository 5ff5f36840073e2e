/// Policies that a user wrote, in a library or a program.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

/// Calls `work`; the exceptions of the policy get the name of its function, and all become
/// std::exceptions of one line.
template <class Work>
auto calling(const std::string& name, const char* function, Work work) {
  const auto failed = [&](std::string why) {
    return std::runtime_error("policy '" + name + "': " + function + " threw" +
                              why.substr(0, why.find('\n')));
  };
  try {
    return work();
  } catch (const std::exception& e) {
    throw failed(std::string{": "} + e.what());
  } catch (...) {
    throw failed(" an object that is not a std::exception");
  }
}

/// Passes the calls on to `own`, and throws where it breaks a rule while it runs. `name`: for the
/// messages.
std::unique_ptr<policy> guarded(std::string name, std::unique_ptr<policy> own);

}  // namespace rrfp::policies
