/// The copies that a node fetches: which piece to ask for next, and when a copy is whole.
///
/// The receiver asks for one piece after another, a few ahead, so neither side holds more than a
/// few pieces beside the copies, and the sender remembers nothing. Pieces arrive in any order.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/copy_set.hpp>

namespace rrfp {

class copy_fetches {
 public:
  struct limits {
    std::uint64_t piece_bytes = 1 << 20;
    std::uint64_t pieces_ahead = 4;
  };
  /// Ask the node for this piece of the copy.
  struct request {
    node_id to;
    copy_key what;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  enum class verdict : std::uint8_t {
    unknown,  ///< nothing fetches this copy any more: ignore the piece
    fits,     ///< keep it, and ask for what `next` returns
    last,     ///< keep it: the copy is whole
    missing,  ///< the sender has dropped the copy, or this is no piece of it: the fetch has ended
  };

  explicit copy_fetches(limits l) : limits_(l) {}

  bool is_under_way(const copy_key& what) const { return fetches_.contains(what); }
  /// The copy must not be under way. Returns what to ask for first.
  std::vector<request> begin(const copy_key& what, node_id from, std::uint64_t bytes);
  /// The verdict on the bytes that came; after `last` and `missing` the fetch has ended.
  verdict arrived(const copy_key& what, std::uint64_t offset, std::uint64_t size);
  /// What to ask for after a piece that fits.
  std::vector<request> next(const copy_key& what);

  /// A piece by its number, from 0.
  std::uint64_t offset_of(std::uint32_t piece) const { return piece * limits_.piece_bytes; }
  std::uint32_t number_of(std::uint64_t offset) const {
    return static_cast<std::uint32_t>(offset / limits_.piece_bytes);
  }
  /// Whether a copy of `bytes` bytes has the piece that a node asks for.
  bool may_send(std::uint64_t bytes, std::uint64_t offset, std::uint64_t size) const;

 private:
  struct fetch {
    node_id from;
    std::uint64_t bytes = 0;
    std::uint64_t asked = 0;
    std::set<std::uint64_t> waits_for;  ///< offsets
  };
  std::uint64_t size_at(const fetch& f, std::uint64_t offset) const {
    return std::min(limits_.piece_bytes, f.bytes - offset);
  }

  const limits limits_;
  std::map<copy_key, fetch> fetches_;
};

}  // namespace rrfp
