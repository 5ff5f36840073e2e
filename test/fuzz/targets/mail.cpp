/// Mail between actors of two nodes: the address, the code of the message and its fields.
#include <control/messages.hpp>

#include "promises.hpp"

namespace {

using namespace rrfp::actors;

template <class Message>
std::string encoded(Message& m) {
  rrfp::encoder out;
  out(m);
  return out.take();
}

template <class Message>
void read(std::string_view bytes) {
  Message m;
  rrfp::decoder in{bytes};
  in(m);
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
  const auto mail = rrfp::fuzz::text_of(data, size);
  constexpr std::size_t code_at = 13, fields_at = 14;
  if (mail.size() < fields_at) return 0;
  rrfp::decoder in{mail.substr(0, fields_at)};
  actor_address to;
  message_code code{};
  in(to, code);
  rrfp::fuzz::promise(in.complete() && static_cast<std::uint8_t>(code) == data[code_at],
                      "mail begins with an address and a code");
  const auto fields = mail.substr(fields_at);
  switch (code) {
#define RRFP_READ(message) \
  case message_code::message: read<message>(fields); break;
    RRFP_MESSAGES(RRFP_READ)
#undef RRFP_READ
  }
  return 0;
}
