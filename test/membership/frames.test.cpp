/// Frames; test/fuzz/targets/rendezvous.cpp reads random bytes.
#include <rrfp/membership/frames.hpp>

#include <catch2/catch.hpp>

namespace rrfp::actors::control {
namespace {

std::string all_of(outbox& out) {
  std::string bytes;
  for (auto next = out.front(); !next.empty(); next = out.front()) {
    bytes += next;
    out.pop();
  }
  return bytes;
}

/// The payloads of all complete frames; an error that ends them is in brackets.
std::vector<std::string> read_all(frame_reader& reader) {
  std::vector<std::string> all;
  for (;;) {
    auto f = reader.next();
    if (!f) {
      all.push_back("[" + f.message() + "]");
      return all;
    }
    if (!f->has_value()) return all;
    all.push_back((*f)->payload);
  }
}

frame text_frame(std::string text) { return {ping::type, std::move(text)}; }

using texts = std::vector<std::string>;

}  // namespace

TEST_CASE("Frames are read as they were written, however the bytes are split") {
  const auto step = GENERATE(1u, 3u, 7u, 1000u);
  outbox out;
  for (const auto* text : {"one", "", "three"}) out.add(text_frame(text));
  const auto bytes = all_of(out);
  CHECK(out.empty());
  frame_reader reader;
  texts all;
  for (std::size_t i = 0; i < bytes.size(); i += step) {
    reader.append(std::string_view{bytes}.substr(i, step));
    for (auto& t : read_all(reader)) all.push_back(t);
  }
  CHECK(all == texts{"one", "", "three"});
}

TEST_CASE("A length out of bounds is an error before its bytes arrive, and stays one") {
  frame_reader reader;
  reader.append(std::string_view{"\x01\x10\0\0", 4});
  CHECK(read_all(reader) == texts{"[expected a frame of 1 to 4096 bytes, got 4097]"});
  reader.append("more");
  CHECK(read_all(reader) == texts{"[expected a frame of 1 to 4096 bytes, got 4097]"});
  frame_reader empty;
  empty.append(std::string_view{"\0\0\0\0", 4});
  CHECK(read_all(empty) == texts{"[expected a frame of 1 to 4096 bytes, got 0]"});
  frame_reader accepted;
  accepted.accept_large();
  accepted.append(std::string_view{"\x01\0\x02\0", 4});
  CHECK(read_all(accepted) == texts{"[expected a frame of 1 to 131072 bytes, got 131073]"});
}

TEST_CASE("A heartbeat overtakes bulk data, a goodbye does not") {
  outbox out;
  out.add_bulk(3, std::make_shared<const std::string>(2 * piece_bytes_max + 5, 'x'));
  out.add(to_frame(goodbye{}));
  frame_reader reader;
  reader.accept_large();
  reader.append(out.front());
  out.pop();
  out.add_urgent(to_frame(ping{}));
  reader.append(all_of(out));
  std::vector<std::uint8_t> order;
  std::size_t bytes = 0;
  for (auto f = reader.next(); f.ok() && f->has_value(); f = reader.next()) {
    order.push_back((*f)->type);
    if ((*f)->type != piece::type) continue;
    const auto p = decoded<piece>((*f)->payload);
    REQUIRE(p.has_value());
    CHECK((p->round == 3 && p->bytes_total == 2 * piece_bytes_max + 5));
    bytes += p->bytes.size();
  }
  CHECK(bytes == 2 * piece_bytes_max + 5);
  CHECK(order == std::vector{piece::type, ping::type, piece::type, piece::type, goodbye::type});
}

TEST_CASE("A message of the wrong size, or with a text over its limit, does not decode") {
  const auto good = encoded(ping{5, "step 1"});
  CHECK(decoded<ping>(good)->status == "step 1");
  for (std::size_t i = 0; i < good.size(); ++i)
    CHECK_FALSE(decoded<ping>(good.substr(0, i)).has_value());
  CHECK_FALSE(decoded<ping>(good + "x").has_value());
  CHECK(decoded<ping>(encoded(ping{5, std::string(status_bytes_max, 's')})).has_value());
  CHECK_FALSE(decoded<ping>(encoded(ping{5, std::string(status_bytes_max + 1, 's')})).has_value());
}

}  // namespace rrfp::actors::control
