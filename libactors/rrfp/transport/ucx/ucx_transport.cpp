#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <shared_mutex>

#include <rrfp/base/check.hpp>
#include <rrfp/transport/ucx_transport.hpp>

#include "progress_thread.hpp"

namespace rrfp::actors {

/// The state that outlives the transport while a rank_channel exists.
class ucx_transport::core {
 public:
  core(ucx_options options, ucx::worker w)
      : node(std::move(options)), takes_cuda(w.takes_cuda()), progress(node, std::move(w)) {}

  void close() {
    node.sinks.close();
    node.exchange.close();
    const std::lock_guard lock{closing_};  // a concurrent second call waits for the first
    progress.stop();
  }

  template <class Call>
  void set(Call ucx::program_calls::*which, Call call) {
    progress.ask([&](ucx::peer_table&) {
      node.calls.*which = std::move(call);
      return true;
    });
  }

  /// This node, if there is no route.
  node_id node_of(const rank_address& address) const {
    const std::shared_lock lock{routes_mutex_};
    const auto found = routes_.find(address);
    return found == routes_.end() ? node.options.node : found->second;
  }
  void route(rank_address address, node_id at_node) {
    const std::unique_lock lock{routes_mutex_};
    routes_.insert_or_assign(address, at_node);
  }

  ucx::node_state node;
  const bool takes_cuda;
  ucx::progress_thread progress;

 private:
  mutable std::shared_mutex routes_mutex_;
  std::map<rank_address, node_id> routes_;
  std::mutex closing_;
};

namespace {

status check_limits(const ucx_options& o) {
  if (o.message_bytes_max < 1) return error{"UCX transport: message_bytes_max is 0"};
  if (o.inflight_bytes_max >= o.message_bytes_max) return success();
  return error{"UCX transport: inflight_bytes_max (" + std::to_string(o.inflight_bytes_max) +
               ") is below message_bytes_max (" + std::to_string(o.message_bytes_max) +
               "): the largest message could never be fetched"};
}

/// The channel of one member of a group.
template <class Core>
class ucx_channel final : public tp_coord::rank_channel {
 public:
  ucx_channel(std::shared_ptr<Core> core, std::uint32_t group, rank_id own,
              std::vector<node_id> nodes)
      : core_(std::move(core)),
        group_(group),
        own_(own),
        nodes_(std::move(nodes)),
        mailbox_(core_->node.exchange.open(group, own, nodes_)) {}

  rank_id rank() const override { return own_; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(nodes_.size()); }

  /// If the message cannot be delivered, the receive() of the other side fails.
  status send(rank_id to, std::uint64_t tag, std::span<const std::byte> data) override {
    RRFP_CHECK(to.value() < nodes_.size(), "the receiver must be a member of the group");
    const auto at_node = nodes_[to.value()];
    if (at_node == core_->node.options.node) {
      const auto taken = core_->node.exchange.mailbox(group_, to)->arrive(own_, tag, data);
      RRFP_CHECK(taken, "ranks of one process must receive the messages that they send each other");
      return success();
    }
    post(at_node, header_to(to, tag), data);
    return success();
  }

  result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                             std::span<std::byte> into,
                                             std::chrono::milliseconds limit) override {
    RRFP_CHECK(from.value() < nodes_.size(), "the sender must be a member of the group");
    return mailbox_->receive(from, tag, into, limit);
  }

  void close(const std::string& why) override {
    mailbox_->close(why);
    if (is_closed_.exchange(true)) return;
    for (std::uint32_t i = 0; i < size(); ++i) {
      const rank_id to{i};
      if (to == own_) continue;
      auto closing = header_to(to, 0);
      closing.closes = true;
      if (nodes_[i] != core_->node.options.node)
        post(nodes_[i], closing, std::as_bytes(std::span{why}));
      else
        core_->node.exchange.mailbox(group_, to)->close(why);
    }
  }

 private:
  messaging::bytes_header header_to(rank_id to, std::uint64_t tag) const {
    messaging::bytes_header h;
    h.group = group_;
    h.from = own_;
    h.to = to;
    h.tag = tag;
    return h;
  }
  void post(node_id at_node, const messaging::bytes_header& header,
            std::span<const std::byte> data) {
    ucx::bytes_send s{at_node, header, core_->node.pool->take(data.size())};
    RRFP_CHECK(s.data.data() != nullptr, "there must be memory for a channel message");
    if (!data.empty()) std::memcpy(s.data.data(), data.data(), data.size());
    s.header.data_bytes = data.size();
    s.header.has_data_hash = core_->node.options.checksum_data;
    if (s.header.has_data_hash) s.header.data_hash = ucx::hash_of(data);
    core_->progress.send(std::move(s));
  }

