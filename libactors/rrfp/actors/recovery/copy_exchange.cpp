#include "copy_exchange.hpp"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <rrfp/checkpoint/checksum.hpp>

namespace rrfp::actors {

namespace {

std::string name_of(const copy_key& what) {
  return fmt::format("the copy of stage {} rank {} after step {}", what.stage.value(),
                     what.rank.value(), what.step);
}

std::uint64_t hash_of(const tensor_buffer& bytes) {
  const auto all = bytes.content();
  return checkpoint::checksum_of({reinterpret_cast<const char*>(all.data()), all.size()});
}

/// As of setpriority(2): tasks come first, but copies do not starve beside them.
constexpr int low_priority = 10;

constexpr std::chrono::milliseconds arrivals_told_every{500};

}  // namespace

copy_exchange::copy_exchange(recovery_setup setup, run_context& context, node_id here,
                             std::map<std::pair<stage_id, rank_id>, node_id> buddies)
    : setup_(std::move(setup)),
      context_(context),
      here_(here),
      buddies_(std::move(buddies)),
      worker_("recovery", {}, low_priority) {
  // The nodes that hold it may be lost next.
  if (setup_.from.has_copies()) setup_.copies->keep(setup_.from.record);
}

std::shared_ptr<state_copy> copy_exchange::begin_copy(const copy_key& what, std::uint64_t complete,
                                                      std::vector<compute::named_buffer> state) {
  try {
    auto copy = std::make_shared<state_copy>(std::move(state), [&](std::int64_t bytes) {
      return setup_.copies->make_room(what, bytes);
    });
    worker_.post([this, what, complete, copy] {
      copy->finish();
      hold(what, complete, copy->bytes());
    });
    return copy;
  } catch (const std::exception& e) {
    report(what, fmt::format("{}: {}", name_of(what), e.what()));
    return nullptr;
  }
}

void copy_exchange::hold(const copy_key& what, std::uint64_t complete, tensor_buffer bytes) {
  const copy_offered offer{what, {here_, bytes.bytes(), hash_of(bytes)}, complete};
  setup_.copies->put({what, offer.from.bytes, offer.from.xxh64}, std::move(bytes), complete);
  const auto buddy = buddies_.find({what.stage, what.rank});
  if (buddy == buddies_.end()) return report(what, {});
  const std::lock_guard lock{mutex_};
  if (!closed_) post(context_.actors.node(buddy->second), offer);
}

void copy_exchange::restore(stage_id stage, rank_id rank, receiver done) {
  const copy_key what{setup_.from.record.step, stage, rank};
  if (auto here = setup_.copies->find(what)) return done(*std::move(here));
  const auto source = setup_.from.copies.find(what);
  if (source == setup_.from.copies.end())
    return done(error{fmt::format("no node holds {}", name_of(what)), error_kind::failed});
  begin_fetch(what, source->second, what.step, std::move(done));
}

void copy_exchange::on(const copy_offered& m) {
  begin_fetch(m.what, m.from, m.complete, [this, what = m.what](const result<tensor_buffer>& c) {
    report(what, c ? std::string{} : c.message());
  });
}

void copy_exchange::begin_fetch(const copy_key& what, const recovery_point::source& from,
                                std::uint64_t complete, receiver r) {
  std::unique_lock lock{mutex_};
  if (closed_) return;
  // Replicas of a rank on one node share the copy.
  if (const auto under_way = fetches_.find(what); under_way != fetches_.end())
    return under_way->second.receivers.push_back(std::move(r));
  tensor_buffer room;
  try {
    room = setup_.copies->make_room(what, static_cast<std::int64_t>(from.bytes));
  } catch (const std::exception& e) {
    lock.unlock();
    return r(error{fmt::format("{}: {}", name_of(what), e.what()), error_kind::failed});
  }
  auto& f = fetches_[what];
  f.bytes = std::move(room);
  f.xxh64 = from.xxh64;
  f.complete = complete;
  f.receivers.push_back(std::move(r));
  ask(core_.begin(what, from.node, from.bytes));
}

void copy_exchange::ask(const std::vector<copy_fetches::request>& requests) {
  if (closed_) return;
  for (const auto& r : requests)
    post(context_.actors.node(r.to), fetch_copy{r.what, here_, r.offset, r.size});
}

void copy_exchange::on(const fetch_copy& m) {
  const auto found = setup_.copies->find(m.what);
  auto piece = found ? *found : make_host_buffer(dtype::uint8, {0});
  if (found && core_.may_send(piece.bytes(), m.offset, m.size)) {
    piece.data = static_cast<std::byte*>(piece.data) + m.offset;
    piece.sizes = {static_cast<std::int64_t>(m.size)};
  } else {
    piece.sizes = {0};
  }
  const message_header header{payload::copy_piece,
                              step_id{m.what.step},
                              microbatch_id{core_.number_of(m.offset)},
                              {},
                              {m.what.stage, m.what.rank},
                              copies_at(m.to)};
  const std::lock_guard lock{mutex_};
  if (!closed_) context_.wire->send({header, std::move(piece)});
}

void copy_exchange::on_piece(message m) {
  worker_.post([this, m = std::move(m)] {
    note_arrival();
    take(m);
  });
}

void copy_exchange::note_arrival() {
  context_.note_progress();
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock{mutex_};
  if (closed_ || now < tells_arrivals_at_) return;
  tells_arrivals_at_ = now + arrivals_told_every;
  post(context_.actors.find({actor_kind::job}), copies_arrive{});
}

void copy_exchange::take(const message& m) {
  using verdict = copy_fetches::verdict;
  const auto& h = m.header;
  const copy_key what{h.step.value(), h.from.stage, h.from.rank};
  const auto offset = core_.offset_of(h.mb.value());
  const auto bytes = m.tensor.content();
  std::unique_lock lock{mutex_};
  if (closed_) return;
  const auto outcome = core_.arrived(what, offset, bytes.size());
  if (outcome == verdict::unknown) return;
  auto room = fetches_.at(what).bytes;
  const auto xxh64 = fetches_.at(what).xxh64;
  lock.unlock();
  if (outcome != verdict::missing)
    std::memcpy(room.content().data() + offset, bytes.data(), bytes.size());
  if (outcome == verdict::fits) {
    lock.lock();
    return ask(core_.next(what));
  }
  const bool has_come = outcome == verdict::last;
  if (has_come && hash_of(room) == xxh64) return end_fetch(what, std::move(room));
  end_fetch(what, error{fmt::format("{} was not received: {}", name_of(what),
                                    has_come ? "its checksum is wrong" : "its node has dropped it"),
                        error_kind::failed});
}

void copy_exchange::end_fetch(const copy_key& what, const result<tensor_buffer>& copy) {
  std::unique_lock lock{mutex_};
  const auto ended = fetches_.extract(what);
  lock.unlock();
  if (ended.empty()) return;  // closed
  const auto& f = ended.mapped();
  if (copy) setup_.copies->put({what, copy->bytes(), f.xxh64}, *copy, f.complete);
  for (const auto& r : f.receivers) r(copy);
}

void copy_exchange::close() {
  // Destroyed outside the lock: a receiver holds the rank that waits for the copy.
  std::map<copy_key, fetch> dropped;
  const std::lock_guard lock{mutex_};
  dropped.swap(fetches_);
  closed_ = true;
}

void copy_exchange::report(const copy_key& what, std::string failure) {
  const std::lock_guard lock{mutex_};
  if (closed_) return;
  post(context_.actors.find({actor_kind::job}), copy_held{what.step, std::move(failure)});
}

}  // namespace rrfp::actors
