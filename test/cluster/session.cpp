#include "session.hpp"

#include <algorithm>
#include <bit>

#include <rrfp/base/step_name.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/policies/registry.hpp>

#include "cluster.hpp"
#include "job.hpp"
#include "process.hpp"
#include "traffic.hpp"

namespace rrfp::cluster {

using namespace messaging;

namespace {

enum own_event : std::uint32_t { task_ended, local_mail };

constexpr std::uint32_t replica_groups = 1 << 16;
/// As long as nodes may take to answer a disconnect message.
constexpr nanoseconds farewell_max = 1 * s;
constexpr nanoseconds unexplained_loss_time = 3 * s;
constexpr copy_fetches::limits fetch_limits{8, 2};

/// The number of a message as a descriptor, which is never null.
void* descriptor_of(std::uint32_t number) {
  return reinterpret_cast<void*>(std::uintptr_t{number} + 1);
}
std::uint32_t number_of(const void* descriptor) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(descriptor) - 1);
}

dispatch_rule rule_of(const scenario& c) {
  dispatch_rule rule;
  rule.make_policy = [name = c.policy](const pipeline_shape& shape, stage_id stage) {
    const auto made = policies::registry().make(name, shape);
    RRFP_EXPECT(made.ok(), made.ok() ? "" : made.message());
    return (*made)->make(stage);
  };
  rule.mode = c.mode;
  rule.early_forwards = c.early_forwards;
  rule.weight_pieces = c.weight_pieces;
  return rule;
}

}  // namespace

std::uint64_t hash_of_bytes(const std::string& bytes) {
  std::uint64_t all = bytes.size();
  for (const char b : bytes) all = mix(all, static_cast<unsigned char>(b));
  return all;
}

void held_copies::put(const copy_key& what, std::string copy, std::uint64_t complete) {
  const auto xxh64 = hash_of_bytes(copy);
  drop(set.put({what, copy.size(), xxh64}, complete));
  bytes[what] = std::move(copy);
}

void held_copies::keep(job_record r) { drop(set.keep(std::move(r))); }

void held_copies::drop(const std::vector<copy_key>& all) {
  for (const auto& what : all) bytes.erase(what);
}

// ---- the session

session::session(process& owner, session_setup setup, std::function<void(run_end)> on_end)
    : owner_(owner),
      setup_(std::move(setup)),
      on_end_(std::move(on_end)),
      world_(owner.w()),
      random_(owner.w().c.seed, mix(4, owner.id() * 100 + setup_.run)),
      self_(world_.add_sink(*this)),
      number_(owner.sim().data.open(*this)),
      began_(owner.local_now()),
      places_(c().places(setup_.absent)),
      transport_(transport_options()),
      links_(owner.c().nodes),
      fetches_(fetch_limits) {
  if (setup_.from.has_copies()) owner_.copies().keep(setup_.from.record);
  build();
  if (leads()) job_ = std::make_unique<job>(*this);
}

session::~session() {
  *lives_ = false;
  world_.remove_sink(self_);
}

const scenario& session::c() const { return world_.c; }
bool session::leads() const { return owner_.leads(); }
node_id session::place() const { return node_id{owner_.node()}; }
nanoseconds session::resumes_at() const { return owner_.resumes_at(); }
nanoseconds session::time() const { return owner_.local_now() - began_; }

transport_core_options session::transport_options() const {
  transport_core_options o;
  o.node = place();
  o.job_token = setup_.token;
  o.epoch = setup_.run;
  o.eager_bytes_max = c().eager_bytes_max;
  o.message_bytes_max = o.inflight_bytes_max = c().inflight_bytes_max;
  o.actor_message_bytes_max = 1 << 20;
  return o;
}

void session::build() {
  const auto rule = rule_of(c());
  for (std::uint32_t d = 0; d < c().replicas; ++d)
    for (std::uint32_t st = 0; st < c().shape.stages; ++st)
      for (std::uint32_t r = 0; r < c().ranks; ++r) {
        const rank_address key{stage_id{st}, rank_id{r}, replica_id{d}};
        if (node_of(key.replica, key.stage, key.rank) != place()) continue;
        auto driver = std::make_unique<rank_driver>(
            rank_driver{key, static_cast<std::uint32_t>(ranks_.size()),
                        rank_compute{c(), setup_.run, key, initial_state(key)}});
        driver->inputs.resize(std::size_t{2} * c().shape.chunks * c().widest().microbatches);
        rank_of_[key] = driver.get();
        ranks_.push_back(std::move(driver));
        if (r != 0) continue;
        stage_config config;
        config.shape = c().shape;
        config.stage = key.stage;
        config.ranks = c().ranks;
        config.lookahead = c().lookahead;
        config.limit = c().limit;
        config.forwards_in_order = c().forwards_in_order;
        auto stage = std::make_unique<stage_driver>(
            stage_driver{{key.replica, key.stage}, make_stage_core(config, rule)});
        stage_of_[stage->key] = stage.get();
        stages_.push_back(std::move(stage));
      }
}

rank_state session::initial_state(const rank_address& at) const {
  if (setup_.first_step != 0 && !setup_.from.has_copies())
    return setup_.resumed.at({setup_.first_step, at.stage, at.rank});
  if (setup_.from.has_copies()) return rank_state(c().shape.chunks, 0);  // restored later
  return owner_.sim().checks.state_after(setup_.run, 0, at.stage, at.rank);
}

status session::connect(const std::vector<std::uint32_t>& peers) {
  for (std::size_t i = 0; i + 1 < peers.size(); i += 2) {
    const node_id n{peers[i]};
    if (auto may = transport_.may_connect(n); !may) return may;
    numbers_[n] = peers[i + 1];
    transport_.connected(n, &links_[n.value()]);
    owner_.sim().data.connected(number_, peers[i + 1]);
  }
  return success();
}

