/// Schedules as CSV in the form of torch.distributed.pipelining (`_dump_csv`): a row a stage, a cell a
/// task: `0F3` is the forward of microbatch 3 on virtual stage 0, `I` the input gradient (our B), `W`
/// the weight gradient, `B` the full backward (our BW). Empty cells are skipped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::policies {

/// `source` names the text in errors: "source:line: cell 4: expected ..., got ...".
result<std::vector<sequence>> read_csv(std::string_view text, const pipeline_shape& shape,
                                       std::string_view source);

/// The reverse of read_csv().
std::string write_csv(const std::vector<sequence>& sequences, const pipeline_shape& shape);

}  // namespace rrfp::policies
