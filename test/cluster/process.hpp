/// One process of a node: what run_job.cpp does around a membership and the sessions. It may be
/// suspended, and it may be gone at any time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <rrfp/base/exit_code.hpp>
#include <rrfp/core/recovery_point.hpp>

#include "member.hpp"
#include "session.hpp"

namespace rrfp::cluster {

class simulation;

class process {
 public:
  struct identity {
    std::uint32_t node = 0;
    std::uint32_t version = 1;
    std::uint64_t key = 7;
  };

  /// As actors::process_fence.
  struct place {
    membership_core::process_id process;
    std::set<membership_core::process_id> lost;
    membership_core::leader_choice choice;
    bool has_joined = false;
    bool is_over = false;
    std::optional<nanoseconds> awake_at{};

    bool is_lost() const { return lost.contains(process); }
  };

  process(simulation& in, std::uint32_t id, identity who);
  ~process();

  void begin();
  /// Ends it from outside. `silently`: its machine is gone, too, so nobody sees its connections
  /// end.
  void kill(bool silently);
  void suspend(nanoseconds until);
  void reset_control();
  /// A signal of the user, or of whoever starts nodes.
  void interrupt();
  /// This node alone is told to end.
  void drain();
  void ask_report();

  /// It has joined, or tries to.
  bool is_member() const { return member_ != nullptr; }
  bool is_alive() const { return !code_ && !was_killed_; }
  bool was_killed() const { return was_killed_; }
  bool was_interrupted() const { return interrupts_ > 0; }
  bool was_told_to_end() const { return was_told_to_end_; }
  /// The exit code, unless it runs or was killed.
  std::optional<int> code() const { return code_; }
  const std::string& last_words() const { return last_words_; }

  /// Where others find it should it lead, and what answers there until it does: a connection that
  /// ends at once.
  rendezvous& life_line() { return life_line_; }
  void rest_life_line();
  /// Whether `from` finds out within `limit` that this process has ended or is stopped.
  bool is_seen_gone(std::uint32_t from, nanoseconds limit) const;

  place& fence() { return fence_; }
  const place& fence() const { return fence_; }

  std::uint32_t id() const { return id_; }
  std::uint32_t node() const { return who_.node; }
  /// The node that leads its membership.
  node_id leader() const { return member_->leader(); }
  bool leads() const { return leader() == node_id{node()}; }
  /// Of its run; equal on all nodes.
  std::uint64_t token() const { return token_; }
  /// Which membership it is in, of those that it has begun; nothing if that is not whole.
  std::optional<std::uint64_t> whole_membership() const;
  std::string name() const;
  simulation& sim() { return sim_; }
  world& w() const;
  const scenario& c() const;
  /// Nanoseconds of this machine's clock.
  nanoseconds local_now() const;
  nanoseconds suspended_until() const { return suspended_until_; }
  nanoseconds resumes_at() const { return std::max(w().now(), suspended_until_); }
  /// Does the work then, unless the process is gone; not before it resumes.
  void later(nanoseconds after, std::function<void()> work);
  void note(const std::string& line) const;
  /// For the trace of a run that fails.
  std::string waits_for() const;

  // For the session.
  held_copies& copies() { return copies_; }
  void note_step(std::uint64_t step) { report_.steps = step; }
  void set_status(const std::string& text) { member_->set_status(text); }
  void note_progress() { progress_ = local_now(); }
  nanoseconds silence() const { return local_now() - progress_; }
  void begin_disk_work() { ++disk_work_; }
  void end_disk_work() { --disk_work_; }

 private:
  using texts = std::vector<std::string>;
  /// Of node 0: what it answers to the contributions of all nodes.
  using answering = std::function<result<texts>(const texts& all)>;
  using receiver = std::function<void(result<std::string>)>;

  // One membership: take_part().
  void join();
  void try_to_join(nanoseconds limit);
  void end_told();
  void on_finished(const result<std::string>& agreed);
  void leave(int code, nanoseconds limit);
  void give_up_joining(const std::string& why, error_kind kind);
  void on_joined();
  void exchange(std::string bytes, nanoseconds limit, std::function<texts(const texts&)> answer,
                receiver then, bool last = false);
  void on_exchanged(result<texts> got);
  /// As exchange, and a failure of any node is one of all.
  void agree(const result<std::string>& mine, answering answer, receiver then);
  void agree(const result<std::string>& mine, receiver then);
  void agree_on_start(bool has_joined);
  result<texts> begin_with(const texts& reports);
  result<texts> introduce(const texts& numbers, const recovery_point& from) const;
  void wait_for_outputs();
  void end_membership(int code);
  void end_interrupted();
  void give_up_drain();

  // The runs.
  bool may_recover() const { return report_.totals.restarts < c().max_restarts; }
  void clear_copies();
  void go_on(recovery_point from, std::optional<std::uint64_t> resume);
  void write_outputs();
  status resume(session_setup& setup, std::uint64_t step);
  void open_session(session_setup setup, const status& ready);
  void meet();
  void on_run_ended();
  void close_session(run_end how);
  void finish_run(const run_end& how);
  int end_with(const run_end& how);
  int lose(const std::string& why);
  void exit(int code, const std::string& words);

  simulation& sim_;
  const std::uint32_t id_;
  const identity who_;
  place fence_;
  rendezvous life_line_;
  random_source random_;
  nanoseconds suspended_until_ = 0;
  nanoseconds progress_ = 0;
  std::optional<int> code_;
  std::optional<int> code_when_left_;
  bool was_killed_ = false;
  std::string last_words_;

  std::unique_ptr<member> member_;
  std::uint64_t memberships_ = 0;
  bool has_joined_ = false;
  nanoseconds join_until_ = 0;
  nanoseconds join_began_ = 0;
  std::function<texts(const texts&)> answer_;
  receiver exchanged_;
  std::uint64_t token_ = 0;
  std::vector<node_id> absent_;
  std::unique_ptr<session> session_;
  bool has_met_ = false;                        ///< the nodes of session_
  std::optional<run_end> ended_;                ///< of session_
  std::vector<std::unique_ptr<session>> over_;  ///< events under way may still name them
  std::vector<std::unique_ptr<member>> left_;
  held_copies copies_;
  recovery_report report_;
  std::optional<nanoseconds> lost_at_;
  std::vector<run_record> finished_;
  bool written_ = false;
  bool waits_for_outputs_ = false;
  std::uint32_t interrupts_ = 0;
  bool was_told_to_end_ = false;
  bool is_draining_ = false;
  bool is_handed_over_ = false;
  std::uint32_t disk_work_ = 0;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

}  // namespace rrfp::cluster