void session::start() {
  if (leads()) job_->feed(job_event::start{});
  watches_ = true;
  if (!unreachable_.empty()) unreachable(std::exchange(unreachable_, {}));
}

void session::later(nanoseconds after, std::function<void()> then) {
  owner_.later(after, [lives = lives_, then = std::move(then)] {
    if (*lives) then();
  });
}

void session::on_event(std::uint32_t what, std::uint32_t argument) {
  if (const auto wait = resumes_at() - world_.now(); wait > 0)
    return world_.post(self_, wait, what, argument);
  if (what == task_ended) {
    auto& rank = *ranks_[argument];
    rank.has_computed = true;
    finish_task(rank);
  } else {
    const auto m = std::move(local_mail_.front());
    local_mail_.pop_front();
    read(m);
  }
  settle();
}

void session::give_up(node_id lost, const std::string& why) {
  if (is_over_) return;
  transport_.fail(lost, why);
  settle_transport();
}

void session::lose(const std::string& why) {
  if (has_ended_) return;
  if (leads()) {
    job_->feed(job_event::failed{{why, error_kind::node_lost}});
    return;
  }
  mail to_job;
  to_job.kind = mail_kind::failed;
  to_job.text = why;
  to_job.how = error_kind::node_lost;
  send(std::move(to_job));
  end({job_end::node_lost, why, {}});
}

void session::fail(const error& why) {
  if (leads()) return job_->feed(job_event::failed{why});
  end({end_of(why.kind), why.message, {}});
}

void session::interrupt(bool again) {
  mail m;
  m.kind = mail_kind::interrupted;
  m.number = again;
  send(std::move(m));
}

void session::take_in(node_id waits) {
  if (!has_ended_ && job_) job_->feed(job_event::node_waits{waits});
}

void session::drain() {
  mail m;
  m.kind = mail_kind::drain_asked;
  m.number = owner_.node();
  send(std::move(m));
}

void session::ask_report() {
  mail m;
  m.kind = mail_kind::report_requested;
  send(std::move(m));
}

void session::unreachable(const std::string& why) {
  if (has_ended_) return;
  if (!watches_) {
    if (unreachable_.empty()) unreachable_ = why;
    return;
  }
  const auto text = "a node cannot be reached: " + why;
  owner_.note(text);
  suspect({text, error_kind::node_lost});
  if (!leads()) later(unexplained_loss_time, [this, text] { lose(text); });
}

/// The ranks that do collectives with ranks of the lost node may be the first to report.
void session::fail_collectives(node_id lost, const std::string& why) {
  if (!watches_) return;
  for (const auto& rank : ranks_) {
    const auto& at = rank->key;
    bool fails = false;
    for (std::uint32_t r = 0; r < c().ranks; ++r)
      fails |= node_of(at.replica, at.stage, rank_id{r}) == lost;
    for (std::uint32_t d = 0; d < c().replicas; ++d)
      fails |= node_of(replica_id{d}, at.stage, at.rank) == lost;
    if (fails) suspect({"a collective failed: " + why, error_kind::failed});
  }
}

void session::suspect(const error& why) {
  if (has_ended_) return;
  if (leads()) return job_->feed(job_event::suspected{why});
  mail m;
  m.kind = mail_kind::suspected;
  m.text = why.message;
  m.how = why.kind;
  send(std::move(m));
}

void session::end(run_end how) {
  if (std::exchange(has_ended_, true)) return;
  for (auto& stage : stages_) stage->core.on(rrfp::event{abort{}});
  on_end_(std::move(how));
}

void session::leave(std::function<void()> done) {
  on_left_ = std::move(done);
  is_leaving_ = true;
  for (const auto* const descriptor : transport_.close())
    owner_.sim().data.release(number_of(descriptor));
  for (const auto to : transport_.connected()) {
    disconnect_header h;
    transport_.stamp(h);
    data_message m;
    m.header = h;
    if (world_.counted != nullptr)
      world_.counted->count(purpose::ending, owner_.node(), to.value(), sizeof h);
    dispatch(to, std::move(m), transport_.link_to(to));
  }
  const auto close = [this] {
    if (std::exchange(is_over_, true)) return;
    transport_.close_links();
    owner_.sim().data.close(number_, false);
    if (on_left_) owner_.later(0, std::exchange(on_left_, nullptr));
  };
  if (transport_.all_answered()) return close();
  later(farewell_max, close);
}

void session::vanish() {
  has_ended_ = true;
  *lives_ = false;
  on_left_ = nullptr;
  if (!std::exchange(is_over_, true)) owner_.sim().data.close(number_, true);
}

// ---- the transport

bool session::dispatch(node_id to, data_message m, chosen_link by) {
  RRFP_EXPECT(numbers_.contains(to) || numbers_.empty(), owner_.name() + " sends to node " +
                                                             std::to_string(to.value()) +
                                                             ", to which it never connects");
  if (by.link == nullptr) return false;
  m.generation = setup_.token + setup_.run;
  m.from = number_;
  m.to = numbers_.at(to);
  m.is_announced = by.is_announced;
  owner_.sim().data.send(std::move(m));
  return true;
}

void session::broke(node_id other) {
  if (is_over_) return;
  transport_.broke(other, "the connection broke");
  settle_transport();
}

void session::settle_transport() {
  while (transport_.has_ends())
    for (const auto& e : transport_.settle())
      if (e.is_new && e.has_failed && !is_leaving_) {
        fail_collectives(e.node, e.why);
        unreachable(e.why);
      }
  if (is_leaving_ && !is_over_ && transport_.all_answered()) {
    is_over_ = true;
    transport_.close_links();
    owner_.sim().data.close(number_, false);
    if (on_left_) owner_.later(0, std::exchange(on_left_, nullptr));
  }
}

