/// Schedules as CSV in the format of torch.distributed.pipelining (`_dump_csv`, compute only): one
/// row per stage, one cell per task. `0F3` is the forward of microbatch 3 on *virtual* stage 0, `I`
/// the input gradient (our B), `W` the weight gradient, `B` the full backward (our BW). A pair
/// whose communication overlaps, `(0F8;7B0)OVERLAP_F_B`, is read as its two tasks, one after the
/// other. Empty cells and lines are skipped; blanks and quotes around a cell are removed.
/// Communication cells (`0SEND_F3`) are refused: what a stage sends follows from its tasks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

/// Every task must belong to the shape and to the stage of its row; check_sequences() checks that
/// the orders are complete and terminate. `source` names the text in errors; lines and cells count
/// from 1: "source:2: cell 4: expected ..., got ...".
result<std::vector<sequence>> read_csv(std::string_view text, const pipeline_shape& shape,
                                       std::string_view source);

/// The inverse of read_csv(): one sequence per stage, without empty cells.
std::string write_csv(const std::vector<sequence>& sequences, const pipeline_shape& shape);

}  // namespace rrfp::policies
