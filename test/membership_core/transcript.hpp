/// Transcripts of a membership core as text: a line for each event, then the actions, indented, and
/// the phase if it changed.
///
///   node 0 of 3           a new core; a heartbeat each 200 ms, the node timeout is 1500 ms
///   at 1200               milliseconds
///   opened 4              connection 4, from 10.0.0.4:9
///   proven 4 2            it is node 2
///   received 4 lost 0 it sent no heartbeat
///   run 3000 heard 4 5    a turn each 100 ms until then, with bytes from 4 and 5
///
/// `run` leaves out pings, and says when the other actions come.
#pragma once

#include <string>

namespace rrfp::testing {

std::string replayed(const std::string& text);

}  // namespace rrfp::testing