void session::arrive(const data_message& m, std::uint32_t number) {
  if (is_over_) {
    if (m.is_announced) owner_.sim().data.release(number);
    return;
  }
  auto* const descriptor = m.is_announced ? descriptor_of(number) : nullptr;
  std::visit(
      [&](const auto& h) {
        using header = std::decay_t<decltype(h)>;
        if constexpr (std::is_same_v<header, disconnect_header>) {
          const auto answer = transport_.arrived(h);
          if (answer.link == nullptr) return;
          disconnect_header back;
          transport_.stamp(back);
          back.is_answer = true;
          data_message reply;
          reply.header = back;
          dispatch(h.from_node, std::move(reply), answer);
        } else {
          const auto what = transport_.arrived(h, h.data_bytes, descriptor);
          if (what == disposition::deliver) deliver(m);
          if (what != disposition::keep && m.is_announced) owner_.sim().data.release(number);
        }
      },
      m.header);
  fetch_announced();
  settle_transport();
  settle();
}

void session::fetch_announced() {
  for (;;) {
    const auto next = transport_.next_fetch();
    if (!next) return;
    RRFP_EXPECT(transport_.counts().inflight_bytes <= c().inflight_bytes_max,
                owner_.name() + " fetches more bytes at the same time than it may");
    const auto number = number_of(next->descriptor);
    auto& data = owner_.sim().data;
    if (next->is_stale) {
      data.release(number);
      continue;
    }
    later(random_.between(5 * us, 100 * us), [this, number, &data] {
      const auto m = data.at(number);
      data.release(number);
      const auto& header = std::get<tensor_header>(m.header);
      const auto failure = data.is_there(m) ? std::string{} : std::string{"its sender has gone"};
      if (transport_.fetched(header, failure) == disposition::deliver) deliver(m);
      fetch_announced();
      settle_transport();
      settle();
    });
  }
}

void session::deliver(const data_message& m) {
  RRFP_EXPECT(m.generation == setup_.token + setup_.run,
              owner_.name() + " got a message of another session");
  if (const auto* const t = std::get_if<tensor_header>(&m.header)) {
    if (!has_ended_) on_tensor(*rank_of_.at(t->message.to), *t, m);
    transport_.delivered(*t, delivery::done);
  } else if (const auto* const b = std::get_if<bytes_header>(&m.header)) {
    const auto is_new =
        mailbox_.try_emplace({b->group, b->to.value(), b->from.value(), b->tag}, m.bytes).second;
    RRFP_EXPECT(is_new, owner_.name() + " got bytes of a group twice");
    transport_.delivered(*b, delivery::done);
    wake_group(b->group, b->to.value());
  } else if (const auto* const h = std::get_if<actor_message_header>(&m.header)) {
    for (const auto& bytes : transport_.in_order(*h, m.bytes)) {
      decoder in{bytes};
      mail read_mail;
      in(read_mail);
      RRFP_EXPECT(in.complete(), owner_.name() + " got mail that does not decode");
      read(read_mail);
    }
    transport_.delivered(*h, delivery::done);
  }
}

node_id session::node_of(replica_id replica, stage_id stage, rank_id rank) const {
  return places_[(replica.value() * c().shape.stages + stage.value()) * c().ranks + rank.value()];
}

std::vector<node_id> session::present() const {
  std::vector<node_id> all;
  for (std::uint32_t n = 0; n < c().nodes; ++n)
    if (std::ranges::count(setup_.absent, node_id{n}) == 0) all.emplace_back(n);
  return all;
}

node_id session::node_of(const mail& m) const {
  switch (m.to) {
    case addressee::job: return owner_.leader();
    case addressee::node: return node_id{m.at.rank.value()};
    case addressee::supervisor: return node_of(m.at.replica, m.at.stage, rank_id{0});
    case addressee::rank: return node_of(m.at.replica, m.at.stage, m.at.rank);
  }
  return {};
}

void session::send(mail m) {
  const auto to = node_of(m);
  if (to == place()) {
    local_mail_.push_back(std::move(m));
    local_last_ = std::max(local_last_ + 1, world_.now() + random_.between(1 * us, 20 * us));
    return world_.post(self_, local_last_ - world_.now(), local_mail, 0);
  }
  encoder out;
  out(m);
  data_message sent;
  sent.bytes = out.take();
  actor_message_header h;
  h.data_bytes = sent.bytes.size();
  if (world_.counted != nullptr)
    world_.counted->count(purpose_of(m.kind), owner_.node(), to.value(),
                          sizeof h + sent.bytes.size());
  if (!transport_.number(to, h)) return settle_transport();
  sent.header = h;
  dispatch(to, std::move(sent), transport_.link_for(to, h));
}

void session::send_to_stages(mail m) {
  m.to = addressee::supervisor;
  for (std::uint32_t d = 0; d < c().replicas; ++d)
    for (std::uint32_t st = 0; st < c().shape.stages; ++st) {
      m.at = {stage_id{st}, rank_id{0}, replica_id{d}};
      send(m);
    }
}

void session::send_to_nodes(const mail& m) {
  for (const auto n : present()) send_to_node(n, m);
}

void session::send_to_node(node_id to, mail m) {
  m.to = addressee::node;
  m.at.rank = rank_id{to.value()};
  send(std::move(m));
}

