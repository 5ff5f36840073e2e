/// The UCX objects of a node: context, worker, endpoints. Owned and used by one thread, the
/// progress thread; errors of UCX become results here.
#pragma once

#include <memory>
#include <string>

#include <ucp/api/ucp.h>

#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/transport/ucx_transport.hpp>

namespace rrfp::actors::ucx {

/// Reads "UCX says "..."".
std::string said(ucs_status_t code);
/// Reads "WHAT: UCX says "..."".
error ucx_error(const std::string& what, ucs_status_t code);

/// The kind of memory of `t`; host for an undefined tensor. Without this hint UCX would ask the
/// driver for every buffer, or take every buffer for host memory.
inline ucs_memory_type_t memory_type_of(const tensor_buffer& t) {
  return t.on_host ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_CUDA;
}

class worker {
 public:
  /// Uses `tls`, `net_devices` and `keepalive` of the options.
  static result<worker> open(const ucx_options& options);

  ucp_worker_h handle() const { return worker_.get(); }
  /// Readable when an armed worker has work.
  int event_descriptor() const { return event_descriptor_; }
  /// Whether UCX was built to read and write memory of CUDA devices.
  bool takes_cuda() const { return takes_cuda_; }
  /// UCX's bytes with a prefix and a checksum, because UCX does not validate addresses.
  const std::string& address() const { return address_; }

  /// `failed(arg, endpoint, why)` is called inside ucp_worker_progress; the endpoint still has to
  /// be closed, outside.
  result<ucp_ep_h> connect(const std::string& address, ucp_err_handler_cb_t failed, void* arg);

 private:
  struct cleanup {
    void operator()(ucp_context_h c) const { ucp_cleanup(c); }
  };
  struct destroy {
    void operator()(ucp_worker_h w) const { ucp_worker_destroy(w); }
  };
  template <class Handle, class Deleter>
  using owned = std::unique_ptr<std::remove_pointer_t<Handle>, Deleter>;

  worker() = default;

  owned<ucp_context_h, cleanup> context_;
  owned<ucp_worker_h, destroy> worker_;
  int event_descriptor_ = -1;
  bool takes_cuda_ = false;
  std::string address_;
};

/// The transports of an endpoint: "posix/memory tcp/eth0".
std::string lanes_of(ucp_ep_h endpoint);

}  // namespace rrfp::actors::ucx
