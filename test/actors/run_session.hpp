/// A session that opens, and its run. After headers of libtorch, which has a CHECK of its own.
#pragma once

#include <utility>

#include <rrfp/actors/session.hpp>

#include <catch2/catch.hpp>

namespace rrfp::actors::test {

inline run_result run_session(session_setup setup) {
  auto opened = session::open(std::move(setup));
  REQUIRE(opened.ok());
  return (*opened)->run();
}

}  // namespace rrfp::actors::test
