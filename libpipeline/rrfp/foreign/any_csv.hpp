/// Tasks of any other program, as CSV with a header. Columns in any order, others are ignored:
///
///   rank or stage   the stage, from 0
///   chunk           optional: which part of the stage's model, from 0
///   microbatch      from 0 (or `mb`)
///   kind            F, B (input gradient), W (weight gradient), or BW (both)
///   step            optional
///   start, end      in milliseconds on one clock (or start_ms or begin_ms, and end_ms)
///
/// With two chunks the placement is V if the last stage runs the second chunk of a microbatch
/// first, else interleaved.
#pragma once

#include <string_view>

#include <rrfp/foreign/read_traces.hpp>

namespace rrfp::foreign {

/// Whether the line can be such a header.
bool is_csv_header(std::string_view line);

/// Errors: "file:line: expected ..., got ...".
result<found_run> read_csv_trace(const std::string& file);

}  // namespace rrfp::foreign