void session::send_output(const rank_driver& from, const task& produced, symbol value) {
  const auto next = c().shape.consumer_of(from.key.stage, produced);
  RRFP_EXPECT(next.has_value(), "an output without a consumer");
  tensor_header h;
  h.message.kind = is_backward(next->what.kind) ? payload::gradient : payload::activation;
  h.message.step = from.queue.front().step;
  h.message.mb = next->what.mb;
  h.message.chunk = next->what.chunk;
  h.message.from = from.key;
  h.message.to = {next->stage, from.key.rank, from.key.replica};
  h.data_bytes = 400 + value % 400;
  data_message m;
  m.value = value;
  send_tensor(h, std::move(m));
}

void session::send_tensor(tensor_header h, data_message m) {
  const auto key = h.message.to;
  const auto to = node_of(key.replica, key.stage, key.rank);
  if (to == place()) return on_tensor(*rank_of_.at(key), h, m);
  if (!transport_.number(to, h)) return settle_transport();
  if (world_.counted != nullptr)
    world_.counted->count(purpose::tensors, owner_.node(), to.value(), h.data_bytes);
  m.header = h;
  dispatch(to, std::move(m), transport_.link_for(to, h));
}

void session::send_bytes(const rank_address& to, std::uint32_t group, std::uint32_t from,
                         std::uint32_t member, std::uint64_t tag, const std::string& bytes) {
  const auto node = node_of(to.replica, to.stage, to.rank);
  if (node == place()) {
    mailbox_[{group, member, from, tag}] = bytes;
    return wake_group(group, member);
  }
  bytes_header h;
  transport_.stamp(h);
  h.group = group;
  h.from = rank_id{from};
  h.to = rank_id{member};
  h.tag = tag;
  h.data_bytes = bytes.size();
  data_message m;
  m.header = h;
  m.bytes = bytes;
  const auto by = transport_.link_for(node, h);
  dispatch(node, std::move(m), {by.link, false});
}

// ---- mail

session::rank_driver* session::rank_at(const rank_address& key) {
  const auto found = rank_of_.find(key);
  return found == rank_of_.end() ? nullptr : found->second;
}

session::stage_driver* session::stage_at(const stage_key& key) {
  const auto found = stage_of_.find(key);
  return found == stage_of_.end() ? nullptr : found->second;
}

void session::read(const mail& m) {
  if (has_ended_ && m.to != addressee::job) return;
  switch (m.to) {
    case addressee::job:
      if (job_) job_->read(m);
      return;
    case addressee::node: return read_as_node(m);
    case addressee::supervisor:
      if (auto* const stage = stage_at({m.at.replica, m.at.stage})) read_as_supervisor(*stage, m);
      return;
    case addressee::rank:
      if (auto* const rank = rank_at(m.at)) read_as_rank(*rank, m);
      return;
  }
}

void session::read_as_node(const mail& m) {
  switch (m.kind) {
    case mail_kind::step_over:
      owner_.sim().checks.on_step_over(owner_, setup_.run, m.step);
      return owner_.note_step(m.step);
    case mail_kind::keep_copies: {
      owner_.copies().keep({m.step, m.text, bytes_of(m.more_values)});
      if (!m.is_good) return;
      return owner_.sim().checks.on_kept(owner_, setup_.run, m.step);
    }
    case mail_kind::copy_offered: return on_copy_offered(m);
    case mail_kind::fetch_copy: return on_fetch_copy(m);
    case mail_kind::copy_piece: return on_copy_piece(m);
    case mail_kind::job_ended:
      return end({m.is_good ? job_end::done : end_of(m.how),
                  m.text,
                  {bytes_of(m.values), bytes_of(m.more_values)},
                  m.number == 0
                      ? std::nullopt
                      : std::optional{node_id{static_cast<std::uint32_t>(m.number - 1)}}});
    default: throw violation("a node got mail for another actor");
  }
}

void session::read_as_supervisor(stage_driver& stage, const mail& m) {
  const auto to_job = [&] {
    auto copy = m;
    copy.to = addressee::job;
    send(std::move(copy));
  };
  switch (m.kind) {
    case mail_kind::begin_step: return begin(stage, m);
    case mail_kind::arrived: return on_arrived(stage, m);
    case mail_kind::launch_done:
      return notify(stage, task_finished{launch_seq{m.number}, m.at.rank});
    case mail_kind::rank_step_ended: return on_rank_ended(stage, m);
    case mail_kind::restore_state:
    case mail_kind::apply_update:
    case mail_kind::take_snapshot:
    case mail_kind::copy_state:
    case mail_kind::report_weights: return send_to_ranks(stage, m);
    case mail_kind::state_restored:
    case mail_kind::update_applied:
    case mail_kind::snapshot_taken:
    case mail_kind::snapshot_written:
    case mail_kind::stage_weights: return to_job();
    case mail_kind::report_progress: {
      auto answer = m;
      answer.kind = mail_kind::stage_progress;
      answer.to = addressee::job;
      return send(std::move(answer));
    }
    default: throw violation("a supervisor got mail for another actor");
  }
}

// ---- stages

void session::send_to_ranks(const stage_driver& stage, mail m) {
  m.to = addressee::rank;
  for (std::uint32_t r = 0; r < c().ranks; ++r) {
    m.at = {stage.key.stage, rank_id{r}, stage.key.replica};
    if (auto* const rank = rank_at(m.at))
      read_as_rank(*rank, m);
    else
      send(m);
  }
}

void session::notify(stage_driver& stage, const rrfp::event& e) {
  stage.core.on(e);
  if (!std::exchange(stage.is_notified, true)) notified_.push_back(&stage);
}

void session::settle() {
  while (!notified_.empty()) {
    auto* const stage = notified_.back();
    notified_.pop_back();
    stage->is_notified = false;
    if (!has_ended_) choose(*stage);
  }
}

