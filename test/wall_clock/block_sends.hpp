/// Blocking sends for a session of the tests.
#pragma once

#include <memory>
#include <utility>

#include <rrfp/actors/session.hpp>

#include "blocking_sends.hpp"

namespace rrfp::actors::test {

inline void block_sends(session_setup& s) {
  s.wrap_transport = [shape = s.shape, make_policy = s.rule.make_policy](auto inner) {
    return std::make_unique<experiment::blocking_transport>(std::move(inner), shape, make_policy);
  };
}

}  // namespace rrfp::actors::test
