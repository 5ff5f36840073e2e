#include "traffic.hpp"

#include <rrfp/base/codec.hpp>

namespace rrfp::cluster {

using namespace membership_core;

std::string_view name(purpose p) {
  switch (p) {
    case purpose::joining: return "joining";
    case purpose::agreements: return "agreements";
    case purpose::heartbeats: return "heartbeats";
    case purpose::losses: return "losses";
    case purpose::steps: return "steps";
    case purpose::tensors: return "tensors";
    case purpose::saves: return "saves";
    case purpose::copies: return "copies";
    case purpose::restore: return "restore";
    case purpose::ending: return "ending";
  }
  return "?";
}

purpose purpose_of(const frame& f) {
  const auto* const m = std::get_if<any_message>(&f);
  if (m == nullptr) return purpose::joining;
  struct {
    purpose operator()(const malformed&) const { return purpose::losses; }
    purpose operator()(const introduce&) const { return purpose::joining; }
    purpose operator()(const start&) const { return purpose::joining; }
    purpose operator()(const over&) const { return purpose::ending; }
    purpose operator()(const inquiry&) const { return purpose::joining; }
    purpose operator()(const leader_returns&) const { return purpose::joining; }
    purpose operator()(const give_up&) const { return purpose::joining; }
    purpose operator()(const ping&) const { return purpose::heartbeats; }
    purpose operator()(const pong&) const { return purpose::heartbeats; }
    purpose operator()(const lost&) const { return purpose::losses; }
    purpose operator()(const goodbye&) const { return purpose::ending; }
    purpose operator()(const piece&) const { return purpose::agreements; }
    purpose operator()(const no_exchange&) const { return purpose::agreements; }
  } of;
  return std::visit(of, *m);
}

purpose purpose_of(mail_kind kind) {
  switch (kind) {
    case mail_kind::restore_state:
    case mail_kind::state_restored: return purpose::restore;
    case mail_kind::begin_step:
    case mail_kind::arrived:
    case mail_kind::run_launch:
    case mail_kind::launch_done:
    case mail_kind::end_step:
    case mail_kind::rank_step_ended:
    case mail_kind::stage_step_ended:
    case mail_kind::apply_update:
    case mail_kind::update_applied:
    case mail_kind::step_over:
    case mail_kind::report_progress:
    case mail_kind::stage_progress:
    case mail_kind::report_requested: return purpose::steps;
    case mail_kind::take_snapshot:
    case mail_kind::snapshot_taken:
    case mail_kind::snapshot_written: return purpose::saves;
    case mail_kind::copy_state:
    case mail_kind::copy_held:
    case mail_kind::copy_offered:
    case mail_kind::fetch_copy:
    case mail_kind::copy_piece:
    case mail_kind::keep_copies: return purpose::copies;
    case mail_kind::report_weights:
    case mail_kind::stage_weights:
    case mail_kind::interrupted:
    case mail_kind::drain_asked:
    case mail_kind::job_ended: return purpose::ending;
    case mail_kind::failed:
    case mail_kind::suspected: return purpose::losses;
  }
  return purpose::steps;
}

std::uint64_t bytes_of(const frame& f) {
  // A claim names the version and the job.
  constexpr std::uint64_t claim_bytes = 60;
  const auto* const m = std::get_if<any_message>(&f);
  if (m == nullptr) return claim_bytes;
  constexpr std::uint64_t frame_bytes = 5;  // length and type
  return std::visit([](const auto& x) { return frame_bytes + encoded(x).size(); }, *m);
}

}  // namespace rrfp::cluster
