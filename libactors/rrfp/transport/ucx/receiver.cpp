#include "receiver.hpp"

#include <cstring>

namespace rrfp::actors::ucx {

namespace {

std::span<const std::byte> as_span(const void* data, std::size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

template <class Header>
bool matches(const Header& h, std::span<const std::byte> data) {
  return !h.has_data_hash || hash_of(data) == h.data_hash;
}

/// Limit of fetches begun between two calls of ucp_worker_progress.
constexpr int fetches_at_once = 16;

}  // namespace

receiver::receiver(node_state& node, worker& w, sender& out) : node_(node), worker_(w), out_(out) {
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
  set_handler(am::tensor, &on_message<tensor_header>);
  set_handler(am::bytes, &on_message<bytes_header>);
  set_handler(am::actor_message, &on_message<actor_message_header>);
  set_handler(am::disconnect, &on_disconnect);
}

template <class Header>
ucs_status_t receiver::on_message(void* arg, const void* header, std::size_t header_bytes,
                                  void* data, std::size_t bytes, const ucp_am_recv_param_t* how) {
  auto& self = *static_cast<receiver*>(arg);
  const auto h = decode<Header>(as_span(header, header_bytes));
  const bool is_announced = (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  auto what = disposition::drop;
  if (h)
    what = self.node_.core.arrived(*h, bytes, is_announced ? data : nullptr);
  else
    self.node_.core.arrived_undecodable();
  if (what == disposition::deliver) self.take(*h, as_span(data, bytes));
  self.node_.publish();
  // A kept descriptor stays valid until it is fetched or released.
  return what == disposition::keep ? UCS_INPROGRESS : UCS_OK;
}

ucs_status_t receiver::on_disconnect(void* arg, const void* header, std::size_t header_bytes, void*,
                                     std::size_t, const ucp_am_recv_param_t*) {
  auto& self = *static_cast<receiver*>(arg);
  const auto h = decode<disconnect_header>(as_span(header, header_bytes));
  chosen_link answer;
  if (h)
    answer = self.node_.core.arrived(*h);
  else
    self.node_.core.arrived_undecodable();
  self.node_.publish();
  if (answer.link != nullptr) self.out_.send_disconnect(h->from_node, true, answer);
  return UCS_OK;
}

bool receiver::begin_fetches() {
  bool any = false;
  for (int i = 0; i < fetches_at_once; ++i) {
    auto next = node_.core.next_fetch();
    if (!next) break;
    begin_fetch(*next);
    any = true;
  }
  if (any) node_.publish();
  return any;
}

tensor_buffer receiver::allocate_on_device(const any_header& any) const {
  const auto* const h = std::get_if<tensor_header>(&any);
  const auto& allocate = node_.calls.allocate;
  if (h == nullptr || !allocate || h->has_data_hash) return {};
  return allocate(h->message.to, h->sizes(), h->type);
}

void receiver::begin_fetch(fetch_order order) {
  const auto release = [&] { ucp_am_data_release(worker_.handle(), order.descriptor); };
  if (order.is_stale) return release();
  const auto bytes = std::visit([](const auto& h) { return h.data_bytes; }, order.header);
  auto on_device = allocate_on_device(order.header);
  auto into = on_device.defined() ? slab{} : node_.pool->take(bytes);
  auto* const target = on_device.defined() ? on_device.data : into.data();
  if (target == nullptr) {
    std::visit([&](const auto& h) { node_.core.delivered(h, delivery::no_memory); }, order.header);
    node_.core.fetched(order.header);
    return release();
  }
  auto f =
      std::make_unique<fetch>(fetch{this, order.header, std::move(into), std::move(on_device)});
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.cb.recv_am = &on_fetched;
  how.user_data = f.get();
  how.memory_type = memory_type_of(f->on_device);
  auto* const request =
      ucp_am_recv_data_nbx(worker_.handle(), order.descriptor, target, bytes, &how);
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
  auto& core = node_.core;
  const auto what = core.fetched(f->header, how == UCS_OK ? std::string{} : said(how));
  if (what == disposition::deliver && f->on_device.defined()) {
    const auto& h = std::get<tensor_header>(f->header);
    core.delivered(h, node_.sinks.deliver({h.message, std::move(f->on_device)}));
  } else if (what == disposition::deliver) {
    std::visit([&](const auto& h) { core.delivered(h, deliver(h, std::move(f->into))); },
               f->header);
  }
  node_.publish();
}

void receiver::take(const tensor_header& h, std::span<const std::byte> data) {
  auto copy = node_.pool->take(data.size());
  if (copy.data() == nullptr) return node_.core.delivered(h, delivery::no_memory);
  if (!data.empty()) std::memcpy(copy.data(), data.data(), data.size());
  node_.core.delivered(h, deliver(h, std::move(copy)));
}

void receiver::take(const bytes_header& h, std::span<const std::byte> data) {
  node_.core.delivered(h, put(h, data));
}

/// Counted as delivered even if it still waits for an earlier one.
void receiver::take(const actor_message_header& h, std::span<const std::byte> data) {
  auto& core = node_.core;
  if (!matches(h, data)) return core.delivered(h, delivery::damaged);
  for (const auto& message :
       core.in_order(h, {reinterpret_cast<const char*>(data.data()), data.size()})) {
    const auto& calls = node_.calls;
    const auto read = calls.read_actor_message
                          ? calls.read_actor_message(h.from_node, message)
                          : error{"no handler of actor messages is registered on this node"};
    if (!read) return core.delivered(h, delivery::garbled, read.message());
  }
  core.delivered(h, delivery::done);
}

delivery receiver::deliver(const tensor_header& h, slab data) {
  if (!matches(h, {data.data(), h.data_bytes})) return delivery::damaged;
  auto tensor = to_buffer(std::move(data), h.type, {h.sizes().begin(), h.sizes().end()});
  return node_.sinks.deliver({h.message, std::move(tensor)});
}

delivery receiver::deliver(const bytes_header& h, slab data) {
  const std::span<const std::byte> view{data.data(), h.data_bytes};
  return put(h, view, std::move(data));
}

delivery receiver::put(const bytes_header& h, std::span<const std::byte> data, slab holder) {
  if (!matches(h, data)) return delivery::damaged;
  const auto box = node_.exchange.mailbox(h.group, h.to);
  if (box != nullptr && h.closes)
    box->close({reinterpret_cast<const char*>(data.data()), data.size()});
  else if (box == nullptr || !box->arrive(h.from, h.tag, data, std::move(holder)))
    return delivery::full;
  return delivery::done;
}

void receiver::close() {
  for (auto* const descriptor : node_.core.close())
    ucp_am_data_release(worker_.handle(), descriptor);
  node_.publish();
}

}  // namespace rrfp::actors::ucx
