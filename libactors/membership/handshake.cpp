#include "handshake.hpp"

#include <fmt/format.h>

namespace rrfp::actors::control {

namespace {

/// What an HMAC is for: one made for one purpose is worth nothing for another.
enum class purpose : std::uint8_t {
  node_proves = 1,
  rank_0_proves = 2,
  key_to_rank_0 = 3,
  key_from_rank_0 = 4,
};

digest prove(const secret& key, purpose what, const job_identity& job, std::uint32_t rank,
             const nonce& of_node, const nonce& of_rank_0) {
  byte_writer head;
  head(magic);
  head(wire_version);
  head(static_cast<std::uint8_t>(what));
  const claim claimed{job, rank, {}};
  return hmac(key, {head.take(), encode(claimed), view(of_node), view(of_rank_0)});
}

session_keys derive(const secret& key, const job_identity& job, std::uint32_t rank,
                    const nonce& of_node, const nonce& of_rank_0) {
  auto to = prove(key, purpose::key_to_rank_0, job, rank, of_node, of_rank_0);
  auto from = prove(key, purpose::key_from_rank_0, job, rank, of_node, of_rank_0);
  return {secret{to}, secret{from}};
}

/// The first difference, as "expected ..., came ..."; empty if there is none.
std::string difference(const job_identity& expected, const job_identity& came) {
  const auto differ = [](std::string_view what, const auto& a, const auto& b) {
    return fmt::format("{}: expected {}, came {}", what, a, b);
  };
  if (expected.version != came.version)
    return differ("version of rrfp", "'" + expected.version + "'", "'" + came.version + "'");
  if (expected.job_id != came.job_id)
    return differ("job", "'" + expected.job_id + "'", "'" + came.job_id + "'");
  if (expected.job_hash != came.job_hash)
    return differ("job hash", fmt::format("{:016x}", expected.job_hash),
                  fmt::format("{:016x} (the job files or their overrides differ)", came.job_hash));
  if (expected.epoch != came.epoch) return differ("epoch", expected.epoch, came.epoch);
  if (expected.nodes != came.nodes) return differ("number of nodes", expected.nodes, came.nodes);
  return {};
}

}  // namespace

std::string printable(const std::string& text, std::size_t bytes_max) {
  auto line = text.substr(0, bytes_max);
  for (auto& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return line;
}

doorkeeper::verdict doorkeeper::refused(std::string reason, bool for_now) {
  reason = printable(reason);
  return {verdict::step::refused, to_frame(refuse{reason, for_now}), reason};
}

result<doorkeeper::verdict> doorkeeper::on(const frame& f, const seat_check& seat) {
  if (!hello_) {
    const auto came = f.type == frame_type::hello ? decode<hello>(f.payload) : std::nullopt;
    if (!came || came->mark != magic) return refused("not a node of rrfp: expected its hello");
    if (came->wire != wire_version)
      return refused(fmt::format("wire version: expected {}, came {}", wire_version, came->wire));
    auto random = fresh_nonce();
    if (!random) return random.failure();
    hello_ = *came;
    challenge_ = challenge{*random};
    return verdict{verdict::step::more, to_frame(*challenge_), {}};
  }
  const auto came = f.type == frame_type::claim ? decode<claim>(f.payload) : std::nullopt;
  if (!came) return refused("expected a claim after the hello");
  return judge(*came, seat);
}

doorkeeper::verdict doorkeeper::judge(const claim& c, const seat_check& seat) {
  rank_ = node_id{c.rank};
  // The proof first: who does not know the key learns nothing of the job.
  if (!equal(c.proof,
             prove(key_, purpose::node_proves, c.job, c.rank, hello_->random, challenge_->random)))
    return refused("key refused");
  if (auto what = difference(job_, c.job); !what.empty()) return refused(std::move(what));
  if (c.rank >= job_.nodes)
    return refused(fmt::format("node rank: expected 0 to {}, came {}", job_.nodes - 1, c.rank));
  if (auto why = seat(*rank_); !why.empty()) return refused(std::move(why), true);
  const accept yes{
      prove(key_, purpose::rank_0_proves, job_, c.rank, hello_->random, challenge_->random)};
  return {verdict::step::admitted, to_frame(yes), {}};
}

session_keys doorkeeper::keys() const {
  return derive(key_, job_, rank_->value(), hello_->random, challenge_->random);
}

result<std::optional<frame>> applicant::on(const frame& f) {
  if (f.type == frame_type::refuse) {
    const auto no = decode<refuse>(f.payload);
    refused_for_now_ = no && no->for_now != 0;
    return error{"refused by rank 0: " + (no ? printable(no->reason) : "(no reason)")};
  }
  if (!challenge_) {
    const auto came = f.type == frame_type::challenge ? decode<challenge>(f.payload) : std::nullopt;
    if (!came) return error{"what answers there is no rank 0 of rrfp"};
    challenge_ = *came;
    claim c{job_, rank_.value(), {}};
    c.proof = prove(key_, purpose::node_proves, job_, c.rank, hello_.random, challenge_->random);
    return std::optional<frame>{to_frame(c)};
  }
  const auto came = f.type == frame_type::accept ? decode<accept>(f.payload) : std::nullopt;
  const auto expected =
      prove(key_, purpose::rank_0_proves, job_, rank_.value(), hello_.random, challenge_->random);
  if (!came || !equal(came->proof, expected))
    return error{"what answers there does not know the key: not joined"};
  return std::optional<frame>{};
}

session_keys applicant::keys() const {
  return derive(key_, job_, rank_.value(), hello_.random, challenge_->random);
}

}  // namespace rrfp::actors::control
