#include "sender.hpp"

#include <utility>

namespace rrfp::actors::ucx {

void sender::send(tensor_send s) {
  if (!node_.core.number(s.to, s.header)) return;
  if (!node_.options.inject) return send_numbered(std::move(s));
  const auto f = node_.options.inject(s.header.message);
  if (f.corrupt) s.header.data_hash ^= 1;
  for (std::uint32_t i = 0; i < f.duplicates; ++i) send_numbered(s);
  if (f.drop) return;
  if (f.delay.count() > 0) return held_.push({clock::now() + f.delay, held_count_++, std::move(s)});
  send_numbered(std::move(s));
}

void sender::send(bytes_send s) {
  auto o = take(am::bytes, s.to);
  node_.core.stamp(s.header);
  o->header_bytes = encode(s.header, o->header);
  o->bytes = std::move(s.data);
  o->data = o->bytes.data();
  o->data_bytes = s.header.data_bytes;
  hand_over(std::move(o), node_.core.link_for(s.to, s.header));
}

void sender::send(actor_message_send s) {
  actor_message_header h;
  h.data_bytes = s.data.size();
  h.has_data_hash = node_.options.checksum_data;
  if (h.has_data_hash) h.data_hash = hash_of(std::as_bytes(std::span{s.data}));
  if (!node_.core.number(s.to, h)) return;
  auto o = take(am::actor_message, s.to);
  o->header_bytes = encode(h, o->header);
  o->message = std::move(s.data);
  o->data = o->message.data();
  o->data_bytes = h.data_bytes;
  hand_over(std::move(o), node_.core.link_for(s.to, h));
}

void sender::send_disconnect(node_id to, bool is_answer, chosen_link by) {
  auto o = take(am::disconnect, to);
  disconnect_header h;
  node_.core.stamp(h);
  h.is_answer = is_answer;
  o->header_bytes = encode(h, o->header);
  hand_over(std::move(o), by);
}

bool sender::send_due() {
  bool any = false;
  while (!held_.empty() && held_.top().due <= clock::now()) {
    send_numbered(held_.top().message);
    held_.pop();
    any = true;
  }
  return any;
}

sender::clock::time_point sender::next_due() const {
  return held_.empty() ? clock::time_point::max() : held_.top().due;
}

void sender::send_numbered(tensor_send s) {
  auto o = take(am::tensor, s.to);
  o->header_bytes = encode(s.header, o->header);
  o->data = s.tensor.data;
  o->data_bytes = s.header.data_bytes;
  o->tensor = std::move(s.tensor);
  hand_over(std::move(o), node_.core.link_for(s.to, s.header));
}

std::unique_ptr<sender::outgoing> sender::take(am kind, node_id to) {
  auto o = spare_ ? std::move(spare_) : std::make_unique<outgoing>();
  o->owner = this;
  o->kind = kind;
  o->to = to;
  return o;
}

void sender::hand_over(std::unique_ptr<outgoing> o, chosen_link by) {
  node_.publish();
  if (by.link == nullptr) return;
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.cb.send = &on_sent;
  how.user_data = o.get();
  how.flags = by.is_announced ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  how.memory_type = memory_type_of(o->tensor);
  auto* const endpoint = static_cast<peer_link*>(by.link)->endpoint;
  auto* const request = ucp_am_send_nbx(endpoint, static_cast<unsigned>(o->kind), o->header.data(),
                                        o->header_bytes, o->data, o->data_bytes, &how);
  if (UCS_PTR_IS_PTR(request)) {
    ++pending_;
    static_cast<void>(o.release());  // on_sent takes it back
    return;
  }
  done(std::move(o), UCS_PTR_STATUS(request));
}

void sender::done(std::unique_ptr<outgoing> o, ucs_status_t how) {
  if (how != UCS_OK) node_.core.fail(o->to, ucx_error("sending to it failed", how).message);
  o->tensor = {};
  o->bytes = {};
  o->message.clear();
  o->data = nullptr;
  o->data_bytes = 0;
  spare_ = std::move(o);
}

void sender::on_sent(void* request, ucs_status_t how, void* arg) {
  std::unique_ptr<outgoing> o{static_cast<outgoing*>(arg)};
  ucp_request_free(request);
  auto& self = *o->owner;
  --self.pending_;
  self.done(std::move(o), how);
}

}  // namespace rrfp::actors::ucx
