/// Reads NVTX ranges that Nsight Systems recorded, from two tables that
///
///   nsys stats --report nvtx_pushpop_trace,cuda_kern_exec_trace --format csv --output . X.nsys-rep
///
/// writes: X_nvtx_pushpop_trace.csv, the ranges of the host, and X_cuda_kern_exec_trace.csv, when
/// each kernel was launched and when it ran. Ranges are those of
///
///   torch.autograd.profiler.emit_nvtx()   the names of rank_trace.hpp, and "aten::mm, seq = 7";
///                                         an operator and its gradient have the same number
///   Megatron-Core with --nvtx-ranges      its messages: a task lasts from a receive to the next
///                                         send
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rank_trace.hpp"

namespace rrfp::foreign {

enum class nsys_table : std::uint8_t { ranges, kernels, other };

/// The table whose header is in the first bytes of a file; nothing: it is not of nsys. Lines that
/// nsys prints before the header are skipped.
std::optional<nsys_table> nsys_table_in(std::string_view head);

/// X_cuda_kern_exec_trace.csv of X_nvtx_pushpop_trace.csv.
std::string kernels_beside(const std::string& ranges);

/// One trace for each process with ranges of a pipeline, in the order of their numbers; one that is
/// empty if there is none. `kernels`: a file; empty: none, and times are those of the host.
/// Errors: "file:line: expected ..., got ..."; Megatron's schedule is interleaved.
result<std::vector<rank_trace>> read_nvtx(const std::string& ranges, const std::string& kernels);

}  // namespace rrfp::foreign
