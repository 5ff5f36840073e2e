#include "messages.hpp"

namespace rrfp::actors {

void add_messages(caf::actor_system_config& config) {
  add_message<host_supervisors>(config, "rrfp.host_supervisors");
  add_message<supervisors_hosted>(config, "rrfp.supervisors_hosted");
  add_message<host_ranks>(config, "rrfp.host_ranks");
  add_message<ranks_hosted>(config, "rrfp.ranks_hosted");
  add_message<stage_ranks>(config, "rrfp.crew");
  add_message<begin_step>(config, "rrfp.begin_step");
  add_message<arrived>(config, "rrfp.arrived");
  add_message<run_launch>(config, "rrfp.run_launch");
  add_message<launch_done>(config, "rrfp.launch_done");
  add_message<end_step>(config, "rrfp.end_step");
  add_message<rank_step_ended>(config, "rrfp.rank_step_ended");
  add_message<stage_step_ended>(config, "rrfp.stage_step_ended");
  add_message<apply_update>(config, "rrfp.apply_update");
  add_message<update_applied>(config, "rrfp.update_applied");
  add_message<step_over>(config, "rrfp.step_over");
  add_message<take_snapshot>(config, "rrfp.take_snapshot");
  add_message<snapshot_taken>(config, "rrfp.snapshot_taken");
  add_message<snapshot_written>(config, "rrfp.snapshot_written");
  add_message<report_weights>(config, "rrfp.report_weights");
  add_message<stage_weights>(config, "rrfp.stage_weights");
  add_message<report_progress>(config, "rrfp.report_progress");
  add_message<stage_progress>(config, "rrfp.stage_progress");
  add_message<report_requested>(config, "rrfp.report_asked");
  add_message<write_report>(config, "rrfp.write_report");
  add_message<stop>(config, "rrfp.stop");
  add_message<failed>(config, "rrfp.failed");
  add_message<node_lost>(config, "rrfp.node_lost");
  add_message<interrupted>(config, "rrfp.interrupted");
  add_message<job_ended>(config, "rrfp.job_ended");
}

}  // namespace rrfp::actors
