/// From a job file to a session.
#pragma once

#include <memory>

#include <rrfp/actors/session.hpp>
#include <rrfp/data/source.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/plan/plan.hpp>

namespace rrfp::actors {

/// The data of the job; null if its device is emulated and reads none. Error: what is wrong with a
/// path or its contents, naming it.
result<std::shared_ptr<const data::source>> open_data(const job::job& j);

/// Error: this machine lacks what device.kind asks for, in words that name it. Looks before data is
/// read and before anything is computed in this process: what is loaded then is for all runs.
status check_device(const job::job& j);

/// Error: obeyed to the letter, the sequence of the policy needs more than dispatch.slot_bytes.
status check_order_fits(const job::job& j, const plan::dispatch_plan& dispatch);

/// Policies, limits, weather and training of the job, for a model and data that it does not know:
/// they, checkpoints and hooks are the caller's to set.
result<session_setup> make_setup_without_model(const job::job& j);

/// A session of the job's model on `data`, or of its emulation, with the policies, limits and
/// weather of the job. Hooks (on_step, trace, ...) are the caller's to set, and so are what the run
/// goes on from and, on the node that runs the job, the ring that its checkpoints go to
/// (job_checkpoint.hpp).
result<session_setup> make_session_setup(const job::job& j,
                                         std::shared_ptr<const data::source> data);

}  // namespace rrfp::actors
