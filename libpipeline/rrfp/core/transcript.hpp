/// Events and actions as lines of text, so that a run can be recorded and compared.
///
///   step 3 100 100              a step; the numbers are slot_bytes
///   arrived F2.1 rank 0         arrived B2 rank 1
///   finished 17 rank 0
///   decide
///   abort
///   launch 17 BW2 skipped_not_ready 3 folds 2+1
///   wait memory F5
#pragma once

#include <string>

#include <rrfp/core/event.hpp>

namespace rrfp {

std::string to_line(const event& e);
std::string to_line(const action& a);

}  // namespace rrfp
