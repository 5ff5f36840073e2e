#include "sender.hpp"

#include <utility>

#include "dtype_codes.hpp"

namespace rrfp::actors::ucx {

tensor_header sender::header_of(const tensor_send& s) {
  const auto& options = node_.options;
  tensor_header h;
  h.job_token = options.job_token;
  h.epoch = options.epoch;
  h.from_node = options.node;
  h.sequence = sequences_[{s.m.header.from, s.m.header.to}]++;
  h.message = s.m.header;
  h.dtype = *wire_dtype_of(s.m.tensor.scalar_type());
  h.dims = static_cast<std::uint8_t>(s.m.tensor.dim());
  std::copy_n(s.m.tensor.sizes().begin(), h.dims, h.shape.begin());
  h.data_bytes = s.m.tensor.nbytes();
  // The host does not hash data in device memory.
  h.has_data_hash = options.checksum_data && s.m.tensor.is_cpu();
  h.data_hash = s.data_hash;
  return h;
}

void sender::send(tensor_send s) {
  if (s.m.tensor.nbytes() > node_.options.message_bytes_max)
    return peers_.fail(s.to, "a message of " + std::to_string(s.m.tensor.nbytes()) +
                                 " bytes to it exceeds message_bytes_max, " +
                                 std::to_string(node_.options.message_bytes_max));
  auto header = header_of(s);
  if (!node_.options.inject) return send_tensor(s.to, header, std::move(s.m.tensor));
  const auto f = node_.options.inject(s.m.header);
  if (f.corrupt) header.data_hash ^= 1;
  for (std::uint32_t i = 0; i < f.duplicates; ++i) send_tensor(s.to, header, s.m.tensor);
  if (f.drop) return;
  if (f.delay.count() > 0)
    return held_.push({clock::now() + f.delay, held_count_++, header, s.to, s.m.tensor});
  send_tensor(s.to, header, std::move(s.m.tensor));
}

void sender::send(bytes_send s) {
  auto o = take(am::bytes, s.to);
  s.header.job_token = node_.options.job_token;
  s.header.epoch = node_.options.epoch;
  s.header.from_node = node_.options.node;
  o->header_bytes = encode(s.header, o->header);
  o->bytes = std::move(s.data);
  o->data = o->bytes.data();
  o->data_bytes = s.header.data_bytes;
  hand_over(std::move(o));
}

void sender::send_farewell(node_id to, bool is_answer) {
  auto o = take(am::farewell, to);
  o->header_bytes = encode(
      farewell_header{node_.options.job_token, node_.options.epoch, node_.options.node, is_answer},
      o->header);
  hand_over(std::move(o));
}

bool sender::send_due() {
  bool any = false;
  while (!held_.empty() && held_.top().due <= clock::now()) {
    const auto& h = held_.top();
    send_tensor(h.to, h.header, h.tensor);
    held_.pop();
    any = true;
  }
  return any;
}

sender::clock::time_point sender::next_due() const {
  return held_.empty() ? clock::time_point::max() : held_.top().due;
}

void sender::send_tensor(node_id to, const tensor_header& header, at::Tensor tensor) {
  auto o = take(am::tensor, to);
  o->header_bytes = encode(header, o->header);
  o->data = tensor.const_data_ptr();
  o->data_bytes = header.data_bytes;
  o->tensor = std::move(tensor);
  hand_over(std::move(o));
}

std::unique_ptr<sender::outgoing> sender::take(am kind, node_id to) {
  auto o = spare_ ? std::move(spare_) : std::make_unique<outgoing>();
  o->owner = this;
  o->kind = kind;
  o->to = to;
  return o;
}

void sender::hand_over(std::unique_ptr<outgoing> o) {
  const auto endpoint = peers_.endpoint(o->to);
  if (endpoint == nullptr) {
    live_counters::add(node_.counters.dropped_unreachable);
    return;
  }
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.cb.send = &on_sent;
  how.user_data = o.get();
  how.flags = o->data_bytes <= node_.options.eager_bytes_max ? UCP_AM_SEND_FLAG_EAGER
                                                             : UCP_AM_SEND_FLAG_RNDV;
  how.memory_type = memory_type_of(o->tensor);
  if (o->kind != am::farewell) {
    live_counters::add(node_.counters.sent);
    live_counters::add(node_.counters.sent_bytes, o->data_bytes);
  }
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
  if (how != UCS_OK) peers_.fail(o->to, ucx_error("sending to it failed", how).message);
  o->tensor.reset();
  o->bytes = {};
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
