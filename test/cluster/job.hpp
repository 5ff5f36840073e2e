/// The job on node 0: what job_actor.cpp and run_totals.cpp do around job_core.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/core/job_core.hpp>

#include "disk.hpp"
#include "mail.hpp"
#include "world.hpp"

namespace rrfp::cluster {

class session;

class job {
 public:
  explicit job(session& on);
  ~job() { *lives_ = false; }

  void feed(job_event::any e);
  void read(const mail& m);

 private:
  /// What the job has added up, and what it goes on from after a loss.
  struct history {
    std::uint64_t steps = 0;
    symbol losses = 0;
    symbol evaluations = 0;
    std::uint64_t evaluations_done = 0;
    std::uint64_t saved_step = 0;
    /// Complete when the job began the run. If there are any, the rest is without them.
    std::uint64_t began_after = 0;
  };
  friend auto fields(auto f, history& x) {
    return f(x.steps, x.losses, x.evaluations, x.evaluations_done, x.saved_step, x.began_after);
  }
  struct outcome {
    std::vector<symbol> losses;
    std::vector<symbol> norms;
  };

  job_core_options core_options();
  std::string details() const;
  void send_record(bool is_complete);
  microbatch_shares draw_shares(step_id step) const;
  bool go_on_from(const std::string& written);
  void answer(job_event::any e) { answer_ = std::move(e); }

  void carry_out(const job_action::restore_state&);
  void carry_out(const job_action::begin_step& a);
  void carry_out(const job_action::add_up& a);
  void carry_out(const job_action::apply_update& a);
  void carry_out(const job_action::finish_step& a);
  void carry_out(const job_action::state_ready&) {}  // of a run on request
  void carry_out(const job_action::open_save& a);
  void carry_out(const job_action::take_snapshot& a);
  void carry_out(const job_action::commit_save& a);
  void carry_out(const job_action::end_save& a);
  void carry_out(const job_action::copy_state& a);
  void carry_out(const job_action::keep_copies& a);
  void carry_out(const job_action::drop_copies& a);
  void carry_out(const job_action::report_weights&);
  void carry_out(const job_action::compare_weights&);
  void carry_out(const job_action::ask_progress&);
  void carry_out(const job_action::write_reports&) {}
  void carry_out(const job_action::note_progress&);
  void carry_out(const job_action::set_timer& a);
  void carry_out(const job_action::end& a);

  session& on_;
  const scenario& c_;
  history history_;
  job_core core_;
  std::optional<job_event::any> answer_;
  step_id step_;
  microbatch_shares shares_;  ///< of it
  std::map<stage_key, outcome> outcomes_;
  symbol loss_ = 0;
  symbol scale_ = 0;
  symbol evaluation_ = 0;
  std::uint32_t batches_ = 0;
  job_record record_;
  std::optional<nanoseconds> copies_since_;  ///< nothing: none are being made
  std::map<rank_address, rank_state> weights_;
  symbol weights_hash_ = 0;
  std::vector<saved_file> files_;
  std::string history_to_save_;
  bool has_ended_ = false;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

}  // namespace rrfp::cluster
