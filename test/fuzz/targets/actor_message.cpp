/// Messages between actors of two nodes: the address, the code of the message and its fields. What
/// fits the run may be used to index.
#include <rrfp/actors/control/hang_cause.hpp>
#include <rrfp/actors/control/message_ranges.hpp>

#include "promises.hpp"

namespace {

using namespace rrfp::actors;

template <class Message>
std::string encoded(Message& m) {
  rrfp::encoder out;
  out(m);
  return out.take();
}

const message_ranges run{{2, 2, 3, rrfp::placement::interleaved}, 2, 2, 3, true, true};
const job_dimensions dimensions{run.shape, run.ranks, run.replicas};

// What actors do with messages that fit the run.
template <class Message>
void use(const Message&) {}
void use(const arrived& m) { run.shape.index(m.input.mb, m.input.chunk); }
void use(const run_launch& m) {
  run.shape.index(m.launched.what.mb, m.launched.what.chunk);
  const auto whole = m.launched.piece.share_of(1000);
  rrfp::fuzz::promise(whole >= 0 && whole <= 1000, "a piece is a part of its task");
}
void use(const stage_weights& m) {
  rrfp::fuzz::promise(m.from.stage.value() < run.shape.stages && m.from.rank.value() < run.ranks &&
                          m.from.replica.value() < run.replicas,
                      "a rank is one of the run");
}
void use(const stage_progress& m) {
  causes_of(dimensions, {m.state});
  details_of(dimensions, m.state);
}

template <class Message>
void read(std::string_view bytes) {
  Message m;
  rrfp::decoder in{bytes};
  in(m);
  // What is missing was read as zeros.
  if (check_ranges(run, m)) use(m);
  if (!in.complete()) return;
  const auto once = encoded(m);
  rrfp::fuzz::promise(once.size() == bytes.size(), "a message has the size of its bytes");
  Message again;
  rrfp::decoder second{once};
  second(again);
  rrfp::fuzz::promise(second.complete() && encoded(again) == once,
                      "a message is read as it was written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = rrfp::fuzz::text_of(data, size);
  constexpr std::size_t code_at = 13, fields_at = 14;
  if (message.size() < fields_at) return 0;
  rrfp::decoder in{message.substr(0, fields_at)};
  actor_address to;
  message_code code{};
  in(to, code);
  rrfp::fuzz::promise(in.complete() && static_cast<std::uint8_t>(code) == data[code_at],
                      "a message begins with an address and a code");
  const auto fields = message.substr(fields_at);
  switch (code) {
#define RRFP_READ(message) \
  case message_code::message: read<message>(fields); break;
    RRFP_MESSAGES(RRFP_READ)
#undef RRFP_READ
  }
  return 0;
}