  const std::shared_ptr<Core> core_;
  const std::uint32_t group_;
  const rank_id own_;
  const std::vector<node_id> nodes_;
  const std::shared_ptr<ucx::byte_mailbox> mailbox_;
  std::atomic<bool> is_closed_ = false;
};

}  // namespace

result<std::unique_ptr<ucx_transport>> ucx_transport::open(ucx_options options) {
  if (const auto s = check_limits(options); !s) return s.failure();
  if (options.enter_thread) options.enter_thread();
  auto w = ucx::worker::open(options);
  if (!w) return w.failure();
  auto c = std::make_shared<core>(std::move(options), std::move(w).value());
  return std::unique_ptr<ucx_transport>{new ucx_transport{std::move(c)}};
}

ucx_transport::ucx_transport(std::shared_ptr<core> c) : core_(std::move(c)) {}

ucx_transport::~ucx_transport() { core_->close(); }

const std::string& ucx_transport::address() const { return core_->progress.address(); }

void ucx_transport::on_failure(std::function<void(node_id, std::string why)> failed) {
  core_->set(&ucx::program_calls::failed, std::move(failed));
}

void ucx_transport::fetch_to_devices(device_allocator allocate) {
  core_->set(&ucx::program_calls::allocate, std::move(allocate));
}

bool ucx_transport::takes_cuda() const { return core_->takes_cuda; }

status ucx_transport::connect(node_id node, const std::string& address) {
  RRFP_CHECK(node != core_->node.options.node, "a node must not connect to itself");
  const auto made =
      core_->progress.ask([&](ucx::peer_table& peers) { return peers.connect(node, address); });
  return made ? *made : error{"the transport is closed"};
}

void ucx_transport::give_up(node_id node, std::string why) {
  core_->progress.post(ucx::progress_thread::loss{node, std::move(why)});
}

void ucx_transport::route(rank_address address, node_id node) { core_->route(address, node); }

void ucx_transport::bind(rank_address address, message_sink sink) {
  core_->node.sinks.bind(address, std::move(sink));
}

void ucx_transport::send(message m) {
  const auto at_node = core_->node_of(m.header.to);
  if (at_node == core_->node.options.node) {
    RRFP_CHECK(core_->node.sinks.deliver(std::move(m)) != messaging::delivery::not_bound,
               "the receiver must be bound here or routed to another node");
    return;
  }
  RRFP_CHECK(m.tensor.on_host || core_->takes_cuda,
             "the tensor must be in memory that UCX can read");
  RRFP_CHECK(item_bytes(m.tensor.type) > 0, "the dtype of the tensor must have a code");
  RRFP_CHECK(m.tensor.sizes.size() <= ucx::dims_max, "the tensor must have at most 8 dimensions");
  RRFP_CHECK(m.tensor.contiguous, "the tensor must be contiguous");
  messaging::tensor_header h;
  h.message = m.header;
  h.type = m.tensor.type;
  h.dims = static_cast<std::uint8_t>(m.tensor.sizes.size());
  std::ranges::copy(m.tensor.sizes, h.shape.begin());
  h.data_bytes = m.tensor.bytes();
  // Hashed here, because all senders of the node share the progress thread; not in device memory.
  h.has_data_hash = core_->node.options.checksum_data && m.tensor.on_host;
  if (h.has_data_hash) h.data_hash = ucx::hash_of(std::as_const(m.tensor).content());
  core_->progress.send(ucx::tensor_send{at_node, h, std::move(m.tensor)});
}

std::unique_ptr<tp_coord::rank_channel> ucx_transport::open_channel(const channel_group& group,
                                                                    rank_id own) {
  RRFP_CHECK(own.value() < group.members.size(), "a rank must be a member of its group");
  std::vector<node_id> nodes;
  for (const auto& member : group.members) nodes.push_back(core_->node_of(member));
  return std::make_unique<ucx_channel<core>>(core_, group.id, own, std::move(nodes));
}

bool ucx_transport::takes_device_memory(const rank_address& to) const {
  return core_->takes_cuda || core_->node.sinks.is_bound(to);
}

void ucx_transport::on_actor_message(actor_message_reader read) {
  core_->set(&ucx::program_calls::read_actor_message, std::move(read));
}

void ucx_transport::send_actor_message(node_id to, std::string bytes) {
  core_->progress.send(ucx::actor_message_send{to, std::move(bytes)});
}

void ucx_transport::close() { core_->close(); }

ucx_counters ucx_transport::counters() const {
  const auto memory = core_->node.pool->count();
  return {core_->node.counts.read(), memory.slabs_in_use, memory.bytes_cached};
}

std::string ucx_transport::transports() {
  return core_->progress.ask([](ucx::peer_table& peers) { return peers.describe(); })
      .value_or("the transport is closed");
}

}  // namespace rrfp::actors
