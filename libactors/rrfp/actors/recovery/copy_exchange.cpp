#include "copy_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "state_bytes.hpp"

namespace rrfp::actors {

namespace {

std::string name_of(const copy_key& what) {
  return fmt::format("the copy of stage {} rank {} after step {}", what.stage.value(),
                     what.rank.value(), what.step);
}

std::span<const std::byte> bytes_in(const tensor_buffer& b, std::int64_t offset,
                                    std::int64_t size) {
  return b.content().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

}  // namespace

copy_exchange::copy_exchange(recovery_setup setup, const directory& actors, node_id here,
                             std::map<std::pair<stage_id, rank_id>, node_id> buddies)
    : setup_(std::move(setup)), actors_(actors), here_(here), buddies_(std::move(buddies)) {
  // The nodes that hold it may be lost next.
  if (setup_.from.has_copies()) setup_.copies->keep(setup_.from.record);
}

result<tensor_buffer> copy_exchange::copy(const copy_key& what,
                                          std::span<const compute::named_buffer> state) {
  try {
    return bytes_of_state(
        state, [&](std::int64_t bytes) { return setup_.copies->make_room(what, bytes); });
  } catch (const std::exception& e) {
    return error{e.what(), error_kind::failed};
  }
}

void copy_exchange::hold(const copy_key& what, std::uint64_t complete,
                         result<tensor_buffer> copied) {
  if (!copied) return report(what, fmt::format("{}: {}", name_of(what), copied.message()));
  const auto bytes = copied->elements();
  checkpoint::checksum sum;
  sum.add(bytes_in(*copied, 0, bytes));
  const copy_offered offer{what, here_, bytes, sum.value(), complete};
  setup_.copies->put(what, {*std::move(copied), sum.value()}, complete);
  const auto buddy = buddies_.find({what.stage, what.rank});
  if (buddy == buddies_.end()) return report(what, {});
  const std::lock_guard lock{mutex_};
  send(buddy->second, offer);
}

void copy_exchange::restore(stage_id stage, rank_id rank,
                            std::function<void(result<tensor_buffer>)> done) {
  const copy_key what{setup_.from.record.step, stage, rank};
  if (auto here = setup_.copies->find(what)) return done(std::move(here->bytes));
  const auto source = setup_.from.copies.find(what);
  if (source == setup_.from.copies.end())
    return done(error{fmt::format("no node holds {}", name_of(what)), error_kind::failed});
  begin_fetch(what, source->second, what.step,
              [done = std::move(done)](result<copy_store::copy> c) {
                done(c ? result<tensor_buffer>{std::move(c->bytes)} : c.failure());
              });
}

void copy_exchange::on(const copy_offered& m) {
  const recovery_point::source from{m.from, static_cast<std::uint64_t>(m.bytes), m.xxh64};
  begin_fetch(m.what, from, m.complete, [this, what = m.what](const result<copy_store::copy>& c) {
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
  for (const auto& r : requests)
    send(r.to, fetch_copy{r.what, here_, static_cast<std::int64_t>(r.offset),
                          static_cast<std::int64_t>(r.size)});
}

void copy_exchange::on(const fetch_copy& m) {
  copy_piece piece{m.what, m.offset, {}};
  const auto found = setup_.copies->find(m.what);
  if (found && core_.may_send(found->bytes.bytes(), static_cast<std::uint64_t>(m.offset),
                              static_cast<std::uint64_t>(m.size))) {
    const auto bytes = bytes_in(found->bytes, m.offset, m.size);
    piece.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::lock_guard lock{mutex_};
  send(m.to, std::move(piece));
}

void copy_exchange::on(const copy_piece& m) {
  using verdict = copy_fetches::verdict;
  std::unique_lock lock{mutex_};
  if (closed_) return;
  const auto outcome = core_.arrived(m.what, static_cast<std::uint64_t>(m.offset), m.bytes.size());
  if (outcome == verdict::unknown) return;
  auto& f = fetches_.at(m.what);
  if (outcome != verdict::missing) {
    std::memcpy(f.bytes.content().data() + m.offset, m.bytes.data(), m.bytes.size());
    f.sum.add(bytes_in(f.bytes, m.offset, static_cast<std::int64_t>(m.bytes.size())));
  }
  if (outcome == verdict::fits) return ask(core_.next(m.what));
  const bool is_whole = outcome == verdict::last && f.sum.value() == f.xxh64;
  const bool has_come = outcome == verdict::last;
  lock.unlock();
  end_fetch(m.what,
            is_whole ? std::nullopt
                     : std::optional{error{fmt::format("{} was not received: {}", name_of(m.what),
                                                       has_come ? "its checksum is wrong"
                                                                : "its node has dropped it"),
                                           error_kind::failed}});
}

void copy_exchange::end_fetch(const copy_key& what, std::optional<error> failed) {
  std::unique_lock lock{mutex_};
  const auto ended = fetches_.extract(what);
  lock.unlock();
  if (ended.empty()) return;  // closed
  const auto& f = ended.mapped();
  const copy_store::copy whole{f.bytes, f.xxh64};
  if (!failed) setup_.copies->put(what, whole, f.complete);
  for (const auto& r : f.receivers)
    r(failed ? result<copy_store::copy>{*failed} : result<copy_store::copy>{whole});
}

void copy_exchange::close() {
  // Destroyed outside the lock: a receiver holds the rank that waits for the copy.
  std::map<copy_key, fetch> dropped;
  const std::lock_guard lock{mutex_};
  dropped.swap(fetches_);
  closed_ = true;
}

template <class Message>
void copy_exchange::send(node_id to, Message m) {
  if (!closed_) post(actors_.node(to), std::move(m));
}

void copy_exchange::report(const copy_key& what, std::string failure) {
  const std::lock_guard lock{mutex_};
  if (closed_) return;
  post(actors_.find({actor_kind::job}), copy_held{what.step, std::move(failure)});
}

}  // namespace rrfp::actors