/// As the leader says it in begin_step.
microbatch_shares session::shares_of(const mail& m) const {
  microbatch_shares shares{c().counts_of(step_id{m.step})};
  for (const auto n : m.values) shares.shares.push_back(static_cast<std::uint32_t>(n));
  for (const auto n : m.more_values) shares.order.emplace_back(static_cast<std::uint32_t>(n));
  return shares;
}

void session::begin(stage_driver& stage, const mail& m) {
  RRFP_EXPECT(stage.phase == stage_phase::idle, "a step begins after the one before");
  stage.phase = stage_phase::running;
  stage.step = step_id{m.step};
  stage.losses.clear();
  stage.gradients.assign(c().ranks, {});
  stage.ended = 0;
  owner_.set_status(to_string(stage.step));
  step_began begun{.step = stage.step, .slot_bytes = c().slot_bytes};
  if (c().counts_vary || c().shares_vary) {
    begun.microbatches = shares_of(m).of(stage.key.replica);
    RRFP_EXPECT(m.values.empty() || *begun.microbatches == m.values.at(stage.key.replica.value()),
                "a replica runs as many microbatches as the leader says");
    for (std::size_t mb = 0; mb < *begun.microbatches && !c().slot_bytes.empty(); ++mb)
      if (mb >= begun.slot_bytes.size())
        begun.slot_bytes.push_back(c().slot_bytes[mb % c().slot_bytes.size()]);
    if (!begun.slot_bytes.empty()) begun.slot_bytes.resize(*begun.microbatches);
  }
  notify(stage, begun);
  send_to_ranks(stage, m);
  for (const auto& early : std::exchange(stage.early, {})) on_arrived(stage, early);
}

void session::on_arrived(stage_driver& stage, const mail& m) {
  if (stage.phase != stage_phase::running || step_id{m.step} != stage.step) {
    RRFP_EXPECT(step_id{m.step} > stage.step || stage.phase == stage_phase::idle,
                "nothing arrives for a step that is over");
    stage.early.push_back(m);
    return;
  }
  notify(stage,
         input_arrived{
             m.number % 2 == 0 ? task_kind::forward : task_kind::backward,
             microbatch_id{static_cast<std::uint32_t>(m.number / 2 % c().widest().microbatches)},
             chunk_id{static_cast<std::uint32_t>(m.number / 2 / c().widest().microbatches)},
             m.at.rank});
}

void session::choose(stage_driver& stage) {
  if (stage.phase != stage_phase::running) return;
  for (const auto& a : stage.core.on(rrfp::event{decide{}})) {
    const auto* const l = std::get_if<launch>(&a);
    if (l == nullptr) continue;
    for (std::uint32_t r = 0; r < c().ranks; ++r) {
      const rank_address to{stage.key.stage, rank_id{r}, stage.key.replica};
      if (auto* const rank = rank_at(to)) {
        accept_launch(*rank, stage.step, *l);
        continue;
      }
      mail m;
      m.kind = mail_kind::run_launch;
      m.to = addressee::rank;
      m.at = to;
      m.step = stage.step.value();
      m.values = values_of(*l);
      send(std::move(m));
    }
  }
  if (!stage.core.step_complete()) return;
  stage.phase = stage_phase::ending;
  mail m;
  m.kind = mail_kind::end_step;
  m.step = stage.step.value();
  send_to_ranks(stage, m);
}

void session::on_rank_ended(stage_driver& stage, const mail& m) {
  const auto rank = m.at.rank.value();
  if (rank == 0) stage.losses = m.values;
  stage.gradients[rank] = m.more_values;
  stage.ended |= rank_set{1} << rank;
  if (static_cast<std::uint32_t>(std::popcount(stage.ended)) < c().ranks) return;
  stage.ended = 0;
  stage.phase = stage_phase::idle;
  mail over;
  over.kind = mail_kind::stage_step_ended;
  over.at = {stage.key.stage, rank_id{0}, stage.key.replica};
  over.step = m.step;
  over.values = stage.losses;
  for (const auto& g : stage.gradients) over.more_values.push_back(hash_of(g));
  send(std::move(over));
}

// ---- ranks

void session::reply(const rank_driver& rank, mail m) {
  m.to = addressee::supervisor;
  m.at = rank.key;
  if (auto* const stage = stage_at({rank.key.replica, rank.key.stage}))
    read_as_supervisor(*stage, m);
  else
    send(std::move(m));
}

void session::read_as_rank(rank_driver& rank, const mail& m) {
  const auto queue = [&](work::kind what) {
    rank.queue.push_back({what, step_id{m.step}, {}, m.number, m.values});
    run_device(rank);
  };
  switch (m.kind) {
    case mail_kind::begin_step: {
      rank.shares = shares_of(m);
      queue(work::kind::begin);
      const auto first = c().shape.at(virtual_stage_id{0});
      if (first.stage != rank.key.stage) return;
      const auto microbatches = rank.shares.of(rank.key.replica);
      for (std::uint32_t mb = 0; mb < microbatches; ++mb)
        announce_arrival(rank, step_id{m.step}, task_kind::forward, microbatch_id{mb}, first.chunk);
      return;
    }
    case mail_kind::run_launch: return accept_launch(rank, step_id{m.step}, launch_of(m.values));
    case mail_kind::end_step: return queue(work::kind::reduce);
    case mail_kind::apply_update: return queue(work::kind::apply);
    case mail_kind::take_snapshot: return queue(work::kind::snapshot);
    case mail_kind::copy_state: return queue(work::kind::copy);
    case mail_kind::report_weights: return queue(work::kind::hashes);
    case mail_kind::restore_state: return restore(rank);
    default: throw violation("a rank got mail for another actor");
  }
}

