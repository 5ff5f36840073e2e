#include "receiver.hpp"

#include <cstring>

#include <ATen/ops/from_blob.h>

#include "dtype_codes.hpp"

#include <rrfp/base/step_name.hpp>

namespace rrfp::actors::ucx {

namespace {

std::span<const std::byte> as_span(const void* data, std::size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

std::string name_of(const rank_address& a) {
  return "stage " + std::to_string(a.stage.value()) + " rank " + std::to_string(a.rank.value()) +
         " of replica " + std::to_string(a.replica.value());
}

std::string name_of(const tensor_header& h) {
  constexpr const char* kinds[] = {"an activation", "a gradient", "a tied gradient"};
  return std::string{kinds[static_cast<std::size_t>(h.message.kind)]} + " of " +
         to_string(h.message.step) + ", microbatch " + std::to_string(h.message.mb.value()) +
         ", chunk " + std::to_string(h.message.chunk.value()) + " (" + name_of(h.message.from) +
         " -> " + name_of(h.message.to) + ", " + std::to_string(h.data_bytes) + " bytes)";
}

std::string name_of(const bytes_header& h) {
  return "a channel message of group " + std::to_string(h.group) + ", rank " +
         std::to_string(h.from.value()) + " -> " + std::to_string(h.to.value()) + ", tag " +
         std::to_string(h.tag) + " (" + std::to_string(h.data_bytes) + " bytes)";
}

template <class Header>
bool matches(const Header& h, std::span<const std::byte> data) {
  return !h.has_data_hash || hash_of(data) == h.data_hash;
}

constexpr const char* damaged = "the data does not match its checksum: ";
constexpr const char* no_memory = "this node has no memory left for ";

/// Limit of fetches begun between two calls of ucp_worker_progress.
constexpr int fetches_at_once = 16;

}  // namespace

receiver::receiver(node_state& node, worker& w, peer_table& peers, sender& out)
    : node_(node), worker_(w), peers_(peers), out_(out) {
  const auto set_handler = [&](am kind, ucp_am_recv_callback_t call) {
    ucp_am_handler_param_t how{};
    how.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
    how.id = static_cast<unsigned>(kind);
    how.cb = call;
    how.arg = this;
    const auto s = ucp_worker_set_am_recv_handler(worker_.handle(), &how);
    RRFP_CHECK(s == UCS_OK, "UCX must accept handlers of active messages");
  };
  set_handler(am::tensor, &on_tensor);
  set_handler(am::bytes, &on_bytes);
  set_handler(am::farewell, &on_farewell);
}

template <class Header>
bool receiver::is_acceptable(const Header& h, std::size_t bytes) {
  const auto& options = node_.options;
  if (h.job_token != options.job_token || h.epoch != options.epoch ||
      peers_.has_failed(h.from_node)) {
    live_counters::add(node_.counters.dropped_stale);
    return false;
  }
  if (h.data_bytes > options.message_bytes_max) {
    peers_.fail(h.from_node, "it sent more than message_bytes_max, " +
                                 std::to_string(options.message_bytes_max) + ": " + name_of(h));
    return false;
  }
  if (h.data_bytes != bytes) {
    peers_.fail(h.from_node, "it announced another size than it sent, " + std::to_string(bytes) +
                                 ": " + name_of(h));
    return false;
  }
  return true;
}

bool receiver::is_fresh(const tensor_header& h) {
  switch (windows_[{h.message.from, h.message.to}].take(h.sequence)) {
    case sequence_window::verdict::fresh: return true;
    case sequence_window::verdict::duplicate:
      live_counters::add(node_.counters.dropped_duplicate);
      return false;
    case sequence_window::verdict::too_far:
      peers_.fail(h.from_node, "a message was lost: one of the " +
                                   std::to_string(sequence_window::window_max) +
                                   " before this one never arrived: " + name_of(h));
      return false;
  }
  return false;
}

ucs_status_t receiver::on_tensor(void* arg, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* how) {
  auto& self = *static_cast<receiver*>(arg);
  if (self.closed_) return UCS_OK;
  const auto h = decode_tensor_header(as_span(header, header_bytes));
  if (!h) {
    live_counters::add(self.node_.counters.dropped_invalid);
    return UCS_OK;
  }
  if (!self.is_acceptable(*h, bytes) || !self.is_fresh(*h)) return UCS_OK;
  if ((how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return self.announce(*h, data);
  auto copy = self.node_.pool->take(bytes);
  if (copy.data() == nullptr)
    self.peers_.fail(h->from_node, no_memory + name_of(*h));
  else if (bytes > 0)
    std::memcpy(copy.data(), data, bytes);
  if (copy.data() != nullptr) self.deliver(*h, std::move(copy));
  return UCS_OK;
}

ucs_status_t receiver::on_bytes(void* arg, const void* header, std::size_t header_bytes, void* data,
                                std::size_t bytes, const ucp_am_recv_param_t* how) {
  auto& self = *static_cast<receiver*>(arg);
  if (self.closed_) return UCS_OK;
  const auto h = decode_bytes_header(as_span(header, header_bytes));
  if (!h) {
    live_counters::add(self.node_.counters.dropped_invalid);
    return UCS_OK;
  }
  if (!self.is_acceptable(*h, bytes)) return UCS_OK;
  if ((how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return self.announce(*h, data);
  self.deliver_small(*h, as_span(data, bytes));
  return UCS_OK;
}

ucs_status_t receiver::on_farewell(void* arg, const void* header, std::size_t header_bytes, void*,
                                   std::size_t, const ucp_am_recv_param_t*) {
  auto& self = *static_cast<receiver*>(arg);
  const auto h = decode_farewell_header(as_span(header, header_bytes));
  if (!h) {
    live_counters::add(self.node_.counters.dropped_invalid);
    return UCS_OK;
  }
  if (h->job_token != self.node_.options.job_token || h->epoch != self.node_.options.epoch) {
    live_counters::add(self.node_.counters.dropped_stale);
    return UCS_OK;
  }
  if (h->is_answer) {
    self.answered_.insert(h->from_node);
    return UCS_OK;
  }
  self.out_.send_farewell(h->from_node, true);
  self.peers_.leave(h->from_node);
  return UCS_OK;
}

ucs_status_t receiver::announce(any_header h, void* descriptor) {
  announced_.push_back({std::move(h), descriptor});
  live_counters::add(node_.counters.announced);
  return UCS_INPROGRESS;  // the descriptor stays valid until it is fetched or released
}

bool receiver::begin_fetches() {
  bool any = false;
  for (int i = 0; i < fetches_at_once && !announced_.empty(); ++i) {
    const auto bytes =
        std::visit([](const auto& h) { return h.data_bytes; }, announced_.front().header);
    if (node_.counters.inflight_bytes + bytes > node_.options.inflight_bytes_max) break;
    auto next = std::move(announced_.front());
    announced_.pop_front();
    live_counters::subtract(node_.counters.announced);
    begin_fetch(std::move(next));
    any = true;
  }
  return any;
}

at::Tensor receiver::allocate_on_device(const any_header& any) const {
  const auto* const h = std::get_if<tensor_header>(&any);
  if (h == nullptr || !allocator_ || h->has_data_hash) return {};
  return allocator_(h->message.to, at::IntArrayRef{h->shape.data(), h->dims},
                    scalar_type_of(h->dtype));
}

void receiver::begin_fetch(announcement a) {
  const auto from = std::visit([](const auto& h) { return h.from_node; }, a.header);
  const auto bytes = std::visit([](const auto& h) { return h.data_bytes; }, a.header);
  if (peers_.has_failed(from)) {
    live_counters::add(node_.counters.dropped_stale);
    return ucp_am_data_release(worker_.handle(), a.descriptor);
  }
  auto on_device = allocate_on_device(a.header);
  auto into = on_device.defined() ? slab{} : node_.pool->take(bytes);
  auto* const target = on_device.defined() ? on_device.mutable_data_ptr() : into.data();
  if (target == nullptr) {
    std::visit([&](const auto& h) { peers_.fail(from, no_memory + name_of(h)); }, a.header);
    return ucp_am_data_release(worker_.handle(), a.descriptor);
  }
  auto f = std::make_unique<fetch>(
      fetch{this, std::move(a.header), std::move(into), std::move(on_device)});
  ++fetching_;
  auto& counters = node_.counters;
  live_counters::add(counters.inflight_bytes, bytes);
  if (counters.inflight_bytes > counters.inflight_bytes_peak)
    counters.inflight_bytes_peak = counters.inflight_bytes.load();
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.cb.recv_am = &on_fetched;
  how.user_data = f.get();
  how.memory_type = memory_type_of(f->on_device);
  auto* const request = ucp_am_recv_data_nbx(worker_.handle(), a.descriptor, target, bytes, &how);
  if (UCS_PTR_IS_PTR(request))
    static_cast<void>(f.release());  // on_fetched takes it back
  else
    end_fetch(std::move(f), UCS_PTR_STATUS(request));
}

void receiver::on_fetched(void* request, ucs_status_t how, std::size_t, void* arg) {
  std::unique_ptr<fetch> f{static_cast<fetch*>(arg)};
  ucp_request_free(request);
  auto& self = *f->owner;
  self.end_fetch(std::move(f), how);
}

void receiver::end_fetch(std::unique_ptr<fetch> f, ucs_status_t how) {
  --fetching_;
  std::visit(
      [&](const auto& h) {
        live_counters::subtract(node_.counters.inflight_bytes, h.data_bytes);
        if (closed_ || peers_.has_failed(h.from_node)) return;
        if (how != UCS_OK)
          peers_.fail(h.from_node, ucx_error("fetching " + name_of(h) + " failed", how).message);
        else if (f->on_device.defined())
          deliver(std::get<tensor_header>(f->header), std::move(f->on_device));
        else
          deliver(h, std::move(f->into));
      },
      f->header);
}

void receiver::deliver(const tensor_header& h, slab data) {
  if (!matches(h, {data.data(), h.data_bytes}))
    return peers_.fail(h.from_node, damaged + name_of(h));
  auto* const memory = data.release();
  deliver(h, at::for_blob(memory, at::IntArrayRef{h.shape.data(), h.dims})
                 .context(memory, &slab::give_back)
                 .options(at::TensorOptions{scalar_type_of(h.dtype)})
                 .make_tensor());
}

void receiver::deliver(const tensor_header& h, at::Tensor t) {
  message m{h.message, std::move(t)};
  switch (node_.sinks.deliver(m)) {
    case sink_table::outcome::delivered: count_delivered(h.data_bytes); break;
    case sink_table::outcome::closed: break;
    case sink_table::outcome::not_bound:
      peers_.fail(h.from_node, "no receiver on this node: " + name_of(h));
      break;
  }
}

void receiver::deliver_small(const bytes_header& h, std::span<const std::byte> data) {
  if (!matches(h, data)) return peers_.fail(h.from_node, damaged + name_of(h));
  put(h, data, [&](byte_mailbox& box) { return box.arrive(h.from, h.tag, data); });
}

void receiver::deliver(const bytes_header& h, slab data) {
  const std::span<const std::byte> view{data.data(), h.data_bytes};
  if (!matches(h, view)) return peers_.fail(h.from_node, damaged + name_of(h));
  put(h, view,
      [&](byte_mailbox& box) { return box.arrive(h.from, h.tag, std::move(data), h.data_bytes); });
}

template <class Arrive>
void receiver::put(const bytes_header& h, std::span<const std::byte> data, Arrive arrive) {
  const auto box = node_.exchange.mailbox(h.group, h.to);
  if (box != nullptr && h.closes)
    box->close({reinterpret_cast<const char*>(data.data()), data.size()});
  else if (box == nullptr || !arrive(*box))
    return peers_.fail(h.from_node,
                       "its messages are not received, and their buffer is full: " + name_of(h));
  count_delivered(h.data_bytes);
}

void receiver::count_delivered(std::uint64_t bytes) {
  live_counters::add(node_.counters.received);
  live_counters::add(node_.counters.received_bytes, bytes);
}

void receiver::close() {
  closed_ = true;
  for (const auto& a : announced_) ucp_am_data_release(worker_.handle(), a.descriptor);
  live_counters::subtract(node_.counters.announced, announced_.size());
  announced_.clear();
}

}  // namespace rrfp::actors::ucx
