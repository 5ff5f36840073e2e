/// Makes a session from a job file.
#pragma once

#include <memory>

#include <rrfp/actors/session.hpp>
#include <rrfp/data/source.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/plan/plan.hpp>

namespace rrfp::actors {

/// The data of the job; null for an emulated device, which reads none. Error: names the path and
/// what is wrong with it or its contents.
result<std::shared_ptr<const data::source>> open_data(const job::job& j);

/// Error: names what this machine lacks for device.kind. To be called before data is read and
/// before this process computes anything: the libraries that it loads serve all runs.
status check_device(const job::job& j);

/// Error: in mode in-order, the sequence of the policy needs more than dispatch.slot_bytes.
status check_order_fits(const job::job& j, const plan::dispatch_plan& dispatch);

/// Policies, limits, weather and training of the job, for a model and data that the job file does
/// not describe. The caller sets them, checkpoints and hooks.
result<session_setup> make_setup_without_model(const job::job& j);

/// A session of the job's model on `data`, or of its emulation, with the policies, limits and
/// weather of the job. The caller sets hooks (on_step, trace, ...), the checkpoint to resume from
/// and, on node 0, the checkpoint ring (job_checkpoint.hpp).
result<session_setup> make_session_setup(const job::job& j,
                                         std::shared_ptr<const data::source> data);

}  // namespace rrfp::actors