void session::on_tensor(rank_driver& rank, const tensor_header& h, const data_message& m) {
  if (h.message.kind == payload::opened_sum)
    return on_opened_sum(rank, h.message.step, state_of(m.bytes).value());
  const bool forward = h.message.kind == payload::activation;
  auto& in = rank.inputs[2 * c().widest().index(h.message.mb, h.message.chunk) + (forward ? 0 : 1)];
  RRFP_EXPECT(!in.value, owner_.name() + ": an input arrived twice");
  in = {h.message.step, m.value};
  announce_arrival(rank, h.message.step, forward ? task_kind::forward : task_kind::backward,
                   h.message.mb, h.message.chunk);
}

void session::on_opened_sum(rank_driver& rank, step_id step, const rank_state& sum) {
  if (!rank.has_begun || rank.compute.step() != step) {
    RRFP_EXPECT(!rank.opened_sum, "a rank gets one opened sum a step");
    rank.opened_sum = {step, sum};
    return;
  }
  join_opened_sum(rank, sum);
  run_device(rank);
}

void session::join_opened_sum(rank_driver& rank, const rank_state& sum) {
  rank.compute.join_opened_sum(sum);
  leave_opened_sum(rank);
}

/// To the rank that runs the next microbatch of it.
void session::leave_opened_sum(rank_driver& rank) {
  if (is_evaluation(rank.compute.step())) return;
  const auto left = rank.compute.take_opened_sum();
  if (!left) return;
  tensor_header h;
  h.message.kind = payload::opened_sum;
  h.message.step = rank.compute.step();
  h.message.from = rank.key;
  h.message.to = {rank.key.stage, rank.key.rank, left->first};
  data_message m;
  m.bytes = bytes_of(left->second);
  h.data_bytes = m.bytes.size();
  send_tensor(h, std::move(m));
}

void session::announce_arrival(const rank_driver& rank, step_id step, task_kind kind,
                               microbatch_id mb, chunk_id chunk) {
  mail m;
  m.kind = mail_kind::arrived;
  m.step = step.value();
  m.number = 2 * c().widest().index(mb, chunk) + (kind == task_kind::forward ? 0 : 1);
  reply(rank, std::move(m));
}

void session::accept_launch(rank_driver& rank, step_id step, const launch& l) {
  const auto taken = rank.order.accept(l.seq, l.what);
  RRFP_EXPECT(taken.ok(), taken.ok() ? "" : owner_.name() + ": " + taken.message());
  symbol value = 0;
  if (l.pass != forward_pass::again && c().shape.producer_of(rank.key.stage, l.what)) {
    const bool forward = l.what.kind == task_kind::forward;
    auto& in = rank.inputs[2 * c().widest().index(l.what.mb, l.what.chunk) + (forward ? 0 : 1)];
    RRFP_EXPECT(in.value && in.step == step,
                owner_.name() + ": " + to_string(l.what) + " was launched without its input");
    value = *std::exchange(in.value, std::nullopt);
  }
  rank.queue.push_back({work::kind::task, step, l, value});
  run_device(rank);
}

void session::run_device(rank_driver& rank) {
  while (!rank.is_busy && !rank.queue.empty() && !has_ended_) {
    auto& next = rank.queue.front();
    if (next.what == work::kind::task) return begin_task(rank);
    if (!run_one(rank, next)) return;
    rank.queue.pop_front();
  }
}

void session::begin_task(rank_driver& rank) {
  rank.is_busy = true;
  rank.has_computed = false;
  const auto& w = rank.queue.front();
  const auto draw = random_.next();
  auto time = c().task_time / 2 + static_cast<nanoseconds>(draw % 4096) * c().task_time / 4096;
  if ((draw >> 32) % 256 == 0) time *= 8;
  if (owner_.sim().is_slow(owner_.node())) time *= 20;
  world_.post(self_, time, task_ended, rank.index);
  if (c().ranks == 1) return;
  const auto print = std::to_string(w.launched.seq.value()) + " " + to_string(w.launched.what) +
                     " of " + to_string(w.step);
  for (std::uint32_t r = 0; r < c().ranks; ++r)
    if (rank_id{r} != rank.key.rank)
      send_bytes({rank.key.stage, rank_id{r}, rank.key.replica}, group_of_stage(rank.key),
                 rank.key.rank.value(), r, w.launched.seq.value(), print);
}

bool session::have_come(std::uint32_t group, std::uint32_t own, std::uint32_t members,
                        std::uint64_t tag) const {
  for (std::uint32_t other = 0; other < members; ++other)
    if (other != own && !mailbox_.contains({group, own, other, tag})) return false;
  return true;
}

std::string session::take_bytes(std::uint32_t group, std::uint32_t own, std::uint32_t from,
                                std::uint64_t tag) {
  return std::move(mailbox_.extract({group, own, from, tag}).mapped());
}

void session::wake_group(std::uint32_t group, std::uint32_t member) {
  for (auto& rank : ranks_) {
    const auto& key = rank->key;
    if (group == group_of_stage(key) && key.rank.value() == member && rank->is_busy)
      finish_task(*rank);
    else if (group == group_of_replicas(key) && key.replica.value() == member)
      run_device(*rank);
  }
}

std::uint32_t session::group_of_stage(const rank_address& at) const {
  return at.replica.value() * c().shape.stages + at.stage.value();
}
std::uint32_t session::group_of_replicas(const rank_address& at) const {
  return replica_groups + at.stage.value() * c().ranks + at.rank.value();
}

