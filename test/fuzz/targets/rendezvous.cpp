/// What a node with the key may send through TLS: frames, the claim, messages. The first byte
/// chooses the size of frames and how the bytes arrive.
#include <algorithm>

#include <rrfp/membership/frames.hpp>

#include "promises.hpp"

using namespace rrfp;
using namespace rrfp::actors::control;
using fuzz::promise;

namespace {

void read(const frame& f) {
  if (const auto c = decoded<claim>(f.payload))
    promise(encoded(*c) == f.payload, "a claim is what its bytes say");
  for (const auto& e :
       {judge_claim({}, {"0.1.0", "job", 7, 2}, f), judge_answer({}, rrfp::node_id{0}, f)})
    if (const auto* const refused = std::get_if<event::refused>(&e))
      fuzz::promise_line(refused->reason);
  const auto message = to_message(f);
  if (std::holds_alternative<malformed>(message)) return;
  const auto again = to_frame(message);
  promise(again.type == f.type && again.payload == f.payload, "a message is what its bytes say");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  frame_reader reader;
  if ((data[0] & 1) != 0) reader.accept_large();
  const std::size_t step = std::max(1, data[0] >> 1);
  const auto bytes = fuzz::text_of(data + 1, size - 1);
  std::string again, failure;
  for (std::size_t at = 0; at < bytes.size() && failure.empty(); at += step) {
    reader.append(bytes.substr(at, step));
    for (;;) {
      const auto f = reader.next();
      if (!f) failure = f.message();
      if (!f || !f->has_value()) break;
      again += to_bytes(**f);
      read(**f);
    }
  }
  if (!failure.empty()) fuzz::promise_line(failure);
  promise(bytes.starts_with(again), "the frames are the bytes");
  return 0;
}
