/// Why a run, or its start, ended.
#pragma once

#include <string>

#include <rrfp/actors/session.hpp>

namespace rrfp::actors {

struct end_cause {
  ending how = ending::failed;
  std::string message;
};

}  // namespace rrfp::actors
