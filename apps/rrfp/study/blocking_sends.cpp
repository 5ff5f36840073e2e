#include <rrfp/study/blocking_sends.hpp>

#include <cstdint>
#include <utility>

#include <rrfp/actors/session.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/core/sequence.hpp>
#include <rrfp/study/options.hpp>

namespace rrfp::study {

using actors::message;

namespace {

/// A signal has one byte: the payload of the input that it is about, and this bit if the input was
/// received, not only awaited.
constexpr std::uint8_t received_bit = 0x80;

/// Goes to the sender of the input.
message signal_about(const message_header& input, bool received) {
  auto content = make_host_buffer(dtype::uint8, {1});
  *static_cast<std::uint8_t*>(content.data) = static_cast<std::uint8_t>(
      static_cast<std::uint8_t>(input.kind) | (received ? received_bit : 0));
  return {{payload::signal, input.step, input.mb, input.chunk, input.to, input.from},
          std::move(content)};
}

}  // namespace

std::function<std::unique_ptr<actors::transport>(std::unique_ptr<actors::transport>)>
blocking_sends(const pipeline_shape& shape, const policy_factory& make_policy) {
  return [shape, make_policy](std::unique_ptr<actors::transport> inner) {
    return std::make_unique<blocking_transport>(std::move(inner), shape, make_policy);
  };
}

void block_sends(actors::session_setup& setup) {
  RRFP_CHECK(setup.rule.mode == dispatch_mode::in_order && setup.lookahead == 0,
             "sends block in mode in-order without lookahead");
  setup.wrap_outputs = blocking_sends(setup.shape, setup.rule.make_policy);
}

void prepare_session(const job::job& j, actors::session_setup& setup) {
  if (blocks_messages(j)) block_sends(setup);
}

blocking_transport::message_key blocking_transport::key_of(const message_header& h) {
  return {h.step, h.kind, h.mb, h.chunk, h.to};
}

void blocking_transport::bind(rank_address address, actors::message_sink sink) {
  {
    const std::lock_guard lock{mutex_};
    here_.insert(address);
  }
  inner_->bind(address, [this, sink = std::move(sink)](message m) { deliver(std::move(m), sink); });
}

void blocking_transport::deliver(message m, const actors::message_sink& sink) {
  const auto header = m.header;
  if (header.kind == payload::signal) {
    RRFP_CHECK(m.tensor.bytes() == 1, "a signal has one byte");
    const auto said = *static_cast<const std::uint8_t*>(m.tensor.data);
    const message_key key{header.step, static_cast<payload>(said & ~received_bit), header.mb,
                          header.chunk, header.from};
    return (said & received_bit) != 0 ? received(key) : posted(key);
  }
  sink(std::move(m));
  if (is_input(header.kind)) tell_sender(header, true);
}

void blocking_transport::close() {
  inner_->close();
  const std::lock_guard lock{mutex_};
  transfers_.clear();
}

void blocking_transport::begin_step(const rank_address& rank, step_id step,
                                    std::uint32_t microbatches) {
  progress p;
  if (microbatches > 0) {
    auto shape = shape_;
    shape.microbatches = microbatches;
    for (const auto& t : obeyed_order(*make_policy_(shape, rank.stage), shape))
      if (t.kind != task_kind::weight) p.tasks.push_back(t);
  }
  {
    const std::lock_guard lock{mutex_};
    ranks_[rank] = std::move(p);
  }
  post_next(rank, step);
}

void blocking_transport::end_task(const rank_address& rank, step_id step, const task& ended) {
  if (ended.kind != task_kind::weight) post_next(rank, step);
}

void blocking_transport::post_next(const rank_address& rank, step_id step) {
  std::optional<task> next;
  {
    const std::lock_guard lock{mutex_};
    auto& p = ranks_[rank];
    if (p.next < p.tasks.size()) next = p.tasks[p.next++];
  }
  if (!next) return;
  const auto from = shape_.producer_of(rank.stage, *next);
  if (from && from->stage != rank.stage)
    post_receive({payload_for(next->kind),
                  step,
                  next->mb,
                  next->chunk,
                  {from->stage, rank.rank, rank.replica},
                  rank});
}

void blocking_transport::send_output(message m, std::function<void()> go_on) {
  {
    const std::lock_guard lock{mutex_};
    auto& pending = transfers_[key_of(m.header)];
    RRFP_CHECK(!pending.go_on, "a message is sent once");
    pending.go_on = std::move(go_on);
    if (!pending.posted) {
      pending.held = std::move(m);
      return;
    }
  }
  inner_->send(std::move(m));
}

void blocking_transport::tell_sender(const message_header& input, bool is_received) {
  bool is_here = false;
  {
    const std::lock_guard lock{mutex_};
    is_here = here_.contains(input.from);
  }
  if (!is_here) return inner_->send(signal_about(input, is_received));
  is_received ? received(key_of(input)) : posted(key_of(input));
}

void blocking_transport::posted(const message_key& key) {
  std::optional<message> held;
  {
    const std::lock_guard lock{mutex_};
    auto& pending = transfers_[key];
    RRFP_CHECK(!std::exchange(pending.posted, true), "a receive is posted once");
    held = std::exchange(pending.held, std::nullopt);
  }
  if (held) inner_->send(std::move(*held));
}

void blocking_transport::received(const message_key& key) {
  std::function<void()> go_on;
  {
    const std::lock_guard lock{mutex_};
    if (auto done = transfers_.extract(key)) go_on = std::move(done.mapped().go_on);
  }
  if (go_on) go_on();
}

}  // namespace rrfp::study
