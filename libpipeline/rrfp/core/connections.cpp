#include <rrfp/core/connections.hpp>

namespace rrfp::messaging {

connections::connections(const run& r) : peers_(r.nodes) {
  for (std::uint32_t n = 0; n < r.nodes; ++n) add(r.leader, node_id{n});
  for (std::uint32_t d = 0; d < r.replicas; ++d)
    for (std::uint32_t i = 0; i < r.ranks; ++i) {
      const auto at = [&](stage_id s) { return r.node_of(replica_id{d}, s, rank_id{i}); };
      for (std::size_t v = 1; v < r.path.size(); ++v) add(at(r.path[v - 1]), at(r.path[v]));
      for (std::uint32_t s = 0; s < r.stages; ++s) {
        const auto here = r.node_of(replica_id{d}, stage_id{s}, rank_id{i});
        for (std::uint32_t other = 0; other < i; ++other)
          add(here, r.node_of(replica_id{d}, stage_id{s}, rank_id{other}));
        for (std::uint32_t other = 0; other < d; ++other)
          add(here, r.node_of(replica_id{other}, stage_id{s}, rank_id{i}));
      }
    }
}

void connections::add(node_id a, node_id b) {
  if (a == b) return;
  peers_[a.value()].insert(b);
  peers_[b.value()].insert(a);
}

}  // namespace rrfp::messaging