void session::finish_task(rank_driver& rank) {
  if (has_ended_ || !rank.has_computed) return;
  const auto& w = rank.queue.front();
  const auto own = rank.key.rank.value();
  const auto group = group_of_stage(rank.key);
  if (!have_come(group, own, c().ranks, w.launched.seq.value())) return;
  const auto print = std::to_string(w.launched.seq.value()) + " " + to_string(w.launched.what) +
                     " of " + to_string(w.step);
  for (std::uint32_t r = 0; r < c().ranks; ++r)
    if (r != own)
      RRFP_EXPECT(take_bytes(group, own, r, w.launched.seq.value()) == print,
                  owner_.name() + ": the ranks of a stage launch in different orders");
  if (const auto output = rank.compute.run(w.launched, w.value))
    send_output(rank, w.launched.what, *output);
  leave_opened_sum(rank);
  mail done;
  done.kind = mail_kind::launch_done;
  done.number = w.launched.seq.value();
  rank.queue.pop_front();
  rank.is_busy = false;
  rank.has_computed = false;
  owner_.note_progress();
  reply(rank, std::move(done));
  run_device(rank);
}

bool session::run_one(rank_driver& rank, work& w) {
  switch (w.what) {
    case work::kind::task: return true;
    case work::kind::begin: {
      rank.compute.begin_step(w.step, rank.shares);
      rank.has_begun = true;
      const auto early = std::exchange(rank.opened_sum, std::nullopt);
      RRFP_EXPECT(!early || early->first == w.step, "an opened sum is of another step");
      if (early) join_opened_sum(rank, early->second);
      return true;
    }
    case work::kind::reduce: return reduce(rank, w);
    case work::kind::apply: {
      if (rank.is_copying) return false;
      rank.compute.apply(w.value);
      owner_.sim().checks.on_applied(setup_.run, w.step.value() + 1, rank.key,
                                     rank.compute.state());
      mail m;
      m.kind = mail_kind::update_applied;
      m.step = w.step.value();
      reply(rank, std::move(m));
      return true;
    }
    case work::kind::snapshot: take_snapshot(rank, w.step.value()); return true;
    case work::kind::copy: copy_state(rank, w.step.value(), w.value); return true;
    case work::kind::hashes: {
      mail m;
      m.kind = mail_kind::stage_weights;
      m.values = rank.compute.state();
      reply(rank, std::move(m));
      return true;
    }
    case work::kind::restore: {
      rank.compute.restore(w.values);
      mail m;
      m.kind = mail_kind::state_restored;
      reply(rank, std::move(m));
      return true;
    }
  }
  return true;
}

namespace {

/// As a message carries them, and back.
std::vector<symbol> values_of(const std::map<replica_id, rank_state>& sums) {
  std::vector<symbol> values;
  for (const auto& [replica, sum] : sums) {
    values.push_back(replica.value());
    values.insert(values.end(), sum.begin(), sum.end());
  }
  return values;
}

std::map<replica_id, rank_state> sums_of(const std::vector<symbol>& values, std::uint32_t chunks) {
  std::map<replica_id, rank_state> sums;
  for (auto at = values.begin(); at != values.end(); at += 1 + chunks)
    sums[replica_id{static_cast<std::uint32_t>(*at)}].assign(at + 1, at + 1 + chunks);
  return sums;
}

}  // namespace

/// Sums the gradients over the replicas, and ends the step.
bool session::reduce(rank_driver& rank, work& w) {
  const bool trains = !is_evaluation(w.step);
  rank_state sum(c().shape.chunks, 0);
  if (trains) {
    rank.compute.require_complete();
    if (rank.compute.awaits_sum()) return false;
    const auto own = rank.key.replica.value();
    const auto group = group_of_replicas(rank.key);
    if (!std::exchange(rank.has_sent, true))
      for (std::uint32_t d = 0; d < c().replicas; ++d)
        if (d != own)
          send_bytes({rank.key.stage, rank.key.rank, replica_id{d}}, group, own, d, w.step.value(),
                     bytes_of(values_of(rank.compute.sums())));
    if (!have_come(group, own, c().replicas, w.step.value())) return false;
    rank.has_sent = false;
    std::map<replica_id, rank_state> all;
    for (std::uint32_t d = 0; d < c().replicas; ++d)
      for (auto& [of, theirs] :
           d == own ? rank.compute.sums()
                    : sums_of(state_of(take_bytes(group, own, d, w.step.value())).value(),
                              c().shape.chunks))
        RRFP_EXPECT(all.emplace(of, theirs).second, "two ranks end the sum of one replica");
    for (std::uint32_t d = 0; d < c().replicas; ++d) {
      const auto found = all.find(replica_id{d});
      RRFP_EXPECT((found != all.end()) == (rank.shares.counts.of(replica_id{d}) > 0),
                  "each replica with microbatches has a sum");
      for (std::uint32_t chunk = 0; chunk < c().shape.chunks; ++chunk)
        sum[chunk] = mix(sum[chunk], found == all.end() ? 0 : found->second[chunk]);
    }
  }
  mail m;
  m.kind = mail_kind::rank_step_ended;
  m.step = w.step.value();
  m.values = rank.compute.losses();
  m.more_values = sum;
  rank.compute.keep_sum(std::move(sum));
  reply(rank, std::move(m));
  return true;
}

// ---- saves and copies

void session::take_snapshot(rank_driver& rank, std::uint64_t step) {
  mail taken;
  taken.kind = mail_kind::snapshot_taken;
  taken.step = step;
  reply(rank, std::move(taken));
  const auto bytes = bytes_of(rank.compute.state());
  owner_.sim().disk.write_rank(
      owner_, step, {rank.key.stage, rank.key.rank, bytes.size(), hash_of_bytes(bytes)}, bytes,
      [this, lives = lives_, &rank, step, bytes](const std::string& failure) {
        if (!*lives || has_ended_) return;
        mail m;
        m.kind = mail_kind::snapshot_written;
        m.step = step;
        m.text = failure;
        m.number = hash_of_bytes(bytes);
        m.offset = bytes.size();
        reply(rank, std::move(m));
        settle();
      });
}

