#include "job.hpp"

#include <algorithm>
#include <vector>

#include <rrfp/base/step_name.hpp>

#include "cluster.hpp"
#include "process.hpp"
#include "session.hpp"

namespace rrfp::cluster {

namespace {

constexpr nanoseconds save_time_max = 2 * s;
/// Where nothing fails.
constexpr nanoseconds copy_time_max = 30 * ms;
/// A few steps.
constexpr std::uint32_t drain_ms = 5;

mail to_stages(mail_kind kind, std::uint64_t step = 0) {
  mail m;
  m.kind = kind;
  m.step = step;
  return m;
}

}  // namespace

job::job(session& on) : on_(on), c_(on.c()), core_(core_options()) {
  if (!on.setup().from.has_copies()) history_.saved_step = on.setup().first_step;
}

job_core_options job::core_options() {
  const auto& from = on_.setup().from;
  if (from.has_copies()) {
    decoder in{std::string_view{from.record.bytes}.substr(c_.record_bytes)};
    in(history_);
    RRFP_EXPECT(in.complete(), "the record of a job does not decode");
    RRFP_EXPECT(history_.steps == from.record.step, "the record is of another step");
    RRFP_EXPECT(from.record.details.empty() || from.record.details == details(),
                "the details of a record are of another step");
  } else if (!go_on_from(on_.setup().history)) {
    history_.steps = history_.began_after = on_.setup().first_step;
  }
  job_core_options o;
  o.stages = c_.shape.stages;
  o.ranks = c_.ranks;
  o.replicas = c_.replicas;
  o.first_step = on_.setup().first_step;
  o.steps = c_.steps;
  if (c_.saves) o.saves = {c_.saves->every, save_time_max};
  if (c_.evaluation) o.evaluation = {c_.evaluation->every, c_.evaluation->batches};
  if (on_.setup().makes_copies)
    o.copies = {
        .every = c_.copy_every,
        .restores = from.has_copies(),
        .resumes = history_.steps > history_.began_after,
        .saved = std::max(history_.saved_step, on_.owner().sim().disk.newest_step()),
        .evaluations = history_.evaluations_done * (c_.evaluation ? c_.evaluation->batches : 0)};
  o.hang_timeout_s = 60;
  o.nodes = c_.nodes;
  o.absent = static_cast<std::uint32_t>(on_.setup().absent.size());
  o.drain_ms = drain_ms;
  return o;
}

/// Of a checkpoint, if this run has written it.
bool job::go_on_from(const std::string& written) {
  const auto& began_after = on_.setup().from.began_after;
  if (written.empty() || !began_after) return false;
  decoder in{written};
  history read;
  in(read);
  RRFP_EXPECT(in.complete(), "the history in a checkpoint does not decode");
  if (read.began_after != *began_after) return false;
  RRFP_EXPECT(read.steps == on_.setup().first_step, "a checkpoint has the history of another step");
  history_ = read;
  return true;
}

void job::feed(job_event::any e) {
  for (std::optional next{std::move(e)}; next; next = std::exchange(answer_, std::nullopt))
    for (const auto& action : core_.on(*next, on_.time()))
      std::visit([this](const auto& a) { carry_out(a); }, action);
}

void job::read(const mail& m) {
  if (has_ended_) return;
  const stage_key stage{m.at.replica, m.at.stage};
  switch (m.kind) {
    case mail_kind::state_restored: return feed(job_event::state_restored{});
    case mail_kind::stage_step_ended:
      if (step_id{m.step} == step_) outcomes_.try_emplace(stage, outcome{m.values, m.more_values});
      return feed(job_event::stage_ended{step_id{m.step}, stage});
    case mail_kind::update_applied: return feed(job_event::update_applied{step_id{m.step}});
    case mail_kind::snapshot_taken: return feed(job_event::snapshot_taken{m.step});
    case mail_kind::snapshot_written:
      if (m.text.empty()) files_.push_back({m.at.stage, m.at.rank, m.offset, m.number});
      return feed(job_event::snapshot_written{m.step, m.text});
    case mail_kind::copy_held: return feed(job_event::copy_held{m.step, m.text});
    case mail_kind::stage_weights:
      weights_[m.at] = m.values;
      return feed(job_event::weights_reported{m.at});
    case mail_kind::stage_progress: return feed(job_event::progress_reported{stage});
    case mail_kind::interrupted: return feed(job_event::interrupted{m.number != 0});
    case mail_kind::drain_asked:
      return feed(job_event::drain_asked{node_id{static_cast<std::uint32_t>(m.number)}});
    case mail_kind::report_requested: return feed(job_event::report_requested{"asked for"});
    case mail_kind::failed: return feed(job_event::failed{{m.text, m.how}});
    case mail_kind::suspected: return feed(job_event::suspected{{m.text, m.how}});
    default: throw violation("the job got mail for another actor");
  }
}

// ---- steps

void job::carry_out(const job_action::restore_state&) {
  on_.send_to_stages(to_stages(mail_kind::restore_state));
}

void job::carry_out(const job_action::begin_step& a) {
  step_ = a.step;
  outcomes_.clear();
  shares_ = draw_shares(a.step);
  auto m = to_stages(mail_kind::begin_step, a.step.value());
  m.values.assign(shares_.shares.begin(), shares_.shares.end());
  for (const auto d : shares_.order) m.more_values.push_back(d.value());
  on_.send_to_stages(std::move(m));
}

/// Others if the step is repeated.
microbatch_shares job::draw_shares(step_id step) const {
  microbatch_shares drawn{c_.counts_of(step)};
  random_source random{c_.seed, mix(step.value(), on_.number() + 1000)};
  if (!c_.shares_vary || random.one_in(3)) return drawn;
  std::vector<std::uint32_t> ends{drawn.counts.total()};
  for (std::uint32_t d = 0; d < c_.replicas; ++d) {
    if (d + 1 < c_.replicas)
      ends.push_back(static_cast<std::uint32_t>(random.between(0, drawn.counts.total())));
    const auto place = static_cast<std::ptrdiff_t>(random.below(d + 1));
    drawn.order.insert(drawn.order.begin() + place, replica_id{d});
  }
  std::ranges::sort(ends);
  drawn.shares.resize(c_.replicas);
  for (std::uint32_t i = 0; i < c_.replicas; ++i)
    drawn.shares[drawn.order[i].value()] = ends[i] - (i == 0 ? 0 : ends[i - 1]);
  RRFP_EXPECT(drawn.validate(c_.replicas).ok(), "the drawn shares fit together");
  return drawn;
}

void job::carry_out(const job_action::add_up& a) {
  RRFP_EXPECT(outcomes_.size() == std::size_t{c_.replicas} * c_.shape.stages,
              to_string(a.step) + " is added up before all stages have ended it");
  loss_ = scale_ = 0;
  std::vector<std::vector<symbol>> losses;
  for (const auto n : shares_.counts.by_replica) losses.emplace_back(n);
  for (const auto& [from, o] : outcomes_) {
    for (std::uint32_t mb = 0; mb < o.losses.size(); ++mb) {
      const auto place = shares_.place_of(from.replica, microbatch_id{mb});
      losses.at(place.sum.value()).at(place.mb.value()) = o.losses[mb];
    }
    if (from.replica != replica_id{0}) continue;
    for (const auto norm : o.norms) scale_ = mix(scale_, norm);
  }
  for (const auto& of_replica : losses)
    if (!of_replica.empty()) loss_ = mix(loss_, hash_of(of_replica));
  answer(job_event::added_up{a.step});
}

void job::carry_out(const job_action::apply_update& a) {
  auto m = to_stages(mail_kind::apply_update, a.step.value());
  m.number = scale_;
  on_.send_to_stages(std::move(m));
}

void job::carry_out(const job_action::finish_step& a) {
  if (is_evaluation(a.step)) {
    evaluation_ = mix(evaluation_, loss_);
    if (++batches_ < c_.evaluation->batches) return;
    batches_ = 0;
    history_.evaluations = mix(history_.evaluations, std::exchange(evaluation_, 0));
    ++history_.evaluations_done;
    return;
  }
  RRFP_EXPECT(!c_.faults.empty() || !copies_since_ || on_.time() - *copies_since_ < copy_time_max,
              "nothing has failed, but the copies of step " + std::to_string(record_.step) +
                  " are not held");
  history_.losses = mix(history_.losses, loss_);
  ++history_.steps;
  on_.owner().sim().checks.on_committed(
      on_.setup().run, history_.steps,
      history_.began_after == 0 ? std::optional{history_.losses} : std::nullopt);
  mail m;
  m.kind = mail_kind::step_over;
  m.step = history_.steps;
  on_.send_to_nodes(m);
}

// ---- saves

void job::carry_out(const job_action::open_save& a) {
  files_.clear();
  auto so_far = history_;
  so_far.saved_step = core_.last_saved();
  encoder out;
  out(so_far);
  history_to_save_ = out.take();
  if (const auto begun = on_.owner().sim().disk.begin(a.step); !begun)
    return answer(job_event::save_ended{a.step, begun.message()});
  answer(job_event::save_opened{a.step});
}

void job::carry_out(const job_action::take_snapshot& a) {
  auto m = to_stages(mail_kind::take_snapshot, a.step);
  m.to = addressee::supervisor;
  for (std::uint32_t st = 0; st < c_.shape.stages; ++st) {
    m.at = {stage_id{st}, rank_id{0}, replica_id{0}};
    on_.send(m);
  }
}

void job::carry_out(const job_action::commit_save& a) {
  RRFP_EXPECT(files_.size() == c_.stage_ranks(), "a save is committed before all have written it");
  on_.owner().sim().disk.commit(on_.owner(), a.step, files_, history_to_save_,
                                [this, lives = lives_, a](const std::string& failure) {
                                  if (*lives && !has_ended_)
                                    feed(job_event::save_ended{a.step, failure});
                                });
}

void job::carry_out(const job_action::end_save& a) {
  on_.owner().note("save of step " + std::to_string(a.step) +
                   (a.failure.empty() && !a.overdue ? " is complete" : " failed: " + a.failure));
}

// ---- copies

void job::carry_out(const job_action::copy_state& a) {
  RRFP_EXPECT(a.step == history_.steps, "a copy is made of another step than the last");
  RRFP_EXPECT(!copies_since_, "copies are made of two steps at the same time");
  copies_since_ = on_.time();
  auto so_far = history_;
  so_far.saved_step = core_.last_saved();
  encoder out;
  out(so_far);
  record_ = {a.step, std::string(c_.record_bytes, 'r') + out.take(), details()};
  if (a.complete == 0) send_record(false);
  auto m = to_stages(mail_kind::copy_state, a.step);
  m.number = a.complete;
  m.to = addressee::supervisor;
  for (std::uint32_t st = 0; st < c_.shape.stages; ++st) {
    m.at = {stage_id{st}, rank_id{0}, replica_id{0}};
    on_.send(m);
  }
}

void job::carry_out(const job_action::keep_copies& a) {
  RRFP_EXPECT(a.step == record_.step, "copies are kept without their record");
  copies_since_.reset();
  on_.owner().sim().checks.on_keep(on_.owner(), on_.setup().run, a.step, on_.present());
  send_record(true);
}

void job::send_record(bool is_complete) {
  for (const auto n : on_.present()) {
    mail m;
    m.kind = mail_kind::keep_copies;
    m.step = record_.step;
    m.text = record_.bytes;
    m.is_good = is_complete;
    if (keeps_details(n)) m.more_values = state_of(record_.details).value();
    on_.send_to_node(n, std::move(m));
  }
}

/// As the totals of the stages: one value for each.
std::string job::details() const {
  return bytes_of(rank_state(c_.shape.stages, mix(history_.losses, history_.steps)));
}

void job::carry_out(const job_action::drop_copies& a) {
  throw violation("no copies of step " + std::to_string(a.step) + ": " + a.failure);
}

// ---- reports and the end

void job::carry_out(const job_action::report_weights&) {
  on_.send_to_stages(to_stages(mail_kind::report_weights));
}

void job::carry_out(const job_action::compare_weights&) {
  std::vector<symbol> hashes(c_.replicas, 0);
  for (const auto& [from, state] : weights_)
    hashes[from.replica.value()] = mix(hashes[from.replica.value()], hash_of(state));
  for (const auto h : hashes)
    if (h != hashes[0])
      return answer(job_event::failed{{"the replicas' weights differ", error_kind::failed}});
  weights_hash_ = hashes[0];
  answer(job_event::weights_agree{});
}

void job::carry_out(const job_action::ask_progress&) {
  on_.send_to_stages(to_stages(mail_kind::report_progress));
}

void job::carry_out(const job_action::note_progress&) { on_.owner().note_progress(); }

void job::carry_out(const job_action::set_timer& a) {
  on_.later(a.ms * ms, [this, lives = lives_, a] {
    if (!*lives || has_ended_) return;
    if (a.which == job_timer::watch)
      feed(job_event::tick{on_.owner().silence()});
    else
      feed(job_event::timer_fired{a.which, a.number});
  });
}

void job::carry_out(const job_action::end& a) {
  RRFP_EXPECT(!std::exchange(has_ended_, true), "a job ends twice");
  RRFP_EXPECT(!a.nothing_lost || on_.owner().sim().disk.newest_step() == history_.steps,
              "an interrupted job says that all steps are saved, but step " +
                  std::to_string(history_.steps) + " is not");
  mail m;
  m.kind = mail_kind::job_ended;
  m.is_good = a.how == job_end::done;
  m.how = kind_of(a.how).value_or(error_kind::failed);
  m.text = a.hung ? "the job hangs" : a.message;
  if (a.drained) {
    m.number = a.drained->value() + 1;
    on_.owner().sim().checks.on_handed_over(on_.setup().run, history_.steps, m.text);
  }
  if (m.is_good)
    m.values = {weights_hash_, history_.losses, history_.evaluations, history_.began_after};
  for (const auto n : on_.present()) {
    auto copy = m;
    if (m.is_good && keeps_details(n)) copy.more_values = state_of(details()).value();
    on_.send_to_node(n, std::move(copy));
  }
}

}  // namespace rrfp::cluster