void session::copy_state(rank_driver& rank, std::uint64_t step, std::uint64_t complete) {
  rank.is_copying = true;
  const copy_key what{step, rank.key.stage, rank.key.rank};
  later(random_.between(10 * us, 3 * ms), [this, &rank, what, complete] {
    rank.is_copying = false;
    const auto bytes = bytes_of(rank.compute.state());
    if (has_ended_) return;
    hold(what, bytes, complete);
    run_device(rank);
    settle();
  });
}

std::optional<node_id> session::buddy_of_rank(stage_id stage, rank_id rank) const {
  auto hosts = c().hosts;
  for (const auto n : setup_.absent) hosts[n.value()].clear();
  return buddy_of(
      c().replicas, [&](replica_id d) { return node_of(d, stage, rank); }, c().spare_nodes(),
      hosts);
}

namespace {

mail about_copy(mail_kind kind, const copy_key& what, node_id to) {
  mail m;
  m.kind = kind;
  m.to = addressee::node;
  m.at = {what.stage, rank_id{to.value()}, replica_id{what.rank.value()}};
  m.step = what.step;
  return m;
}

copy_key key_of(const mail& m) { return {m.step, m.at.stage, rank_id{m.at.replica.value()}}; }

}  // namespace

void session::hold(const copy_key& what, std::string bytes, std::uint64_t complete) {
  const auto xxh64 = hash_of_bytes(bytes);
  const auto size = bytes.size();
  owner_.copies().put(what, std::move(bytes), complete);
  owner_.sim().checks.on_held(owner_, setup_.run, what);
  const auto buddy = buddy_of_rank(what.stage, what.rank);
  if (!buddy) return report_held(what, {});
  auto offer = about_copy(mail_kind::copy_offered, what, *buddy);
  offer.values = {owner_.node(), size, xxh64, complete};
  send(std::move(offer));
}

void session::report_held(const copy_key& what, const std::string& failure) {
  mail m;
  m.kind = mail_kind::copy_held;
  m.step = what.step;
  m.text = failure;
  send(std::move(m));
}

void session::restore(rank_driver& rank) {
  const copy_key what{setup_.from.record.step, rank.key.stage, rank.key.rank};
  const auto finish = [this, &rank, what](bool is_there) {
    if (has_ended_) return;
    const auto found = owner_.copies().bytes.find(what);
    if (!is_there || found == owner_.copies().bytes.end()) {
      mail m;
      m.kind = mail_kind::failed;
      m.text = "no node holds a copy that the run goes on from";
      return send(std::move(m));
    }
    rank.queue.push_back({work::kind::restore, {}, {}, 0, state_of(found->second).value()});
    run_device(rank);
  };
  if (owner_.copies().bytes.contains(what)) return finish(true);
  const auto source = setup_.from.copies.find(what);
  if (source == setup_.from.copies.end()) return finish(false);
  begin_fetch(what, source->second.node, source->second.bytes, {source->second.xxh64, what.step},
              finish);
}

void session::on_copy_offered(const mail& m) {
  const auto what = key_of(m);
  begin_fetch(what, node_id{static_cast<std::uint32_t>(m.values.at(0))}, m.values.at(1),
              {m.values.at(2), m.values.at(3)}, [this, what](bool is_there) {
                report_held(what, is_there ? "" : "the copy was not received");
              });
}

void session::begin_fetch(const copy_key& what, node_id from, std::uint64_t bytes,
                          expected_copy expected, std::function<void(bool)> done) {
  fetch_receivers_[what].push_back(std::move(done));
  if (fetches_.is_under_way(what)) return;
  fetched_[what] = {};
  expected_[what] = expected;
  ask(fetches_.begin(what, from, bytes));
}

void session::ask(const std::vector<copy_fetches::request>& requests) {
  for (const auto& r : requests) {
    auto m = about_copy(mail_kind::fetch_copy, r.what, r.to);
    m.values = {owner_.node(), r.size};
    m.offset = r.offset;
    send(std::move(m));
  }
}

void session::on_fetch_copy(const mail& m) {
  const auto what = key_of(m);
  auto piece =
      about_copy(mail_kind::copy_piece, what, node_id{static_cast<std::uint32_t>(m.values.at(0))});
  piece.offset = m.offset;
  const auto found = owner_.copies().bytes.find(what);
  if (found != owner_.copies().bytes.end() &&
      fetches_.may_send(found->second.size(), m.offset, m.values.at(1)))
    piece.text = found->second.substr(m.offset, m.values.at(1));
  send(std::move(piece));
}

void session::on_copy_piece(const mail& m) {
  const auto what = key_of(m);
  const auto verdict = fetches_.arrived(what, m.offset, m.text.size());
  switch (verdict) {
    case copy_fetches::verdict::unknown: return;
    case copy_fetches::verdict::fits: fetched_[what] += m.text; return ask(fetches_.next(what));
    case copy_fetches::verdict::last: fetched_[what] += m.text; break;
    case copy_fetches::verdict::missing: break;
  }
  auto bytes = std::move(fetched_.extract(what).mapped());
  const auto expected = expected_.extract(what).mapped();
  const auto is_whole =
      verdict == copy_fetches::verdict::last && hash_of_bytes(bytes) == expected.xxh64;
  if (is_whole) {
    owner_.copies().put(what, std::move(bytes), expected.complete);
    owner_.sim().checks.on_held(owner_, setup_.run, what);
  }
  const auto receivers = std::move(fetch_receivers_.extract(what).mapped());
  for (const auto& done : receivers) done(is_whole);
}

}  // namespace rrfp::cluster
